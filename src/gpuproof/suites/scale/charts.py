"""The pictures of a scaling study: throughput, efficiency, speed-up, how step times lie, phases of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import inf

from gpuproof.records.page import Axis, Chart, Reference, Series
from gpuproof.suites.scale.apart import NUM_QUANTILES, PointApart
from gpuproof.suites.scale.conclude import ScaleRow
from gpuproof.suites.scale.curves import ScaleCurve
from gpuproof.suites.scale.plan import Law

DEVICES = Axis(label="devices")


def curve_charts(rows: Sequence[ScaleRow], curves: Sequence[ScaleCurve]) -> Iterator[Chart]:
    """Yield throughput, speed-up and efficiency against devices: a line for each batch size and law.

    A curve that is broken goes on as another line.
    """
    if not any(row.law for row in rows):
        return
    unit = f"{rows[0].figures.item}/s"
    one, whole = Reference(label="one device", x=1.0), Reference(label="all of each device", y=1.0)
    throughput = _lines(rows, curves, _rate)
    yield _chart("Throughput by devices", Axis(label="throughput", unit=unit), throughput, one)
    speed_ups = [_with_ranges(series, rows) for series in _lines(rows, curves, _ratio)]
    numbers = sorted({float(row.num_devices) for row in rows})
    linear = Series(name="as many as devices", points=tuple((number, number) for number in numbers))
    yield _chart("Speed-up by devices", Axis(label="speed-up"), [*speed_ups, linear], one)
    yield _chart("Efficiency by devices", Axis(label="efficiency"), _lines(rows, curves, _efficiency), whole)


def _chart(title: str, y: Axis, series: Sequence[Series], reference: Reference) -> Chart:
    return Chart(
        title=title,
        kind="line",
        x=DEVICES,
        y=y,
        series=tuple(series),
        references=(reference,),
        is_in_a_table=True,
    )


def _lines(
    rows: Sequence[ScaleRow], curves: Sequence[ScaleCurve], value: Callable[[ScaleRow], float | None]
) -> list[Series]:
    lines = []
    for batch, law in dict.fromkeys((row.batch_size, row.law) for row in rows if row.law is not None):
        chosen = [row for row in rows if row.batch_size == batch and row.law in (law, None)]
        points = [(float(row.num_devices), figure) for row in chosen if (figure := value(row)) is not None]
        afters = [x.after for c in curves if (c.batch_size, c.scaling) == (batch, law) for x in c.breaks]
        for begin, end in pairwise((0, *afters, inf)):
            piece = tuple(point for point in points if begin <= point[0] < end)
            lines.append(Series(name=_name(batch, law, begin), points=piece))
    return lines


def _name(batch: int, law: Law | None, begin: float) -> str:
    return f"batch {batch}, {law}{f', from {begin:g} on' if begin else ''}"


def _rate(row: ScaleRow) -> float | None:
    return row.figures.side.value


def _ratio(row: ScaleRow) -> float | None:
    return 1.0 if row.num_devices == 1 else row.speed_up.ratio if row.speed_up else None


def _efficiency(row: ScaleRow) -> float | None:
    return 1.0 if row.num_devices == 1 else row.speed_up.efficiency if row.speed_up else None


def _with_ranges(series: Series, rows: Sequence[ScaleRow]) -> Series:
    """Add the intervals of speed-ups; the one of one device is 1 by definition."""
    intervals = {
        (_name(row.batch_size, row.law, 0), float(row.num_devices)): (ratio.low, ratio.high)
        for row in rows
        if row.speed_up is not None and (ratio := row.speed_up.comparison.ratio) is not None
    }
    ranges = tuple(intervals.get((series.name.partition(", from ")[0], x), (y, y)) for x, y in series.points)
    return Series(name=series.name, points=series.points, ranges=ranges)


def step_charts(points: Sequence[PointApart]) -> Iterator[Chart]:
    """Yield how step times lie, and the phases of a step: of the largest batch, a picture for each law."""
    if not points:
        return
    largest = max(point.batch_size for point in points)
    for law in dict.fromkeys(point.law for point in points if point.law is not None) or (None,):
        chosen = [point for point in points if point.batch_size == largest and point.law in (law, None)]
        name = f"batch {largest}" if law is None else f"batch {largest}, {law}"
        yield from _step_times(chosen, name)
        yield from _phases(chosen, name)


def _step_times(points: Sequence[PointApart], name: str) -> Iterator[Chart]:
    series = [
        Series(
            name=f"{point.num_devices} device{'s' * (point.num_devices > 1)}",
            points=tuple(
                (time_s, 100 * place / (NUM_QUANTILES - 1))
                for place, time_s in enumerate(point.step_quantiles_s)
            ),
        )
        for point in points
        if point.step_quantiles_s
    ]
    if series:
        yield Chart(
            title=f"Step times, {name}",
            kind="line",
            x=Axis(label="step", unit="s"),
            y=Axis(label="steps that took no longer", unit="%"),
            series=tuple(series),
            is_in_a_table=True,
        )


def _phases(points: Sequence[PointApart], name: str) -> Iterator[Chart]:
    phased = [(float(point.num_devices), point.phases) for point in points if point.phases is not None]
    if phased:
        yield Chart(
            title=f"Phases of a step, {name}",
            kind="bar",
            x=Axis(label="devices", is_logarithmic=True),
            y=Axis(label="a step", unit="s"),
            series=tuple(
                Series(name=phase, points=tuple((number, phases.parts_s[phase]) for number, phases in phased))
                for phase in phased[0][1].parts_s
            ),
            is_stacked=True,
            is_in_a_table=True,
        )
