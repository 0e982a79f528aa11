"""The page of a scaling study: throughput, speed-up and efficiency of each point, and what to use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuproof import units
from gpuproof.records.codec import from_json
from gpuproof.records.page import Cell, Column, Page, Text, as_figure, pivot_of_rows
from gpuproof.records.result import Result
from gpuproof.statistics.dispersion import outliers_by_chance
from gpuproof.suites.points.page import uncertainty, validity_cell
from gpuproof.suites.points.results import PointsDetail, read_figures
from gpuproof.suites.scale.advice_lines import advice_lines
from gpuproof.suites.scale.charts import curve_charts, step_charts
from gpuproof.suites.scale.conclude import ScaleDetail, ScaleRow
from gpuproof.suites.scale.plan import NAME
from gpuproof.suites.scale.tables import laws_section, overheads, predictions, sections_apart
from gpuproof.suites.sections import benchmark_page

HEURISTIC = "Heuristic, not measured here"


def page(result: Result) -> Page:
    """Lay out the points, the averages and the advice."""
    points = from_json(PointsDetail, result.detail, place="result.json: detail")
    detail = from_json(ScaleDetail, result.detail[NAME], place="result.json: detail.scale")
    figures = {point.case_id: point for point in read_figures(result)}
    detail = replace(
        detail, rows=tuple(replace(row, figures=figures[row.figures.case_id]) for row in detail.rows)
    )
    rows = pivot_of_rows(
        "Scaling",
        detail.rows,
        Column.of("batch", lambda row: units.count(row.batch_size)),
        Column.of("devices", lambda row: units.count(row.num_devices)),
        Column.of("scaling", lambda row: row.law or "", align="left", is_optional=True),
        Column.of("launches", _launch_count, is_optional=True),
        Column.of("throughput", lambda row: as_figure(row.figures.rate)),
        Column.of("", lambda row: uncertainty(row.figures)),
        Column.of("speed-up", _ratio),
        Column.of("efficiency", lambda row: units.share(row.speed_up.efficiency if row.speed_up else None)),
        Column.of("validity", lambda row: validity_cell(row.figures), align="left"),
        Column.of("recommendation", _recommendation, align="left", folds=True),
    )
    return benchmark_page(
        result,
        points.common,
        rows,
        Text(title="Over all batch sizes", lines=tuple(_averages(detail))),
        Text(title="Advice, from what was measured", lines=tuple(advice_lines(detail.advice))),
        *curve_charts(detail.rows, detail.curves),
        overheads(detail.curves),
        laws_section(detail.curves),
        predictions(detail.curves),
        *sections_apart(detail.apart),
        Text(title="Topology", lines=detail.topology),
        *step_charts(detail.apart),
        Text(title="Launches", lines=tuple(_launches(detail.rows))),
        Text(title=HEURISTIC, lines=tuple(_thumb(detail))),
        num_measures=0,
    )


def _launch_count(row: ScaleRow) -> str:
    """Count the launches where some are missing."""
    done, planned = row.figures.num_launches, row.figures.num_planned
    return "" if done == planned else f"{done}/{planned}"


def _ratio(row: ScaleRow) -> str:
    ratio = None if row.speed_up is None else row.speed_up.comparison.ratio
    if ratio is None:
        return units.MISSING
    return f"{ratio.centre:.2f} × ({ratio.low:.2f} – {ratio.high:.2f})"


def _recommendation(row: ScaleRow) -> Cell:
    if row.speed_up is None:
        return Cell("" if row.num_devices == 1 else "nothing to compare with")
    return Cell(row.speed_up.recommendation, "strong" if row.speed_up.is_decided else "plain")


def _averages(detail: ScaleDetail) -> Iterator[str]:
    for average in detail.averages:
        ratio = average.speed_up.comparison.ratio
        ratio_text = "" if ratio is None else f" {ratio.centre:.2f} × ({ratio.low:.2f} – {ratio.high:.2f})"
        yield f"{average.num_devices} devices, {average.law} scaling:{ratio_text} {average.conclusion}"


def _launches(rows: Sequence[ScaleRow]) -> Iterator[str]:
    for row in rows:
        if row.outlier_launches and row.rate_without_outliers is not None:
            named = ", ".join(str(replicate + 1) for replicate in row.outlier_launches)
            rate = units.rate(row.rate_without_outliers, row.figures.item)
            yield (
                f"{row.figures.case_id}: outliers (modified Z-score over 3.5; kept): launch {named}; "
                f"without {rate}"
            )
    if any(row.outlier_launches for row in rows):
        yield outliers_by_chance()
    needed = [row.launches_for_one_percent for row in rows if row.launches_for_one_percent]
    if needed:
        yield f"for ±1 % of every throughput {max(needed)} launches would be needed at this spread"


def _thumb(detail: ScaleDetail) -> Iterator[str]:
    rule = detail.rule_of_thumb
    if rule is not None and detail.num_parameters is not None:
        yield f"{rule.reason}: {rule.advice}"
        if detail.advice.measured is not None:
            yield "the measurements above take precedence over it"
