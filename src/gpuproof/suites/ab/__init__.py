"""The suite of two configurations: launches take turns, and a regression is confirmed by others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.suites.ab.plan import NAME, AbOptions, AbPlan, begin
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import PlannedSuite


class AbSuite(PlannedSuite):
    """Two configurations of one recipe in pairs of launches, A B B A or B A A B."""

    name = NAME
    summary = "compare two configurations by alternating launches: faster, slower, or no difference shown"
    command = "compare"
    scope: Literal["each_host", "whole"] = "whole"
    options = AbOptions

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> AbPlan:
        """Plan the pilot's launches.

        Raises:
            UsageError: it is no recipe of one point, a side of it cannot be run, or hosts are named.
        """
        from gpuproof.suites.serving.plan import is_search

        is_plain = config.kind in ("training", "inference", "serving") and not config.matrix
        if not is_plain or config.search.kind is not None:
            raise UsageError(
                "the two sides are variants of one recipe of training, inference or serving, without matrix "
                "or search",
                place="suite",
                next_step="Leave the sweep out, or compare two runs of it: gpuproof compare RUN_A RUN_B",
            )
        if any(place.name for place in places):
            raise UsageError(
                "launches alternate on one machine, this one",
                place="--on",
                next_step="Start it on the host itself",
            )
        plan = begin(config)
        sides = [point.config for point in plan.points.values()]
        if any(side.kind == "serving" and is_search(side.serving) for side in sides):
            raise UsageError(
                "requests in turns come at one rate, and this looks for the highest",
                place="serving.rate_per_s",
                next_step="Name a rate, or set serving.scenario to closed_loop",
            )
        return plan

    def until(self, state: AbPlan) -> str | None:
        """Say what the pilot's spread is to tell."""
        return state.until


SUITE = AbSuite()
