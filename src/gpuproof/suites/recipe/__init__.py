"""The suite of one recipe: training or inference, launched as often as it says."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import PlannedSuite, plan_repeats
from gpuproof.suites.recipe.plan import Repeats


class Recipe(PlannedSuite):
    """One recipe, launched `run.repeats` times, or until its figure is known well enough."""

    name = "recipe"
    summary = "one training or inference recipe"
    is_sweep = False

    def answers(self, config: RunConfig) -> bool:
        """Take what neither sweeps nor searches."""
        return config.kind in ("training", "inference") and not config.matrix and config.search.kind is None

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Repeats:
        """Plan the launches."""
        return Repeats(plan=plan_repeats(config), run=config.run)


SUITE = Recipe()
