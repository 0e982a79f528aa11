"""Which launchers there are: of each what stands for it on the command line and in run.json, one line each.

Nothing of a launcher is loaded before it is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from gpuproof.errors import EnvironmentUnfitError, UsageError

if TYPE_CHECKING:
    from gpuproof.launchers.base import Launcher
    from gpuproof.launchers.choice import HostChoice
    from gpuproof.launchers.site import LaunchSite
    from gpuproof.store.run import RunDirectory

LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherEntry:
    """What is known of a launcher before it is loaded; its parts are `module:name` in its folder."""

    site: str
    """Its `LaunchSite`."""
    file: Literal["none", "optional", "required"]
    """What stands behind its name in `--on NAME:FILE`: nothing, options if there are any, or its hosts."""
    file_option: str = ""
    """The option that stands for `--on NAME:FILE`."""
    options: str = ""
    """Its own options on every command that measures: name → option, keywords of `click.option`."""
    command: str = ""
    """A group of commands of its own."""
    key: str = ""
    """The key of run.json that holds its site, where that is not its name."""


LAUNCHERS: Mapping[str, LauncherEntry] = {
    LOCAL: LauncherEntry(site="site:ThisMachine", file="none"),
    "ssh": LauncherEntry(
        site="site:SshHosts",
        file="required",
        file_option="--deployment-file",
        options="command_line:OPTIONS",
        key="fleet",
    ),
    "slurm": LauncherEntry(site="site:SlurmSite", file="optional"),
    "kubernetes": LauncherEntry(
        site="site:KubernetesSite", file="optional", command="command_line:kubernetes"
    ),
}


def file_options() -> str:
    """Return the options that stand for `--on NAME:FILE`."""
    return " or ".join(entry.file_option for entry in LAUNCHERS.values() if entry.file_option)


def options_of_launchers() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the options that launchers add, in the order of `--help`: name → option, keywords of click's."""
    parts = [_part(name, entry.options) for name, entry in LAUNCHERS.items() if entry.options]
    return {name: option for options in parts for name, option in options.items()}


def commands_of_launchers() -> dict[str, str]:
    """Return the groups of commands that launchers add, by name, as `module:name`."""
    return {name: _path(name, entry.command) for name, entry in LAUNCHERS.items() if entry.command}


def site_type(launcher: str) -> type[LaunchSite]:
    """Return the type of a launcher's sites."""
    sites: type[LaunchSite] = _part(launcher, LAUNCHERS[launcher].site)
    return sites


def resumed_site(run: RunDirectory, choice: HostChoice, *, python: str | None) -> LaunchSite:
    """Return where a run goes on: as its run.json has it, by other options if they are named.

    Raises:
        UsageError: other hosts are named, or the file of options is wrong.
        RecordError: run.json is damaged.
    """
    description = run.description()
    # The last that is in it: a run in an allocation has its hosts there, too.
    launcher = [LOCAL, *(name for name, entry in LAUNCHERS.items() if (entry.key or name) in description)][-1]
    takes_options = LAUNCHERS[launcher].file == "optional"
    if choice.are_named and (choice.one_job or choice.launcher != launcher or not takes_options):
        raise UsageError(
            "a resumed run goes on with its own hosts",
            place="--resume",
            next_step=f"Leave {file_options()}, --on and --one-job out, or start a new run",
        )
    return site_type(launcher).recorded(run, choice, python=python)


def open_launcher(
    site: LaunchSite, *, environment: Mapping[str, str] = os.environ, many_launches: bool = False
) -> AbstractContextManager[Launcher]:
    """Give the launcher of a site, closed in the end.

    `many_launches` says that a launcher of the user's has to keep its ranks for more than one.

    Raises:
        UsageError: keys or known hosts cannot be read.
        EnvironmentUnfitError: what it needs is not installed.
    """
    try:
        return site.opened(environment=environment, many_launches=many_launches)
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"{site.launcher} needs {error.name}, which is not here ({error})",
            next_step=f"pip install 'gpuproof[{site.launcher}]'",
        ) from error


def _part(launcher: str, part: str) -> Any:
    module, _, name = _path(launcher, part).partition(":")
    return getattr(import_module(module), name)


def _path(launcher: str, part: str) -> str:
    return f"gpuproof.launchers.{launcher}.{part}"
