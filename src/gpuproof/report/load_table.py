"""The table of the load suite in a terminal: a row a test, and no column that has nothing in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from gpuproof import units
from gpuproof.report.load_row import LoadRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of figures."""

    title: str
    text: Callable[[LoadRow], str]
    is_of_gpu: bool = False


COLUMNS = (
    Column(title="throughput", text=lambda row: units.rate(row.samples_per_s, "samples")),
    Column(title="mean step", text=lambda row: units.seconds(row.mean_step_s)),
    Column(title="p95 step", text=lambda row: units.seconds(row.p95_step_s)),
    Column(title="peak memory", text=lambda row: units.memory(row.peak_allocated_bytes), is_of_gpu=True),
    Column(title="CPU", text=lambda row: _percent(row.cpu_percent)),
    Column(title="GPU", text=lambda row: _percent(row.gpu_percent), is_of_gpu=True),
)


def table_of_tests(rows: Sequence[LoadRow]) -> Table:
    """Make the table; columns of GPUs are there where a test has a figure for them."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    columns = [
        column
        for column in COLUMNS
        if not column.is_of_gpu or any(column.text(row) != units.MISSING for row in rows)
    ]
    table.add_column("test", no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        table.add_row(
            escape(row.name),
            *(column.text(row) for column in columns),
            escape(row.outcome or row.validity or ""),
        )
    return table


def _percent(value: float | None) -> str:
    return units.MISSING if value is None else f"{value:.0f} %"
