"""The files of a serving run: run_summary.json and summary.csv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuproof.launches.served import Served
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import worst
from gpuproof.statistics.estimate import Numbers
from gpuproof.statistics.percentiles import percentile
from gpuproof.suites.base import Export, PictureContent
from gpuproof.suites.exports import csv_text, environment_facts, failures_json, json_export, wall_clock_s
from gpuproof.suites.serving.windows import rate_rows, window_row

if TYPE_CHECKING:
    from gpuproof.suites.serving.run import ServingRun


def serving_exports(evidence: Evidence, run: ServingRun) -> Iterator[Export]:
    """Yield the summary, a row for each window, and the curve of a search."""
    from gpuproof.suites.serving.curve import serving_curve

    named = {
        "experiment_name": evidence.config.run.experiment_name,
        "run_id": evidence.description["run_id"],
    }
    absent = _absent(run)
    rows = [{k: v for k, v in window_row(x).items() if k not in absent} for x in run.launches]
    yield Export(name="summary.csv", content=csv_text([{**named, **row} for row in rows]))
    since = {} if run.is_of_before else _since(run)
    yield json_export("run_summary.json", {**named, **_summary(evidence, run, rows=rows), **since})
    yield Export(name="serving_curve.png", content=PictureContent(lambda: serving_curve(run)))


def _summary(evidence: Evidence, run: ServingRun, *, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what holds for the run, then every window of requests."""
    return {
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
        "validity": worst(run.doubts) if run.launches else None,
        "findings": to_json(run.doubts),
        "failures": failures_json(run.failures),
        "num_launches": len(run.launches),
        "num_planned": run.num_planned,
        "total_wall_clock_s": wall_clock_s(evidence.launches),
        "commit_hash": evidence.description["commit_hash"],
        "env": environment_facts(evidence.launches),
        "notes": run.config.run.notes,
        "windows": [{**row, **_window(served)} for row, served in zip(rows, run.launches, strict=True)],
    }


def _absent(run: ServingRun) -> tuple[str, ...]:
    """Return the columns that runs of before do not have."""
    return ("goodput_per_s", "arrival_seed") if run.is_of_before else ()


def _since(run: ServingRun) -> dict[str, Any]:
    """Return what is known where rates are judged by several launches."""
    client = run.search.client_limit_per_s if run.search else None
    goodput = [served.goodput_per_s for served in run.main if served.goodput_per_s is not None]
    return {
        "goodput_per_s": sum(goodput) / len(goodput) if goodput else None,
        "rates_not_told_per_s": run.search.untold if run.search and run.search.ceiling_per_s else [],
        "bounds": to_json(run.config.serving.bounds),
        "rates": rate_rows(run),
        **({"client_limit_per_s": client} if client is not None else {}),
    }


def _window(served: Served) -> dict[str, Any]:
    return {
        "answered_samples_per_s": served.samples_per_s,
        "tokens_per_s": served.tokens_per_s,
        "latency_s": {f"p{p.q:g}": to_json(p) for p in served.latency_percentiles()},
        "time_to_first_token_s": _tokens_json(served.first_token_s),
        "time_to_first_content_token_s": _tokens_json(served.first_content_s),
        "time_per_token_s": _tokens_json(served.token_s),
        "inter_token_latency_s": _tokens_json(served.gaps_s),
        "chunks": served.chunks or None,
        "generator_lateness_s": to_json(percentile(served.lateness_s, 99)),
        "verdict": to_json(served.verdict),
        "mlperf_stream_latency_s": None,  # of scenarios that are no longer measured
        "failures": dict(served.window.failures),
        "refused_fields": list(served.window.refused_fields),
        **({} if served.is_of_before else {"bounds": to_json(served.standing.standings)}),
    }


def _tokens_json(times_s: Numbers) -> dict[str, Any] | None:
    return {f"p{q:g}": to_json(percentile(times_s, q)) for q in (50.0, 90.0, 99.0)} if len(times_s) else None
