"""The page of the load suite: a row a test, and no column that has nothing in it."""

from __future__ import annotations

from gpuproof import units
from gpuproof.analysis.points import PointFigures
from gpuproof.records.codec import from_json
from gpuproof.records.page import Cell, Column, Page, Text, table
from gpuproof.records.result import Result
from gpuproof.suites.load.conclude import TestReadings
from gpuproof.suites.points.page import validity_cell
from gpuproof.suites.points.results import PointsDetail
from gpuproof.suites.sections import benchmark_page


def page(result: Result) -> Page:
    """Lay out the tests."""
    detail = from_json(PointsDetail, result.detail, place="result.json: detail")
    beside = {
        name: from_json(TestReadings, readings, place=f"result.json: detail: tests: {name}")
        for name, readings in result.detail["tests"].items()
    }
    rows = [(point, beside[point.case_id]) for point in detail.points]
    tests = table(
        "Tests",
        rows,
        Column.of("test", lambda row: row[0].case_id, align="left"),
        Column.of("throughput", lambda row: _good(row[0], units.rate(row[0].items_per_s_total, "samples"))),
        Column.of("mean step", lambda row: _good(row[0], units.seconds(row[0].mean_step_s))),
        Column.of("p95 step", lambda row: _good(row[0], units.seconds(row[1].p95_step_s))),
        Column.of(
            "peak memory",
            lambda row: _good(row[0], units.memory(row[0].peak_allocated_bytes)),
            is_optional=True,
        ),
        Column.of("CPU", lambda row: _good(row[0], _percent(row[1].cpu_percent))),
        Column.of("GPU", lambda row: _good(row[0], _percent(row[1].gpu_percent)), is_optional=True),
        Column.of("", lambda row: _outcome(row[0]), align="left", folds=True),
    )
    missing = dict.fromkeys(figures.p95_missing for figures in beside.values() if figures.p95_missing)
    why = Text(title="", lines=tuple(missing))
    return benchmark_page(result, detail.common, tests, why, num_measures=detail.num_headlines)


def _good(point: PointFigures, text: str) -> str:
    """Return no figures of a test that did not come to its end, whatever it had measured before."""
    return text if point.success else units.MISSING


def _percent(value: float | None) -> str:
    return units.MISSING if value is None else f"{value:.0f} %"


def _outcome(point: PointFigures) -> Cell:
    if point.failures:
        return Cell(f"failed: {point.failures[0].cause.replace('_', ' ')}", "bad")
    return validity_cell(point) if point.success else Cell("not run")
