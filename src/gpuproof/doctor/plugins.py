"""List plug-ins and, if requested, check that each is usable; a broken one does not hide others.

In: the metadata of installed packages and, with `load_plugins`, the plug-ins themselves, of which only the
torch-free halves are imported. Out: one line per plug-in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from gpuproof.base import registry
from gpuproof.base.errors import UsageError
from gpuproof.suites.registry import load_suite
from gpuproof.verdict.checks.registry import load_check
from gpuproof.workloads.info.base import WorkloadInfo

State = Literal["not loaded", "loads", "broken", "duplicate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginState:
    """One registered plug-in."""

    kind: str
    """Name of its group: workload, check, suite or accelerator."""
    name: str
    distribution: str
    version: str | None
    state: State
    reason: str | None = None
    summary: str | None = None
    """The plug-in's own description, once it is loaded."""


def list_plugins(*, name: str | None = None, load_plugins: bool = False) -> tuple[PluginState, ...]:
    """Return all plug-ins, or those with a given name; only metadata is read unless they are loaded.

    Raises:
        UsageError: no plug-in has that name.
    """
    entries = [entry for group in registry.GROUPS for entry in registry.registered(group)]
    distinct = {(entry.group, entry.name, entry.distribution, entry.value) for entry in entries}
    copies = Counter((group, entry_name) for group, entry_name, _, _ in distinct)
    chosen = [entry for entry in entries if name in (None, entry.name)]
    if not chosen and name is not None:
        names = ", ".join(sorted({entry.name for entry in entries}))
        raise UsageError(f"there is no plug-in called {name!r}", next_step=f"Known: {names}")
    return tuple(
        _state(entry, duplicate=copies[entry.group, entry.name] > 1, load_it=load_plugins) for entry in chosen
    )


def _state(entry: registry.Registered, *, duplicate: bool, load_it: bool) -> PluginState:
    state: State = "not loaded"
    reason = summary = None
    if duplicate:
        state = "duplicate"
        reason = f"registered by {registry.find_owner(entry.group, entry.name)}: uninstall one of them"
    elif load_it:
        try:
            state, summary = "loads", _LOADERS[entry.group](entry.name)
        except UsageError as error:
            state, reason = "broken", str(error)
    return PluginState(
        kind=entry.group.rpartition(".")[2].removesuffix("s"),
        name=entry.name,
        distribution=entry.distribution,
        version=entry.version,
        state=state,
        reason=reason,
        summary=summary,
    )


def _load_workload(name: str) -> str:
    """Load the torch-free half of a workload, and look for the other half without importing it."""
    info = registry.load(registry.WORKLOADS, name)
    owner = registry.find_owner(registry.WORKLOADS, name)
    if not isinstance(info, WorkloadInfo):
        raise UsageError(
            f"{name!r} from {owner} is a {type(info).__name__}, not a WorkloadInfo",
            next_step="See gpuproof.workloads.info.base, or uninstall it",
        )
    _look_for(info.implementation, owner=owner, name=name)
    return info.summary


def _find_accelerator(name: str) -> str:
    """Look for an accelerator without importing it, since importing it needs torch."""
    (entry,) = (plugin for plugin in registry.registered(registry.ACCELERATORS) if plugin.name == name)
    _look_for(entry.value, owner=entry.distribution, name=name)
    return f"devices of type {name}, for distributed.device={name}"


def _look_for(value: str, *, owner: str, name: str) -> None:
    """Look for a plug-in's torch module, without importing it.

    Raises:
        UsageError: the module does not exist.
    """
    module = value.partition(":")[0]
    try:
        is_there, reason = find_spec(module) is not None, ""
    except ImportError as error:
        is_there, reason = False, f" ({error})"
    if not is_there:
        raise UsageError(
            f"{name!r} from {owner}: its torch half {module} does not exist{reason}",
            next_step=f"Reinstall {owner}",
        )


_LOADERS: dict[str, Callable[[str], str]] = {
    registry.WORKLOADS: _load_workload,
    registry.CHECKS: lambda name: load_check(name).summary,
    registry.SUITES: lambda name: load_suite(name).summary,
    registry.ACCELERATORS: _find_accelerator,
}
