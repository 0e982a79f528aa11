"""The suite of one recipe: training or inference, launched as often as it says."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import Plan, PlannedSuite, plan_repeats


class Recipe(PlannedSuite):
    """One recipe, launched `run.repeats` times."""

    name = "recipe"
    summary = "one training or inference recipe"
    is_sweep = False

    def answers(self, config: RunConfig) -> bool:
        """Take what neither sweeps nor searches."""
        return config.kind in ("training", "inference") and not config.matrix and config.search.kind is None

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Plan:
        """Plan the launches."""
        return plan_repeats(config)


SUITE = Recipe()
