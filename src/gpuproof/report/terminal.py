"""The report as a person reads it in a terminal or a log.

The order is that of the questions: how fast, how certain, is it to be trusted, why not, and what next;
then every figure, the launches, and the files.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuproof import units
from gpuproof.analysis.explanations import LaunchExplanation
from gpuproof.analysis.validity import Finding
from gpuproof.records.run import Failure
from gpuproof.report.fleet_terminal import fleet_sections
from gpuproof.report.load_table import table_of_tests
from gpuproof.report.model import ReportModel
from gpuproof.report.profile_text import profile_lines
from gpuproof.report.what_ran import WhatRan

VALIDITY_STYLE = {"VALID": "bold green", "SUSPECT": "bold yellow", "INVALID": "bold red"}
MEANING = {
    "VALID": "nothing was found that speaks against these figures",
    "SUSPECT": "use these figures with care",
    "INVALID": "do not use these figures",
}
NOTHING = "NOTHING MEASURED"
INDENT = (0, 0, 0, 2)


def print_report(report: ReportModel, console: Console) -> None:
    """Write the report to a console."""
    write(console, *_judgement(report), *_figures(report))
    places = [report.run, "  ".join(report.files)]
    for title, lines in (("Files", places), ("Next", report.next_commands)):
        write(console, Text(f"\n{title}", style="bold"))
        # A path or a command that is broken over lines cannot be copied.
        write(
            console,
            *[Text(f"  {line}", style="dim" if line is places[1] else "") for line in lines],
            fold=False,
        )


def write(console: Console, *parts: RenderableType, fold: bool = True) -> None:
    """Print to a terminal as it is; to a file without the blanks that fill lines up.

    `fold` breaks lines that are longer than the console is wide.
    """
    if console.is_terminal:
        console.print(*parts, sep="\n", soft_wrap=not fold)
        return
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=not fold)
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _judgement(report: ReportModel) -> Iterator[RenderableType]:
    yield Text(report.title, style="bold")
    yield _verdict(report)
    if report.failures:
        yield _section("What failed", *[_failure(failure) for failure in report.failures])
    if report.findings:
        yield _section(f"Why {report.validity}", *[_finding(finding) for finding in report.findings])


def _figures(report: ReportModel) -> Iterator[RenderableType]:
    if report.measures:
        yield _section("Figures", _measures(report))
    if report.what_ran is not None:
        yield _section("What ran", _what_ran(report.what_ran))
    if report.fleet is not None:
        for title, parts in fleet_sections(report.fleet):
            yield _section(title, *parts)
    else:
        yield from _tables(report)
    if report.explanations and report.fleet is None:
        yield _section("Meanwhile", *_meanwhile(report))
    if report.profile is not None:
        yield _section("Profile", *profile_lines(report.profile))
    if report.not_applied:
        lines = [f"[bold]{escape(item.key)}[/]: {escape(item.reason)}" for item in report.not_applied]
        yield _section("Set, without effect here", *lines)
    if report.notes:
        yield _section("Mind", *[escape(note) for note in report.notes])


def _tables(report: ReportModel) -> Iterator[RenderableType]:
    if report.tests:
        yield _section("Tests", table_of_tests(report.tests))
    elif report.points:
        yield _section("Points", _points(report))
    elif report.requests:
        yield _section("Requests", _requests(report))
    elif len(report.launches) > 1:
        yield _section("Launches", _launches(report))


def _verdict(report: ReportModel) -> Text:
    """One line: the number, its uncertainty, and whether to trust it."""
    verdict = Text()
    if report.measures:
        first = report.measures[0]
        named = f"{first.text} {first.name}" if first.unit == "s" else first.text
        verdict.append(named, style="bold")
        verdict.append(f" {first.uncertainty or '(uncertainty unknown)'}  ")
    meanings = [MEANING[report.validity]] if report.validity is not None else []
    if len(report.launches) < report.num_planned:
        meanings.append(f"{len(report.launches)} of {report.num_planned} launches were measured")
    word = report.validity or NOTHING
    verdict.append(word, style=VALIDITY_STYLE.get(word, "bold red"))
    return verdict.append(f": {'; '.join(meanings)}" if meanings else "")


def _meanwhile(report: ReportModel) -> Iterator[RenderableType]:
    """What devices and host did in the windows: a row a device, then a sentence for all that stood out."""
    table = _devices(report)
    if table.row_count:
        yield table
    sentences = [f"{_which(x, report)}: {sentence}" for x in report.explanations for sentence in x.sentences]
    yield from (escape(sentence) for sentence in sentences)
    if not table.row_count and not sentences:
        yield "the host was read beside every launch, and nothing stood out"


def _which(explained: LaunchExplanation, report: ReportModel) -> str:
    launch = f"launch {explained.replicate + 1}"
    return f"{explained.case_id}, {launch}" if report.points or report.requests else launch


def _devices(report: ReportModel) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("launch", "device"):
        table.add_column(name)
    for name in ("busy", "SM clock", "of at most", "power", "hottest"):
        table.add_column(name, justify="right")
    for explanation in report.explanations:
        for host in explanation.readings:
            window_s = host.readings.end_monotonic_s - host.readings.begin_monotonic_s
            for device in host.readings.devices:
                index = str(device.physical_index)
                table.add_row(
                    escape(_which(explanation, report).removeprefix("launch ")),
                    escape(f"GPU {index} {host.device_names[index]}"),
                    _reading(device.util_gpu_percent, "%"),
                    _reading(device.clock_sm_mhz, "MHz"),
                    _reading(device.clock_sm_max_mhz, "MHz"),
                    _reading(None if device.energy_j is None else device.energy_j / window_s, "W"),
                    _reading(device.temp_gpu_max_c, "°C"),
                )
    return table


def _reading(value: float | None, unit: str) -> str:
    return units.MISSING if value is None else f"{value:,.0f} {unit}"


def _section(title: str, *body: RenderableType) -> Group:
    return Group(Text(f"\n{title}", style="bold"), *[Padding(part, INDENT) for part in body])


def _finding(finding: Finding) -> Table:
    style = VALIDITY_STYLE[finding.validity]
    return _item(f"[{style}]{finding.validity}[/]", finding.reason, finding.remedy)


def _failure(failure: Failure) -> Table:
    who = "the launch" if failure.rank is None else f"rank {failure.rank}"
    steps = f" after {units.count(failure.steps_done)} steps" if failure.steps_done else ""
    lines = failure.message.strip().splitlines() or ["no message"]
    said = "".join(c if c.isprintable() else " " for c in lines[0])
    phase = f", phase {failure.phase}" if failure.rank is not None else ""
    reason = f"{who} on {failure.host}{phase}{steps}: {said}"
    return _item(f"[bold red]{failure.cause.replace('_', ' ')}[/]", reason, failure.next_step)


def _item(word: str, reason: str, advice: str | None) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(word, escape(reason))
    if advice:
        table.add_row("", f"→ {escape(advice)}")
    return table


def _measures(report: ReportModel) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for measure in report.measures:
        table.add_row(measure.name, escape(measure.text), escape(measure.detail))
    return table


def _points(report: ReportModel) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    axes = list(report.points[0].assignment)
    memory = any(row.peak_allocated_bytes is not None for row in report.points)
    for name in (*axes, "launches", "throughput", "", "mean step", *(["memory"] if memory else [])):
        table.add_column(escape(name), justify="right", no_wrap=True)
    for name in ("validity", "outcome"):
        table.add_column(name, overflow="fold")
    for row in report.points:
        style = VALIDITY_STYLE.get(row.validity or "", "")
        table.add_row(
            *(escape(row.assignment[axis]) for axis in axes),
            f"{row.num_launches}/{row.num_planned}",
            escape(row.throughput),
            row.uncertainty,
            units.seconds(row.mean_step_s),
            *([units.memory(row.peak_allocated_bytes)] if memory else []),
            Text(row.validity or units.MISSING, style=style),
            escape(row.outcome),
        )
    return table


def _requests(report: ReportModel) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("offered", "answered", "requests", "failed", "p50", "p99", "batch", "busy", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.requests:
        no_rate = row.scenario.replace("_", " ")
        table.add_row(
            no_rate if row.offered_per_s is None else f"{units.significant(row.offered_per_s)}/s",
            f"{units.significant(row.answered_per_s)}/s",
            units.count(row.num_requests),
            units.count(row.num_failed),
            units.seconds(row.p50_latency_s),
            units.seconds(row.p99_latency_s),
            units.MISSING if row.mean_batch is None else units.significant(row.mean_batch),
            units.MISSING if row.busy_share is None else units.share(row.busy_share),
            row.bound or "",
        )
    return table


def _what_ran(ran: WhatRan) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("options", escape(ran.summary))
    table.add_row("observed", escape(ran.observed))
    return table


def _launches(report: ReportModel) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    rates = [row.items_per_s_total for row in report.launches if row.items_per_s_total is not None]
    for name in ("launch", *(("throughput",) if rates else ()), "mean step", "steps", "window"):
        table.add_column(name, justify="right")
    unit = escape(report.measures[0].unit)
    for number, row in enumerate(report.launches):
        table.add_row(
            str(row.replicate + 1),
            *((f"{units.significant(rates[number])} {unit}",) if rates else ()),
            units.seconds(row.mean_step_s, digits=4),
            units.count(row.num_steps),
            units.seconds(row.window_s),
        )
    return table
