"""The page of a scaling study: throughput, speed-up and efficiency of each point, and what to use."""

from __future__ import annotations

from collections.abc import Callable

from gpuproof.base import units
from gpuproof.launches.point_figures import PointFigures
from gpuproof.records.codec import from_json
from gpuproof.records.page import Cell, Figure, Page, Pivot, Text
from gpuproof.records.page.tables import Column, as_figure, pivot_of_rows
from gpuproof.records.result import Measure, Result
from gpuproof.suites.points.page import continued, limit_text, uncertainty, validity_cell
from gpuproof.suites.points.results import PointsDetail, read_figures
from gpuproof.suites.scale import tables
from gpuproof.suites.scale.charts import curve_charts, step_charts
from gpuproof.suites.scale.conclude import PointState, ScaleDetail
from gpuproof.suites.scale.measures import EFFICIENCY, SPEED_UP
from gpuproof.suites.scale.plan import NAME
from gpuproof.suites.sections import benchmark_page

HEURISTIC = "Heuristic, not measured here"


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
        tables.overheads(measures),
        Text(title="Scaling laws", lines=detail.laws),
        tables.predictions(measures),
        *([tables.communication(measures)] if detail.about_communication else []),
        Text(title="", lines=detail.about_communication),
        tables.phases(measures),
        Text(title="", lines=detail.about_phases),
        tables.learning(measures),
        Text(title="", lines=detail.about_learning),
        tables.memory(measures),
        Text(title="Topology", lines=detail.topology),
        *step_charts(detail, measures),
        Text(title="Launches", lines=(*detail.launches, *continued(read_figures(result)).lines)),
        Text(title=HEURISTIC, lines=detail.rule_of_thumb),
        num_measures=0,
    )


def _points(result: Result, detail: ScaleDetail, measures: tuple[Measure, ...]) -> Pivot:
    figures = {point.case_id: point for point in read_figures(result)}
    speeds = {(m.case, m.labels.get("quantity")): m for m in measures if m.labels.get("section") == SPEED_UP}

    def speed(quantity: str, text: Callable[[Measure], str]) -> Column:
        def cell(state: PointState) -> Figure | str:
            measure = speeds.get((state.case_id, quantity))
            return as_figure(measure, None if measure is None else text(measure))

        return Column.of(quantity, cell)

    return pivot_of_rows(
        "Scaling",
        detail.rows,
        Column.of("batch", lambda state: units.count(state.batch_size)),
        Column.of("devices", lambda state: units.count(state.num_devices)),
        Column.of("scaling", lambda state: state.law or "", align="left", is_optional=True),
        Column.of("launches", lambda state: _launch_count(figures[state.case_id]), is_optional=True),
        Column.of("throughput", lambda state: as_figure(figures[state.case_id].rate)),
        Column.of("", lambda state: uncertainty(figures[state.case_id])),
        speed(SPEED_UP, _ratio),
        speed(EFFICIENCY, lambda measure: measure.text),
        Column.of(
            "limited by", lambda state: limit_text(figures[state.case_id]), align="left", is_optional=True
        ),
        Column.of("validity", lambda state: validity_cell(figures[state.case_id]), align="left"),
        Column.of("recommendation", _recommendation, align="left", folds=True),
    )


def _launch_count(point: PointFigures) -> str:
    """Count the launches where some are missing."""
    done, planned = point.num_launches, point.num_planned
    return "" if done == planned else f"{done}/{planned}"


def _ratio(measure: Measure) -> str:
    span = measure.interval
    return measure.text if span is None else f"{measure.text} ({span.low:.2f} – {span.high:.2f})"


def _recommendation(state: PointState) -> Cell:
    return Cell(state.recommendation, "strong" if state.is_decided else "plain")
