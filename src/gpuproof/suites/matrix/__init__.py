"""The suite of a matrix of cases: a command of the user's, or a workload, at every combination of fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace, Remaining
from gpuproof.suites.matrix.plan import MatrixPlan, plan
from gpuproof.suites.points.plan import PlannedSuite


class MatrixSuite(PlannedSuite):
    """Cases side by side, each with what it took: time, memory, energy, and its own figures."""

    name = "matrix"
    summary = "a command or a workload at every combination of fields, each case monitored"
    command = "matrix"
    scope: Literal["each_host", "whole"] = "whole"

    def answers(self, config: RunConfig) -> bool:
        """Take commands; recipes of a model have to name it, or are a sweep."""
        return config.kind == "command"

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> MatrixPlan:
        """Plan every case, and build the first."""
        first_plan = plan(config, num_hosts=len(places))
        first_plan.case(first_plan.order[0])
        return first_plan

    def remaining(self, state: Any) -> Remaining:
        """Say how many launches are left, and how long they will take by what others of their kind took."""
        return Remaining(num_launches=state.num_left, seconds=state.seconds_left)


SUITE = MatrixSuite()
