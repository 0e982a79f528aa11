"""A validation's output for other tools: validation_result.json, and the nodes to drain.

validation_result.json describes the training test with exactly the keys that cluster tests (S3) use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from gpuproof.config.settings import COMMAND_LINE, OVERRIDES
from gpuproof.records.codec import from_json, to_json
from gpuproof.suites.base import Export
from gpuproof.suites.results import json_export
from gpuproof.suites.sections import Common
from gpuproof.suites.validate.measured import StageResult
from gpuproof.suites.validate.nodes import NodeToDrain, drain_lines

DRAIN_FILE = "drain"
VALIDATION_FILE = "validation_result.json"
ALONE = "one rank does not communicate with others"
TRAINS = ("training", "soak")
"""Stages that use the recipe's model sections."""
STEPS = "benchmark.measure_steps"
OF_A_MODEL = ("model.", "data.", "training.", "benchmark.")
NOT_SEPARATED = "no trace separates communication from computation (profiling.enabled=true does)"


def validation_export(results: Sequence[StageResult]) -> Export | None:
    """Return the file that describes training over all devices; None if it measured nothing."""
    training = next((x for x in results if x.case.name == "training" and x.summaries), None)
    return None if training is None else json_export(VALIDATION_FILE, _content(training))


def notes_of_training(
    results: Sequence[StageResult], stages: Collection[str], origins: Mapping[str, str]
) -> Iterator[str]:
    """Yield notes about training across all devices, or about its absence.

    The notes explain each null in validation_result.json, or why there is no such file. They also list
    command-line keys that had no effect because no stage trains.
    """
    training = next((x for x in results if x.case.name == "training" and x.summaries), None)
    if training is not None:
        yield from _nulls_of(training)
    else:
        why = "which measured nothing" if "training" in stages else "which is not a stage of this validation"
        yield f"{VALIDATION_FILE} is not written: it covers the training over all devices, {why}"
    asked_for = [key for key, at in origins.items() if at in (COMMAND_LINE, OVERRIDES)]
    model_keys = [key for key in asked_for if key.startswith(OF_A_MODEL)]
    if model_keys and not set(stages) & set(TRAINS):
        yield f"ignored, since no stage trains a model: {', '.join(model_keys)}"
    elif STEPS in model_keys and "training" not in stages:
        yield f"ignored, since a soak is measured by time: {STEPS}"


def drain_exports(nodes: Sequence[NodeToDrain], *, no_hardware: str | None) -> Iterator[Export]:
    """Yield the nodes to drain as JSON and as Slurm commands; none if no node failed."""
    if nodes:
        yield json_export(f"{DRAIN_FILE}.json", {"no_hardware": no_hardware, "nodes": to_json(nodes)})
        remarks = ["# gpuproof drains nothing: check each node, and run the commands you agree with."]
        remarks += [] if no_hardware is None else [f"# {no_hardware}"]
        yield Export(name=f"{DRAIN_FILE}.txt", content="\n".join([*remarks, *drain_lines(nodes), ""]))


def _nulls_of(training: StageResult) -> Iterator[str]:
    """Yield the reason for each null value in the file."""
    content, is_alone = _content(training), training.summaries[0].world_size == 1
    reported = (training.summary.get("communication_missing") or {}).get("comm_exposed_ms")
    reasons = {
        "nccl_overhead_ms": ALONE if is_alone else str(reported or NOT_SEPARATED),
        "gpu_utilization_pct": "no device reported its utilisation",
        "backend": ALONE,
    }
    for name, why in reasons.items():
        if content[name] is None:
            yield f"{VALIDATION_FILE}: {name} is null: {why}"


def _content(training: StageResult) -> dict[str, Any]:
    summary, launch = training.summary, training.summaries[0]
    return {
        "model": training.config.model.name,
        "world_size": launch.world_size,
        "batch_size_per_gpu": training.config.data.batch_size,
        "global_batch_size": launch.samples_per_step_total,
        "avg_step_time_ms": summary.get("mean_step_ms"),
        "throughput_samples_per_second": summary.get("throughput_samples_per_s"),
        "nccl_overhead_ms": summary.get("comm_exposed_ms"),
        "gpu_utilization_pct": _utilization(training),
        "backend": launch.setup.backend,
    }


def _utilization(training: StageResult) -> float | None:
    """Return the mean over all devices and launches; None if no device reported the value."""
    assert training.result is not None
    read = from_json(Common, training.result.detail["common"]).devices
    values = [row.util_gpu_percent for row in read if row.util_gpu_percent is not None]
    return fmean(values) if values else None
