"""The suite for a matrix of cases: a user's command, or a workload, at every combination of fields."""

from __future__ import annotations

from typing import Any, Literal

from gpuproof.config.models import RunConfig
from gpuproof.suites.base import Remaining
from gpuproof.suites.points.plan import PlannedSuite


class MatrixSuite(PlannedSuite):
    """Run cases side by side, each with its time, memory, energy, and own results."""

    name = "matrix"
    summary = "a command or a workload at every combination of fields, with each case monitored"
    command = "matrix"
    scope: Literal["each_host", "whole"] = "whole"

    def answers(self, config: RunConfig) -> bool:
        """Accept commands, and model recipes that name this suite (otherwise, they mean a sweep)."""
        return config.kind == "command"

    def remaining(self, state: Any) -> Remaining:
        """Report how many launches are left, and the time, estimated from finished ones of the same kind."""
        return Remaining(num_launches=state.num_left, seconds=state.seconds_left)


SUITE = MatrixSuite()
