"""The report as a person reads it in a terminal or a log."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuproof import units
from gpuproof.records.run import Failure
from gpuproof.report.model import ReportModel

VALIDITY_STYLE = {"VALID": "bold green", "SUSPECT": "bold yellow", "INVALID": "bold red"}
INDENT = (0, 0, 0, 2)


def print_report(report: ReportModel, console: Console) -> None:
    """Write the report to a console."""
    console.print(_heading(report))
    if report.measures:
        console.print(Padding(_measures(report), INDENT))
    if len(report.launches) > 1:
        console.print(_section("Launches", _launches(report)))
    if report.failures:
        console.print(_section("What failed", *[_failure(failure) for failure in report.failures]))
    if report.findings:
        console.print(_section("What could be wrong", _findings(report)))
    if report.not_applied:
        lines = [f"[bold]{escape(item.key)}[/] {escape(item.reason)}" for item in report.not_applied]
        console.print(_section("Set, without effect here", *lines))
    if report.notes:
        console.print(_section("Mind", *[escape(note) for note in report.notes]))
    console.print(_section("Files", f"{escape(report.run)}", f"[dim]{escape('  '.join(report.files))}[/]"))
    console.print(_section("Next", *[escape(command) for command in report.next_commands]))


def _heading(report: ReportModel) -> Text:
    word = report.validity or "NOTHING MEASURED"
    heading = Text.assemble((report.title, "bold"), "  ", (word, VALIDITY_STYLE.get(word, "bold red")))
    heading.append("\n")
    return heading


def _section(title: str, *body: RenderableType) -> Group:
    return Group(Text(f"\n{title}", style="bold"), *[Padding(part, INDENT) for part in body])


def _measures(report: ReportModel) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for measure in report.measures:
        table.add_row(measure.name, measure.text, escape(measure.detail))
    return table


def _launches(report: ReportModel) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("launch", "throughput", "mean step", "steps", "window"):
        table.add_column(name, justify="right")
    for row in report.launches:
        table.add_row(
            str(row.replicate + 1),
            f"{units.significant(row.items_per_s_total)}/s",
            units.seconds(row.mean_step_s),
            units.count(row.num_steps),
            units.seconds(row.window_s),
        )
    return table


def _findings(report: ReportModel) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in report.findings:
        style = VALIDITY_STYLE[finding.validity]
        table.add_row(
            f"[{style}]{finding.validity}[/]", f"{escape(finding.reason)}. [dim]{escape(finding.remedy)}.[/]"
        )
    return table


def _failure(failure: Failure) -> str:
    who = "the launch" if failure.rank is None else f"rank {failure.rank}"
    steps = f" after {failure.steps_done} steps" if failure.steps_done else ""
    text = f"[bold red]{failure.cause}[/] {who} on {failure.host}, phase {failure.phase}{steps}: "
    text += escape(failure.message.strip().splitlines()[0] if failure.message.strip() else "no message")
    return f"{text}. [dim]{escape(failure.next_step)}.[/]" if failure.next_step else text
