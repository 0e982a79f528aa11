"""Read JSON files of any schema version and convert them to the current version.

Changes to cases (`spec.json`): schema 1 had no `placement`; its content was in `parallel` and `host`. Schema
2 had no `work` and no `monitor`: their parts were stored separately. Schema 3 divided the recipe into blocks
differently. Schema 4 did not record the weights' precision, which was always fp32.

>>> upgrade_case({"schema_version": 1, "host": "a", "parallel": {"nodes": 2, "nproc": 4}})["placement"]
{'hosts': ['a'], 'num_hosts': 2, 'ranks_per_host': 4}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuproof.base.errors import RecordError
from gpuproof.base.files import read_plain
from gpuproof.readings.parsing import fast_json
from gpuproof.records.case import CASE_SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedHost:
    """The part of a host's description that readers of a run need."""

    name: str
    gpus: int | None = None
    gpu_type: str | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedHosts:
    """The hosts of a run."""

    hosts: tuple[DescribedHost, ...] = ()
    currency: str = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedRun:
    """The part of run.json that every reader relies on; the file contains more."""

    run_id: str
    created: str
    gpuproof_version: str
    commit_hash: str | None
    source: str
    origins: Mapping[str, str]
    config: Mapping[str, Any]
    fleet: DescribedHosts | None = None

    def __post_init__(self) -> None:
        """Reject an invalid time."""
        datetime.fromisoformat(self.created)


def read_versioned(path: Path, what: str, *, newest: int) -> dict[str, Any]:
    """Read a JSON object with a schema version.

    Raises:
        RecordError: the object is damaged or its schema is newer than `newest`.
    """
    data = read_json(path)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(version, int):
        raise RecordError(f"not {what}: it has no schema_version", place=str(path))
    if version > newest:
        raise RecordError(
            f"schema version {version}, but this gpuproof supports up to {newest}",
            place=str(path),
            next_step="Read it with the gpuproof version that wrote it, or a newer one",
        )
    return data


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        RecordError: the file is damaged.
    """
    try:
        return fast_json(read_plain(path))
    except ValueError as error:
        step = "It was truncated or changed: `gpuproof runs` lists the runs"
        raise RecordError(f"cannot be read ({error})", place=str(path), next_step=step) from error
    except OSError as error:
        raise RecordError(f"cannot be read ({error.strerror})", place=str(path)) from error


_PROFILING = {"enabled": "profile", "ceilings": "ceilings", "breakdown": "breakdown"}
_COMPILING = {key: f"compile_{key}" for key in ("enabled", "mode", "fullgraph", "dynamic")}
_FRAMEWORK = {"framework": "name", "reduction": "reduction"}
OLDER_INFERENCE = {"weights": "fp32", "cuda_graphs": False}
"""Values used before recipes could specify them."""
_NULL = ("pruning", "spam", "target_precision")
"""Keys that were null in schema 3 if not requested, but have defaults in a recipe's block."""


def upgrade_case(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a case from an older schema, as JSON, to the current schema; return others unchanged."""
    if data.get("schema_version") == 1:
        data = _add_placement(data)
    if data.get("schema_version") == 2:  # a schema
        data = _add_work(data)
    if data.get("schema_version") == 3:  # a schema
        data = _add_blocks(data)
    return _add_weights(data) if data.get("schema_version") == 4 else data


def _add_placement(data: Mapping[str, Any]) -> Mapping[str, Any]:
    parallel, host = data.get("parallel"), data.get("host")
    names = {"nodes": "num_hosts", "nproc": "ranks_per_host", "device": "device", "devices": "devices"}
    placement: dict[str, Any] = {"hosts": [] if host is None else [host]}
    if isinstance(parallel, Mapping):
        placement |= {new: parallel[old] for old, new in names.items() if old in parallel}
    return {**data, "schema_version": 2, "placement": placement}


def _add_work(data: Mapping[str, Any]) -> Mapping[str, Any]:
    names = ("kind", "model", "data", "training", "window", "parallel", "inference", "serving")
    work = {name: data[name] for name in names if name in data}
    training, window = data.get("training"), data.get("window")
    if isinstance(training, Mapping):  # the old section was split into three; a reader ignores the other keys
        work["compute"] = training
        if isinstance(window, Mapping) and "epochs" in training:
            work["window"] = {**window, "epochs": training["epochs"]}
    interval_s, host_interval_s = data.get("monitor_interval_s"), data.get("monitor_host_interval_s")
    monitor = {"interval_s": interval_s, "host_interval_s": host_interval_s}
    return {
        **{name: value for name, value in data.items() if name not in work},
        "schema_version": 3,
        "monitor": None if interval_s is None else monitor,
        "work": work,
    }


def _add_blocks(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a case with the recipe's blocks in its work, without separate shapes."""
    if not isinstance(data.get("work"), Mapping):
        return {**data, "schema_version": 4}  # a reader will report that it is not a case
    work = dict(data["work"])
    match work:
        case {"collective": {"sizes_bytes": sizes} as collective}:
            work["collective"] = {**collective, **_range_of(sizes)}
        case {"probe": {"kind": str(name)} as probe}:
            work["probe"] = {"name": name, name: {**probe, **_range_of(probe.get("sizes_bytes"))}}
        case {"serving": dict(serving)}:
            work["arrival_seed"] = serving.get("arrival_seed")
            if serving.get("endpoint") is None:
                work["serving"] = {key: value for key, value in serving.items() if key != "endpoint"}
        case _:
            pass
    if "compute" in work:
        work |= {**_add_training(work), **_add_data(work.get("data"))}
    return {**data, "schema_version": 4, "work": work}


def _add_weights(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a case that records its weights as stored in fp32, which was once the only option."""
    work = data.get("work")
    if isinstance(work, Mapping) and work.get("kind") in ("inference", "serving"):
        inference = work.get("inference") or {}
        if isinstance(inference, Mapping):  # otherwise a reader will report what is wrong
            work = {**work, "inference": {**OLDER_INFERENCE, **inference}}
    return {**data, "schema_version": CASE_SCHEMA_VERSION, "work": work}


def _add_training(work: Mapping[str, Any]) -> dict[str, Any]:
    """Return `training`, `window`, `profiling` and `parallel` of work that split them differently.

    Returns nothing if the work block is damaged; the reader reports the missing parts.
    """
    blocks: list[Any] = [
        work.get("compute"),
        work.get("training", {}),
        work.get("window"),
        work.get("parallel"),
    ]
    if not all(isinstance(block, Mapping) for block in blocks):
        return {}
    compute, of_training, window, parallel = blocks
    training = {**compute, **of_training}
    compiling = {key: training[old] for key, old in _COMPILING.items() if old in training}
    framework = training.pop("framework", None)
    if isinstance(framework, Mapping):
        training |= {key: framework[old] for key, old in _FRAMEWORK.items() if old in framework}
        if framework.get("name") == "tensorflow":
            parallel = {**parallel, "nproc": framework.get("num_replicas")}
    profiling = {key: window[old] for key, old in _PROFILING.items() if old in window}
    training |= {"compile": compiling, **({"epochs": window["epochs"]} if "epochs" in window else {})}
    if not window.get("min_steps"):
        window = {key: value for key, value in window.items() if key != "min_steps"}
    return {
        "training": {k: v for k, v in training.items() if v is not None or k not in _NULL},
        "window": {k: v for k, v in window.items() if v is not None or k not in _NULL},
        "profiling": profiling,
        "parallel": parallel,
    }


def _add_data(data: Any) -> dict[str, Any]:
    """Return the data block, including its loader and download keys, and the file next to it."""
    if not isinstance(data, Mapping):
        return {}
    loader, download = data.get("loader"), data.get("download")
    block = {**data, **(loader if isinstance(loader, Mapping) else {}), "download": download is not None}
    if isinstance(download, Mapping):
        block |= {f"download_{key}": download[key] for key in ("url", "checksum") if key in download}
    return {"data": block, "data_file": data.get("file")}


def _range_of(sizes: Any) -> dict[str, int]:
    """Return the range that the sizes came from; 0 (for invalid sizes) is rejected later."""
    if sizes is None:
        return {}
    if not (isinstance(sizes, list) and sizes and all(type(size) is int and size > 0 for size in sizes)):
        return {"min_bytes": 0}
    factor = sizes[1] // sizes[0] if len(sizes) > 1 else 2
    return {"min_bytes": sizes[0], "max_bytes": sizes[-1], "factor": factor}
