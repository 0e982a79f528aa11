"""Cases that older versions wrote: `spec.json` of schema 1 and 2, brought to the present one as JSON.

Schema 1 had no `placement`: what it says lay in `parallel` and in `host`. Schema 2 had no `work` and no `monitor`:
the parts of both lay beside each other, and one section, `training`, was what is now three.

>>> upgraded({"schema_version": 1, "host": "a", "parallel": {"nodes": 2, "nproc": 4}})["placement"]
{'hosts': ['a'], 'num_hosts': 2, 'ranks_per_host': 4}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuproof.records.case import CASE_SCHEMA_VERSION


def upgraded(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a case of an older schema, as JSON, in the present one; others as they are."""
    if data.get("schema_version") == 1:
        data = _with_placement(data)
    return _with_work(data) if data.get("schema_version") == 2 else data  # a schema


def _with_placement(data: Mapping[str, Any]) -> Mapping[str, Any]:
    parallel, host = data.get("parallel"), data.get("host")
    names = {"nodes": "num_hosts", "nproc": "ranks_per_host", "device": "device", "devices": "devices"}
    placement: dict[str, Any] = {"hosts": [] if host is None else [host]}
    if isinstance(parallel, Mapping):
        placement |= {new: parallel[old] for old, new in names.items() if old in parallel}
    return {**data, "schema_version": 2, "placement": placement}


def _with_work(data: Mapping[str, Any]) -> Mapping[str, Any]:
    names = ("kind", "model", "data", "training", "window", "parallel", "inference", "serving")
    work = {name: data[name] for name in names if name in data}
    training, window = data.get("training"), data.get("window")
    if isinstance(training, Mapping):  # one section was what is now three; a reader ignores other keys
        work["compute"] = training
        if isinstance(window, Mapping) and "epochs" in training:
            work["window"] = {**window, "epochs": training["epochs"]}
    interval_s, host_interval_s = data.get("monitor_interval_s"), data.get("monitor_host_interval_s")
    monitor = {"interval_s": interval_s, "host_interval_s": host_interval_s}
    return {
        **{name: value for name, value in data.items() if name not in work},
        "schema_version": CASE_SCHEMA_VERSION,
        "monitor": None if interval_s is None else monitor,
        "work": work,
    }
