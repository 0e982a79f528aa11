"""Options that several commands share, so that they mean the same everywhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from gpuproof.cli.entry.run_name import RunName

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, and it alone, on standard output."
)


def print_json(content: Any) -> None:
    """Print records, or what JSON has, on standard output."""
    import json

    from gpuproof.records.codec import to_json

    click.echo(json.dumps(to_json(content), indent=2, allow_nan=False))


_MEASURING = (
    click.option("--timeout", metavar="SECONDS", help="Time that one launch may take (run.time_limit_s)."),
    click.option("--python", metavar="PATH", help="Run the ranks with this Python, which needs torch only."),
    click.option("--resume", type=RunName(), metavar="RUN", help="Finish an interrupted run."),
    click.option("--retry-failed", is_flag=True, help="With --resume: launch again what failed, too."),
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the command of each launch, and start nothing."
)


def measuring_options(command: Command) -> Command:
    """Add what every command that measures takes: limits, where to run, resuming, JSON, the log."""
    from gpuproof.cli.host_options import host_options

    wrapped = host_options(json_option(log_options(command)))
    for option in reversed(_MEASURING):
        wrapped = option(wrapped)
    return wrapped


def log_options(command: Command) -> Command:
    """Add --log-file and --verbose; the log takes every detail, whatever the terminal shows."""

    @click.option(
        "--log-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write a log with every detail.",
    )
    @click.option("--verbose", "-v", is_flag=True, help="Say on standard error what is being done.")
    @wraps(command)
    def logged(*args: Any, log_file: Path | None, verbose: bool, **kwargs: Any) -> Any:
        start_logging(log_file, verbose=verbose)
        return command(*args, **kwargs)

    return logged  # type: ignore[return-value]  # click's decorators keep the command's type


def start_logging(log_file: Path | None, *, verbose: bool) -> None:
    """Let the logger pass everything and the handlers choose: the file DEBUG, the terminal INFO.

    Raises:
        click.BadParameter: the log file cannot be written.
    """
    logger = logging.getLogger("gpuproof")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    if log_file is not None:
        try:
            handler: logging.Handler = logging.FileHandler(log_file, encoding="utf-8")
        except OSError as error:
            raise click.BadParameter(f"{log_file}: {error.strerror}", param_hint="--log-file") from error
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    if verbose:
        terminal = logging.StreamHandler(sys.stderr)
        terminal.setLevel(logging.INFO)
        logger.addHandler(terminal)
