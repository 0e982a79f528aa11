"""The page for a comparison: the result first, then warnings and readings during launches."""

from __future__ import annotations

from dataclasses import replace

from gpuproof.comparison.judge import Judgement, SideBySide
from gpuproof.comparison.page import TONES, comparison_sections
from gpuproof.records.codec import from_json
from gpuproof.records.page import Page
from gpuproof.records.page.tables import Column, pivot_of_rows
from gpuproof.records.result import Result
from gpuproof.suites.ab.conclude import JUDGEMENT
from gpuproof.suites.ab.plan import NAME, SIDES
from gpuproof.suites.points.page import measure_columns, validity_cell
from gpuproof.suites.points.results import PointsDetail, read_values
from gpuproof.suites.sections import benchmark_page


def page(result: Result) -> Page:
    """Render the comparison, then both sides."""
    common = from_json(PointsDetail, result.detail, place="result.json: detail").common
    comparison = from_json(SideBySide, result.detail[NAME], place="result.json: detail.ab")
    names = dict(zip(SIDES, (comparison.a.name, comparison.b.name), strict=True))
    points = read_values(result)
    sides = pivot_of_rows(
        "Sides",
        points,
        Column.of("", lambda point: names[point.case_id], align="left", folds=True),
        Column.of("launches", lambda point: str(point.num_launches)),
        *(measure_columns(points) if any(point.rate for point in points) else ()),  # not shown for requests
        Column.of("validity", validity_cell, align="left"),
    )
    laid_out = benchmark_page(result, common, *comparison_sections(comparison), sides, num_measures=0)
    assert laid_out.verdict is not None
    judgement = from_json(Judgement, result.detail[JUDGEMENT], place="result.json: detail.judgement")
    reason = "; ".join(filter(None, (judgement.meaning, laid_out.verdict.reason)))
    tone = TONES.get(judgement.word, "plain")
    return replace(laid_out, verdict=replace(laid_out.verdict, reason=reason, tone=tone, uncertainty=""))
