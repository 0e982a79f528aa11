"""The suite of requests under load: one scenario, or the highest rate that meets a latency bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import AfterFailure, Conclusion, HostPlace, LaunchKey, Remaining
from gpuproof.suites.points.plan import after_failure
from gpuproof.suites.serving.plan import ServingPlan


class Serving:
    """Requests at a rate, in a closed loop or all at once; or the search for the highest rate."""

    name = "serving"
    summary = "requests under load, or the highest rate that meets a latency bound"
    command = "run"
    scope: Literal["each_host", "whole"] = "each_host"
    options: type | None = None

    def answers(self, config: RunConfig) -> bool:
        """Take recipes of kind serving."""
        return config.kind == "serving"

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> ServingPlan:
        """Begin with the scenario, or with the offline rate."""
        plan = ServingPlan(config=config)
        next(plan.next(()))  # a recipe that cannot be run is refused here
        return plan

    def settle(self, state: ServingPlan, launch: CaseRecords) -> ServingPlan:
        """Note what a window says for the search."""
        return state.settle(launch)

    def next(
        self, state: ServingPlan, running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        """Yield what the windows before call for."""
        return state.next(running)

    def remaining(self, state: ServingPlan) -> Remaining:
        """Count what is known to be launched; a search may need more."""
        return Remaining(num_launches=len(state.left()))

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
