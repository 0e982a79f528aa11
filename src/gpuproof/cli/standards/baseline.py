"""`gpuproof baseline`: a fleet's own results, with the software stack they apply to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuproof.base.redaction import typed_command
from gpuproof.cli.group import LazyGroup
from gpuproof.cli.options import RunName, json_option, print_json, verbose_option
from gpuproof.cli.report import open_run, save_dir_option, show_page
from gpuproof.launchers.numbers import FiniteRange

if TYPE_CHECKING:
    from gpuproof.records.page import Page
    from gpuproof.verdict.baseline import Baseline, BaselineEntry

COMMANDS: dict[str, str] = {
    "record": "gpuproof.cli.standards.baseline:record",
    "show": "gpuproof.cli.standards.baseline:show",
    "use": "gpuproof.cli.standards.baseline:use",
    "export": "gpuproof.cli.standards.baseline:export",
}
"""Command name → `module:attribute`."""
DIRECTORY = Path("baselines")
WANTED = 0.1
"""Performance loss that a user's own baseline should be able to detect: half of what READY requires."""
NEEDED = "3 runs on each of 2 days"

baseline = LazyGroup(
    name="baseline",
    commands_by_path=COMMANDS,
    help="Record a fleet's results as a baseline to compare runs with.",
)
directory_option = click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY,
    show_default=True,
    help="Folder containing the baselines.",
)


@click.command()
@click.argument("name")
@click.argument("runs", nargs=-1, required=True, type=RunName(), metavar="RUN...")
@click.option("--replace", is_flag=True, help="Overwrite an existing baseline of that name.")
@click.option(
    "--day-effect",
    metavar="SHARE",
    type=FiniteRange(0, 0.5, max_open=True),
    default=0.01,
    show_default=True,
    help="Relative standard deviation between sessions, if the runs' days do not show it.",
)
@directory_option
@save_dir_option
def record(
    name: str,
    runs: tuple[Path, ...],
    *,
    replace: bool,
    day_effect: float,
    directory: Path,
    save_dir: Path,
) -> None:
    """Record the results of runs as the baseline NAME.

    Several runs are pooled by subject and day, to estimate how well each GPU, link and host repeats its
    results, and how much they differ. Three runs on each of two days are usually enough; the resolution is
    printed. Runs from other stacks (GPU model, driver, torch, CUDA, NCCL, clocks, power limit, MIG, ECC) are
    rejected, and the keys that differ are listed. INVALID runs are also rejected; SUSPECT runs are marked.
    The file is JSON; keep it with your recipes.

    \b
    gpuproof baseline record pod-a results/validate/run_1 results/validate/run_2
    """  # noqa: D301  # click reads the backspace character
    from gpuproof import __version__
    from gpuproof.store.baselines import baseline_path, run_values, write_baseline
    from gpuproof.verdict.baseline import record_baseline

    figures = [run_values(open_run(run, save_dir)) for run in runs]
    today = datetime.now(timezone.utc).date().isoformat()
    recorded = record_baseline(
        name, figures, recorded=today, gpuproof_version=__version__, day_effect=day_effect
    )
    path = baseline_path(name, directory)
    write_baseline(recorded, path, replace=replace)
    for line in (f"wrote {path}", *_summary(recorded)):
        click.echo(line)


def _summary(recorded: Baseline) -> Iterator[str]:
    """Yield what was recorded, the smallest loss it can detect, and what is needed to detect 10 %."""
    from gpuproof.base.units import loss_shown, share
    from gpuproof.verdict.rules.past import coarsest

    num = sum(len(entry.figures) for entry in recorded.entries)
    days = len({figure.day for entry in recorded.entries for figure in entry.figures})
    runs = f"{_times(len(recorded.runs), 'run')} on {_times(days, 'day')}"
    yield f"baseline {recorded.name}: {num} values of {len(recorded.entries)} measures, from {runs}"
    if recorded.suspect:
        yield f"SUSPECT, so its values may be off: {', '.join(recorded.suspect)}"
    worst = coarsest(recorded, WANTED)
    if worst is None:
        return
    if worst.detectable is None:
        yield f"{_named(worst.entry)} was not repeated: record {NEEDED} to know what it detects"
        return
    yield f"least precise is {_named(worst.entry)}: {loss_shown(worst.detectable)}"
    if worst.detectable > WANTED:
        needed = "no number of runs is enough, since they vary too much"
        if worst.planned is not None:
            needed = f"record {_times(worst.planned[0], 'run')} on {_times(worst.planned[1], 'day')}"
        yield f"to detect {share(WANTED)}: {needed}"


def _times(num: int, what: str) -> str:
    return f"{num} {what}{'s' * (num != 1)}"


@click.command()
@click.argument("name")
@directory_option
@json_option
def show(name: str, *, directory: Path, as_json: bool) -> None:
    """Show a baseline: software stack, and centre and spread of each measure. NAME may also be a file."""
    from gpuproof.store.baselines import baseline_path, read_baseline

    baseline = read_baseline(baseline_path(name, directory))
    if as_json:
        print_json(baseline)
    else:
        show_page(page_of_baseline(baseline), is_list=True)


def page_of_baseline(baseline: Baseline) -> Page:
    """Lay out a baseline's stack, the smallest loss that it can detect, and one line per measure."""
    from gpuproof.records.page import Page, Text
    from gpuproof.records.page.tables import Column, table
    from gpuproof.store.provenance import of_baseline

    stack = tuple(f"{key}: {value or 'not reported'}" for key, value in baseline.stack.items())
    measures = table(
        "Measures",
        baseline.entries,
        Column.of("measure", _named, align="left", folds=True),
        Column.of("each", lambda entry: entry.kind, align="left"),
        Column.of("figures", lambda entry: str(len(entry.figures))),
        Column.of("centre", _centre),
        Column.of("spread", _spread),
    )
    title = f"Baseline {baseline.name} of {baseline.recorded}, from {', '.join(baseline.runs)}"
    resolves = Text(title="Resolution", lines=tuple(_summary(baseline)))
    return Page(
        title=title,
        verdict=None,
        sections=(Text(title="Applies to", lines=stack), resolves, measures),
        provenance=of_baseline(baseline, command=typed_command()),
    )


def _named(entry: BaselineEntry) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in entry.labels.items())
    return f"{entry.name} ({labels})" if labels else entry.name


def _centre(entry: BaselineEntry) -> str:
    from gpuproof.base import units
    from gpuproof.verdict.rules.refusals import with_unit

    if entry.unit == "share":
        return units.share(entry.centre)
    unit = {"bytes": "B"}.get(entry.unit, entry.unit)
    return units.amount(entry.centre, unit) if unit in units.SCALED else with_unit(entry.centre, entry.unit)


def _spread(entry: BaselineEntry) -> str:
    from gpuproof.base.units import share

    spread = entry.spread()
    return "too few" if spread is None or not spread.centre else share(spread.deviation / abs(spread.centre))


@click.command()
@click.argument("name")
@click.argument("run", type=RunName(), metavar="RUN")
@click.option(
    "--share",
    metavar="SHARE",
    type=FiniteRange(0, 1, min_open=True),
    help="Fraction of the baseline that is sufficient; by default derived from its own spread.",
)
@directory_option
@save_dir_option
@json_option
@verbose_option
@click.pass_context
def use(
    ctx: click.Context,
    name: str,
    run: Path,
    *,
    share: float | None,
    directory: Path,
    save_dir: Path,
    as_json: bool,
) -> None:
    """Compare every measure in a baseline with a run (or with `last`).

    Exit code 0 if all measures are unchanged, 3 if one is worse, 4 if one cannot be evaluated, because it was
    not measured or because the baseline is from a different stack; the keys that differ are then listed.
    """
    from dataclasses import replace

    from gpuproof.base.errors import ExitCode
    from gpuproof.store.baselines import baseline_path, read_baseline, read_facts
    from gpuproof.store.provenance import read_provenance
    from gpuproof.verdict.page import outcomes_page
    from gpuproof.verdict.rules import judge_rules
    from gpuproof.verdict.rules.load import rules_of_baseline

    baseline = read_baseline(baseline_path(name, directory))
    measured = open_run(run, save_dir)
    facts = replace(read_facts(measured), baseline=baseline)
    judged = judge_rules(rules_of_baseline(baseline, share=share), facts)
    if as_json:
        print_json(judged)
    else:
        title = f"Compared with the baseline {baseline.name}"
        provenance = read_provenance(measured)
        show_page(outcomes_page(title, ("", judged), provenance=provenance, launches=facts.launches))
    statuses = {item.outcome.status for item in judged}
    failed = ExitCode.FAILED if "FAIL" in statuses else ExitCode.INCONCLUSIVE
    ctx.exit(ExitCode.DONE if statuses and statuses <= {"PASS"} else failed)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=RunName(), metavar="RUN...")
@click.option(
    "--reference",
    is_flag=True,
    required=True,
    expose_value=False,
    help="Export references for other cards of the same model.",
)
@save_dir_option
def export(runs: tuple[Path, ...], *, save_dir: Path) -> None:
    """Export validation results as references for cards of the same model.

    Results are exported if they are VALID and have an interval, pooled over all cards by the exact workload
    and its conditions. Standard error lists what is omitted and which references remain provisional, with the
    reason. References from simulated cards only apply to simulated cards.

    \b
    gpuproof baseline export --reference results/validate/run_1 results/validate/run_2 >>references.toml
    gpuproof validate --references references.toml
    """  # noqa: D301  # click reads the backspace character
    from dataclasses import replace

    from gpuproof.store.baselines import run_values
    from gpuproof.verdict.made_references import as_toml, make_references
    from gpuproof.verdict.references import load_references, name_of_run

    opened = [open_run(run, save_dir) for run in runs]
    known = load_references()
    figures = [replace(run_values(run), run_id=name_of_run(run.description())) for run in opened]
    made, left_out = make_references(figures, known)
    for line in left_out:
        click.echo(f"omitted: {line}", err=True)
    for line in as_toml(made, known):
        click.echo(line)
