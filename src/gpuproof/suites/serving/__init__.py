"""The suite of requests under load: one scenario, or the highest rate that meets a latency bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import AfterFailure, Conclusion, HostPlace, Remaining
from gpuproof.suites.points.plan import PlannedSuite, after_failure
from gpuproof.suites.serving.plan import ServingPlan, is_search


class Serving(PlannedSuite):
    """Requests at a rate, in a closed loop or all at once; or the search for the highest rate."""

    name = "serving"
    summary = "requests under load, or the highest rate that meets a latency bound"

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

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Stop where the machine lacks what every window needs."""
        return after_failure(launch, is_sweep=False)

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Put the windows together, and read the search off them."""
        from gpuproof.suites.serving.conclude import conclude

        return conclude(evidence)

    def page(self, result: Result) -> Page:
        """Lay out the rate that was found, and every window."""
        from gpuproof.suites.serving.page import page

        return page(result)


SUITE = Serving()
