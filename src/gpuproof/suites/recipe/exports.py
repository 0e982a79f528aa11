"""Files in common training-benchmark formats: epochs as JSON Lines, a summary as JSON and CSV.

Field names follow requirement S1.27, and times are in milliseconds if the name ends in `_ms`; additional
fields with gpuproof's own names follow. A missing number is null (empty in the CSV), never 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import fsum
from typing import TYPE_CHECKING, Any

from gpuproof.launches.launch import Launch, throughput
from gpuproof.launches.limits import data_wait_share
from gpuproof.launches.point_measures import THROUGHPUT
from gpuproof.readings.evidence import Evidence
from gpuproof.records.case import InferenceWork
from gpuproof.records.codec import to_json
from gpuproof.statistics.estimate import Interval
from gpuproof.statistics.percentiles import percentile, samples_needed
from gpuproof.suites.base import Export, PictureContent, TextContent
from gpuproof.suites.recipe.measures import latency_title
from gpuproof.suites.results import (
    csv_text,
    environment_facts,
    epochs_csv,
    failures_json,
    json_export,
    wall_clock_s,
)
from gpuproof.verdict.summary import RunSummary

if TYPE_CHECKING:
    from gpuproof.suites.recipe.profile import Profiled

MS_PER_S = 1e3
QUEUED = "throughput mode queues its steps, so no step time is a latency"


def recipe_exports(evidence: Evidence, summary: RunSummary, profile: Profiled | None) -> Iterator[Export]:
    """Yield epochs, launches and summary as files, and the roofline as a plot."""
    description = evidence.description
    summarized = summary_json(
        summary,
        description=description,
        config=evidence.config,
        environment=environment_facts(evidence.launches),
        wall_clock_s=wall_clock_s(evidence.launches),
    )
    run = evidence.config.run

    def epochs() -> str:
        return epoch_lines(summary.launches, samples_per_epoch=evidence.config.data.samples_per_epoch)

    def rows() -> str:
        if run.summary_csv == "epochs":
            return epochs_csv(epochs())
        return summary_csv(summary, description=description, experiment=run.experiment_name)

    yield Export(name="metrics_epoch.jsonl", content=TextContent(epochs))
    yield Export(name="summary.csv", content=TextContent(rows))
    yield json_export("run_summary.json", {**summarized, **work_json(summary), **profile_json(profile)})
    if summary.roofline is not None:
        from gpuproof.suites.recipe.page import roofline_picture

        yield Export(name="roofline.png", content=PictureContent(lambda: roofline_picture(summary)))


def epoch_lines(launches: Sequence[Launch], *, samples_per_epoch: int) -> str:
    """Return metrics_epoch.jsonl: one row per epoch, or part of an epoch, that the window covered.

    An epoch of a data set is one pass over it; for an endless stream, an epoch is `samples_per_epoch`
    samples.
    """
    rows = [row for launch in launches for row in _epoch_rows(launch, _epoch(launch) or samples_per_epoch)]
    encode = json.JSONEncoder(allow_nan=False).encode
    return "".join(encode(row) + "\n" for row in rows)


def _epoch(launch: Launch) -> int | None:
    return launch.setup.data_used.num_samples if launch.setup.data_used else None


def _epoch_rows(launch: Launch, samples_per_epoch: int) -> Iterator[dict[str, Any]]:
    """Split the window into epochs from 1 on, dividing the time between steps evenly among the steps."""
    steps_per_epoch = -(-samples_per_epoch // max(1, launch.samples_per_step_total))
    times = launch.step_times_s
    row = partial(_epoch_row, launch, samples_per_step=launch.samples_per_step_total)
    if not times:
        yield row(epoch=1, num_steps=launch.slowest.num_steps, total_s=launch.slowest.wall_s)
    between_s = (launch.slowest.wall_s - sum(times)) / len(times) if times else 0.0
    for epoch, first in enumerate(range(0, len(times), steps_per_epoch), start=1):
        part = times[first : first + steps_per_epoch]
        total_s = sum(part) + between_s * len(part)
        yield row(epoch=epoch, num_steps=len(part), total_s=total_s, times=part)


def _epoch_row(
    launch: Launch,
    *,
    samples_per_step: int,
    epoch: int,
    num_steps: int,
    total_s: float,
    times: Sequence[float] = (),
) -> dict[str, Any]:
    samples = num_steps * samples_per_step
    return {
        "case": launch.case.case_id,
        "replicate": launch.case.replicate,
        "epoch": epoch,
        "throughput_samples_per_s": None if launch.case.measures_latency else throughput(samples, total_s),
        "epoch_time_s": total_s,
        "total_steps": num_steps,
        "measured_steps": num_steps,
        "measured_samples": samples,
        "mean_step_ms": total_s / num_steps * MS_PER_S,
        "p50_step_ms": _percentile_ms(times, 50),
        "p95_step_ms": _percentile_ms(times, 95),
    }


def _percentile_ms(times: Sequence[float], q: float) -> float | None:
    # an epoch with few steps does not have this percentile, and there are many such epochs
    if len(times) < samples_needed(q):
        return None
    value = percentile(times, q).value
    return None if value is None else value * MS_PER_S


def summary_json(
    summary: RunSummary,
    *,
    description: Mapping[str, Any],
    config: Any,
    environment: Any,
    wall_clock_s: float | None,
) -> dict[str, Any]:
    """Return run_summary.json."""
    first = summary.launches[0] if summary.launches else None
    return {
        "experiment_name": config.run.experiment_name,
        "run_id": description["run_id"],
        "kind": config.kind,
        "model": config.model.name,
        "world_size": first.world_size if first else None,
        "precision": config.training.precision,
        "weights": first.setup.options.weights if first and first.setup.options else None,
        "channels_last": config.model.channels_last,
        "batch_size": config.data.batch_size,
        "global_batch_size": config.data.batch_size * first.data_parallel_size if first else None,
        "effective_batch_size": first.samples_per_step_total if first else None,
        **_amounts(summary),
        "total_wall_clock_s": wall_clock_s,
        **_step_times(summary),
        "model_flops_per_s_per_device": summary.flops_per_s_per_device,
        "validity": summary.validity,
        "findings": to_json(summary.doubts),
        "failures": failures_json(summary.failures),
        "num_launches": len(summary.launches),
        "num_planned": summary.num_planned,
        "commit_hash": description["commit_hash"],
        "env": environment,
        "notes": config.run.notes,
        "parallelism": to_json(first.setup.parallelism) if first else None,
        "memory": [to_json(memory) for memory in first.memory] if first else [],
        "inference": _inference_json(summary),
    }


def _amounts(summary: RunSummary) -> dict[str, Any]:
    """Return the amount of work and its rate, in samples and in the items that the run's rate counts."""
    samples = sum(launch.samples_total for launch in summary.launches)
    queued = not any(launch.case.measures_latency for launch in summary.launches)
    return {
        "total_steps": sum(launch.slowest.num_steps for launch in summary.launches),
        "total_samples": samples,
        "total_measured_time_s": summary.window_s,
        "throughput_samples_per_s": throughput(samples, summary.window_s)
        if summary.launches and queued
        else None,
        "item": summary.launches[0].setup.item if summary.launches else None,
        "total_items": summary.items_total,
        "throughput_items_per_s": summary.rate if queued else None,
        "throughput_interval": _interval(summary.throughput_interval) if queued else None,
        "data_wait_share": data_wait_share(summary.launches),
    }


def _step_times(summary: RunSummary) -> dict[str, Any]:
    percentiles = summary.step_percentiles
    return {
        "mean_step_ms": None if summary.mean_step_s is None else summary.mean_step_s * MS_PER_S,
        **{f"p{p.q:g}_step_ms": None if p.value is None else p.value * MS_PER_S for p in percentiles},
        "percentiles_missing": [p.reason for p in percentiles if p.reason],
        "median_step_s_interval": _interval(summary.step_s_interval),
    }


def _interval(interval: Any) -> Any:
    return to_json(interval) if isinstance(interval, Interval) else {"missing": interval.reason}


def summary_csv(summary: RunSummary, *, description: Mapping[str, Any], experiment: str) -> str:
    """Return summary.csv: one row per launch, with a header built from the rows' keys."""
    return csv_text([_csv_row(launch, description, experiment) for launch in summary.launches])


def _csv_row(launch: Launch, description: Mapping[str, Any], experiment: str) -> dict[str, Any]:
    window, setup, case = launch.slowest, launch.setup, launch.case
    queued = not case.measures_latency
    return {
        "experiment_name": experiment,
        "run_id": description["run_id"],
        "case": case.case_id,
        "replicate": case.replicate,
        "kind": case.kind,
        "model": case.model_work.model.name,
        "device": setup.device.name,
        "world_size": launch.world_size,
        "precision": setup.precision,
        "compiled": setup.compiled,
        "batch_size": case.model_work.data.batch_size,
        "effective_batch_size": launch.samples_per_step_total,
        "measured_steps": window.num_steps,
        "measured_samples": launch.samples_total,
        "measured_time_s": window.wall_s,
        "throughput_samples_per_s": throughput(launch.samples_total, window.wall_s) if queued else None,
        "item": setup.item,
        "measured_items": launch.items_total,
        "throughput_items_per_s": launch.figures[THROUGHPUT] if queued else None,
        "mean_step_ms": launch.mean_step_s * MS_PER_S,
        "p50_step_ms": _percentile_ms(launch.step_times_s, 50),
        "p95_step_ms": _percentile_ms(launch.step_times_s, 95),
        "peak_allocated_bytes": window.peak_allocated_bytes,
        "stop_reason": window.stop_reason,
        **_latency_columns(launch),
    }


def _inference_json(summary: RunSummary) -> dict[str, Any] | None:
    """Return the `inference` field of run_summary.json; None for training or if nothing was measured."""
    first = summary.launches[0] if summary.launches else None
    if first is None or not isinstance(first.case.work, InferenceWork):
        return None
    work, inference, setup = first.case.work, first.case.work.inference, first.setup
    return {
        "mode": inference.mode,
        "phase": inference.phase,
        "prompt_tokens": inference.prompt_tokens if work.generates else None,
        "new_tokens": inference.new_tokens if inference.phase == "decode" else None,
        "kv_cache_bytes": setup.kv_cache_bytes,
        "bytes_per_step": setup.bytes_per_step,
        "padded_bytes_per_step": setup.padded_bytes_per_step,
        "latency": _latency_json(summary) if work.measures_latency else None,
        "latency_missing": None if work.measures_latency else QUEUED,
    }


def _latency_json(summary: RunSummary) -> dict[str, Any]:
    times_s = [time_s for launch in summary.launches for time_s in launch.step_times_s]
    percentiles = summary.step_percentiles
    interval = summary.step_s_interval
    return {
        "of": latency_title(summary.launches[0]),
        "num_steps": len(times_s),
        **{f"p{p.q:g}_s": p.value for p in percentiles},
        "mean_s": fsum(times_s) / len(times_s),
        "min_s": min(times_s),
        "max_s": max(times_s),
        "percentiles_missing": [p.reason for p in percentiles if p.reason],
        "p50_low_s": interval.low if isinstance(interval, Interval) else None,
        "p50_high_s": interval.high if isinstance(interval, Interval) else None,
    }


def _latency_columns(launch: Launch) -> dict[str, Any]:
    """Return the inference columns of summary.csv; empty if they do not apply to the run."""
    work = launch.case.work
    inference = work.inference if isinstance(work, InferenceWork) else None
    return {
        "inference_mode": inference.mode if inference else None,
        "inference_phase": inference.phase if inference else None,
        **{f"p{q}_latency_ms": _latency_percentile_ms(launch, q) for q in (50, 95, 99)},
    }


def _latency_percentile_ms(launch: Launch, q: float) -> float | None:
    value_s = percentile(launch.step_times_s, q).value if launch.case.measures_latency else None
    return None if value_s is None else value_s * 1e3


def work_json(summary: RunSummary) -> dict[str, Any]:
    """Return utilisation with its reference, ceilings and evaluations; unknown values are null."""
    first = summary.launches[0] if summary.launches else None
    flops, traffic = summary.flops_per_s_per_device, summary.bytes_per_s_per_device
    peak, memory_peak = summary.peak, summary.memory_peak
    return {
        "flops_per_step": None if first is None else first.flops_per_step,
        "flops_per_step_closed_form": None if first is None else first.setup.flops_per_step,
        "flops_per_step_counted": None if first is None else first.setup.flops_per_step_counted,
        "flops_not_counted": None if first is None else first.setup.flops_not_counted,
        "mfu": None if flops is None or peak is None else flops / peak.flops_per_s,
        "mfu_peak": None if peak is None else {**to_json(peak), "density": "dense"},
        "bytes_per_s_per_device": traffic,
        "memory_bandwidth_use": None
        if traffic is None or memory_peak is None
        else traffic / memory_peak.bytes_per_s,
        "memory_peak": None if memory_peak is None else to_json(memory_peak),
        "measured_ceilings": None if summary.roofline is None else to_json(summary.roofline),
        "evaluations": [to_json(x) for launch in summary.launches for x in launch.evaluations],
    }


def profile_json(profile: Profiled | None) -> dict[str, Any]:
    """Return the three independent communication times, and the summary of the traced steps."""
    times = None if profile is None else profile.communication
    reason = "nothing was traced (profiling.enabled)" if profile is None else profile.missing
    names = ("comm_exposed_ms", "comm_kernel_ms", "allreduce_standalone_ms")
    return {
        **{name: None if times is None else getattr(times, name) for name in names},
        "communication_missing": dict.fromkeys(names, reason) if times is None else times.missing,
        "profile": None if profile is None else to_json(profile),
    }
