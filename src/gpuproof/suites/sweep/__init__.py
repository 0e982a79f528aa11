"""The suite of a sweep: every point of a recipe's `matrix`."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.config.models import RunConfig
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import Plan, PlannedSuite, check_points
from gpuproof.suites.sweep.plan import plan


class Sweep(PlannedSuite):
    """Every combination of swept keys, `run.repeats` times in shuffled order."""

    name = "sweep"
    summary = "a recipe at every combination of swept keys"

    def answers(self, config: RunConfig) -> bool:
        """Take recipes with a matrix."""
        return config.kind in ("training", "inference") and bool(config.matrix)

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Plan:
        """Plan the launches of all points."""
        return check_points(plan(config))

    def page(self, result: Result) -> Page:
        """Lay out the points against the best one."""
        from gpuproof.suites.points.page import points_page

        return points_page(result)


SUITE = Sweep()
