"""The pictures of a scaling study: throughput, efficiency, speed-up, how step times lie, phases of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

from gpuproof.base.groups import grouped
from gpuproof.records.page import Axis, Chart, Reference, Series
from gpuproof.records.result import Measure, Result
from gpuproof.suites.points.results import read_figures
from gpuproof.suites.scale.apart import NUM_QUANTILES
from gpuproof.suites.scale.conclude import PointState, ScaleDetail
from gpuproof.suites.scale.measures import EFFICIENCY, PARTS_OF_A_STEP, PHASES, SPEED_UP
from gpuproof.suites.scale.plan import Law
from gpuproof.verdict.measure_charts import curve, plain_chart

ONE = Measure(name="one device", value=1.0, unit="1", text="1")
"""Of one device, by definition."""


def curve_charts(detail: ScaleDetail, result: Result) -> Iterator[Chart]:
    """Yield throughput, speed-up and efficiency against devices: a line for each batch size and law.

    A curve that is broken goes on as another line.
    """
    if not any(state.law for state in detail.rows):
        return
    points = {point.case_id: point for point in read_figures(result)}
    measures = {(m.case, m.labels.get("quantity")): m for m in result.measures}

    def rate(state: PointState) -> Measure | None:
        return points[state.case_id].rate

    def of(quantity: str) -> Callable[[PointState], Measure | None]:
        def value(state: PointState) -> Measure | None:
            return ONE if state.num_devices == 1 else measures.get((state.case_id, quantity))

        return value

    item = next((point.item for point in points.values() if point.item), "")
    one, whole = Reference(label="one device", x=1.0), Reference(label="all of each device", y=1.0)
    throughput = _lines(detail, rate)
    yield _chart("Throughput by devices", Axis(label="throughput", unit=f"{item}/s"), throughput, one)
    ideal = Series(name="ideal", points=tuple((n, n) for n in _devices(detail)), form="dashed", colour="axis")
    speed_ups = [*_lines(detail, of(SPEED_UP)), ideal]
    yield _chart("Speed-up by devices", Axis(label="speed-up"), speed_ups, one)
    yield _chart("Efficiency by devices", Axis(label="efficiency"), _lines(detail, of(EFFICIENCY)), whole)


def _chart(title: str, y: Axis, series: Sequence[Series], reference: Reference) -> Chart:
    x = Axis(label="devices", ticks=_places(one.points for one in series))
    return plain_chart(title, "line", x, y, series, reference)


def _devices(detail: ScaleDetail) -> list[float]:
    return sorted({float(state.num_devices) for state in detail.rows})


def _lines(detail: ScaleDetail, measure_of: Callable[[PointState], Measure | None]) -> list[Series]:
    lines = []
    rows = detail.rows
    for batch, law in dict.fromkeys((state.batch_size, state.law) for state in rows if state.law is not None):
        chosen = [state for state in rows if state.batch_size == batch and state.law in (law, None)]
        points = [(float(x.num_devices), measure_of(x)) for x in chosen]
        afters = [state.num_devices for state in chosen if state.is_apart]
        for begin, end in pairwise((0, *afters, inf)):
            piece = [point for point in points if begin <= point[0] < end]
            lines.append(curve(_name(batch, law, begin), piece))
    return lines


def _name(batch: int, law: Law | None, begin: float) -> str:
    return f"batch {batch}, {law}{f', from {begin:g} on' if begin else ''}"


def step_charts(detail: ScaleDetail, measures: Sequence[Measure]) -> Iterator[Chart]:
    """Yield how step times lie, and the phases of a step: of the largest batch, a picture for each law."""
    points = [state for state in detail.rows if state.step_quantiles_s]
    if not points:
        return
    largest = max(point.batch_size for point in points)
    for law in dict.fromkeys(point.law for point in points if point.law is not None) or (None,):
        name = f"batch {largest}" if law is None else f"batch {largest}, {law}"
        chosen = [point for point in points if point.batch_size == largest and point.law in (law, None)]
        yield from _step_times(chosen, name)
        of_phases = [measure for measure in measures if measure.labels.get("section") == PHASES]
        at = [m for m in of_phases if m.labels["batch_size"] == largest]
        yield from _phases([m for m in at if m.labels["scaling"] in (law, None)], name)


def _step_times(points: Sequence[PointState], name: str) -> Iterator[Chart]:
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
        y = Axis(label="steps that took no longer", unit="%")
        yield plain_chart(f"Step times, {name}", "line", Axis(label="step", unit="s"), y, series)


def _places(columns: Iterable[Sequence[tuple[float, float]]]) -> tuple[float, ...]:
    return tuple(sorted({x for points in columns for x, _ in points}))


def _phases(measures: Sequence[Measure], name: str) -> Iterator[Chart]:
    """Stack the phases; what is not known of a phase adds nothing."""
    phases = grouped(
        (m.labels["quantity"], (float(m.labels["num_devices"]), m.value or 0.0))
        for m in measures
        if m.labels["quantity"] in PARTS_OF_A_STEP
    )
    if phases:
        x = Axis(label="devices", is_logarithmic=True, ticks=_places(phases.values()))
        y = Axis(label="a step", unit="s")
        series = [Series(name=phase, points=tuple(points)) for phase, points in phases.items()]
        yield replace(plain_chart(f"Phases of a step, {name}", "bar", x, y, series), is_stacked=True)
