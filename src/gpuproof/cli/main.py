"""The `gpuproof` command: lists its commands without loading what they need, and ends in one way.

A user's mistake is one paragraph on standard error and the exit code of `gpuproof.errors.ExitCode`;
only a fault of ours prints a traceback.
"""

from __future__ import annotations

import io
import sys
import traceback
from typing import NoReturn

import click

from gpuproof.cli.entry.group import LazyGroup
from gpuproof.cli.entry.older import in_our_words
from gpuproof.errors import ExitCode, GpuproofError

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
    "kubernetes": "gpuproof.cli.clusters.kubernetes:kubernetes",
    "cloud": "gpuproof.cli.cloud:cloud",
    "completion": "gpuproof.cli.entry.completion:completion",
}
"""Command name → `module:attribute`; such a module imports only click and the standard library at its top."""


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from gpuproof import __version__

        click.echo(f"gpuproof {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    commands_by_path=COMMANDS,
    in_our_words=in_our_words,
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
    """Measure GPUs under deep-learning load, explain what was measured, and judge it.

    \b
    Start here:
      gpuproof doctor        what this machine has, and what is missing
      gpuproof run quick     a trustworthy number in under a minute
    """  # noqa: D301  # click reads the backspace character


def main() -> NoReturn:
    """Run the command line; every way out ends here with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without ± or × gets a ? and not a traceback
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        code = ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = ExitCode.USAGE
    except GpuproofError as error:
        click.echo(f"gpuproof: {error}", err=True)
        code = error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        code = ExitCode.DONE
    except Exception:  # noqa: BLE001  # the last line of defence: say that the fault is ours
        traceback.print_exc()
        click.echo("gpuproof: this is a bug in gpuproof; please report it with the lines above.", err=True)
        code = ExitCode.OUR_BUG
    sys.exit(int(code or 0))
