"""The suite of one recipe: training or inference, launched as often as it says."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import AfterFailure, Conclusion, HostPlace
from gpuproof.suites.points.plan import Plan, PlannedSuite, after_failure, repeated


class Recipe(PlannedSuite):
    """One recipe, launched `run.repeats` times."""

    name = "recipe"
    summary = "one training or inference recipe"

    def answers(self, config: RunConfig) -> bool:
        """Take what neither sweeps nor searches."""
        return config.kind in ("training", "inference") and not config.matrix and config.search.kind is None

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Plan:
        """Plan the launches."""
        return repeated(config)

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Stop where the machine lacks what every launch needs."""
        return after_failure(launch, is_sweep=False)

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Put the launches together."""
        from gpuproof.suites.recipe.conclude import conclude

        return conclude(evidence)

    def page(self, result: Result) -> Page:
        """Lay out figures, options, launches, readings and the trace."""
        from gpuproof.suites.recipe.page import page

        return page(result)


SUITE = Recipe()
