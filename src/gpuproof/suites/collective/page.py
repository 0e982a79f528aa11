"""The collectives page: every size with its results, and a chart of the bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.records.codec import from_json
from gpuproof.records.page import Cell, Chart, Page, Series
from gpuproof.records.page.tables import Column, measure_column, pivot
from gpuproof.records.result import LIMITED_BY, Measure, Result
from gpuproof.suites.collective.conclude import BUS_BANDWIDTH, WRONG_VALUES, CollectiveDetail
from gpuproof.suites.sections import benchmark_page
from gpuproof.verdict.expectations import load_expectations, published_for
from gpuproof.verdict.page import by_size


def page(result: Result) -> Page:
    """Lay out the best result of each operation, then every size."""
    detail = from_json(CollectiveDetail, result.detail, place="result.json: detail")
    of_sizes = [m for m in result.measures[detail.num_headlines :] if m.name != LIMITED_BY]
    sizes = pivot(
        "Sizes",
        of_sizes,
        (
            Column.of("operation", lambda measure: measure.labels["operation"], align="left"),
            Column.of("size (B)", lambda measure: units.count(measure.labels["size_bytes"])),
        ),
        measure_column("time", "mean latency"),
        measure_column("algbw", "algorithm bandwidth"),
        measure_column("busbw", BUS_BANDWIDTH),
        measure_column("#wrong", WRONG_VALUES, _wrong),
        measure_column("p50", "p50 latency"),
        measure_column("p99", "p99 latency", is_optional=True),
        measure_column("longest", "longest latency"),
        measure_column("rank spread", "rank spread"),
    )
    return benchmark_page(
        result, detail.common, _bandwidths(of_sizes, result), sizes, num_measures=detail.num_headlines
    )


def _bandwidths(measures: Sequence[Measure], result: Result) -> Chart:
    """Chart each operation's bus bandwidth by size, with published results for similar machines."""
    curves = grouped(
        (measure.labels["operation"], (float(measure.labels["size_bytes"]), measure))
        for measure in measures
        if measure.labels["quantity"] == BUS_BANDWIDTH
    )
    chart = by_size("Bus bandwidth", BUS_BANDWIDTH, curves)
    published = (series for operation in curves for series in _published(operation, result.conditions))
    return replace(chart, series=(*chart.series, *published))


def _published(operation: str, conditions: Mapping[str, Any]) -> Iterator[Series]:
    """Yield published results for an operation on the same number of these devices, each at its size."""
    measured = {
        "quantity": operation,
        "device": conditions.get("device"),
        "num_devices": conditions.get("num_ranks"),
        "num_hosts": conditions.get("num_hosts"),
    }
    figures = load_expectations().figures.values()
    for one in published_for(measured, figures, unit="B/s", ignoring=("size_bytes", "tool")):
        if one.size_bytes is not None:
            point = (float(one.size_bytes), one.value)
            yield Series(name=f"published: {one.key}", points=(point,), form="points", colour="ink")


def _wrong(measure: Measure) -> Cell:
    if measure.value is None:
        return Cell("not compared", "warn")
    return Cell(measure.text, "bad" if measure.value else "plain")
