"""The suite of a matrix of cases: a command of the user's, or a workload, at every combination of fields."""

from __future__ import annotations

from typing import Any, Literal

from gpuproof.config.models import RunConfig
from gpuproof.suites.base import Remaining
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

    def remaining(self, state: Any) -> Remaining:
        """Say how many launches are left, and how long they will take by what others of their kind took."""
        return Remaining(num_launches=state.num_left, seconds=state.seconds_left)


SUITE = MatrixSuite()
