"""The suite that compares two configurations: launches alternate, and more confirm a regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.suites.ab.plan import NAME, AbOptions, AbPlan, begin
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import PlannedSuite


class AbSuite(PlannedSuite):
    """Compare two configurations of one recipe in pairs of launches, ordered A B B A or B A A B."""

    name = NAME
    summary = "compare two configurations by alternating launches: faster, slower, or no difference shown"
    command = "compare"
    scope: Literal["each_host", "whole"] = "whole"
    options = AbOptions

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> AbPlan:
        """Plan the pilot launches.

        Raises:
            UsageError: the recipe is not for a single point, a side cannot run, or hosts are given.
        """
        from gpuproof.suites.serving.plan import is_search

        is_plain = config.kind in ("training", "inference", "serving") and not config.matrix
        if not is_plain or config.search.kind is not None:
            raise UsageError(
                "the two sides must be variants of one training, inference or serving recipe, "
                "without matrix or search",
                place="suite",
                next_step="Remove the sweep, or compare two runs of it: gpuproof compare RUN_A RUN_B",
            )
        if any(place.name for place in places):
            raise UsageError(
                "launches alternate on a single machine, which must be this one",
                place="--on",
                next_step="Start it on the host itself",
            )
        plan = begin(config)
        sides = [point.config for point in plan.points.values()]
        if any(side.kind == "serving" and is_search(side.serving) for side in sides):
            raise UsageError(
                "alternating requests need a fixed rate, but this recipe searches for the highest one",
                place="serving.rate_per_s",
                next_step="Set a rate, or set serving.scenario to closed_loop",
            )
        return plan

    def until(self, state: AbPlan) -> str | None:
        """Return the stopping condition, or None once the pilot's spread has been measured."""
        return state.until


SUITE = AbSuite()
