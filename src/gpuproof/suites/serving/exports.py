"""Windows and rates of a serving run: measures for pages, rows for files, and a search's curve.

The curve shows p50 and p99 latency at every offered rate. A percentile is not drawn if its window had too few
requests. The bound is a horizontal line; the highest rate that met it and the knee of the median are vertical
lines. The latency axis is logarithmic: above the highest rate, the queue grows for as long as the window is
open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from statistics import median
from typing import Any

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.launches.bounds import BoundStanding
from gpuproof.launches.served import Served
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.page import Axis, Chart, Picture, Reference, Series
from gpuproof.records.result import Measure, worst
from gpuproof.statistics.estimate import Numbers
from gpuproof.statistics.percentiles import percentile
from gpuproof.suites.base import Export, PictureContent
from gpuproof.suites.results import csv_text, environment_facts, failures_json, json_export, wall_clock_s
from gpuproof.suites.serving.measures import OUTCOMES, bound_unit, bound_value
from gpuproof.suites.serving.search import ServingRun

MIN_RATES = 2
DRAWN = (50.0, 99.0)
Points = tuple[tuple[float, float], ...]
"""Pairs of rate and latency, ordered by rate."""
WINDOW, RATE, LIMIT = "window", "rate", "limit"
Quantity = tuple[str, str, Callable[[Any], str]]
"""A column's title, its unit, and how its values are formatted."""


def serving_exports(evidence: Evidence, run: ServingRun) -> Iterator[Export]:
    """Yield the summary, one row per window, and the curve of a search."""
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
    """Return what applies to the entire run, followed by every window of requests."""
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
        "windows": [{**row, **_window_json(served)} for row, served in zip(rows, run.launches, strict=True)],
    }


def _since(run: ServingRun) -> dict[str, Any]:
    """Return the additional fields for runs that evaluate a rate over several launches."""
    client = run.search.client_limit_per_s if run.search else None
    return {
        "goodput_per_s": _mean([served.goodput_per_s for served in run.main]),
        "rates_not_told_per_s": run.search.untold if run.search and run.search.ceiling_per_s else [],
        "bounds": to_json(run.config.serving.bounds),
        "rates": rate_rows(run),
        **({"client_limit_per_s": client} if client is not None else {}),
    }


def _window_json(served: Served) -> dict[str, Any]:
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
        "mlperf_stream_latency_s": None,  # scenarios that are no longer measured
        "failures": dict(served.window.failures),
        "refused_fields": list(served.window.refused_fields),
        **({} if served.is_of_before else {"bounds": to_json(served.standing.standings)}),
    }


def _tokens_json(times_s: Numbers) -> dict[str, Any] | None:
    return {f"p{q:g}": to_json(percentile(times_s, q)) for q in (50.0, 90.0, 99.0)} if len(times_s) else None


def serving_curve(run: ServingRun) -> Picture | None:
    """Return the picture; None if the run is not a search, or has fewer than two rates."""
    curves = {
        q: curve_points(run.launches, q) for q in sorted({*DRAWN, run.config.serving.latency_percentile})
    }
    if run.search is None or not run.config.serving.curve or len(curves[50.0]) < MIN_RATES:
        return None
    highest = max(rate for points in curves.values() for rate, _ in points)
    chart = Chart(
        title="",
        kind="line",
        x=Axis(label="requests offered per second", reach=(0.0, highest * 1.05)),
        y=Axis(label="latency", unit="s", is_logarithmic=True),
        series=tuple(series for q, points in curves.items() for series in _series(f"p{q:g}", points)),
        references=tuple(_references(run)),
    )
    return Picture(title="Latency against the rate offered", subtitle=_subtitle(run), charts=(chart,))


def curve_points(launches: Sequence[Served], q: float) -> Points:
    """Return the rate and percentile of every schedule with enough requests, sorted by rate."""
    points = ((served.window.offered_per_s, percentile(served.latencies_s, q).value) for served in launches)
    return tuple(sorted((rate, value) for rate, value in points if rate is not None and value is not None))


def _series(name: str, points: Points) -> Iterator[Series]:
    """Yield every launch, and a line through the medians at each rate."""
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
    return f"{target}; {serving.arrivals} arrivals; latency is measured from the scheduled arrival"


def _per_s(value: float | None) -> str:
    return units.MISSING if value is None else f"{units.significant(value)}/s"


def _whole(value: float | None) -> str:
    return units.MISSING if value is None or value == inf else units.count(round(value))


OF_A_WINDOW: Mapping[str, Quantity] = {
    "answered_per_s": ("answered", "requests/s", _per_s),
    "num_requests": ("requests", "requests", units.count),
    "num_failed": ("failed", "requests", units.count),
    "p50_latency_s": ("p50", "s", units.seconds),
    "p99_latency_s": ("p99", "s", units.seconds),
    "mean_batch": (
        "batch",
        "requests",
        lambda value: units.MISSING if value is None else units.significant(value),
    ),
    "busy_share": ("busy", "1", units.share),
    "goodput_per_s": ("goodput", "requests/s", _per_s),
}
"""A window's row: values by key."""


def window_row(served: Served) -> dict[str, Any]:
    """Return a window of requests as in summary.csv and run_summary.json; times are in seconds."""
    by_q = {p.q: p.value for p in served.latency_percentiles()}
    return {
        "case_id": served.case.case_id,
        "replicate": served.case.replicate,
        "scenario": served.window.scenario,
        "offered_per_s": served.window.offered_per_s,
        "answered_per_s": served.requests_per_s,
        "num_requests": served.window.num_requests,
        "num_failed": served.window.num_failed,
        "p50_latency_s": by_q[50.0],
        "p99_latency_s": by_q[99.0],
        "mean_batch": served.mean_batch,
        "busy_share": None if served.busy_s is None else served.busy_s / served.window.wall_s,
        "bound": _bound_text(served),
        "goodput_per_s": None if served.is_of_before else served.goodput_per_s,
        "arrival_seed": served.arrival_seed,
    }


def _bound_text(served: Served) -> str | None:
    """Report what this launch alone shows about the bounds; None if no bound was set."""
    if served.is_of_before:
        return OUTCOMES[served.verdict.outcome] if served.verdict else None
    standing = served.standing
    return OUTCOMES[standing.outcome] if standing.standings else None


def window_measures(run: ServingRun) -> Iterator[Measure]:
    """Yield the results of each window; its labels contain all other available data."""
    for number, served in enumerate(run.launches, start=1):
        row = window_row(served)
        words = ("replicate", "scenario", "offered_per_s", "bound", "arrival_seed")
        labels = {WINDOW: number, **{name: row[name] for name in words}}
        for key, (title, unit, text) in OF_A_WINDOW.items():
            yield Measure(
                name=f"window {number}, {title}",
                value=row[key],
                unit=unit,
                text=text(row[key]),
                case=row["case_id"],
                labels={**labels, "quantity": title},
            )


def rate_rows(run: ServingRun) -> list[dict[str, Any]]:
    """Return every bound at every rate, ordered by rate, as in run_summary.json."""
    return [
        {
            "rate_per_s": rate_per_s,
            "launches": judgement.num_launches,
            "goodput_per_s": _mean([served.goodput_per_s for served in run.at(rate_per_s)]),
            "standing": to_json(standing),
        }
        for rate_per_s, judgement in run.rates.items()
        for standing in judgement.standings
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


def rate_measures(run: ServingRun) -> Iterator[Measure]:
    """Yield the combined result of the launches at each rate, and what is still needed."""
    for rate_per_s, judgement in run.rates.items():
        goodput = _mean([served.goodput_per_s for served in run.at(rate_per_s)])
        for standing in judgement.standings:
            bound = f"p{standing.q:g} {standing.name}"
            for title, value, unit, text in _of_a_bound(standing, goodput, judgement.num_launches):
                yield Measure(
                    name=f"{title}, {bound} at {units.rate(rate_per_s, 'requests')}",
                    value=None if value == inf else value,
                    unit=unit,
                    text=text,
                    labels={
                        RATE: rate_per_s,
                        "bound": bound,
                        "outcome": standing.outcome,
                        "quantity": title,
                    },
                )


def _of_a_bound(
    standing: BoundStanding, goodput_per_s: float | None, num_launches: int
) -> Iterator[tuple[str, float | None, str, str]]:
    """Yield title, value, unit and text for everything known about a bound at a rate."""
    unit = bound_unit(standing)
    over, most = standing.num_over / standing.num_requests, standing.largest_share_over
    confirming = f"{standing.num_confirming} of {num_launches}"
    yield LIMIT, standing.limit, unit, bound_value(standing.limit, standing)
    yield "launches within", standing.num_confirming, "launches", confirming
    yield "requests", standing.num_requests, "requests", units.count(standing.num_requests)
    yield "worth", standing.effective_requests, "requests", _whole(standing.effective_requests)
    yield "over", over, "1", units.share(over)
    yield "share at most", most, "1", units.share(most)
    yield "percentile", standing.percentile, unit, bound_value(standing.percentile, standing)
    at_most = bound_value(standing.percentile_at_most, standing)
    yield "percentile at most", standing.percentile_at_most, unit, at_most
    yield "goodput", goodput_per_s, "requests/s", _per_s(goodput_per_s)
    yield "to decide", standing.needed_requests, "requests", _whole(standing.needed_requests)
