"""The suite of a matrix of cases: a command of the user's, or a workload, at every combination of fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import AfterFailure, Conclusion, HostPlace, LaunchKey, Remaining
from gpuproof.suites.matrix.plan import MatrixPlan, plan
from gpuproof.suites.points.plan import after_failure


class MatrixSuite:
    """Cases side by side, each with what it took: time, memory, energy, and its own figures."""

    name = "matrix"
    summary = "a command or a workload at every combination of fields, each case monitored"
    command = "matrix"
    scope: Literal["each_host", "whole"] = "whole"
    options: type | None = None

    def answers(self, config: RunConfig) -> bool:
        """Take commands; recipes of a model have to name it, or are a sweep."""
        return config.kind == "command"

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> MatrixPlan:
        """Plan every case, and build the first."""
        found = plan(config, num_hosts=len(places))
        found.case(found.order[0])
        return found

    def settle(self, state: MatrixPlan, launch: CaseRecords) -> Any:
        """Return the state after a launch ended."""
        return state.settle(launch)

    def next(
        self, state: MatrixPlan, running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        """Yield as many cases as may run beside those that do."""
        return state.next(running)

    def remaining(self, state: MatrixPlan) -> Remaining:
        """Say how many launches are left, and how long they will take by what others of their kind took."""
        return Remaining(num_launches=state.num_left, seconds=state.seconds_left)

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Go on, unless the disk is full: what one case lacks, another may do without."""
        return after_failure(launch, is_sweep=True)

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Put the cases side by side."""
        from gpuproof.suites.matrix.conclude import conclude

        return conclude(evidence)

    def page(self, result: Result) -> Page:
        """Lay out configurations, cases, and pictures."""
        from gpuproof.suites.matrix.page import page

        return page(result)


SUITE = MatrixSuite()
