"""The pictures of several points: what was swept along an axis, tests in rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuproof.analysis.point_figures import PEAK_MEMORY, PointFigures
from gpuproof.config.axes import short_names
from gpuproof.groups import grouped
from gpuproof.records.page import Axis, Chart
from gpuproof.suites.points.exports import value_text
from gpuproof.verdict.measure_charts import axis_of, bars, curve, plain_chart, titled

WIDE = 8.0
"""An axis whose last value is that many times its first is logarithmic."""


def point_charts(points: Sequence[PointFigures]) -> Iterator[Chart]:
    """Yield throughput, or in latency mode latency, and memory of all points."""
    first = next((point.measures[0] for point in points if point.measures), None)
    for name in dict.fromkeys([*([] if first is None else [first.name]), PEAK_MEMORY]):
        if (chart := _along(points, name) or in_rows(points, name)) is not None:
            yield chart


def _along(points: Sequence[PointFigures], name: str) -> Chart | None:
    """Return a measure along the swept number with most values; other keys tell curves apart."""
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


def _others(point: PointFigures, key: str, titles: dict[str, str]) -> str:
    values = {other: value for other, value in point.assignment.items() if other != key}
    return ", ".join(f"{titles[other]} {value_text(value)}" for other, value in values.items())


def in_rows(points: Sequence[PointFigures], name: str) -> Chart | None:
    """Return a measure of every point in rows; None where fewer than two have it."""
    return bars(titled(name), [(point.case_id, point.measure(name)) for point in points], name)
