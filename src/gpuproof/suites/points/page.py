"""The page of several points: a row a point, and how each stands to the best one."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.base import units
from gpuproof.config.axes import short_names
from gpuproof.launches.point_figures import PEAK_MEMORY, RATE_ONE_BY_ONE, STEP, STEPS, PointFigures
from gpuproof.records.codec import from_json
from gpuproof.records.page import Cell, Page, Text
from gpuproof.records.page.tables import Column, as_figure, pivot_of_rows
from gpuproof.records.result import LIMITED_BY, Result
from gpuproof.suites.points.charts import point_charts, trade_off
from gpuproof.suites.points.exports import outcome_text, value_text
from gpuproof.suites.points.ranking import rank
from gpuproof.suites.points.results import PointsDetail, read_figures
from gpuproof.suites.sections import TONES, benchmark_page


def points_page(result: Result) -> Page:
    """Lay out the figures of the whole, then the points."""
    detail = from_json(PointsDetail, result.detail, place="result.json: detail")
    points = read_figures(result)
    ranking = rank(points)
    names = short_names(list(points[0].assignment)) if points else {}
    rows = pivot_of_rows(
        "Points",
        points,
        *(_axis(key, name) for key, name in names.items()),
        Column.of("launches", lambda point: f"{point.num_launches}/{point.num_planned}"),
        *figure_columns(points),
        Column.of("limited by", limit_text, align="left", is_optional=True),
        Column.of("validity", validity_cell, align="left"),
        Column.of("outcome", lambda point: outcome_text(point, ranking), align="left", folds=True),
    )
    charts = [*filter(None, [trade_off(points, ranking)]), *point_charts(points)]
    return benchmark_page(
        result, detail.common, *charts, rows, continued(points), num_measures=detail.num_headlines
    )


def continued(points: Sequence[PointFigures]) -> Text:
    """Say of which points more steps were measured than requested, and why."""
    details = [steps.detail for point in points if (steps := point.measure(STEPS)) is not None]
    lines = (f"{details.count(text)} of {len(points)}: {text}" for text in dict.fromkeys(details) if text)
    return Text(title="", lines=tuple(lines))


def _axis(key: str, name: str) -> Column:
    return Column.of(name, lambda point: value_text(point.assignment[key]))


def figure_columns(points: Sequence[PointFigures]) -> tuple[Column, ...]:
    """Return the columns of the points' own figures; in latency mode a rate is no throughput."""
    rate = (Column.of("throughput", lambda point: as_figure(point.rate)), Column.of("", uncertainty))
    latencies = [x.measures[0] for x in points if x.measure(RATE_ONE_BY_ONE) is not None]
    if latencies:
        rate = (
            Column.of(latencies[0].name, lambda point: as_figure(next(iter(point.measures), None))),
            Column.of("one batch after another", lambda point: as_figure(point.rate)),
        )
    return (
        *rate,
        Column.of("mean step", lambda point: as_figure(point.measure(STEP))),
        Column.of("memory", lambda point: as_figure(point.measure(PEAK_MEMORY)), is_optional=True),
    )


def uncertainty(point: PointFigures) -> str:
    """Write the uncertainty of a point's rate, or nothing where there is no interval."""
    return "" if point.rate is None else point.rate.uncertainty or ""


def limit_text(point: PointFigures) -> str:
    """Name what limited a point; nothing where that is not known."""
    limit = point.measure(LIMITED_BY)
    return "" if limit is None or limit.missing is not None else limit.text


def validity_cell(point: PointFigures) -> Cell:
    """Return a point's validity, set off by its gravity."""
    return Cell(point.validity or units.MISSING, TONES.get(point.validity or "", "plain"))
