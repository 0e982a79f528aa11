"""Page for several points: one row per point, how each compares to the best, and charts by axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.config.matrix import short_names
from gpuproof.launches.point_measures import (
    PEAK_MEMORY,
    RATE_ONE_BY_ONE,
    STEP,
    STEPS,
    THROUGHPUT,
    TIME_PER_OUTPUT,
    PointMeasures,
)
from gpuproof.records.codec import from_json
from gpuproof.records.page import Axis, Cell, Chart, Page, Reference, Text
from gpuproof.records.page.tables import Column, measure_cell, pivot_of_rows
from gpuproof.records.result import LIMITED_BY, Measure, Result
from gpuproof.records.work.command import setting_text
from gpuproof.suites.points.ranking import Ranking, outcome_text, rank
from gpuproof.suites.points.results import PointsDetail, read_values
from gpuproof.suites.sections import TONES, benchmark_page
from gpuproof.verdict.page import axis_of, bars, curve, plain_chart, titled

WIDE = 8.0
"""Minimum ratio of an axis's last value to its first for the axis to be logarithmic."""


def points_page(result: Result) -> Page:
    """Lay out the overall results, then the points."""
    detail = from_json(PointsDetail, result.detail, place="result.json: detail")
    points = read_values(result)
    ranking = rank(points)
    names = short_names(list(points[0].assignment)) if points else {}
    rows = pivot_of_rows(
        "Points",
        points,
        *(_axis(key, name) for key, name in names.items()),
        Column.of("launches", lambda point: f"{point.num_launches}/{point.num_planned}"),
        *measure_columns(points),
        Column.of("limited by", limit_text, align="left", is_optional=True),
        Column.of("validity", validity_cell, align="left"),
        Column.of("outcome", lambda point: outcome_text(point, ranking), align="left", folds=True),
    )
    charts = [*filter(None, [trade_off(points, ranking)]), *point_charts(points)]
    return benchmark_page(
        result, detail.common, *charts, rows, continued(points), num_measures=detail.num_headlines
    )


def continued(points: Sequence[PointMeasures]) -> Text:
    """Report at which points more steps were measured than requested, and why."""
    details = [steps.detail for point in points if (steps := point.measure(STEPS)) is not None]
    lines = (f"{details.count(text)} of {len(points)}: {text}" for text in dict.fromkeys(details) if text)
    return Text(title="", lines=tuple(lines))


def _axis(key: str, name: str) -> Column:
    return Column.of(name, lambda point: setting_text(point.assignment[key]))


def measure_columns(points: Sequence[PointMeasures]) -> tuple[Column, ...]:
    """Return the columns for the points' own results; in latency mode a rate is not a throughput."""
    rate = (Column.of("throughput", lambda point: measure_cell(point.rate)), Column.of("", uncertainty))
    latencies = [x.measures[0] for x in points if x.measure(RATE_ONE_BY_ONE) is not None]
    if latencies:
        rate = (
            Column.of(latencies[0].name, lambda point: measure_cell(next(iter(point.measures), None))),
            Column.of("one batch after another", lambda point: measure_cell(point.rate)),
        )
    return (
        *rate,
        Column.of("mean step", lambda point: measure_cell(point.measure(STEP))),
        Column.of("memory", lambda point: measure_cell(point.measure(PEAK_MEMORY)), is_optional=True),
    )


def uncertainty(point: PointMeasures) -> str:
    """Format the uncertainty of a point's rate; empty if there is no interval."""
    return "" if point.rate is None else point.rate.uncertainty or ""


def limit_text(point: PointMeasures) -> str:
    """Return what limited a point; empty if unknown."""
    limit = point.measure(LIMITED_BY)
    return "" if limit is None or limit.missing is not None else limit.text


def validity_cell(point: PointMeasures) -> Cell:
    """Return a point's validity, highlighted by severity."""
    return Cell(point.validity or units.MISSING, TONES.get(point.validity or "", "plain"))


def point_charts(points: Sequence[PointMeasures]) -> Iterator[Chart]:
    """Yield charts of throughput, or latency in latency mode, and of memory for all points."""
    first = next((point.measures[0] for point in points if point.measures), None)
    for name in dict.fromkeys([*([] if first is None else [first.name]), PEAK_MEMORY]):
        if (chart := _along(points, name) or in_rows(points, name)) is not None:
            yield chart


def trade_off(points: Sequence[PointMeasures], ranking: Ranking) -> Chart | None:
    """Plot tokens/s against the time per token, if the points generate tokens.

    The knee is the point with the shortest time per token among the points not shown to have a lower
    throughput than the best. Beyond it, tokens take longer, and no gain in tokens per second was detected.
    """
    timed = {
        point.case_id: (time.value, point.rate)
        for point in points
        if (time := point.measure(TIME_PER_OUTPUT)) is not None and time.value is not None
        if point.rate is not None and point.rate.value is not None
    }
    if len(timed) < 2:
        return None
    first = next(iter(timed.values()))
    x = Axis(label=TIME_PER_OUTPUT, unit="s")
    series = curve(THROUGHPUT, timed.values())
    knee = _knee(timed, ranking)
    lines = [] if knee is None else [Reference(label=f"knee: {knee}", x=timed[knee][0])]
    title = "Tokens/s over time per output token"
    return plain_chart(title, "line", x, axis_of(first[1], THROUGHPUT), [series], *lines)


def _knee(timed: Mapping[str, tuple[float, Measure]], ranking: Ranking) -> str | None:
    best = None if ranking.best is None else ranking.best.case_id
    alike = [
        name
        for name, against in ranking.against_best.items()
        if against.comparison is not None and against.comparison.verdict not in ("slower", "faster")
    ]
    candidates = [name for name in (best, *alike) if name is not None and name in timed]
    knee = min(candidates, key=lambda name: timed[name][0], default=None)
    return knee if knee and any(time_s > timed[knee][0] for time_s, _ in timed.values()) else None


def _along(points: Sequence[PointMeasures], name: str) -> Chart | None:
    """Chart a measure against the swept number with the most values; other keys separate the curves."""
    numbers = {
        key: {point.assignment[key] for point in points}
        for key in (points[0].assignment if points else ())
        if all(type(point.assignment.get(key)) in (int, float) for point in points)
    }
    if not numbers:
        return None
    key = max(numbers, key=lambda one: len(numbers[one]))
    measures = ((point, point.measure(name)) for point in points)
    measured = [(point, m) for point, m in measures if m is not None and m.value is not None]
    titles = short_names(list(points[0].assignment))
    curves = grouped((_others(point, key, titles), (point, m)) for point, m in measured)
    if len({point.assignment[key] for point, _ in measured}) < 2:
        return None
    ends = min(numbers[key]), max(numbers[key])
    is_wide = 0 < ends[0] * WIDE <= ends[1]
    x = Axis(label=titles[key], is_logarithmic=is_wide, ticks=tuple(sorted(map(float, numbers[key]))))
    series = [
        curve(of or name, [(float(point.assignment[key]), m) for point, m in those])
        for of, those in curves.items()
    ]
    title = f"{titled(name)} by {titles[key]}"
    return plain_chart(title, "line", x, axis_of(measured[0][1], name), series)


def _others(point: PointMeasures, key: str, titles: dict[str, str]) -> str:
    values = {other: value for other, value in point.assignment.items() if other != key}
    return ", ".join(f"{titles[other]} {setting_text(value)}" for other, value in values.items())


def in_rows(points: Sequence[PointMeasures], name: str) -> Chart | None:
    """Return a chart of a measure with points in rows; None if fewer than two points have it."""
    return bars(titled(name), [(point.case_id, point.measure(name)) for point in points], name)
