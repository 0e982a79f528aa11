"""Plug-ins by entry point: listing them only reads metadata; they are loaded on first use.

Built-ins use the same mechanism as any other package: an entry point in the group, which refers to a
torch-free descriptor (see `gpuproof.workloads.info.base.WorkloadInfo` and `gpuproof.verdict.check.Check`).
"""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from gpuproof.base.errors import UsageError

WORKLOADS = "gpuproof.workloads"
CHECKS = "gpuproof.checks"
SUITES = "gpuproof.suites"
ACCELERATORS = "gpuproof.accelerators"
GROUPS = (WORKLOADS, CHECKS, SUITES, ACCELERATORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """An entry point as listed in its package's metadata; reading it imports nothing."""

    group: str
    name: str
    value: str
    """`module:attribute`."""
    distribution: str
    version: str | None


def _entries(group: str) -> EntryPoints:
    """Return what every package registers in `group`."""
    return _entries_on(tuple(sys.path), group)


@functools.cache
def _entries_on(_path: tuple[str, ...], group: str) -> EntryPoints:
    """Read the metadata of every package on Python's path, which takes about 15 ms per look-up."""
    return entry_points(group=group)


@functools.cache
def names(group: str) -> tuple[str, ...]:
    """List what is registered in `group`, sorted, without importing any of it."""
    return tuple(sorted({point.name for point in _entries(group)}))


@functools.cache
def registered(group: str) -> tuple[Registered, ...]:
    """Return every entry of `group` by name, including duplicates, without importing any of it."""
    entries = {
        Registered(
            group=group,
            name=point.name,
            value=point.value,
            distribution=_distribution(point),
            version=None if point.dist is None else point.dist.version,
        )
        for point in _entries(group)
    }
    return tuple(sorted(entries, key=lambda entry: (entry.name, entry.distribution, entry.value)))


def find_owner(group: str, name: str) -> str:
    """Return the package that registers `name` in `group`; several packages are joined with "and"."""
    owners = sorted({entry.distribution for entry in registered(group) if entry.name == name})
    return " and ".join(owners) or "no package"


def find_package(module: str) -> str | None:
    """Return the package that registers something of `module`'s top-level package; None if none does."""
    top = module.partition(".")[0]
    entries = (entry for group in GROUPS for entry in registered(group))
    return next((x.distribution for x in entries if x.value.partition(":")[0].partition(".")[0] == top), None)


@functools.cache
def load(group: str, name: str) -> Any:
    """Import and return the object registered as `name` in `group`; looked up once per process.

    Raises:
        UsageError: nothing has that name, two packages register it, or its import fails.
    """
    points = _points(group, name)
    if not points:
        registered_names = names(group)
        close = difflib.get_close_matches(name, registered_names, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise UsageError(
            f"no {group.rpartition('.')[2].rstrip('s')} is called {name!r}",
            next_step=f"{hint}Known: {', '.join(registered_names) or 'none'}",
        )
    if len(points) > 1:
        raise UsageError(f"{name!r} is registered by {find_owner(group, name)}", next_step="Uninstall one")
    (point,) = points
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a module may exit the process on import
        raise UsageError(
            f"{name!r} from {_distribution(point)} cannot be loaded: {type(error).__name__}: {error}",
            next_step="Install what it needs, or uninstall it",
        ) from error


def forget() -> None:
    """From now on, reread the metadata: packages were installed while this process was running."""
    for cached in (_entries_on, names, registered, load):
        cached.cache_clear()


def _points(group: str, name: str) -> Sequence[EntryPoint]:
    """Return the entries for a name, one per package and object, since a path may be searched twice."""
    points = {(point.value, _distribution(point)): point for point in _entries(group) if point.name == name}
    return list(points.values())


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unnamed package"
