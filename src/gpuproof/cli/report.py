"""`gpuproof report` and `gpuproof runs`: read results back from disk, on any machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from gpuproof.base.redaction import typed_command
from gpuproof.base.units import MISSING
from gpuproof.cli.options import (
    Command,
    RunName,
    is_verbose,
    json_option,
    print_json,
    say,
    verbose_option,
)

if TYPE_CHECKING:
    from gpuproof.base.errors import ExitCode
    from gpuproof.campaign.conclude import Concluded
    from gpuproof.records.page import Page
    from gpuproof.records.result import Result
    from gpuproof.report.formats import ReportFormat
    from gpuproof.store.run import RunDirectory

LEAST_RESULT, LEAST_NAME, LONGEST_VERDICT, WIDEST_LIST = 8, 12, 16, 110
"""Widths in a list of runs, in character cells: result, name, verdict, and whole line."""
save_dir_option = click.option(
    "--save-dir",
    "--run.save_dir",
    "save_dir",
    is_eager=True,  # processed first, because run names are looked up in it
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Folder containing the runs (run.save_dir).",
)


junit_strict_option = click.option(
    "--junit-strict",
    is_flag=True,
    help="In JUnit XML, report a SUSPECT or INCONCLUSIVE run as an error instead of as skipped.",
)


def report_options(*, formats: str) -> Callable[[Command], Command]:
    """Add --format, --output and --json, which determine how a result and its page are written."""

    def add(command: Command) -> Command:
        chosen = click.option("--format", "form", metavar="FORMAT", help=formats)
        path = click.Path(dir_okay=False, path_type=Path)
        output = click.option("--output", "-o", type=path, metavar="FILE", help="File to write to.")
        return chosen(output(json_option(command)))

    return add


@click.command(context_settings={"allow_extra_args": True})
@click.argument("run", type=RunName(), metavar="RUN")
@report_options(
    formats="terminal, markdown, html, json, csv or junit; by default inferred from the name "
    "given to --output, else terminal.",
)
@click.option("--check", "checks", multiple=True, metavar="NAME", help="Run this check; may be repeated.")
@junit_strict_option
@save_dir_option
@verbose_option
@click.pass_context
def report(
    ctx: click.Context,
    run: Path,
    *,
    form: str | None,
    output: Path | None,
    checks: tuple[str, ...],
    junit_strict: bool,
    save_dir: Path,
    as_json: bool,
) -> None:
    """Show a run's report, and regenerate its derived files.

    RUN is a run directory or its short name: `last`, a number from `gpuproof runs`, or a prefix of its name.
    RUN may also be a result of an older tool: a test matrix folder test_matrix_results_… (plots are written
    to graphs/ if there are none yet), a training benchmark folder, or a JSON file from the other tools. No
    device or PyTorch is needed. The exit code is the same as the run's. If a run's records are missing, the
    measures in its result are shown, and nothing is written.

    \b
    gpuproof report last
    gpuproof report 3
    gpuproof report results/quick/run_20261120T133012_4711 --output report.html
    gpuproof report last --format csv

    With --check, print the outcome of that check (from `gpuproof plugins` or `gpuproof rules list`) for the
    run instead, and change nothing. The exit code is then 3 if a check failed, 4 if a check measured nothing,
    else 0.
    """  # noqa: D301  # click reads the backspace character
    from gpuproof.campaign.conclude import conclude_older

    _refuse_others(run, ctx.args)
    chosen = chosen_format(form, output, as_json=as_json)
    if checks:
        _refuse_files_of_checks(form, output)
        ctx.exit(_judge(open_run(run, save_dir), checks, as_json=as_json))
    concluded = conclude_older(run) or _concluded(open_run(run, save_dir))
    write_report(concluded.result, concluded.page, chosen, output, junit_strict=junit_strict)
    ctx.exit(concluded.result.exit_code)


def _refuse_others(run: Path, others: Sequence[str]) -> None:
    if others:
        from gpuproof.base.errors import UsageError

        both = shlex.join(["gpuproof", "compare", str(run), *others])
        raise UsageError("a report covers one run", place=others[0], next_step=f"To compare two: {both}")


def _refuse_files_of_checks(form: str | None, output: Path | None) -> None:
    if form not in (None, "terminal", "json") or output is not None:
        from gpuproof.base.errors import UsageError

        raise UsageError(
            "the outcome of a check is printed, as text or with --json",
            place="--check",
            next_step=f"Omit {'--output' if output is not None else '--format'}",
        )


def _concluded(directory: RunDirectory) -> Concluded:
    """Conclude a run; if its directory is not writable, report that and continue without files."""
    from gpuproof.base.errors import EnvironmentUnfitError
    from gpuproof.campaign.conclude import conclude, conclude_unwritten

    try:
        return conclude(directory)
    except EnvironmentUnfitError as error:
        say(f"gpuproof: {error} None of the run's files were regenerated.", err=True)
        return conclude_unwritten(directory)


def open_run(run: Path, save_dir: Path) -> RunDirectory:
    """Open a run by its directory or by a short name (`gpuproof.store.names`).

    Raises:
        UsageError: there is no such run.
    """
    from gpuproof.store.names import find_run
    from gpuproof.store.run import RunDirectory

    return RunDirectory.open(find_run(str(run), save_dir))


def chosen_format(form: str | None, output: Path | None, *, as_json: bool) -> ReportFormat:
    """Return the format that the options of `report_options` request.

    Raises:
        UsageError: there is no such format, or the file name does not imply one.
    """
    from gpuproof.report.formats import choose_format

    return choose_format("json" if as_json and form is None else form, output)


def write_report(
    result: Result, page: Page, form: ReportFormat, output: Path | None, *, junit_strict: bool = False
) -> None:
    """Write a report to a file or standard output.

    Raises:
        EnvironmentUnfitError: the file cannot be written.
    """
    from gpuproof.base.errors import EnvironmentUnfitError
    from gpuproof.report.formats import render

    if output is None and form == "terminal":
        show_page(page)
        return
    text = render(result, page, form, junit_strict=junit_strict)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentUnfitError(f"cannot be written: {error.strerror}", place=str(output)) from error
    click.echo(f"Written: {output}", err=True)


def _judge(directory: RunDirectory, names: Sequence[str], *, as_json: bool) -> ExitCode:
    """Print what the checks say about a run; return the exit code."""
    from gpuproof.campaign.conclude import read_evidence
    from gpuproof.store.provenance import read_provenance
    from gpuproof.verdict.announced import facts_of
    from gpuproof.verdict.check import ask, exit_code_for
    from gpuproof.verdict.checks.registry import find_check
    from gpuproof.verdict.page import outcomes_page
    from gpuproof.verdict.simulated import at_most, is_simulated

    checks = [find_check(name) for name in names]
    result, evidence = directory.read_result(), read_evidence(directory)
    judged = ask(checks, facts_of(evidence, () if result is None else result.measures))
    if as_json:
        print_json({"run": str(directory.root), "checks": judged})
    else:
        provenance = read_provenance(directory)
        show_page(outcomes_page("", ("", judged), provenance=provenance, launches=evidence.launches))
    return at_most(exit_code_for(judged), simulated=is_simulated(evidence.launches))


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[DIR]")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="List only the newest N runs.")
@click.option("--suite", metavar="NAME", help="List only runs of this suite: recipe, validate, scale, …")
@click.option("--verdict", metavar="WORD", help="List only runs with a verdict starting with WORD.")
@save_dir_option
@json_option
def runs(
    folder: Path | None,
    *,
    save_dir: Path,
    limit: int | None,
    suite: str | None,
    verdict: str | None,
    as_json: bool,
) -> None:
    """List the runs, newest first, with verdict and result.

    DIR is the folder that contains the runs, instead of --save-dir. Every command that accepts a run accepts
    its number in this list, a prefix of its name, or `last` for the newest run.
    """
    from gpuproof.store.run import list_runs

    save_dir = folder or save_dir
    rows = ({**row_of(run), "number": number} for number, run in enumerate(list_runs(save_dir), start=1))
    chosen = (
        row
        for row in rows
        if suite in (None, row["suite"]) and str(row["verdict"]).startswith((verdict or "").upper())
    )
    shown = list(islice(chosen, limit))
    if as_json:
        print_json([{key: value for key, value in row.items() if key != "number"} for row in shown])
    elif not shown:
        step = "Omit --suite and --verdict" if suite or verdict else _instead(save_dir)
        click.echo(f"No runs to list under {save_dir}. {step}")
    else:
        show_page(page_of_runs(shown, save_dir), is_list=True)


def _instead(save_dir: Path) -> str:
    """Suggest what to do if there is nothing to list; the search for runs goes two folders deep."""
    if (save_dir / "run.json").exists():
        return f"It is a run: {shlex.join(['gpuproof', 'report', str(save_dir)])}"
    if any(save_dir.glob("*/run.json")):
        return f"Use the parent folder: {shlex.join(['gpuproof', 'runs', str(save_dir.absolute().parent)])}"
    return "Start one: gpuproof run quick"


def row_of(directory: RunDirectory) -> dict[str, object]:
    """Return a run's entry in the list; a damaged run must not hide the other runs."""
    from gpuproof.base.errors import GpuproofError

    row: dict[str, object] = {"run": str(directory.root), "created": None, "suite": None, "what": None}
    row |= {"launches": None, "headline": None, "limited_by": None}
    row |= {"verdict": None, "validity": None, "next_step": None}
    try:
        description = directory.description()
        what = f"{description['config'].get('kind', 'training')}, {description['source']}"
        row |= {"created": description["created"], "what": what}
        result = directory.read_result()
    except GpuproofError as error:
        return {**row, "what": row["what"] or f"damaged: {error}"}
    if result is None:
        return {**row, "next_step": shlex.join(["gpuproof", "report", str(directory.root)])}
    return {
        **row,
        "suite": result.suite,
        "what": _work_of(result),
        "limited_by": None if result.limit is None or result.limit.missing else result.limit.text,
        "launches": f"{result.num_launches}/{result.num_planned}",
        "headline": result.headline,
        "verdict": result.verdict,
        "validity": result.validity,
    }


def _work_of(result: Result) -> str:
    """Describe what a run measured, if its suite reports it."""
    common = result.detail.get("common")
    return str(common.get("work", result.suite)) if isinstance(common, dict) else result.suite


def page_of_runs(rows: Sequence[Mapping[str, Any]], save_dir: Path) -> Page:
    """Lay out one line per run; when space is short, drop limits and dates, then shorten names."""
    from gpuproof.records.page import Cell, Page
    from gpuproof.records.page.tables import Column, table
    from gpuproof.store.provenance import of_command

    lines = _run_lines(rows, save_dir)
    number, date, name, verdict = (
        _width(lines, place, title) for place, title in enumerate(("#", "date", "run", "verdict"))
    )
    needed = max(LEAST_RESULT, *(len(row["headline"] or "") for row in rows))
    room = min(get_terminal_size().columns, WIDEST_LIST) - 4 - number - verdict
    has_dates = room >= needed + name + date
    room -= date if has_dates else 0
    limit = _width(lines, 5, "limited by")
    has_limits = room >= needed + name + limit
    room -= limit if has_limits else 0
    name = max(2 + LEAST_NAME, min(name, room - needed))
    room = max(needed, room - name)
    listed = table(
        "",
        lines,
        Column.of("#", itemgetter(0)),
        Column.of("date", lambda line: line[1] if has_dates else "", align="left", is_optional=True),
        Column.of("run", lambda line: _cut(line[2], name - 2), align="left"),
        Column.of("verdict", lambda line: Cell(line[3], line[6]), align="left"),
        Column.of("limited by", lambda line: line[5] if has_limits else "", align="left", is_optional=True),
        Column.of("result", lambda line: _result_in(line[4], room), align="left"),
    )
    title, provenance = f"Runs under {save_dir}, dates in UTC", of_command(typed_command())
    return Page(title=title, verdict=None, sections=(listed,), provenance=provenance)


def _run_lines(rows: Sequence[Mapping[str, Any]], save_dir: Path) -> list[tuple[Any, ...]]:
    """Return number, date, name, verdict, result, limit (if known) and tone of each run."""
    from gpuproof.suites.sections import TONES

    return [
        (
            str(row["number"]),
            str(row["created"] or MISSING)[5:16].replace("T", " "),
            Path(row["run"]).relative_to(save_dir).as_posix(),
            _cut(_verdict(row), LONGEST_VERDICT),
            (row["headline"], " · ".join(filter(None, (row["headline"] or row["next_step"], row["what"])))),
            row["limited_by"] or "",
            {**TONES, "READY": "good", "NOT-READY": "bad"}.get(row["validity"] or row["verdict"], "warn"),
        )
        for row in rows
    ]


def _width(lines: Sequence[Sequence[Any]], place: int, title: str) -> int:
    return 2 + max(len(title), *(len(line[place]) for line in lines))


def _result_in(result: tuple[str | None, str], room: int) -> str:
    """Return a result with as much detail as fits; the result itself is never truncated."""
    headline, text = result
    return headline if headline and len(headline) + len(" · …") > room else _cut(text, room)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _verdict(row: Mapping[str, Any]) -> str:
    """Describe how a run ended and, if launches are missing, how many were measured."""
    measured, _, planned = str(row["launches"] or "").partition("/")
    return f"{row['verdict'] or 'no result'}{'' if measured == planned else f' {measured}/{planned}'}"


def show_report(concluded: Concluded, *, as_json: bool) -> None:
    """Print a report on standard output, either as JSON or as a page."""
    if as_json:
        print_json(concluded.result)
    else:
        show_page(concluded.page)


def show_page(page: Page, *, is_list: bool = False) -> None:
    """Print a page on standard output: one screen, or all with --verbose; never truncate lists."""
    from gpuproof.report import terminal

    terminal.show_page(page, is_whole=is_list or is_verbose())
