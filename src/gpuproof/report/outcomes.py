"""The outcomes of checks as a person reads them: how each ended, on what ground, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gpuproof.records.outcome import Judged, Outcome
from gpuproof.report.terminal import write

STYLE = {
    "PASS": "green",
    "WARN": "yellow",
    "FAIL": "bold red",
    "ERROR": "bold red",
    "SKIP": "dim",
    "NOT-APPLICABLE": "dim",
}


def print_outcomes(judged: Sequence[Judged], console: Console) -> None:
    """Write a table: name, status, what was found; then, where it matters, expectation and next step."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for item in judged:
        outcome = item.outcome
        name = item.name if outcome.subject == "whole" else f"{item.name} {outcome.subject}"
        status = f"[{STYLE[outcome.status]}]{outcome.status}[/]"
        table.add_row(escape(name), status, escape("\n".join(_explanation(outcome))))
    write(console, table)
    # An address that is broken over lines cannot be copied.
    doubted = (item for item in judged if item.outcome.status in ("WARN", "FAIL"))
    sources = dict.fromkeys(f"  {item.name}: {item.outcome.source}" for item in doubted)
    if sources:
        lines = (Text(source, style="dim") for source in sources)
        write(console, Text("\nWhere the expectations come from"), *lines, fold=False)


def _explanation(outcome: Outcome) -> list[str]:
    lines = [outcome.measured or outcome.reason or ""]
    if outcome.status in ("WARN", "FAIL"):
        lines.append(f"expected: {outcome.expected}")
    if outcome.next_step:
        by = f" ({outcome.responsible})" if outcome.responsible not in (None, "user") else ""
        lines.append(f"→ {outcome.next_step}{by}")
    return lines
