"""The page of several points: a row a point, and how each stands to the best one."""

from __future__ import annotations

from gpuproof import units
from gpuproof.analysis.points import PointFigures, rank
from gpuproof.config.axes import short_names
from gpuproof.records.codec import from_json
from gpuproof.records.page import Cell, Column, Page, table
from gpuproof.records.result import Result
from gpuproof.suites.points.exports import outcome_text, value_text
from gpuproof.suites.points.results import PointsDetail
from gpuproof.suites.sections import TONES, benchmark_page


def points_page(result: Result) -> Page:
    """Lay out the figures of the whole, then the points."""
    detail = from_json(PointsDetail, result.detail, place="result.json: detail")
    ranking = rank(detail.points)
    names = short_names(list(detail.points[0].assignment)) if detail.points else {}
    points = table(
        "Points",
        detail.points,
        *(_axis(key, name) for key, name in names.items()),
        Column.of("launches", lambda row: f"{len(row.launches)}/{row.num_planned}"),
        Column.of("throughput", lambda row: units.rate(row.items_per_s_total, row.item)),
        Column.of("", uncertainty),
        Column.of("mean step", lambda row: units.seconds(row.mean_step_s)),
        Column.of("memory", lambda row: units.memory(row.peak_allocated_bytes), is_optional=True),
        Column.of("validity", validity_cell, align="left"),
        Column.of("outcome", lambda row: outcome_text(row, ranking), align="left", folds=True),
    )
    return benchmark_page(result, detail.common, points, num_measures=detail.num_headlines)


def _axis(key: str, name: str) -> Column:
    return Column.of(name, lambda row: value_text(row.assignment[key]))


def uncertainty(row: PointFigures) -> str:
    """Write the uncertainty of a point's throughput, or nothing where there is no interval."""
    interval = row.items_per_s_total_interval
    reach = None if interval is None else interval.relative_reach
    return "" if reach is None else units.plus_minus(reach)


def validity_cell(row: PointFigures) -> Cell:
    """Return a point's validity, set off by its gravity."""
    return Cell(row.validity or units.MISSING, TONES.get(row.validity or "", "plain"))
