"""Find the suite for a recipe by entry point; built-in suites are registered the same way."""

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
"""Name of the suite that is tried first; if it matches, the others are not imported. Built-in suites never
overlap."""


def load_suite(name: str) -> Suite:
    """Import a registered suite.

    Raises:
        UsageError: there is no suite with that name, it cannot be loaded, or it is not a valid suite.
    """
    suite = registry.load(registry.SUITES, name)
    if not _is_suite(suite):
        raise UsageError(
            f"{name!r} from {registry.find_owner(registry.SUITES, name)} is registered as a suite, "
            f"but is a {type(suite).__name__} that lacks a required part",
            next_step="See gpuproof.suites.base.Suite, or uninstall the package",
        )
    return cast(Suite, suite)


@functools.cache
def _is_suite(candidate: Any) -> bool:
    """Report whether an object has all parts of a suite; cached, since it is called for every point."""
    return isinstance(candidate, Suite)


def find_suite(config: RunConfig) -> Suite:
    """Return the suite that a recipe specifies, or else the built-in suite that accepts it.

    Raises:
        UsageError: no suite accepts the recipe.
    """
    if config.suite is not None:
        return load_suite(config.suite)
    names = [entry.name for entry in registry.registered(registry.SUITES) if entry.distribution == OURS]
    for name in sorted(names, key=lambda name: name != FIRST):
        if (suite := load_suite(name)).answers(config):
            return suite
    raise UsageError(f"no suite accepts kind: {config.kind}", place="kind")


def suite_on(config: RunConfig, places: Sequence[HostPlace]) -> Suite:
    """Return a recipe's suite for its hosts: run on each host separately, or once over all of them.

    Raises:
        UsageError: no suite accepts the recipe.
    """
    suite = find_suite(config)
    is_by_host = suite.scope == "each_host" and config.distributed.nodes == 1
    if not is_by_host or not any(place.name for place in places):
        return suite
    from gpuproof.suites.by_host import ByHost

    return ByHost(suite)
