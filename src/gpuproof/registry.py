"""Plug-ins by entry point: listing reads metadata only, loading happens on use.

Built-ins come in by the same door as anyone's package: an entry point in the group, whose object is a
torch-free descriptor (see `gpuproof.workloads.base.WorkloadInfo`).
"""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gpuproof.errors import UsageError

WORKLOADS = "gpuproof.workloads"


def names(group: str) -> tuple[str, ...]:
    """Name what is registered in `group`, sorted, without importing any of it."""
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def load(group: str, name: str) -> Any:
    """Import and return the object registered as `name` in `group`.

    Raises:
        UsageError: nothing has that name, two packages claim it, or its import fails.
    """
    points = {
        (point.value, _distribution(point)): point
        for point in entry_points(group=group)
        if point.name == name
    }
    if not points:
        close = difflib.get_close_matches(name, names(group), n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise UsageError(
            f"no {group.rpartition('.')[2].rstrip('s')} is called {name!r}",
            next_step=f"{hint}Known: {', '.join(names(group))}",
        )
    if len(points) > 1:
        owners = " and ".join(sorted(distribution for _, distribution in points))
        raise UsageError(f"{name!r} is registered by {owners}", next_step="Uninstall one of them")
    (point,) = points.values()
    try:
        return point.load()
    except Exception as error:
        raise UsageError(
            f"{name!r} from {_distribution(point)} cannot be loaded: {type(error).__name__}: {error}",
            next_step="Install what it needs, or uninstall it",
        ) from error


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unnamed package"
