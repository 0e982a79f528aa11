"""`gpuproof report` and `gpuproof runs`: what was measured, read again from disk, on any machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuproof.cli.options import json_option

if TYPE_CHECKING:
    from rich.console import Console

    from gpuproof.errors import ExitCode
    from gpuproof.report.model import ReportModel
    from gpuproof.store.run import RunDirectory

LOG_WIDTH = 110


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "--check", "checks", multiple=True, metavar="NAME", help="Judge the run by a check; may be repeated."
)
@json_option
@click.pass_context
def report(ctx: click.Context, run: Path, *, checks: tuple[str, ...], as_json: bool) -> None:
    """Show the report of a run again, and make its derived files again.

    RUN is a run directory, as `gpuproof runs` lists them. Needs no device and no PyTorch. The exit code
    is the one that the run ended with.

    With --check, print what that check (of those that `gpuproof plugins` lists) says of the run instead,
    and change nothing. The exit code is then 3 if a check failed, 4 if one measured nothing, else 0.
    """
    from gpuproof.campaign import config_of
    from gpuproof.report.conclude import conclude
    from gpuproof.store.run import RunDirectory

    directory = RunDirectory.open(run)
    if checks:
        ctx.exit(_judge(directory, checks, as_json=as_json))
    conclusion = conclude(directory, config_of(directory))
    show_report(conclusion.report, as_json=as_json)
    ctx.exit(conclusion.exit_code)


def _judge(directory: RunDirectory, names: Sequence[str], *, as_json: bool) -> ExitCode:
    """Print what checks say of a run; return the exit code."""
    from gpuproof.report.outcomes import exit_code_of_outcomes, print_outcomes
    from gpuproof.verdict.judging import judge, load_check

    loaded = {name: load_check(name) for name in names}
    launches = directory.cases()
    judged = [judge(name, check, launches) for name, check in loaded.items()]
    if as_json:
        import json

        from gpuproof.records.codec import to_json

        click.echo(json.dumps({"run": str(directory.root), "checks": to_json(judged)}, indent=2))
    else:
        print_outcomes(judged, standard_output())
    return exit_code_of_outcomes(judged)


@click.command()
@click.option(
    "--save-dir",
    type=click.Path(path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Where runs lie (run.save_dir).",
)
@json_option
def runs(save_dir: Path, *, as_json: bool) -> None:
    """List the runs, newest first: when, what, how fast, and whether it can be trusted."""
    import json

    from gpuproof.store.run import list_runs

    rows = [_row(directory.root) for directory in list_runs(save_dir)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo(f"No runs under {save_dir}. Start one: gpuproof run quick")
    else:
        _print_rows(rows)


def _row(root: Path) -> dict[str, object]:
    import json

    from gpuproof.errors import RecordError
    from gpuproof.store.run import RunDirectory

    try:
        description = RunDirectory(root).description()
    except RecordError as error:  # one damaged run must not hide the others
        description = {"created": None, "config": None, "damage": str(error)}
    try:
        summary = json.loads((root / "run_summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        summary = {}
    config = description["config"]
    return {
        "run": str(root),
        "created": description["created"],
        "what": _what(config) if config else description["damage"],
        "launches": f"{summary.get('num_launches', 0)}/{summary.get('num_planned', config['run']['repeats'])}"
        if config
        else None,
        "throughput_samples_per_s": summary.get("throughput_samples_per_s"),
        "validity": summary.get("validity"),
    }


def _what(config: dict[str, Any]) -> str:
    if config["kind"] == "load":
        return "load suite"
    return f"{config['model']['name']} {config['kind']} on {config['data']['name']}"


def _print_rows(rows: list[dict[str, object]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from gpuproof import units
    from gpuproof.report.terminal import write

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("run", "created", "what", "launches"):
        table.add_column(name, overflow="fold")
    table.add_column("throughput", justify="right")
    table.add_column("validity")
    for row in rows:
        speed = row["throughput_samples_per_s"]
        table.add_row(
            *(escape(str(row[key] or units.MISSING)) for key in ("run", "created", "what", "launches")),
            units.rate(speed, "samples") if isinstance(speed, float) else units.MISSING,
            str(row["validity"] or "not concluded"),
        )
    write(standard_output(), table)


def show_report(report: ReportModel, *, as_json: bool) -> None:
    """Print a report on standard output, as JSON or for a person."""
    if as_json:
        import json

        from gpuproof.records.codec import to_json

        click.echo(json.dumps(to_json(report), indent=2, allow_nan=False))
        return
    from gpuproof.report.terminal import print_report

    print_report(report, standard_output())


def standard_output() -> Console:
    """Return the console for results: as wide as the terminal, or a fixed width in a file."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=LOG_WIDTH)
