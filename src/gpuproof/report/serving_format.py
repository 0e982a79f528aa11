"""The files of a serving run: run_summary.json and summary.csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuproof.analysis.serving import Served
from gpuproof.analysis.validity import worst
from gpuproof.records.codec import to_json
from gpuproof.report.seed_formats import csv_of
from gpuproof.report.serving import ServingRun, requests_row
from gpuproof.statistics.percentiles import percentile


def serving_csv(run: ServingRun, *, description: Mapping[str, Any]) -> str:
    """Return summary.csv: one row a window of requests."""
    named = {
        "experiment_name": description["config"]["run"]["experiment_name"],
        "run_id": description["run_id"],
    }
    return csv_of([{**named, **to_json(requests_row(served))} for served in run.launches])


def serving_json(
    run: ServingRun, *, description: Mapping[str, Any], environment: Any, wall_clock_s: float | None
) -> dict[str, Any]:
    """Return run_summary.json: what holds for the run, then every window of requests."""
    return {
        "experiment_name": description["config"]["run"]["experiment_name"],
        "run_id": description["run_id"],
        "kind": "serving",
        "model": run.config.model.name,
        "target": run.config.serving.target,
        "scenario": run.config.serving.scenario,
        "highest_rate_per_s": run.search.met_per_s if run.search else None,
        "lowest_rate_not_met_per_s": run.search.not_met_per_s if run.search else None,
        "offline_rate_per_s": run.search.ceiling_per_s if run.search else None,
        "knee_per_s": run.knee_per_s,
        "latency_bound_s": run.config.serving.latency_bound_s,
        "latency_percentile": run.config.serving.latency_percentile,
        "validity": worst(run.findings) if run.launches else None,
        "findings": to_json(run.findings),
        "failures": to_json(run.failures),
        "num_launches": len(run.launches),
        "num_planned": run.num_planned,
        "total_wall_clock_s": wall_clock_s,
        "commit_hash": description["commit_hash"],
        "env": environment,
        "notes": description["config"]["run"]["notes"],
        "windows": [_window_json(served) for served in run.launches],
    }


def _window_json(served: Served) -> dict[str, Any]:
    return {
        **to_json(requests_row(served)),
        "answered_samples_per_s": served.samples_per_s,
        "tokens_per_s": served.tokens_per_s,
        "latency_s": {f"p{found.q:g}": to_json(found) for found in served.latency_percentiles()},
        "time_to_first_token_s": _tokens_json(served.first_token_s),
        "time_per_token_s": _tokens_json(served.token_s),
        "generator_lateness_s": to_json(percentile(served.lateness_s, 99)),
        "verdict": to_json(served.verdict),
        "mlperf_stream_latency_s": served.stream_latency_s,
        "failures": dict(served.window.failures),
        "refused_fields": list(served.window.refused_fields),
    }


def _tokens_json(times_s: Sequence[float]) -> dict[str, Any] | None:
    return {f"p{q:g}": to_json(percentile(times_s, q)) for q in (50.0, 90.0, 99.0)} if times_s else None
