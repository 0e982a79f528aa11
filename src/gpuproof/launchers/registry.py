"""Which launchers exist, one line each, and on which hosts a command with given options runs.

Each line defines how a launcher appears on the command line and in run.json. A launcher is only loaded when
it is used, and files named in the options are not read.
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
    """Launcher data that is available before loading; parts are `module:name` in its folder."""

    site: str
    """The launcher's `LaunchSite`."""
    file: Literal["none", "optional", "required"]
    """What follows the launcher's name in `--on NAME:FILE`: nothing, an options file if there is one, or its
    hosts."""
    file_option: str = ""
    """An option that does the same as `--on NAME:FILE`."""
    options: str = ""
    """The launcher's own options on every command that measures: name → option, keywords of
    `click.option`."""
    command: str = ""
    """The launcher's own command group."""
    summary: str = ""
    """The first help line of the launcher's command group."""
    key: str = ""
    """The key in run.json that contains the launcher's site, if it is not the launcher's name."""


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
        summary="Check a cluster before launches, and clean up afterwards.",
    ),
}


def file_options() -> str:
    """Return the options equivalent to `--on NAME:FILE`."""
    return " or ".join(entry.file_option for entry in LAUNCHERS.values() if entry.file_option)


def options_of_launchers() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the options that launchers add, in the order of `--help`: name → option, click keywords."""
    parts = [_part(name, entry.options) for name, entry in LAUNCHERS.items() if entry.options]
    return {name: option for options in parts for name, option in options.items()}


def commands_of_launchers() -> dict[str, str]:
    """Return the command groups that launchers add, by name, as `module:name`."""
    return {name: _path(name, entry.command) for name, entry in LAUNCHERS.items() if entry.command}


def site_type(launcher: str) -> type[LaunchSite]:
    """Return the type of a launcher's sites."""
    sites: type[LaunchSite] = _part(launcher, LAUNCHERS[launcher].site)
    return sites


def resumed_site(run: RunDirectory, choice: HostChoice, *, python: str | None) -> LaunchSite:
    """Return the site where a run continues: as in its run.json, with different options if given.

    Raises:
        UsageError: hosts that are not part of the run are specified, or the options file is wrong.
        RecordError: run.json is damaged.
    """
    description = run.description()
    # Take the last one in run.json: a run in an allocation also lists its hosts there.
    launcher = [LOCAL, *(name for name, entry in LAUNCHERS.items() if (entry.key or name) in description)][-1]
    takes_options = LAUNCHERS[launcher].file == "optional"
    if choice.are_named and (choice.one_job or choice.launcher != launcher or not takes_options):
        raise UsageError(
            "a resumed run continues on its own hosts",
            place="--resume",
            next_step=f"Omit {file_options()}, --on and --one-job, or start a new run",
        )
    return site_type(launcher).recorded(run, choice, python=python)


def open_launcher(
    site: LaunchSite, *, environment: Mapping[str, str] = os.environ, many_launches: bool = False
) -> AbstractContextManager[Launcher]:
    """Yield the launcher of a site; it is closed at the end.

    `many_launches` means that the user's own launcher has to keep its ranks running for more than one launch.

    Raises:
        UsageError: SSH keys or known hosts cannot be read.
        EnvironmentUnfitError: a required package is not installed.
    """
    try:
        return site.opened(environment=environment, many_launches=many_launches)
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"{site.launcher} needs {error.name}, which is not installed here ({error})",
            next_step=f"pip install 'gpuproof[{site.launcher}]'",
        ) from error


def _part(launcher: str, part: str) -> Any:
    module, _, name = _path(launcher, part).partition(":")
    return getattr(import_module(module), name)


def _path(launcher: str, part: str) -> str:
    return f"gpuproof.launchers.{launcher}.{part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChoice:
    """A launcher and the values of its options; by default, only this machine."""

    launcher: str = LOCAL
    file: str = ""
    """The file in `--on LAUNCHER:FILE`; empty if there is none."""
    one_job: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """The values of the options added by all launchers, by name."""

    @property
    def are_named(self) -> bool:
        """Check whether the command runs on other hosts."""
        return self.launcher != LOCAL or self.one_job


def places_to_run() -> list[str]:
    """Return the values accepted by `--on`.

    >>> places_to_run()
    ['local', 'ssh:FILE', 'slurm', 'slurm:FILE', 'kubernetes', 'kubernetes:FILE']
    """
    forms = {"none": ["{}"], "required": ["{}:FILE"], "optional": ["{}", "{}:FILE"]}
    return [form.format(name) for name, entry in LAUNCHERS.items() for form in forms[entry.file]]


def chosen_hosts(on: str, options: Mapping[str, Any], *, one_job: bool) -> HostChoice:
    """Return what was chosen with `--on` and with the launchers' own options.

    Raises:
        UsageError: `on` is not an accepted value, or hosts are specified twice.
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
            raise UsageError("the hosts are specified twice", place=entry.file_option, next_step="Omit one")
        name, file = launcher, named
    return HostChoice(launcher=name, file=file, one_job=one_job, options=options)


def _not_a_place(on: str, cause: str) -> UsageError:
    *places, last = places_to_run()
    return UsageError(
        cause,
        place=f"--on {on}",
        next_step=f"Use {', '.join(places)} or {last}, and {file_options()} only with {LOCAL}",
    )
