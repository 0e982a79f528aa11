"""The checks that rules request by name (`check: NAME`), in this folder and in other packages."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules

from gpuproof.base import registry
from gpuproof.base.errors import UsageError
from gpuproof.verdict import checks
from gpuproof.verdict.check import Check, FactCheck, checks_in, guarded


def packaged_checks() -> dict[str, FactCheck]:
    """Return the checks in this folder by name; each is a value in one of its files."""
    names = (f"{checks.__name__}.{module.name}" for module in iter_modules(checks.__path__))
    modules = [import_module(name) for name in names if name != __name__]
    return {item.name: item for module in modules for item in checks_in(module)}


CHECKS: Mapping[str, FactCheck] = packaged_checks()


def check_names() -> list[str]:
    """Return all check names; nothing from other packages is imported."""
    return sorted({*CHECKS, *registry.names(registry.CHECKS)})


def find_check(name: str) -> FactCheck:
    """Return a check that gpuproof defines or that another package registered.

    Raises:
        UsageError: the check does not exist, or cannot be loaded.
    """
    if name in CHECKS:
        return CHECKS[name]
    try:
        return load_check(name)
    except UsageError as error:
        known = check_names()
        if name in known:
            raise
        close = get_close_matches(name, known, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise UsageError(error.cause, next_step=f"{hint}Known: {', '.join(known)}") from error


def load_check(name: str) -> FactCheck:
    """Import a check registered by another package.

    Raises:
        UsageError: the check does not exist, cannot be loaded, or does not have the form of a check.
    """
    plugin, owner = registry.load(registry.CHECKS, name), registry.find_owner(registry.CHECKS, name)
    if not isinstance(plugin, Check) or not callable(plugin.judge):
        raise UsageError(
            f"{name!r} from {owner} is registered as a check but is a {type(plugin).__name__} "
            "without name, summary and judge",
            next_step="See gpuproof.verdict.check.Check, or uninstall it",
        )
    return guarded(name, plugin, owner=owner)
