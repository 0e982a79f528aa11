"""Which launchers there are, one line each, and on which hosts a command is to work, as its options say it.

A line has what stands for a launcher on the command line and in run.json. Nothing of one is loaded before it
is used, and of what the options name nothing is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from gpuproof.base.errors import EnvironmentUnfitError, UsageError

if TYPE_CHECKING:
    from gpuproof.launchers.base import Launcher
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
    """A group of commands of its own …"""
    summary: str = ""
    """… and how its help begins."""
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
        site="site:KubernetesSite",
        file="optional",
        command="command_line:kubernetes",
        summary="Look at a cluster before launches, and clean up after them.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChoice:
    """A launcher, and what its options say; by default this machine alone."""

    launcher: str = LOCAL
    file: str = ""
    """Of `--on LAUNCHER:FILE`; empty where none is named."""
    one_job: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """The values of all launchers' own options, by name."""

    @property
    def are_named(self) -> bool:
        """Say whether the command is to work on other hosts."""
        return self.launcher != LOCAL or self.one_job


def places_to_run() -> list[str]:
    """Return what `--on` takes.

    >>> places_to_run()
    ['local', 'ssh:FILE', 'slurm', 'slurm:FILE', 'kubernetes', 'kubernetes:FILE']
    """
    forms = {"none": ["{}"], "required": ["{}:FILE"], "optional": ["{}", "{}:FILE"]}
    return [form.format(name) for name, entry in LAUNCHERS.items() for form in forms[entry.file]]


def chosen_hosts(on: str, options: Mapping[str, Any], *, one_job: bool) -> HostChoice:
    """Return the choice that `--on` and the launchers' own options make.

    Raises:
        UsageError: there is no such place, or hosts are named twice.
    """
    name, colon, file = on.partition(":")
    if (f"{name}:FILE" if colon and file else on) not in places_to_run():
        raise _not_a_place(on, "not a place to run")
    for launcher, entry in LAUNCHERS.items():
        named = options.get(entry.file_option.removeprefix("--").replace("-", "_"))
        if named is None:
            continue
        if name not in (LOCAL, launcher):
            raise _not_a_place(on, "cannot be combined with a file of hosts")
        if name == launcher and file != named:
            raise UsageError(
                "the hosts are named twice", place=entry.file_option, next_step="Give one of the two"
            )
        name, file = launcher, named
    return HostChoice(launcher=name, file=file, one_job=one_job, options=options)


def _not_a_place(on: str, cause: str) -> UsageError:
    *places, last = places_to_run()
    return UsageError(
        cause,
        place=f"--on {on}",
        next_step=f"Write {', '.join(places)} or {last}, and {file_options()} with {LOCAL} alone",
    )
