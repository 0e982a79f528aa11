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


def _places_to_run() -> str:
    by_file = {
        use: [name for name, entry in LAUNCHERS.items() if entry.file == use]
        for use in ("required", "optional")
    }
    hosts = [f"{name}:FILE" for name in by_file["required"]]
    options = " or ".join(f"{name}:FILE" for name in by_file["optional"])
    places = ", ".join([f"{LOCAL} (this machine)", *hosts, *by_file["optional"]])
    return f"Where to run: {places}, or {options} (with options in YAML)."


_ON = click.option("--on", metavar="WHERE", default=LOCAL, help=_places_to_run())
_ONE_JOB = click.option(
    "--one-job", is_flag=True, help="One job over all hosts instead of one on each (distributed.nodes)."
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
        wrapped = click.option(option, name, **keywords)(wrapped)
    return _ON(wrapped)  # type: ignore[return-value]  # click's decorators keep the command's type
