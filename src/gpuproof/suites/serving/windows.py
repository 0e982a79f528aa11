"""Every window of requests, and every rate by all its launches: rows of files, and measures of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from gpuproof.base import units
from gpuproof.launches.bounds import BoundStanding
from gpuproof.launches.served import Served
from gpuproof.records.codec import to_json
from gpuproof.records.result import Measure
from gpuproof.suites.serving.measures import OUTCOMES, bound_unit, bound_value
from gpuproof.suites.serving.search import ServingRun

WINDOW, RATE, LIMIT = "window", "rate", "limit"
Quantity = tuple[str, str, Callable[[Any], str]]
"""What a column of the page is called, its unit, and how a value reads."""


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
"""Key of a window's row → its figure."""


def window_row(served: Served) -> dict[str, Any]:
    """Return a window of requests as summary.csv and run_summary.json have it; times are in seconds."""
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
    """Say what this launch alone says of the bounds; None where none was set."""
    if served.is_of_before:
        return OUTCOMES[served.verdict.outcome] if served.verdict else None
    standing = served.standing
    return OUTCOMES[standing.outcome] if standing.standings else None


def window_measures(run: ServingRun) -> Iterator[Measure]:
    """Yield the figures of each window; its labels are what else is known of it."""
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
    """Return every bound at every rate, by rate, as run_summary.json has it."""
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
    """Yield what all launches at each rate come to, and what would be needed for more."""
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
    """Yield title, value, unit and text of what is known of a bound at a rate."""
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
