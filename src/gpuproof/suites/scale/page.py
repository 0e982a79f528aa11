"""The scaling page: throughput, speed-up and efficiency per point, parts of steps, and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.launches.point_measures import PointMeasures
from gpuproof.records.codec import from_json
from gpuproof.records.page import Axis, Cell, Chart, MeasureCell, Page, Pivot, Reference, Series, Text
from gpuproof.records.page.tables import Column, measure_cell, measure_column, pivot, pivot_of_rows
from gpuproof.records.result import Measure, Result
from gpuproof.suites.points.page import continued, limit_text, uncertainty, validity_cell
from gpuproof.suites.points.results import PointsDetail, read_values
from gpuproof.suites.scale.breakdown import NUM_QUANTILES
from gpuproof.suites.scale.conclude import PointState, ScaleDetail
from gpuproof.suites.scale.measures import (
    COMMUNICATION,
    EFFICIENCY,
    LEARNING,
    LEARNING_ALIKE,
    MEMORY,
    OVERHEAD,
    PARTS_OF_A_STEP,
    PHASES,
    PREDICTION,
    SPEED_UP,
)
from gpuproof.suites.scale.plan import NAME
from gpuproof.suites.sections import benchmark_page
from gpuproof.verdict.page import curve, plain_chart

HEURISTIC = "Heuristic, not measured here"
OF_COMMUNICATION: Mapping[str, str] = {
    "sync_difference": "added by averaging",
    "exposed": "exposed",
    "overlapped": "overlapped",
    "standalone": "all-reduces alone",
}
PARTS_OF_MEMORY = ("parameters", "gradients", "optimizer", "buckets", "activations", "together")
ONE = Measure(name="one device", value=1.0, unit="1", text="1")
"""The value for one device, by definition."""


def page(result: Result) -> Page:
    """Lay out the points, the averages and the advice."""
    points = from_json(PointsDetail, result.detail, place="result.json: detail")
    detail = from_json(ScaleDetail, result.detail[NAME], place="result.json: detail.scale")
    measures = result.measures[: points.num_headlines]
    return benchmark_page(
        result,
        points.common,
        _points(result, detail, measures),
        Text(title="Over all batch sizes", lines=detail.averages),
        Text(title="Advice, from what was measured", lines=detail.advice),
        *curve_charts(detail, result),
        overheads(measures),
        Text(title="Scaling laws", lines=detail.laws),
        predictions(measures),
        *([communication(measures)] if detail.about_communication else []),
        Text(title="", lines=detail.about_communication),
        phases(measures),
        Text(title="", lines=detail.about_phases),
        learning(measures),
        Text(title="", lines=detail.about_learning),
        memory(measures),
        Text(title="Topology", lines=detail.topology),
        *step_charts(detail, measures),
        Text(title="Launches", lines=(*detail.launches, *continued(read_values(result)).lines)),
        Text(title=HEURISTIC, lines=detail.rule_of_thumb),
        num_measures=0,
    )


def _points(result: Result, detail: ScaleDetail, measures: tuple[Measure, ...]) -> Pivot:
    figures = {point.case_id: point for point in read_values(result)}
    speeds = {(m.case, m.labels.get("quantity")): m for m in measures if m.labels.get("section") == SPEED_UP}

    def speed(quantity: str, text: Callable[[Measure], str]) -> Column:
        def cell(state: PointState) -> MeasureCell | str:
            measure = speeds.get((state.case_id, quantity))
            return measure_cell(measure, None if measure is None else text(measure))

        return Column.of(quantity, cell)

    return pivot_of_rows(
        "Scaling",
        detail.rows,
        Column.of("batch", lambda state: units.count(state.batch_size)),
        Column.of("devices", lambda state: units.count(state.num_devices)),
        Column.of("scaling", lambda state: state.law or "", align="left", is_optional=True),
        Column.of("launches", lambda state: _launch_count(figures[state.case_id]), is_optional=True),
        Column.of("throughput", lambda state: measure_cell(figures[state.case_id].rate)),
        Column.of("", lambda state: uncertainty(figures[state.case_id])),
        speed(SPEED_UP, _ratio),
        speed(EFFICIENCY, lambda measure: measure.text),
        Column.of(
            "limited by", lambda state: limit_text(figures[state.case_id]), align="left", is_optional=True
        ),
        Column.of("validity", lambda state: validity_cell(figures[state.case_id]), align="left"),
        Column.of("recommendation", _recommendation, align="left", folds=True),
    )


def _launch_count(point: PointMeasures) -> str:
    """Return the number of launches, if some are missing."""
    done, planned = point.num_launches, point.num_planned
    return "" if done == planned else f"{done}/{planned}"


def _ratio(measure: Measure) -> str:
    span = measure.interval
    return measure.text if span is None else f"{measure.text} ({span.low:.2f} – {span.high:.2f})"


def _recommendation(state: PointState) -> Cell:
    return Cell(state.recommendation, "strong" if state.is_decided else "plain")


def overheads(measures: Sequence[Measure]) -> Pivot:
    """Tabulate how far steps exceed their share of one device's step, in seconds and as a fraction."""
    return _pivot(
        "Overhead of a step: time beyond its share of one device's step",
        measures,
        OVERHEAD,
        measure_column("mean step", "mean step"),
        measure_column("overhead", "overhead", _with_range),
        measure_column("of the step", "of the step"),
    )


def predictions(measures: Sequence[Measure]) -> Pivot:
    """Tabulate predictions for more devices."""
    return _pivot(
        "Predicted, not measured: extrapolated beyond the host, as if its own links continued",
        measures,
        PREDICTION,
        measure_column(EFFICIENCY, EFFICIENCY),
        Column.of("95 % interval", lambda row: _shares(row[EFFICIENCY])),
        Column.of("rests on", lambda row: row[EFFICIENCY].labels["law"], align="left"),
    )


def communication(measures: Sequence[Measure]) -> Pivot:
    """Tabulate the three communication measures, and the data sent."""
    return _pivot(
        "Communication of a step",
        measures,
        COMMUNICATION,
        *(measure_column(title, way, _with_range) for way, title in OF_COMMUNICATION.items()),
        measure_column("bus bandwidth", "bus bandwidth"),
        measure_column("buckets", "buckets"),
    )


def phases(measures: Sequence[Measure]) -> Pivot:
    """Tabulate the phases of a step."""
    columns = (
        measure_column(name, name) for name in (*PARTS_OF_A_STEP, "sum", "residual", "timing overhead")
    )
    return _pivot("Phases of a step", measures, PHASES, *columns)


def learning(measures: Sequence[Measure]) -> Pivot:
    """Tabulate whether training on several devices matches training on one."""
    return _pivot(
        LEARNING_ALIKE,
        measures,
        LEARNING,
        *(measure_column(name, name) for name in ("losses apart", "norms correlate", "weights apart")),
        Column.of("alike", _agrees, align="left"),
    )


def memory(measures: Sequence[Measure]) -> Pivot:
    """Tabulate the memory of the rank that uses the most."""
    return _pivot(
        "Memory of the rank that uses the most",
        measures,
        MEMORY,
        *(measure_column(name, name) for name in (*PARTS_OF_MEMORY, "measured peak")),
        *(
            measure_column(name, name, is_optional=True)
            for name in ("measured over expected", "of the device")
        ),
    )


def _pivot(title: str, measures: Sequence[Measure], section: str, *columns: Column) -> Pivot:
    of_section = [measure for measure in measures if measure.labels.get("section") == section]
    return pivot(
        title,
        of_section,
        (
            Column.of("batch", lambda measure: units.count(measure.labels["batch_size"])),
            Column.of("devices", lambda measure: units.count(measure.labels["num_devices"])),
            Column.of("scaling", lambda measure: measure.labels["scaling"] or "", align="left"),
        ),
        *columns,
    )


def _with_range(measure: Measure) -> str:
    span = measure.interval
    if span is None:
        return measure.text
    ends = f"{units.seconds(span.low)} – {units.seconds(span.high)}"
    return f"{measure.text} ({units.NOT_WELL_ENOUGH if span.low <= 0 <= span.high else ends})"


def _shares(measure: Measure) -> str:
    span = measure.interval
    return units.MISSING if span is None else f"{units.share(span.low)} – {units.share(span.high)}"


def _agrees(row: Mapping[str, Measure]) -> str:
    return "yes" if all(measure.labels["is_alike"] for measure in row.values()) else "NO"


def curve_charts(detail: ScaleDetail, result: Result) -> Iterator[Chart]:
    """Yield throughput, speed-up and efficiency by device count: one line per batch size and law.

    A broken curve continues as a separate line.
    """
    if not any(state.law for state in detail.rows):
        return
    points = {point.case_id: point for point in read_values(result)}
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
    ideal = Series(
        name="ideal",
        points=tuple((n, n) for n in sorted({float(state.num_devices) for state in detail.rows})),
        form="dashed",
        colour="axis",
    )
    speed_ups = [*_lines(detail, of(SPEED_UP)), ideal]
    yield _chart("Speed-up by devices", Axis(label="speed-up"), speed_ups, one)
    yield _chart("Efficiency by devices", Axis(label="efficiency"), _lines(detail, of(EFFICIENCY)), whole)


def _chart(title: str, y: Axis, series: Sequence[Series], reference: Reference) -> Chart:
    x = Axis(label="devices", ticks=_places(one.points for one in series))
    return plain_chart(title, "line", x, y, series, reference)


def _lines(detail: ScaleDetail, measure_of: Callable[[PointState], Measure | None]) -> list[Series]:
    lines = []
    rows = detail.rows
    for batch, law in dict.fromkeys((state.batch_size, state.law) for state in rows if state.law is not None):
        chosen = [state for state in rows if state.batch_size == batch and state.law in (law, None)]
        points = [(float(x.num_devices), measure_of(x)) for x in chosen]
        afters = [state.num_devices for state in chosen if state.is_apart]
        for begin, end in pairwise((0, *afters, inf)):
            piece = [point for point in points if begin <= point[0] < end]
            lines.append(curve(f"batch {batch}, {law}{f', from {begin:g} on' if begin else ''}", piece))
    return lines


def step_charts(detail: ScaleDetail, measures: Sequence[Measure]) -> Iterator[Chart]:
    """Yield the step time distributions and step phases of the largest batch, one chart per law."""
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
    """Stack the phases; unknown phases are left out."""
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
