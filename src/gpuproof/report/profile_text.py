"""The summary of the traced steps, as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from gpuproof import units
from gpuproof.analysis.profile import ProfileRow, ProfileSummary
from gpuproof.report.profiled import Profiled

SHOWN = 5
LONGEST_NAME = 64


def profile_lines(found: Profiled) -> Iterator[RenderableType]:
    """Where the time went, then the operators and kernels that took most of it."""
    summary = found.summary
    if summary is None:
        yield escape(f"no summary: {found.missing}")
        return
    yield f"{summary.steps} steps, traced after the window: slower than the others, and in no figure"
    yield _lanes(summary)
    yield _table("operator", summary.operators)
    if summary.kernels:
        yield _table("kernel", summary.kernels)


def _lanes(summary: ProfileSummary) -> Table:
    where = "on the GPU" if summary.looked_at == "gpu" else "on the processor"
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(where, no_wrap=True)
    for name in ("a step", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, value in (
        ("computing", summary.compute_s),
        *((("communication", summary.communication_s),) if summary.communication_s else ()),
        *((("exposed communication", summary.exposed_s),) if summary.communication_s else ()),
        ("copies alone", summary.copy_s),
        ("idle", summary.idle_s),
    ):
        share = value / summary.span_s if summary.span_s else None
        table.add_row(name, units.seconds(value / summary.steps), units.share(share))
    return table


def _table(title: str, rows: Sequence[ProfileRow]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(title, no_wrap=True)
    for name in ("calls", "own time", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows[:SHOWN]:
        name = row.name if len(row.name) <= LONGEST_NAME else f"{row.name[: LONGEST_NAME - 1]}…"
        table.add_row(escape(name), units.count(row.calls), units.seconds(row.self_s), units.share(row.share))
    return table
