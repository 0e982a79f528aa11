"""The page of collectives: a table of all sizes and a picture of the bandwidths."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof import units
from gpuproof.records.codec import from_json
from gpuproof.records.page import Axis, Cell, Chart, Column, Page, Series, table
from gpuproof.records.result import Result
from gpuproof.suites.collective.conclude import CollectiveDetail, SizeRow
from gpuproof.suites.sections import benchmark_page


def page(result: Result) -> Page:
    """Lay out the best of each operation, then every size."""
    detail = from_json(CollectiveDetail, result.detail, place="result.json: detail")
    sizes = table(
        "Sizes",
        detail.rows,
        Column.of("operation", lambda row: row.operation, align="left"),
        Column.of("size (B)", lambda row: units.count(row.size_bytes)),
        Column.of("time", lambda row: units.seconds(row.time_s)),
        Column.of("algbw", lambda row: units.bandwidth(row.algorithm_bytes_per_s)),
        Column.of("busbw", lambda row: units.bandwidth(row.bus_bytes_per_s)),
        Column.of("#wrong", _wrong),
        Column.of("p50", lambda row: units.seconds(row.p50_s)),
        Column.of("p99", lambda row: units.seconds(row.p99_s), is_optional=True),
        Column.of("longest", lambda row: units.seconds(row.longest_s)),
        Column.of("rank spread", lambda row: units.share(row.rank_spread)),
    )
    return benchmark_page(
        result, detail.common, sizes, _bandwidths(detail.rows), num_measures=detail.num_headlines
    )


def _bandwidths(rows: Sequence[SizeRow]) -> Chart:
    """Draw the bus bandwidth of each operation against the size."""
    operations = dict.fromkeys(row.operation for row in rows)
    series = (
        Series(
            name=operation,
            points=tuple(
                (float(row.size_bytes), row.bus_bytes_per_s)
                for row in rows
                if row.operation == operation and row.bus_bytes_per_s is not None
            ),
        )
        for operation in operations
    )
    return Chart(
        title="Bus bandwidth",
        kind="line",
        x=Axis(label="size", unit="B", is_logarithmic=True),
        y=Axis(label="bus bandwidth", unit="B/s", is_logarithmic=True),
        series=tuple(series),
        is_in_a_table=True,
    )


def _wrong(row: SizeRow) -> Cell:
    if row.num_wrong is None:
        return Cell("not compared", "warn")
    return Cell(units.count(row.num_wrong), "bad" if row.num_wrong else "plain")
