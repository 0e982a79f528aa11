"""Options that say on which hosts a command works, the same on every command that can work elsewhere.

In: words. Out: a `HostChoice`. Loads nothing heavy: reading what is named is for the launcher's site.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from gpuproof.launchers.registry import LAUNCHERS, LOCAL, chosen_hosts, options_of_launchers

Command = TypeVar("Command", bound=Callable[..., Any])


class PlaceOption(click.Option):
    """An option that says where to run."""


class PlacedCommand(click.Command):
    """A command whose help has the options of where to run in a section of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both sections."""
        write_options(ctx, formatter)


def write_options(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the section of a command's options, and that of where to run if it has such."""
    sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Where to run": []}
    for param in ctx.command.get_params(ctx):
        if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
            sections["Where to run" if isinstance(param, PlaceOption) else "Options"].append(record)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def _places_to_run() -> str:
    by_file = {
        use: [name for name, entry in LAUNCHERS.items() if entry.file == use]
        for use in ("required", "optional")
    }
    hosts = [f"{name}:FILE" for name in by_file["required"]]
    options = " or ".join(f"{name}:FILE" for name in by_file["optional"])
    places = ", ".join([f"{LOCAL} (this machine)", *hosts, *by_file["optional"]])
    return f"Where to run: {places}, or {options} (with options in YAML)."


_ON = click.option("--on", cls=PlaceOption, metavar="WHERE", default=LOCAL, help=_places_to_run())
_ONE_JOB = click.option(
    "--one-job",
    cls=PlaceOption,
    is_flag=True,
    help="One job over all hosts instead of one on each (distributed.nodes).",
)


def host_options(command: Command) -> Command:
    """Add the options; the command gets them as `hosts`, a HostChoice."""
    options = options_of_launchers()

    @wraps(command)
    def on_hosts(*args: Any, on: str, one_job: bool, **kwargs: Any) -> Any:
        values = {name: kwargs.pop(name) for name in options}
        return command(*args, hosts=chosen_hosts(on, values, one_job=one_job), **kwargs)

    wrapped = _ONE_JOB(on_hosts)
    for name, (option, keywords) in reversed(options.items()):
        wrapped = click.option(option, name, cls=PlaceOption, **keywords)(wrapped)
    return _ON(wrapped)  # type: ignore[return-value]  # click's decorators keep the command's type
