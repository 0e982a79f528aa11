"""`gpuproof rules`: check whether rules can reach a verdict: our own, or other tools' thresholds."""

from __future__ import annotations

from pathlib import Path

import click

from gpuproof.cli.group import LazyGroup
from gpuproof.cli.options import RunName, json_option, print_json, say, verbose_option
from gpuproof.cli.report import open_run, save_dir_option, show_page
from gpuproof.cli.standards.baseline import DIRECTORY

COMMANDS: dict[str, str] = {
    "check": "gpuproof.cli.standards.rules:check",
    "events": "gpuproof.cli.standards.rules:list_events",
    "import": "gpuproof.cli.standards.rules:import_thresholds",
    "list": "gpuproof.cli.standards.rules:list_checks",
}
"""Command name → `module:attribute`."""
FORMATS = ("dcgm", "aznhc", "superbench", "table")

rules = LazyGroup(
    name="rules", commands_by_path=COMMANDS, help="Find rules and thresholds that can never reach a verdict."
)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False), metavar="FILE")
@click.option("--run", type=RunName(), help="Also apply the rules to this run (or `last`).")
@click.option("--baseline", metavar="NAME", help="With --run: the baseline that rules refer to.")
@save_dir_option
@json_option
@verbose_option
@click.pass_context
def check(
    ctx: click.Context, file: str, *, run: Path | None, baseline: str | None, save_dir: Path, as_json: bool
) -> None:
    """Read a rules file and report whether each rule can reach a verdict.

    Exit code 2 if the file is invalid, or if a rule in it could never fail or never pass. With --run, the
    rules are also applied to that run: exit code 3 if one fails, 4 if one cannot reach a verdict, else 0.
    """
    from dataclasses import replace

    from gpuproof.base.errors import ExitCode, UsageError
    from gpuproof.verdict.rules import judge_rules, load_rules

    if baseline is not None and run is None:
        raise UsageError("no run is judged", place="--baseline", next_step="Add --run RUN")
    rules = load_rules(file)
    if run is None:
        _say_sound(file, len(rules), as_json=as_json)
        return
    from gpuproof.campaign.conclude import read_evidence
    from gpuproof.store.baselines import baseline_path, read_baseline, read_facts
    from gpuproof.store.provenance import read_provenance
    from gpuproof.verdict.announced import facts_of
    from gpuproof.verdict.page import outcomes_page

    past = None if baseline is None else read_baseline(baseline_path(baseline, DIRECTORY))
    directory = open_run(run, save_dir)
    facts = facts_of(read_evidence(directory), read_facts(directory).measures)
    judged = judge_rules(rules, replace(facts, baseline=past))
    if as_json:
        print_json(judged)
    else:
        provenance = read_provenance(directory)
        title = f"Judged by {file}"
        show_page(outcomes_page(title, ("", judged), provenance=provenance, launches=facts.launches))
    required = {item.outcome.status for item in judged if item.is_required}
    if "FAIL" in required:
        ctx.exit(ExitCode.FAILED)
    good = {"PASS", "WARN", "NOT-APPLICABLE"}
    ctx.exit(ExitCode.DONE if "PASS" in required and required <= good else ExitCode.INCONCLUSIVE)


def _say_sound(file: str, num_rules: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"file": file, "num_rules": num_rules})
    else:
        click.echo(f"{file}: {num_rules} rules, all of which can reach a verdict")


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False), metavar="FILE")
@click.option("--from", "form", type=click.Choice(FORMATS), required=True, help="Source of the thresholds.")
@json_option
@click.pass_context
def import_thresholds(ctx: click.Context, file: str, *, form: str, as_json: bool) -> None:
    """Read another tool's thresholds, and report any that are vacuous, impossible or contradictory.

    dcgm reads diag-skus.yaml, aznhc a .conf of AzureHPC node health checks, superbench a rules file, and
    table a CSV file with the columns listed in docs/guides/rules.md. Exit code 3 if a threshold cannot yield
    a verdict, else 0.
    """
    from gpuproof.base.errors import ExitCode
    from gpuproof.config.entries import read_entries
    from gpuproof.verdict.foreign import find_faults, read_thresholds

    thresholds = read_thresholds(read_entries(file, what="rules"), form, source=file)
    faults = find_faults(thresholds)
    if as_json:
        print_json({"num_thresholds": len(thresholds), "faults": faults})
    else:
        for fault in faults:
            say(f"{fault.place}: {fault.name}: {fault.fault}: {fault.reason}")
        click.echo(f"{file}: {len(faults)} of {len(thresholds)} thresholds cannot yield a verdict")
    ctx.exit(ExitCode.FAILED if faults else ExitCode.DONE)


@click.command("list")
def list_checks() -> None:
    """List the environment checks that rules can refer to."""
    from gpuproof.verdict.checks.registry import CHECKS

    for check_ in CHECKS.values():
        click.echo(f"{check_.name:24} {check_.summary}")


@click.command("events")
@json_option
def list_events(*, as_json: bool) -> None:
    """List driver events: code, severity, who should act, action, meaning and source.

    An unlisted code is unknown: a device that reported such a code stays undecided. What a code means in a
    validation also depends on the process, on later tests and on other hosts (docs/verdicts.md).

    \b
    Examples:
    gpuproof rules events | grep 'xid 79 '
    gpuproof rules events --json
    """  # noqa: D301  # click reads the backspace character
    from gpuproof.hardware.events import event_kinds

    kinds = sorted(event_kinds().values(), key=lambda kind: (kind.source, kind.code.zfill(6), kind.code))
    if as_json:
        print_json(kinds)
        return
    for kind in kinds:
        words = f"{kind.title:34} {kind.severity:8} {kind.actor:14} {kind.action:21}"
        click.echo(f"{words} {kind.name or kind.next_step} [{kind.reference}]")
