"""Files of a scaling study in S2's format: JSON for one device, JSON for several, and the report."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean, geometric_mean, median, stdev
from typing import TYPE_CHECKING, Any

from gpuproof.launches.communication import AcrossLaunches, sync_difference_s
from gpuproof.launches.launch import Launch
from gpuproof.launches.point_measures import PointMeasures
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import from_json
from gpuproof.records.result import A_THROUGHPUT, Result, weakening
from gpuproof.statistics.estimate import Interval
from gpuproof.statistics.launches import interval_of_rates
from gpuproof.suites.base import Export
from gpuproof.suites.results import json_export
from gpuproof.suites.scale.breakdown import WAYS, PointBreakdown
from gpuproof.suites.scale.curves import fabric_of
from gpuproof.suites.sections import Common, DeviceDuring, notes_of_setup

if TYPE_CHECKING:
    from gpuproof.suites.points.results import PointResult
    from gpuproof.suites.scale.conclude import ScaleRow, ScaleStudy

MIB_BYTES = 2**20
MS_PER_S = 1e3
NOT_LOOKED = "steps of this run were not broken down (scale.breakdown_runs)"
NO_COUNT = "torch does not count memory on this type of device"
COMMUNICATION_IS = (
    "sync_difference_ms: a step with gradient averaging minus a step without it, minus the same difference "
    "in a group of one; the other values answer different questions, and are not added to it"
)
"""Name of the measure that is used as S2's single communication value."""


def scale_exports(
    evidence: Evidence, study: ScaleStudy, points: Sequence[PointResult], result: Result
) -> Iterator[Export]:
    """Yield the files; the file for several devices only if several were measured."""
    model, results = evidence.config.model.name, {point.point.case_id: point for point in points}
    sides = {
        "single": [row for row in study.rows if row.num_devices == 1],
        "multi": [row for row in study.rows if row.num_devices > 1],
    }
    for side, rows in sides.items():
        if rows:
            records = [_batch(row, results[row.figures.case_id], study) for row in rows]
            yield json_export(f"benchmark_{model}_{side}_gpu.json", records)
    if sides["multi"] and sides["single"]:
        launches = [launch for point in points for launch in point.launches]
        report = _report(model, study, result, evidence.description["created"], launches)
        yield Export(name=f"comparison_report_{model}.md", content=report)


def _batch(row: ScaleRow, point: PointResult, study: ScaleStudy) -> dict[str, Any]:
    """Return the results for one batch size and device count, in S2's form, plus values S2 omits."""
    rates = [launch.value for launch in row.figures.launches]
    interval = interval_of_rates(rates)
    memory, utilization = _memory_mb(point), _utilization(point)
    return {
        "batch_size": row.batch_size,
        "model_type": row.figures.model,
        "multi_gpu": row.num_devices > 1,
        "num_devices": row.num_devices,
        "num_hosts": fabric_of(point.launches).num_hosts,
        "scaling": row.law,
        "samples_per_device": point.point.config.data.batch_size,
        "num_runs": len(rates),
        "mean_samples_per_sec": _mean(rates),
        "std_samples_per_sec": stdev(rates) if len(rates) > 1 else None,
        "confidence_interval_95": [interval.low, interval.high] if isinstance(interval, Interval) else None,
        "confidence_interval_missing": None if isinstance(interval, Interval) else interval.reason,
        "mean_memory_mb": _mean(memory.values()),
        "mean_gpu_utilization": _mean(utilization.values()),
        **_communication(row, study),
        "model_parameters": study.num_parameters,
        **_framework(point),
        "outlier_runs": [replicate + 1 for replicate in row.outlier_launches],
        "validity": row.figures.validity,
        "detailed_runs": _runs(row.figures, memory, utilization, point, study),
    }


def _framework(point: PointResult) -> dict[str, Any]:
    """Return the framework, if it is not torch, and how gradients were summed."""
    replicas = next((launch.setup.replicas for launch in point.launches), None)
    return {} if replicas is None else {"framework": replicas.framework, "reduction": replicas.reduction}


def _communication(row: ScaleRow, study: ScaleStudy) -> dict[str, Any]:
    """Return a step's communication: null on one device, otherwise each measure under its own name."""
    measured = next((point for point in study.apart if point.case_id == row.figures.case_id), None)
    if measured is None:
        return {"mean_communication_ms": None, "communication_missing": "nothing was measured"}
    figures = {way: getattr(measured.communication, way) for way, _ in WAYS}
    chosen: AcrossLaunches = figures["sync_difference"]
    return {
        "mean_communication_ms": _ms(chosen.mean_s),
        "communication_missing": None if chosen.values_s else chosen.missing,
        "communication_is": COMMUNICATION_IS,
        "communication": {f"{way}_ms": _value(figure) for way, figure in figures.items()},
        "bucket_bytes": list(measured.communication.bucket_bytes),
        "phases_ms": _phases(measured),
    }


def _value(figure: AcrossLaunches) -> dict[str, Any]:
    interval = figure.interval
    return {
        "mean": _ms(figure.mean_s),
        "confidence_interval_95": None if interval is None else [_ms(interval.low), _ms(interval.high)],
        "missing": figure.missing,
    }


def _phases(measured: PointBreakdown) -> dict[str, Any]:
    if measured.phases is None:
        return {"missing": measured.phases_missing}
    parts = {name.replace(" ", "_"): _ms(value) for name, value in measured.phases.parts_s.items()}
    if measured.phases.communication_s is None:
        parts["communication"] = None
    residual = {"residual": _ms(measured.phases.residual_s)}
    return {**parts, **residual, "communication_missing": measured.phases.communication_missing}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MS_PER_S


def _runs(
    figures: PointMeasures,
    memory_mb: Mapping[int, float],
    utilization: Mapping[int, float],
    point: PointResult,
    study: ScaleStudy,
) -> list[dict[str, Any]]:
    talked_s = {launch.case.replicate: sync_difference_s(launch) for launch in point.launches}
    measured = {launch.case.replicate: launch for launch in point.launches}
    devices: dict[int, list[DeviceDuring]] = {}
    for device in from_json(Common, point.result.detail["common"]).devices:
        devices.setdefault(device.replicate, []).append(device)
    return [
        {
            "run": launch.replicate + 1,
            "order": launch.order,
            "samples_per_second": launch.value,
            "memory_usage_mb": memory_mb.get(launch.replicate),
            "gpu_utilization": utilization.get(launch.replicate),
            "communication_time_ms": _ms(talked_s.get(launch.replicate)),
            **_launch_json(measured[launch.replicate], devices.get(launch.replicate, [])),
            "model_parameters": study.num_parameters,
        }
        for launch in figures.launches
    ]


def _launch_json(launch: Launch, devices: Sequence[DeviceDuring]) -> dict[str, Any]:
    """Return other facts about one run: its steps, its devices, and the location of its records."""
    return {
        "num_steps": launch.slowest.num_steps,
        "training_time_ms": _ms(launch.slowest.wall_s),
        "mean_step_ms": _ms(launch.mean_step_s),
        "median_step_ms": _ms(median(launch.step_times_s) if launch.step_times_s else None),
        **_errors(launch),
        "step_memory_mb": _step_memory_mb(launch),
        "clock": launch.slowest.clock,
        "power_w": _mean([x.power_w for x in devices if x.power_w is not None]),
        "sm_clock_mhz": _mean([x.clock_sm_mhz for x in devices if x.clock_sm_mhz is not None]),
        "hottest_c": max((x.temp_gpu_max_c for x in devices if x.temp_gpu_max_c is not None), default=None),
        "records": f"cases/{launch.case.case_id}/{launch.case.replicate}",
    }


def _errors(launch: Launch) -> dict[str, float | None]:
    """Return the regression errors after the window, averaged over ranks; null for classification."""
    losses, errors = (
        [value for x in launch.evaluations if (value := getattr(x, name)) is not None and not x.is_held_out]
        for name in ("mean_loss", "mean_absolute_error")
    )
    return {"mean_squared_error": _mean(losses if errors else ()), "mean_absolute_error": _mean(errors)}


def _step_memory_mb(launch: Launch) -> dict[str, Any]:
    """Return a rank's allocated memory before and after each examined step, in MiB as in S2.

    The reported rank is the one that uses the most memory. An allocator that keeps freed memory for the next
    step reports the same usage before and after a step; the additional memory that a step needs appears in
    `memory_usage_mb`, which is the peak.
    """
    measured = [x for x in launch.step_phases if x.allocated_before_bytes and x.allocated_after_bytes]
    if not measured:
        reasons = [phases.missing or NO_COUNT for phases in launch.step_phases]
        return {"before": None, "after": None, "missing": reasons[0] if reasons else NOT_LOOKED}
    most = max(measured, key=lambda phases: max(phases.allocated_after_bytes))
    before, after = most.allocated_before_bytes, most.allocated_after_bytes
    return {
        "before": [count / MIB_BYTES for count in before],
        "after": [count / MIB_BYTES for count in after],
        "missing": None,
    }


def _memory_mb(point: PointResult) -> dict[int, float]:
    """Return each launch's highest peak across ranks, in MiB as in S2, if every rank's peak is known."""
    peaks = {
        launch.case.replicate: [window.peak_allocated_bytes for window in launch.windows]
        for launch in point.launches
    }
    return {
        replicate: max(measured) / MIB_BYTES
        for replicate, of_ranks in peaks.items()
        if len(measured := [peak for peak in of_ranks if peak is not None]) == len(of_ranks)
    }


def _utilization(point: PointResult) -> dict[int, float]:
    """Return the mean utilisation of the devices in each launch's window, in percent."""
    by_launch: dict[int, list[float]] = {}
    for device in from_json(Common, point.result.detail["common"]).devices:
        if device.util_gpu_percent is not None:
            by_launch.setdefault(device.replicate, []).append(device.util_gpu_percent)
    return {replicate: fmean(values) for replicate, values in by_launch.items()}


def _mean(values: Collection[float]) -> float | None:
    return fmean(values) if values else None


def _report(model: str, study: ScaleStudy, result: Result, created: str, launches: Sequence[Launch]) -> str:
    """Write S2's comparison report; on a CPU, its wording about GPUs refers to ranks."""
    devices = dict.fromkeys(launch.setup.device.name for launch in launches)
    is_on_cpu = any(launch.setup.device.kind == "cpu" for launch in launches)
    tables = "\n".join(line for average in study.averages for line in _average(study, average))
    lines = [
        f"# Multi-GPU Performance Comparison: {model}",
        "",
        f"Generated: {created}, device: {', '.join(devices) or 'none'}, verdict: {result.verdict}",
        "",
        *(f"- {doubt.validity}: {doubt.reason}" for doubt in weakening(result.doubts)),
        *(f"- {note}" for note in notes_of_setup(launches)),
        tables.replace("GPU", "rank") if is_on_cpu else tables,
        "",
        f"Rates are geometric means of launches, and the speedup is their ratio; elsewhere {A_THROUGHPUT}.",
    ]
    if study.rule_of_thumb is not None:
        lines += ["", f"Heuristic, not measured here: {study.rule_of_thumb.reason}"]
    return "\n".join([*lines, "", "Validate over multiple runs before making a decision.", ""])


def _average(study: ScaleStudy, average: Any) -> Iterator[str]:
    """Yield the lines for one number of devices; speed-ups are followed by their intervals."""
    ratio = average.speed_up.comparison.ratio
    yield from ("", f"## {average.num_devices} GPUs, {average.law} scaling", "", *_rows(study, average))
    if ratio is not None:
        yield from ("", f"Average speedup: {ratio.centre:.2f}x ({ratio.low:.2f}x - {ratio.high:.2f}x)")
    yield from ("", f"**Conclusion**: {average.conclusion}")


def _rows(study: ScaleStudy, average: Any) -> Iterator[str]:
    yield "| Batch Size | Single GPU (samples/s) | Multi-GPU (samples/s) | Speedup | Recommendation |"
    yield "|---|---|---|---|---|"
    alone = {row.batch_size: _rate(row) for row in study.rows if row.num_devices == 1}
    for row in study.rows:
        if (row.num_devices, row.law) != (average.num_devices, average.law) or row.speed_up is None:
            continue
        ratio = row.speed_up.comparison.ratio
        speed_up = "–" if ratio is None else f"{ratio.centre:.2f}x ({ratio.low:.2f}x - {ratio.high:.2f}x)"
        yield (
            f"| {row.batch_size} | {alone.get(row.batch_size, '–')} | {_rate(row)} | {speed_up} | "
            f"{row.speed_up.recommendation} |"
        )


def _rate(row: ScaleRow) -> str:
    rates = [launch.value for launch in row.figures.launches]
    return f"{geometric_mean(rates):,.1f}" if min(rates, default=0) > 0 else "–"
