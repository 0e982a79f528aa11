"""The files of a serving run: run_summary.json, summary.csv, and the throughput–latency curve of a search.

The curve has p50 and p99 of the latency at every rate offered. A percentile that a window had too few
requests for is not drawn. The bound is a level line, the highest rate that met it and the knee of the median
are upright ones. The scale of the latency is logarithmic: over the highest rate the queue grows for as long
as the window is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.launches.served import Served
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.page import Axis, Chart, Picture, Reference, Series
from gpuproof.records.result import worst
from gpuproof.statistics.estimate import Numbers
from gpuproof.statistics.percentiles import percentile
from gpuproof.suites.base import Export, PictureContent
from gpuproof.suites.results import csv_text, environment_facts, failures_json, json_export, wall_clock_s
from gpuproof.suites.serving.search import ServingRun
from gpuproof.suites.serving.windows import rate_rows, window_row

MIN_RATES = 2
DRAWN = (50.0, 99.0)
Points = tuple[tuple[float, float], ...]
"""Rate and latency, by rate."""


def serving_exports(evidence: Evidence, run: ServingRun) -> Iterator[Export]:
    """Yield the summary, a row for each window, and the curve of a search."""
    named = {
        "experiment_name": evidence.config.run.experiment_name,
        "run_id": evidence.description["run_id"],
    }
    absent = ("goodput_per_s", "arrival_seed") if run.is_of_before else ()
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


def serving_curve(run: ServingRun) -> Picture | None:
    """Return the picture; None where it is no search, or one with fewer than two rates."""
    curves = {
        q: curve_points(run.launches, q) for q in sorted({*DRAWN, run.config.serving.latency_percentile})
    }
    if run.search is None or not run.config.serving.curve or len(curves[50.0]) < MIN_RATES:
        return None
    highest = max(rate for points in curves.values() for rate, _ in points)
    chart = Chart(
        title="",
        kind="line",
        x=Axis(label="requests offered a second", reach=(0.0, highest * 1.05)),
        y=Axis(label="latency", unit="s", is_logarithmic=True),
        series=tuple(series for q, points in curves.items() for series in _series(f"p{q:g}", points)),
        references=tuple(_references(run)),
    )
    return Picture(title="Latency against the rate offered", subtitle=_subtitle(run), charts=(chart,))


def curve_points(launches: Sequence[Served], q: float) -> Points:
    """Return rate and percentile of every schedule with enough requests for it, repeats side by side."""
    points = ((served.window.offered_per_s, percentile(served.latencies_s, q).value) for served in launches)
    return tuple(sorted((rate, value) for rate, value in points if rate is not None and value is not None))


def _series(name: str, points: Points) -> Iterator[Series]:
    """Yield every launch, and a line through the medians of each rate."""
    if points:
        joined = [(rate, median(latencies_s)) for rate, latencies_s in grouped(points).items()]
        yield Series(name=name, points=tuple(joined), form="line")
        yield Series(name=name, points=points, form="points")


def _references(run: ServingRun) -> Iterator[Reference]:
    """Yield the bound, the highest rate and the knee."""
    serving, highest = run.config.serving, run.search.met_per_s if run.search else None
    if serving.latency_bound_s is not None:
        bound = f"bound: p{serving.latency_percentile:g} under {units.seconds(serving.latency_bound_s)}"
        yield Reference(label=bound, y=serving.latency_bound_s)
    if highest is not None:
        yield Reference(label=f"highest rate: {units.rate(highest, 'requests')}", x=highest)
    if run.knee_per_s is not None:
        yield Reference(label=f"knee: {units.rate(run.knee_per_s, 'requests')}", x=run.knee_per_s)


def _subtitle(run: ServingRun) -> str:
    serving, setup = run.config.serving, run.launches[0].setup
    served = {"endpoint": f"{serving.endpoint.model}, an endpoint", "noop": "a no-op server"}
    device = f" on {setup.device.name}, {setup.precision}" if setup else ""
    target = served.get(serving.target, f"{run.config.model.name}{device}")
    return f"{target}; {serving.arrivals} arrivals, each latency from the scheduled one"
