"""The suite for collective operations: each operation at each size, over all ranks of one job."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import Plan, PlannedSuite, plan_repeats


class CollectiveSuite(PlannedSuite):
    """Measure collective operations; each launch runs all of them."""

    name = "collective"
    summary = "collective operations over all ranks: time, bandwidth, and correctness of results"
    is_sweep = False

    def answers(self, config: RunConfig) -> bool:
        """Accept recipes of kind collective."""
        return config.kind == "collective"

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Plan:
        """Plan the launches."""
        return plan_repeats(config)


SUITE = CollectiveSuite()
