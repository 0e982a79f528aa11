"""How a measure is made: its value and unit, how people read it, and how certain it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, log10
from typing import Any

from gpuproof.base import units
from gpuproof.launches.launch import Launch, summarize_launch
from gpuproof.launches.point_figures import THROUGHPUT
from gpuproof.launches.served import Served, summarize_requests
from gpuproof.records.case import ServingWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Better, LaunchValue, Measure
from gpuproof.records.run import Start
from gpuproof.statistics.estimate import Interval, Unavailable, as_record
from gpuproof.statistics.percentiles import percentile
from gpuproof.suites.base import LaunchKey, launch_key

MEDIAN_LATENCY = "p50 latency"
GOODPUT, ANSWERED = "goodput", "answered"
MEDIAN_FIRST_TOKEN, MEDIAN_TOKEN = "p50 time to first token", "p50 time per token"


def with_interval(
    name: str,
    value: float | None,
    unit: str,
    text: str,
    interval: Interval | Unavailable,
    *,
    better: Better | None,
    launches: tuple[LaunchValue, ...] = (),
    **fields: Any,
) -> Measure:
    """Return a figure with its interval, or with the reason why it has none.

    `fields` are others of a measure; a `detail` among them stands in the place of the interval in words.
    """
    spread = interval if isinstance(interval, Interval) else None
    reach = None if spread is None else spread.relative_reach
    words = (
        f"no interval: {interval.reason}"
        if isinstance(interval, Unavailable)
        else interval_text(interval, unit)
    )
    of_interval = {
        "detail": words,
        "num_samples": None if spread is None else spread.num_samples,
    }
    return Measure(
        name=name,
        value=value,
        unit=unit,
        text=text,
        uncertainty=None if reach is None else units.plus_minus(reach),
        better=better,
        launches=launches,
        interval=None if spread is None else as_record(spread),
        **{**of_interval, **fields},
    )


def rates_of_launches(records: Iterable[CaseRecords], launches: Sequence[Launch]) -> tuple[LaunchValue, ...]:
    """Return the throughput of each launch, with its place in time among all records."""
    positions = positions_in_time(records)
    return tuple(
        LaunchValue(
            replicate=launch.case.replicate,
            order=positions[launch_key(launch.case)],
            value=launch.figures[THROUGHPUT],
            start=launch.start,
        )
        for launch in launches
    )


def compared_figures(records: CaseRecords) -> dict[str, float]:
    """Return what one launch says of the figures by which launches are compared, if it measured them.

    That is its throughput, in latency mode its median latency in seconds, and of requests what users see.
    """
    if isinstance(records.case.work, ServingWork):
        served = summarize_requests(records)
        return {} if served is None else _figures_of_requests(served)
    launch = summarize_launch(records)
    if launch is None:
        return {}
    if not launch.case.measures_latency:
        return {THROUGHPUT: launch.figures[THROUGHPUT]}
    middle = percentile(launch.step_times_s, 50.0).value
    return {} if middle is None else {MEDIAN_LATENCY: middle}


def _figures_of_requests(served: Served) -> dict[str, float]:
    """Return goodput, or requests answered of users who wait; the median times of tokens, or of answers."""
    rates = {GOODPUT: served.goodput_per_s}
    if served.goodput_per_s is None and served.window.offered_per_s is None:
        rates = {ANSWERED: served.requests_per_s}
    times = {MEDIAN_FIRST_TOKEN: served.first_token_s, MEDIAN_TOKEN: served.token_s}
    if not served.first_token_s:
        times = {MEDIAN_LATENCY: served.latencies_s}
    figures = {**rates, **{name: percentile(times_s, 50.0).value for name, times_s in times.items()}}
    return {name: value for name, value in figures.items() if value}


def positions_in_time(launches: Iterable[CaseRecords]) -> dict[LaunchKey, int]:
    """Return the place of each launch in time, by when its first rank began."""
    began = {
        launch_key(launch.case): min((start.unix_s for start in launch.of(Start)), default=0.0)
        for launch in launches
    }
    return {key: place for place, key in enumerate(sorted(began, key=lambda key: began[key]))}


def seconds_measure(name: str, value_s: float | None, detail: str, *, missing: str | None = None) -> Measure:
    """Return a duration; `missing` says why there is none."""
    return Measure(
        name=name,
        value=value_s,
        unit="s",
        text=units.seconds(value_s),
        detail=detail,
        better="lower",
        missing=missing,
    )


def interval_text(interval: Interval, unit: str) -> str:
    """Write an interval with as many digits as tell its ends apart."""
    digits = _digits_that_show(interval)
    if unit == "s":
        low, high = (units.seconds(end, digits=digits) for end in (interval.low, interval.high))
    elif unit in units.STEPS:
        low, high = units.in_one_unit([interval.low, interval.high], unit, digits=digits)
        low = low.partition(" ")[0]
    else:
        low, high = (
            units.significant(interval.low, digits),
            f"{units.significant(interval.high, digits)} {unit}",
        )
    basis = f"{interval.num_launches} launches" if interval.between_launches else "within one launch"
    ends = units.NOT_WELL_ENOUGH if unit and interval.low <= 0 <= interval.high else f"{low} – {high}"
    return f"{interval.confidence:.0%} interval {ends} ({basis})"


def _digits_that_show(interval: Interval) -> int:
    """Return the significant digits that tell the ends of an interval apart, from 3 to 6."""
    width = interval.relative_half_width
    return 3 if not width else min(6, max(3, 1 + ceil(-log10(width))))
