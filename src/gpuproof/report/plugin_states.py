"""Which plug-ins there are and, where asked, whether each can be used: one that is broken hides no other.

In: the metadata of installed packages; with `load_plugins`, the plug-ins themselves, of which only the
torch-free halves are imported. Out: a line each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from gpuproof import registry
from gpuproof.errors import UsageError
from gpuproof.verdict.judging import load_check
from gpuproof.workloads.base import WorkloadInfo

State = Literal["not loaded", "loads", "broken", "duplicate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginState:
    """One registered plug-in."""

    kind: Literal["workload", "check", "suite"]
    name: str
    distribution: str
    version: str | None
    state: State
    reason: str | None = None
    summary: str | None = None
    """What it says of itself, once it is loaded."""


def list_plugins(*, name: str | None = None, load_plugins: bool = False) -> tuple[PluginState, ...]:
    """Return all plug-ins, or those of one name; metadata alone is read, unless they are to be loaded.

    Raises:
        UsageError: nothing has that name.
    """
    entries = [entry for group in registry.GROUPS for entry in registry.registered(group)]
    distinct = {(entry.group, entry.name, entry.distribution, entry.value) for entry in entries}
    copies = Counter((group, of_name) for group, of_name, _, _ in distinct)
    chosen = [entry for entry in entries if name in (None, entry.name)]
    if not chosen and name is not None:
        known = ", ".join(sorted({entry.name for entry in entries}))
        raise UsageError(f"no plug-in is called {name!r}", next_step=f"Known: {known}")
    return tuple(
        _state(entry, duplicate=copies[entry.group, entry.name] > 1, load_it=load_plugins) for entry in chosen
    )


def _state(entry: registry.Registered, *, duplicate: bool, load_it: bool) -> PluginState:
    state: State = "not loaded"
    reason = summary = None
    if duplicate:
        state = "duplicate"
        reason = f"registered by {registry.owner_of(entry.group, entry.name)}: uninstall one of them"
    elif load_it:
        try:
            state, summary = "loads", _LOADERS[entry.group](entry.name)
        except UsageError as error:
            state, reason = "broken", str(error)
    return PluginState(
        kind=_KINDS[entry.group],
        name=entry.name,
        distribution=entry.distribution,
        version=entry.version,
        state=state,
        reason=reason,
        summary=summary,
    )


def _load_workload(name: str) -> str:
    """Load a workload's torch-free half, and look for the other one without importing it."""
    info = registry.load(registry.WORKLOADS, name)
    owner = registry.owner_of(registry.WORKLOADS, name)
    if not isinstance(info, WorkloadInfo):
        raise UsageError(
            f"{name!r} from {owner} is a {type(info).__name__}, not a WorkloadInfo",
            next_step="See gpuproof.workloads.base, or uninstall it",
        )
    module = info.implementation.partition(":")[0]
    try:
        found = find_spec(module)
    except ImportError as error:
        raise UsageError(f"{name!r} from {owner}: its torch half {module} is not there ({error})") from error
    if found is None:
        raise UsageError(
            f"{name!r} from {owner}: its torch half {module} is not there", next_step=f"Install {owner} again"
        )
    return info.summary


def _load_check(name: str) -> str:
    return load_check(name).summary


def _load_suite(name: str) -> str | None:
    return getattr(registry.load(registry.SUITES, name), "summary", None)


_KINDS: dict[str, Literal["workload", "check", "suite"]] = {
    registry.WORKLOADS: "workload",
    registry.CHECKS: "check",
    registry.SUITES: "suite",
}
_LOADERS: dict[str, Callable[[str], str | None]] = {
    registry.WORKLOADS: _load_workload,
    registry.CHECKS: _load_check,
    registry.SUITES: _load_suite,
}
