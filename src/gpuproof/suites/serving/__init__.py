"""The suite of requests under load: one scenario, or the highest rate that meets a latency bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace, Remaining
from gpuproof.suites.points.plan import PlannedSuite
from gpuproof.suites.serving.plan import ServingPlan, is_search


class Serving(PlannedSuite):
    """Requests at a rate, in a closed loop or all at once; or the search for the highest rate."""

    name = "serving"
    summary = "requests under load, or the highest rate that meets a latency bound"
    is_sweep = False

    def answers(self, config: RunConfig) -> bool:
        """Take recipes of kind serving."""
        return config.kind == "serving"

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> ServingPlan:
        """Begin with the scenario, or with the offline rate."""
        plan = ServingPlan(config=config)
        next(plan.next(()))  # a recipe that cannot be run is refused here
        return plan

    def remaining(self, state: Any) -> Remaining:
        """Count what is known to be left, and say what it takes: of a search the most."""
        plan: ServingPlan = state
        basis: Literal["limit", "estimate"] = "limit" if is_search(plan.config.serving) else "estimate"
        return Remaining(num_launches=plan.num_left, seconds=plan.seconds_left, basis=basis)


SUITE = Serving()
