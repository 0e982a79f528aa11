"""The `gpuproof` command: lists its commands without loading their imports, and has one exit path.

For a user error, one paragraph is printed on standard error and the exit code is one of
`gpuproof.base.errors.ExitCode`; a traceback is printed only for bugs in gpuproof.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from gpuproof.base.errors import ExitCode, explained
from gpuproof.cli.group import LazyGroup
from gpuproof.launchers.registry import LAUNCHERS, commands_of_launchers

COMMANDS: dict[str, str] = {
    "run": "gpuproof.cli.run:run",
    "load": "gpuproof.cli.load:load",
    "scale": "gpuproof.cli.scale:scale",
    "validate": "gpuproof.cli.validate:validate",
    "rules": "gpuproof.cli.standards.rules:rules",
    "baseline": "gpuproof.cli.standards.baseline:baseline",
    "compare": "gpuproof.cli.compare:compare",
    "selftest": "gpuproof.cli.standards.selftest:selftest",
    "matrix": "gpuproof.cli.matrix:matrix",
    "report": "gpuproof.cli.report:report",
    "runs": "gpuproof.cli.report:runs",
    "doctor": "gpuproof.cli.doctor:doctor",
    "init": "gpuproof.cli.init:init",
    "config": "gpuproof.cli.config:config",
    "plugins": "gpuproof.cli.plugins:plugins",
    "monitor": "gpuproof.cli.monitor:monitor",
    **commands_of_launchers(),
    "cloud": "gpuproof.cli.cloud:cloud",
    "completion": "gpuproof.cli.completion:completion",
}
"""Command name → `module:attribute`; these modules import only click and the standard library at the top
level."""
SUMMARIES: dict[str, str] = {
    "run": "Run the measurements defined in a recipe.",
    "load": "Run the twelve tests of the load suite, here or on a fleet.",
    "scale": "Measure whether using several devices is worthwhile.",
    "validate": "Check whether a machine or cluster is ready for production.",
    "rules": "Find rules and thresholds that can never reach a verdict.",
    "baseline": "Record a fleet's results as a baseline to compare runs with.",
    "compare": "Report whether run B is faster or slower than run A.",
    "selftest": "Inject known faults and verify that each is identified.",
    "matrix": "Run every case of a matrix and compare results side by side.",
    "report": "Show a run's report, and regenerate its derived files.",
    "runs": "List the runs, newest first, with verdict and result.",
    "doctor": "Report this machine's hardware, software, problems and fixes.",
    "init": "Write a commented recipe that fits this machine.",
    "config": "Show the resolved values of a recipe, and all available keys.",
    "plugins": "List workloads, checks and suites, each with its package.",
    "monitor": "Monitor GPUs and host live, or record and review their readings.",
    **{name: entry.summary for name, entry in LAUNCHERS.items() if entry.command},
    "cloud": "Rent hosts to measure on: list, deploy and terminate them.",
    "completion": "Print the shell completion script for commands, keys and runs.",
}
"""First line of each command's help, so that commands can be listed without importing them."""
GROUPS: dict[str, tuple[str, ...]] = {
    "Measure": ("run", "load", "scale", "matrix"),
    "Evaluate": ("validate", "compare", "rules", "baseline", "selftest"),
    "Inspect": ("report", "runs", "monitor", "doctor"),
    "Set up": ("init", "config", "plugins", *commands_of_launchers(), "cloud", "completion"),
}
"""Groups in which `--help` lists the commands: title → command names."""
GARBAGE_AFTER = 100_000
"""Garbage collection threshold: with Python's default of 700, the collector runs 180 times while a command is
imported."""


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from gpuproof import __version__

        click.echo(f"gpuproof {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    commands_by_path=COMMANDS,
    summaries=SUMMARIES,
    groups=GROUPS,
    older_words="gpuproof.cli.older:in_our_words",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Measure GPUs under deep-learning load, explain the results, and report a verdict.

    \b
    Start here:
      gpuproof doctor        what this machine has, and what is missing
      gpuproof run quick     a trustworthy number in about a minute
      gpuproof run serving   how fast a server answers requests
    """  # noqa: D301  # click reads the backspace character


class LossyFile(io.FileIO):
    """Lossy stdout or stderr: whatever cannot be written is dropped, with no other effect.

    A full disk or a closed reader affects neither the measurement nor the exit code.
    """

    loss: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write bytes; return their number, even if they could not be written."""
        try:
            return super().write(data)
        except OSError as error:
            self.loss = error
            return len(data)


def _hold_streams() -> list[LossyFile]:
    """Open closed standard streams, and make stdout and stderr drop what cannot be written."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # noqa: PERF203  # each stream is looked at by itself
            # uses the lowest free descriptor, which would otherwise go to a file of the run
            os.open(os.devnull, os.O_RDWR)
    files = [LossyFile(number, "wb", closefd=False) for number in (1, 2)]
    sys.stdout, sys.stderr = (
        # If the terminal cannot print ± or ×, print ? instead of a traceback.
        io.TextIOWrapper(
            io.BufferedWriter(file),
            encoding=getattr(stream, "encoding", None) or "utf-8",
            errors="replace",
            line_buffering=file.isatty() or number == 2,
        )
        for number, file, stream in zip((1, 2), files, (sys.stdout, sys.stderr), strict=True)
    )
    return files


def _tell_loss(files: Sequence[LossyFile]) -> None:
    """Report on standard error that standard output was lost, unless its reader closed it."""
    sys.stdout.flush()
    loss = files[0].loss
    if loss is not None and not isinstance(loss, BrokenPipeError):
        click.echo(f"gpuproof: standard output: cannot be written: {loss.strerror}.", err=True)
    sys.stderr.flush()


def _tell_bug(error: Exception) -> ExitCode:
    """Print the error being handled, and whose bug it is: gpuproof's, or that of a package that it calls."""
    from gpuproof.base.outside import plain
    from gpuproof.base.registry import find_package

    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    owner = next(filter(None, map(find_package, reversed(modules))), "gpuproof")
    click.echo(plain(traceback.format_exc()), err=True, nl=False)
    click.echo(f"gpuproof: this is a bug in {owner}; please report it with the lines above.", err=True)
    return ExitCode.OUR_BUG


def main() -> NoReturn:
    """Run the command line; every path exits here with its exit code."""
    files = _hold_streams()
    gc.set_threshold(GARBAGE_AFTER)
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        code = ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except click.ClickException as error:
        from gpuproof.base.outside import plain

        shown = io.StringIO()
        error.show(file=shown)
        click.echo(plain(shown.getvalue()), err=True, nl=False)
        code = ExitCode.USAGE
    except Exception as error:  # noqa: BLE001  # the last line of defence: say it, and that the fault may be ours
        fault = explained(error)
        code = _tell_bug(error) if fault is None else fault.exit_code
        if fault is not None:
            click.echo(f"gpuproof: {fault}", err=True)
            if fault.more_words:
                import shlex

                from gpuproof.cli.options import say

                say(f"  {shlex.join(['gpuproof', *sys.argv[1:], *fault.more_words])}", err=True)
    _tell_loss(files)
    code = int(code or 0)
    if sys.argv[1:] and sys.argv[1].endswith(".py"):
        from gpuproof.cli.older import in_their_codes

        code = in_their_codes(sys.argv[1:], code)
    sys.exit(code)
