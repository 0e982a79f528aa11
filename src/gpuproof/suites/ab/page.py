"""The page of two configurations: the comparison first, then doubts and what was read beside the launches."""

from __future__ import annotations

from dataclasses import replace

from gpuproof import units
from gpuproof.analysis.points import PointFigures
from gpuproof.records.codec import from_json
from gpuproof.records.page import Column, Page, table
from gpuproof.records.result import Result
from gpuproof.suites.ab.conclude import JUDGEMENT
from gpuproof.suites.ab.course import NAME
from gpuproof.suites.points.page import uncertainty, validity_cell
from gpuproof.suites.points.results import PointsDetail
from gpuproof.suites.sections import benchmark_page
from gpuproof.verdict.comparison.judge import Judgement, SideBySide
from gpuproof.verdict.comparison.page import TONES, comparison_sections


def page(result: Result) -> Page:
    """Lay out the comparison, then both sides."""
    points = from_json(PointsDetail, result.detail, place="result.json: detail")
    comparison = from_json(SideBySide, result.detail[NAME], place="result.json: detail.ab")
    sides = table(
        "Sides",
        list(zip((comparison.a.name, comparison.b.name), points.points, strict=True)),
        Column.of("", lambda row: row[0], align="left", folds=True),
        Column.of("launches", lambda row: str(len(row[1].launches))),
        Column.of("throughput", lambda row: _rate(row[1])),
        Column.of("", lambda row: uncertainty(row[1])),
        Column.of("mean step", lambda row: units.seconds(row[1].mean_step_s)),
        Column.of("memory", lambda row: units.memory(row[1].peak_allocated_bytes), is_optional=True),
        Column.of("validity", lambda row: validity_cell(row[1]), align="left"),
    )
    laid_out = benchmark_page(result, points.common, *comparison_sections(comparison), sides, num_measures=0)
    assert laid_out.verdict is not None
    judgement = from_json(Judgement, result.detail[JUDGEMENT], place="result.json: detail.judgement")
    meaning = "; ".join(filter(None, (judgement.meaning, laid_out.verdict.meaning)))
    tone = TONES.get(judgement.word, "plain")
    return replace(laid_out, verdict=replace(laid_out.verdict, meaning=meaning, tone=tone, uncertainty=""))


def _rate(row: PointFigures) -> str:
    return units.rate(row.items_per_s_total, row.item)
