"""Which suite a recipe asks for, found by entry point: ours come in by the same door as anyone's."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

from gpuproof.base import registry
from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace, Suite

OURS = "gpuproof"
FIRST = "recipe"
"""Asked before the others, of which none is imported where it answers; what suites of ours answer differs."""


def load_suite(name: str) -> Suite:
    """Import a registered suite.

    Raises:
        UsageError: there is none of that name, it cannot be loaded, or is not what a suite must be.
    """
    suite = registry.load(registry.SUITES, name)
    if not _is_suite(suite):
        raise UsageError(
            f"{name!r} from {registry.find_owner(registry.SUITES, name)} is registered as a suite and is a "
            f"{type(suite).__name__} that lacks a part of it",
            next_step="See gpuproof.suites.base.Suite, or uninstall it",
        )
    return cast(Suite, suite)


@functools.cache
def _is_suite(candidate: Any) -> bool:
    """Say whether an object has all parts of a suite: looked at once, and asked for at every point."""
    return isinstance(candidate, Suite)


def find_suite(config: RunConfig) -> Suite:
    """Return the suite that a recipe names, or else the one of ours that answers it.

    Raises:
        UsageError: no suite does.
    """
    if config.suite is not None:
        return load_suite(config.suite)
    names = [entry.name for entry in registry.registered(registry.SUITES) if entry.distribution == OURS]
    for name in sorted(names, key=lambda name: name != FIRST):
        if (suite := load_suite(name)).answers(config):
            return suite
    raise UsageError(f"no suite answers kind: {config.kind}", place="kind")


def suite_on(config: RunConfig, places: Sequence[HostPlace]) -> Suite:
    """Return the suite of a recipe for where it runs: on each host by itself, or once over all.

    Raises:
        UsageError: no suite answers the recipe.
    """
    suite = find_suite(config)
    is_by_host = suite.scope == "each_host" and config.distributed.nodes == 1
    if not is_by_host or not any(place.name for place in places):
        return suite
    from gpuproof.suites.by_host import ByHost

    return ByHost(suite)
