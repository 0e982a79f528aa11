"""The suite of one recipe: training or inference, launched as often as it says."""

from __future__ import annotations

from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.suites.points.plan import PlannedSuite


class Recipe(PlannedSuite):
    """One recipe, launched `run.repeats` times, or until its figure is known well enough."""

    name = "recipe"
    summary = "one training or inference recipe"
    is_sweep = False

    def answers(self, config: RunConfig) -> bool:
        """Take what neither sweeps nor searches."""
        return config.kind in ("training", "inference") and not config.matrix and config.search.kind is None

    def until(self, state: Any) -> str | None:
        """Say how well its figure is to be known, where launches go on until it is."""
        until: str | None = state.until
        return until


SUITE = Recipe()
