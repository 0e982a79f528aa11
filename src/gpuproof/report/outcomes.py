"""The outcomes of checks as a person reads them: how each ended, on what ground, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gpuproof.errors import ExitCode
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
        status = item.outcome.status
        table.add_row(escape(item.name), f"[{STYLE[status]}]{status}[/]", _explained(item.outcome))
    write(console, table)
    # An address that is broken over lines cannot be copied.
    sources = [
        Text(f"  {item.name}: {item.outcome.source}", style="dim")
        for item in judged
        if item.outcome.status in ("WARN", "FAIL")
    ]
    if sources:
        write(console, Text("\nWhere the expectations come from"), *sources, fold=False)


def _explained(outcome: Outcome) -> str:
    lines = [escape(outcome.measured or outcome.reason or "")]
    if outcome.status in ("WARN", "FAIL"):
        lines.append(f"[dim]expected {escape(outcome.expected or '')}[/]")
    if outcome.next_step:
        lines.append(f"→ {escape(outcome.next_step)}")
    return "\n".join(lines)


def exit_code_of_outcomes(judged: Sequence[Judged]) -> ExitCode:
    """Return 3 where a check failed, 4 where one measured nothing, else 0."""
    statuses = {item.outcome.status for item in judged}
    if "FAIL" in statuses:
        return ExitCode.FAILED
    return ExitCode.DONE if statuses and statuses <= {"PASS", "WARN"} else ExitCode.INCONCLUSIVE
