"""`gpuproof selftest`: inject faults and show that each changes the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpuproof.base.redaction import typed_command
from gpuproof.cli.options import json_option, print_json, verbose_option

if TYPE_CHECKING:
    from gpuproof.records.page import Page
    from gpuproof.selftest.run import FaultRow, SelftestReport

NUM_SEEDS = 20
"""Number of random draws per synthetic fleet, without --quick."""


@click.command()
@click.option(
    "--quick",
    is_flag=True,
    help="Test one fault per class with one random draw instead of 20; takes about a minute.",
)
@json_option
@verbose_option
@click.pass_context
def selftest(ctx: click.Context, *, quick: bool, as_json: bool) -> None:
    """Inject known faults and verify that each is identified.

    Each fault must also change the verdict. Faults are injected at the lowest layer where they can occur: a
    simulated device's computation, a driver's readings, or the files written by ranks. A healthy twin, which
    is identical except for the fault, must be READY. No GPU is needed or used. Verdicts are compared before
    they are capped for simulated devices.

    \b
    gpuproof selftest --quick
    gpuproof selftest --json

    Exit code 3 if a fault was missed or a healthy twin was blamed, 4 if a test could not run.
    """  # noqa: D301  # click reads the backspace character
    from gpuproof.selftest.run import run_selftest

    report = run_selftest(num_seeds=1 if quick else NUM_SEEDS, is_quick=quick)
    if as_json:
        print_json({"faults": report.faults, "healthy": report.healthy})
    else:
        from gpuproof.cli.report import show_page

        show_page(_page(report))
    ctx.exit(report.exit_code)


def _page(report: SelftestReport) -> Page:
    from gpuproof.records.page import Cell, Fact, Page, Verdict
    from gpuproof.records.page.tables import Column, table
    from gpuproof.store.provenance import of_command

    def verdict_cell(row: FaultRow) -> Cell:
        right = f"{row.num_tried - row.num_missed} of {row.num_tried}" if row.num_missed else "yes"
        return Cell(right if row.is_found else "NO", "good" if row.is_found else "bad")

    got = Column.of("verdict", lambda row: row.got, align="left")
    faults = table(
        "Planted",
        report.faults,
        Column.of("fault", lambda row: row.fault, align="left", folds=True),
        Column.of("in", lambda row: row.layer or "", align="left"),
        got,
        Column.of("found", verdict_cell, align="left"),
        Column.of("cause, as reported", lambda row: row.cause, align="left", folds=True),
    )
    twins = table(
        "Healthy twins",
        report.healthy,
        Column.of("fault", lambda row: row.fault, align="left"),
        got,
        Column.of("passed", verdict_cell, align="left"),
        Column.of("draws", lambda row: str(row.num_tried)),
        Column.of("why it did not pass", lambda row: row.cause, align="left", folds=True),
    )
    word = {0: "PASS", 3: "FAIL"}.get(report.exit_code, "INCONCLUSIVE")
    verdict = Verdict(word=word, tone="good" if word == "PASS" else "bad", reason=_reason(report))
    return Page(
        title="Injected faults and their healthy twins",
        verdict=verdict,
        sections=(faults, twins),
        provenance=of_command(typed_command(), Fact("device", "simulated, fake and recorded ones")),
    )


def _reason(report: SelftestReport) -> str:
    num_detected = sum(row.is_found for row in report.faults)
    num_passed = sum(row.is_found for row in report.healthy)
    return (
        f"{num_detected} of {len(report.faults)} faults found and identified; {num_passed} of "
        f"{len(report.healthy)} healthy twins passed"
    )
