"""The suite of collective operations: each operation at each size, over all ranks of one job."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import AfterFailure, Conclusion, HostPlace
from gpuproof.suites.points.plan import Plan, PlannedSuite, after_failure, repeated


class CollectiveSuite(PlannedSuite):
    """Collective operations, each launch going through all of them."""

    name = "collective"
    summary = "collective operations over all ranks: time, bandwidth, and whether results are right"

    def answers(self, config: RunConfig) -> bool:
        """Take recipes of kind collective."""
        return config.kind == "collective"

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Plan:
        """Plan the launches."""
        return repeated(config)

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Stop where the machine lacks what every launch needs."""
        return after_failure(launch, is_sweep=False)

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Put the sizes of all launches side by side."""
        from gpuproof.suites.collective.conclude import conclude

        return conclude(evidence)

    def page(self, result: Result) -> Page:
        """Lay out a table and a picture of each operation."""
        from gpuproof.suites.collective.page import page

        return page(result)


SUITE = CollectiveSuite()
