"""The page of collectives: every size with its figures, and a picture of the bandwidths."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof import units
from gpuproof.groups import grouped
from gpuproof.records.codec import from_json
from gpuproof.records.page import Axis, Cell, Chart, Column, Page, Series, figure, pivot
from gpuproof.records.result import Measure, Result
from gpuproof.suites.collective.conclude import CollectiveDetail
from gpuproof.suites.collective.quantities import BUS_BANDWIDTH, WRONG_VALUES
from gpuproof.suites.sections import benchmark_page


def page(result: Result) -> Page:
    """Lay out the best of each operation, then every size."""
    detail = from_json(CollectiveDetail, result.detail, place="result.json: detail")
    of_sizes = result.measures[detail.num_headlines :]
    sizes = pivot(
        "Sizes",
        of_sizes,
        (
            Column.of("operation", lambda measure: measure.labels["operation"], align="left"),
            Column.of("size (B)", lambda measure: units.count(measure.labels["size_bytes"])),
        ),
        figure("time", "mean latency"),
        figure("algbw", "algorithm bandwidth"),
        figure("busbw", BUS_BANDWIDTH),
        figure("#wrong", WRONG_VALUES, _wrong),
        figure("p50", "p50 latency"),
        figure("p99", "p99 latency", is_optional=True),
        figure("longest", "longest latency"),
        figure("rank spread", "rank spread"),
    )
    return benchmark_page(
        result, detail.common, sizes, _bandwidths(of_sizes), num_measures=detail.num_headlines
    )


def _bandwidths(measures: Sequence[Measure]) -> Chart:
    """Draw the bus bandwidth of each operation against the size."""
    curves = grouped(
        (measure.labels["operation"], (float(measure.labels["size_bytes"]), measure.value))
        for measure in measures
        if measure.labels["quantity"] == BUS_BANDWIDTH and measure.value is not None
    )
    return Chart(
        title="Bus bandwidth",
        kind="line",
        x=Axis(label="size", unit="B", is_logarithmic=True),
        y=Axis(label="bus bandwidth", unit="B/s", is_logarithmic=True),
        series=tuple(Series(name=operation, points=tuple(points)) for operation, points in curves.items()),
        is_in_a_table=True,
    )


def _wrong(measure: Measure) -> Cell:
    if measure.value is None:
        return Cell("not compared", "warn")
    return Cell(measure.text, "bad" if measure.value else "plain")
