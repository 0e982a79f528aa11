"""Files as users of training benchmarks know them: epochs as JSON Lines, a summary as JSON and CSV.

Field names are those of requirement S1.27, with milliseconds where they say `_ms`; what is beyond them
follows under names of our own. A missing number is null (empty in the CSV), never 0.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuproof.analysis.data_wait import data_wait_share
from gpuproof.analysis.launch import Launch
from gpuproof.analysis.rates import throughput
from gpuproof.analysis.run_summary import RunSummary
from gpuproof.records.codec import to_json
from gpuproof.report.latency import inference_json, latency_columns
from gpuproof.statistics.estimate import Interval
from gpuproof.statistics.percentiles import percentile

MS_PER_S = 1e3


def epoch_lines(launches: Sequence[Launch], *, samples_per_epoch: int) -> str:
    """Return metrics_epoch.jsonl: a row for each epoch, or part of one, that the window covered.

    An epoch of a data set is the set; `samples_per_epoch` is that of a stream that has no end.
    """
    rows = [row for launch in launches for row in _epoch_rows(launch, _epoch(launch) or samples_per_epoch)]
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def _epoch(launch: Launch) -> int | None:
    return launch.setup.data_used.num_samples if launch.setup.data_used else None


def _epoch_rows(launch: Launch, samples_per_epoch: int) -> Iterator[dict[str, Any]]:
    """Cut the window into epochs. Time between steps is shared out evenly, so that epochs fill the window."""
    steps_per_epoch = -(-samples_per_epoch // launch.samples_per_step_total)
    times = launch.step_times_s
    if not times:
        yield _epoch_row(launch, epoch=0, num_steps=launch.slowest.num_steps, total_s=launch.slowest.wall_s)
    between_s = (launch.slowest.wall_s - sum(times)) / len(times) if times else 0.0
    for epoch, first in enumerate(range(0, len(times), steps_per_epoch)):
        part = times[first : first + steps_per_epoch]
        total_s = sum(part) + between_s * len(part)
        yield _epoch_row(launch, epoch=epoch, num_steps=len(part), total_s=total_s, times=part)


def _epoch_row(
    launch: Launch, *, epoch: int, num_steps: int, total_s: float, times: Sequence[float] = ()
) -> dict[str, Any]:
    samples = num_steps * launch.samples_per_step_total
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
    value = percentile(times, q).value
    return None if value is None else value * MS_PER_S


def summary_json(
    summary: RunSummary, *, description: Mapping[str, Any], environment: Any, wall_clock_s: float | None
) -> dict[str, Any]:
    """Return run_summary.json."""
    config = description["config"]
    first = summary.launches[0] if summary.launches else None
    steps = {
        f"p{p.q:g}_step_ms": None if p.value is None else p.value * MS_PER_S for p in summary.step_percentiles
    }
    return {
        "experiment_name": config["run"]["experiment_name"],
        "run_id": description["run_id"],
        "kind": config["kind"],
        "model": config["model"]["name"],
        "world_size": first.world_size if first else None,
        "precision": config["training"]["precision"],
        "channels_last": config["model"]["channels_last"],
        "batch_size": config["data"]["batch_size"],
        "global_batch_size": config["data"]["batch_size"] * first.data_parallel_size if first else None,
        "effective_batch_size": first.samples_per_step_total if first else None,
        **_amounts(summary),
        "total_wall_clock_s": wall_clock_s,
        "mean_step_ms": None if summary.mean_step_s is None else summary.mean_step_s * MS_PER_S,
        **steps,
        "percentiles_missing": [p.reason for p in summary.step_percentiles if p.reason],
        "median_step_s_interval": _interval(summary.step_s_interval),
        "model_flops_per_s_per_device": summary.flops_per_s_per_device,
        "validity": summary.validity,
        "findings": to_json(summary.findings),
        "failures": to_json(summary.failures),
        "num_launches": len(summary.launches),
        "num_planned": summary.num_planned,
        "commit_hash": description["commit_hash"],
        "env": environment,
        "notes": config["run"]["notes"],
        "parallelism": to_json(first.setup.parallelism) if first else None,
        "memory": [to_json(found) for found in first.memory] if first else [],
        "inference": inference_json(summary),
    }


def _amounts(summary: RunSummary) -> dict[str, Any]:
    """Say how much was done how fast: in samples, and in the items that the run's own rate counts."""
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
        "throughput_items_per_s": summary.items_per_s_total if queued else None,
        "throughput_interval": _interval(summary.items_per_s_total_interval) if queued else None,
        "data_wait_share": data_wait_share(summary.launches),
    }


def _interval(interval: Any) -> Any:
    return to_json(interval) if isinstance(interval, Interval) else {"missing": interval.reason}


def summary_csv(summary: RunSummary, *, description: Mapping[str, Any]) -> str:
    """Return summary.csv: one row a launch, its header made of the rows' own keys."""
    return csv_of([_csv_row(launch, description) for launch in summary.launches])


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of the same keys as CSV, the keys being its header; nothing where there is no row."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_row(launch: Launch, description: Mapping[str, Any]) -> dict[str, Any]:
    window, setup, case = launch.slowest, launch.setup, launch.case
    queued = not case.measures_latency
    return {
        "experiment_name": description["config"]["run"]["experiment_name"],
        "run_id": description["run_id"],
        "case": case.case_id,
        "replicate": case.replicate,
        "kind": case.kind,
        "model": case.model.name,
        "device": setup.device.name,
        "world_size": launch.world_size,
        "precision": setup.precision,
        "compiled": setup.compiled,
        "batch_size": case.data.batch_size,
        "effective_batch_size": launch.samples_per_step_total,
        "measured_steps": window.num_steps,
        "measured_samples": launch.samples_total,
        "measured_time_s": window.wall_s,
        "throughput_samples_per_s": throughput(launch.samples_total, window.wall_s) if queued else None,
        "item": setup.item,
        "measured_items": launch.items_total,
        "throughput_items_per_s": launch.items_per_s_total if queued else None,
        "mean_step_ms": launch.mean_step_s * MS_PER_S,
        "p50_step_ms": _percentile_ms(launch.step_times_s, 50),
        "p95_step_ms": _percentile_ms(launch.step_times_s, 95),
        "peak_allocated_bytes": window.peak_allocated_bytes,
        "stop_reason": window.stop_reason,
        **latency_columns(launch),
    }
