"""The files of a scaling study in S2's form: JSON for one device, JSON for several, and the report."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from gpuproof.analysis.points import PointFigures
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import from_json
from gpuproof.statistics.estimate import Interval
from gpuproof.statistics.launches import interval_of_launches
from gpuproof.suites.base import Export
from gpuproof.suites.exports import json_export
from gpuproof.suites.sections import Common

if TYPE_CHECKING:
    from gpuproof.suites.points.results import PointResult
    from gpuproof.suites.scale.conclude import ScaleDetail, ScaleRow

MIB_BYTES = 2**20
NO_COMMUNICATION = "one device talks to no other"
NOT_SEPARATED = "communication was not traced (profiling.enabled is false)"


def scale_exports(evidence: Evidence, detail: ScaleDetail, points: Sequence[PointResult]) -> Iterator[Export]:
    """Yield the files; one for several devices only where some were measured."""
    model, results = evidence.config.model.name, {found.point.case_id: found for found in points}
    sides = {
        "single": [row for row in detail.rows if row.num_devices == 1],
        "multi": [row for row in detail.rows if row.num_devices > 1],
    }
    for side, rows in sides.items():
        if rows:
            records = [_batch(row, results[row.figures.case_id], detail) for row in rows]
            yield json_export(f"benchmark_{model}_{side}_gpu.json", records)
    if sides["multi"] and sides["single"]:
        yield Export(
            name=f"comparison_report_{model}.md", content=_report(model, detail, evidence.description)
        )


def _batch(row: ScaleRow, found: PointResult, detail: ScaleDetail) -> dict[str, Any]:
    """Return one batch size on one number of devices, as S2 writes it, and what it leaves out."""
    rates = [launch.value for launch in row.figures.launches]
    interval = interval_of_launches(rates)
    memory, utilization = _memory_mb(found), _utilization(found)
    return {
        "batch_size": row.batch_size,
        "model_type": row.figures.model,
        "multi_gpu": row.num_devices > 1,
        "num_devices": row.num_devices,
        "scaling": row.law,
        "samples_per_device": found.point.config.data.batch_size,
        "num_runs": len(rates),
        "mean_samples_per_sec": _mean_rate(row),
        "std_samples_per_sec": stdev(rates) if len(rates) > 1 else None,
        "confidence_interval_95": [interval.low, interval.high] if isinstance(interval, Interval) else None,
        "confidence_interval_missing": None if isinstance(interval, Interval) else interval.reason,
        "mean_memory_mb": _mean(memory.values()),
        "mean_gpu_utilization": _mean(utilization.values()),
        "mean_communication_ms": found.summary.get("comm_exposed_ms"),
        "communication_missing": NO_COMMUNICATION if row.num_devices == 1 else _why_no_communication(found),
        "model_parameters": detail.num_parameters,
        "outlier_runs": [replicate + 1 for replicate in row.outlier_launches],
        "validity": row.figures.validity,
        "detailed_runs": _runs(row.figures, memory, utilization, detail),
    }


def _why_no_communication(found: PointResult) -> str | None:
    if found.summary.get("comm_exposed_ms") is not None:
        return None
    missing = found.summary.get("communication_missing") or {}
    return str(missing.get("comm_exposed_ms", NOT_SEPARATED))


def _runs(
    figures: PointFigures,
    memory_mb: Mapping[int, float],
    utilization: Mapping[int, float],
    detail: ScaleDetail,
) -> list[dict[str, Any]]:
    return [
        {
            "run": launch.replicate + 1,
            "order": launch.order,
            "samples_per_second": launch.value,
            "memory_usage_mb": memory_mb.get(launch.replicate),
            "gpu_utilization": utilization.get(launch.replicate),
            "communication_time_ms": None,
            "model_parameters": detail.num_parameters,
        }
        for launch in figures.launches
    ]


def _memory_mb(found: PointResult) -> dict[int, float]:
    """Return the highest peak of a rank in each launch, where every rank's is known, in MiB as S2 counts."""
    peaks = {
        launch.case.replicate: [window.peak_allocated_bytes for window in launch.windows]
        for launch in found.launches
    }
    return {
        replicate: max(known) / MIB_BYTES
        for replicate, of_ranks in peaks.items()
        if len(known := [peak for peak in of_ranks if peak is not None]) == len(of_ranks)
    }


def _utilization(found: PointResult) -> dict[int, float]:
    """Return the mean utilisation of the devices in each launch's window, in per cent."""
    by_launch: dict[int, list[float]] = {}
    for device in from_json(Common, found.result.detail["common"]).devices:
        if device.util_gpu_percent is not None:
            by_launch.setdefault(device.replicate, []).append(device.util_gpu_percent)
    return {replicate: fmean(values) for replicate, values in by_launch.items()}


def _mean(values: Collection[float]) -> float | None:
    return fmean(values) if values else None


def _report(model: str, detail: ScaleDetail, description: Mapping[str, Any]) -> str:
    """Write S2's comparison report; speed-ups stand with their intervals."""
    lines = [
        f"# Multi-GPU Performance Comparison: {model}",
        "",
        f"Generated: {description['created']}",
    ]
    for average in detail.averages:
        ratio = average.speed_up.comparison.ratio
        lines += ["", f"## {average.num_devices} GPUs, {average.law} scaling", "", *_rows(detail, average)]
        if ratio is not None:
            lines += ["", f"Average speedup: {ratio.centre:.2f}x ({ratio.low:.2f}x - {ratio.high:.2f}x)"]
        lines += ["", f"**Conclusion**: {average.conclusion}"]
    if detail.rule_of_thumb is not None:
        lines += ["", f"Heuristic, not measured here: {detail.rule_of_thumb.reason}"]
    return "\n".join([*lines, "", "Validate over multiple runs before a decision.", ""])


def _rows(detail: ScaleDetail, average: Any) -> Iterator[str]:
    yield "| Batch Size | Single GPU (samples/s) | Multi-GPU (samples/s) | Speedup | Recommendation |"
    yield "|---|---|---|---|---|"
    alone = {row.batch_size: _mean_rate(row) for row in detail.rows if row.num_devices == 1}
    for row in detail.rows:
        if (row.num_devices, row.law) != (average.num_devices, average.law) or row.speed_up is None:
            continue
        ratio = row.speed_up.comparison.ratio
        told = "–" if ratio is None else f"{ratio.centre:.2f}x ({ratio.low:.2f}x - {ratio.high:.2f}x)"
        single, several = alone.get(row.batch_size), _mean_rate(row)
        yield (
            f"| {row.batch_size} | {_rate(single)} | {_rate(several)} | {told} | "
            f"{row.speed_up.recommendation} |"
        )


def _mean_rate(row: ScaleRow) -> float | None:
    rates = [launch.value for launch in row.figures.launches]
    return fmean(rates) if rates else None


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"
