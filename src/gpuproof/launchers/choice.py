"""On which hosts a command is to work, as its options say it: words, of which nothing is read yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuproof.errors import UsageError
from gpuproof.launchers.registry import LAUNCHERS, LOCAL, file_options


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
