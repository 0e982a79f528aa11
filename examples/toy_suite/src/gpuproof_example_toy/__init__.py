"""A suite of another package: each host trains by itself, then one job runs over two that were chosen.

Everything that it needs of gpuproof is named here and in the three files beside this one.
"""

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
from gpuproof_example_toy.plan import ToyOptions, ToyState, check, plan


class Toy:
    """Each host by itself, then the two slowest or fastest as one job."""

    name = "toy"
    summary = "each host by itself, then one job over the two slowest or fastest"
    command = "run"
    scope: Literal["each_host", "whole"] = "whole"
    options: type | None = ToyOptions

    def answers(self, config: RunConfig) -> bool:
        """Take no recipe that does not name it."""
        return False

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> ToyState:
        """Begin with nothing launched."""
        check(config)
        state = plan(config, places)
        next(state.next(()))  # a workload, or an option of it, that is wrong is refused here
        return state

    def settle(self, state: ToyState, launch: CaseRecords) -> ToyState:
        """Note the rate of a launch, or that it gave none."""
        return state.settle(launch)

    def next(
        self, state: ToyState, running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        """Yield hosts by themselves, and the pair once all of these have ended."""
        return state.next(running)

    def remaining(self, state: ToyState) -> Remaining:
        """Count what has not ended, the pair included while there may be one."""
        return Remaining(num_launches=state.num_left)

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Go on with the others, unless there is no room to write what they measure."""
        failure = launch.primary_failure
        return "stop" if failure is not None and failure.cause == "disk_full" else "skip"

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Put hosts and pair together."""
        from gpuproof_example_toy.conclude import conclude

        return conclude(evidence)

    def page(self, result: Result) -> Page:
        """Lay out the pair, its rounds and its hosts."""
        from gpuproof_example_toy.page import page

        return page(result)


TOY = Toy()
