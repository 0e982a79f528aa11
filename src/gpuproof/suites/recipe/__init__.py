"""The suite for one recipe: training or inference, launched as often as the recipe specifies."""

from __future__ import annotations

from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.suites.points.plan import PlannedSuite


class Recipe(PlannedSuite):
    """Launch one recipe `run.repeats` times, or until its result is precise enough."""

    name = "recipe"
    summary = "one training or inference recipe"
    is_sweep = False

    def answers(self, config: RunConfig) -> bool:
        """Accept recipes that neither sweep nor search."""
        return config.kind in ("training", "inference") and not config.matrix and config.search.kind is None

    def until(self, state: Any) -> str | None:
        """Return the precision to reach, if launches continue until it is reached."""
        until: str | None = state.until
        return until


SUITE = Recipe()
