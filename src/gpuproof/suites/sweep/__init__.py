"""The suite for a sweep: every point of a recipe's `matrix`."""

from __future__ import annotations

from gpuproof.config.models import RunConfig
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.points.plan import PlannedSuite


class Sweep(PlannedSuite):
    """Run every combination of swept keys, `run.repeats` times in shuffled order."""

    name = "sweep"
    summary = "a recipe at every combination of swept keys"

    def answers(self, config: RunConfig) -> bool:
        """Accept recipes with a matrix."""
        return config.kind in ("training", "inference") and bool(config.matrix)

    def page(self, result: Result) -> Page:
        """Lay out the points, each compared with the best one."""
        from gpuproof.suites.points.page import points_page

        return points_page(result)


SUITE = Sweep()
