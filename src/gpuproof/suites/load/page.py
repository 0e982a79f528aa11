"""The load suite page: one row per test; empty columns are omitted."""

from __future__ import annotations

from dataclasses import replace

from gpuproof.base.units import MISSING
from gpuproof.launches.point_measures import PEAK_MEMORY, STEP, THROUGHPUT, PointMeasures
from gpuproof.records.codec import from_json
from gpuproof.records.page import Cell, Page, Text
from gpuproof.records.page.tables import Column, measure_cell, pivot_of_rows
from gpuproof.records.result import Result
from gpuproof.suites.load.conclude import GPU_USE, HOST_USE
from gpuproof.suites.points.page import continued, in_rows, limit_text, validity_cell
from gpuproof.suites.points.results import PointsDetail, read_values
from gpuproof.suites.sections import benchmark_page

P95_STEP = "p95 step"


def page(result: Result) -> Page:
    """Lay out the tests."""
    detail = from_json(PointsDetail, result.detail, place="result.json: detail")
    points = read_values(result)
    tests = pivot_of_rows(
        "Tests",
        points,
        Column.of("test", lambda point: point.case_id, align="left"),
        Column.of("throughput", lambda point: measure_cell(point.rate) if point.success else MISSING),
        _column("mean step", STEP),
        _column(P95_STEP, P95_STEP, is_optional=True),
        _column("memory", PEAK_MEMORY, is_optional=True),
        _column("CPU", HOST_USE),
        _column("GPU", GPU_USE, is_optional=True),
        Column.of("limit", limit_text, align="left", folds=True, is_optional=True),
        Column.of("", _outcome, align="left", folds=True),
    )
    tails = [point.measure(P95_STEP) for point in points]
    missing = dict.fromkeys(tail.missing for tail in tails if tail is not None and tail.missing)
    why = Text(title="", lines=(*continued(points).lines, *missing))
    whole = [replace(point, measures=()) if not point.success else point for point in points]
    rows = [chart for name in (THROUGHPUT, P95_STEP, PEAK_MEMORY) if (chart := in_rows(whole, name))]
    return benchmark_page(result, detail.common, *rows, tests, why, num_measures=detail.num_headlines)


def _column(title: str, name: str, *, is_optional: bool = False) -> Column:
    """Return a column of values; an unfinished test has no value, even if it measured one."""
    return Column.of(
        title,
        lambda point: measure_cell(point.measure(name)) if point.success else MISSING,
        is_optional=is_optional,
    )


def _outcome(point: PointMeasures) -> Cell:
    if point.failures:
        return Cell(f"failed: {point.failures[0].cause.replace('_', ' ')}", "bad")
    return validity_cell(point) if point.success else Cell("not run")
