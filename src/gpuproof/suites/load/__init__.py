"""The load suite: twelve tests of two models, trained and run forward at three batch sizes each."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import AfterFailure, Conclusion, HostPlace
from gpuproof.suites.load.plan import plan
from gpuproof.suites.points.plan import Plan, PlannedSuite, after_failure, checked


class LoadSuite(PlannedSuite):
    """Twelve tests, each with a fresh, seeded model."""

    name = "load"
    summary = "twelve tests of two models under training and inference load"
    command = "load"

    def answers(self, config: RunConfig) -> bool:
        """Take recipes of kind load."""
        return config.kind == "load"

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Plan:
        """Plan the twelve tests."""
        return checked(plan(config))

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Stop where the machine lacks what every test needs: the device that was asked for, first of all."""
        return after_failure(launch, is_sweep=False)

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Put the tests side by side, and write them in the form that load tests are read in."""
        from gpuproof.suites.load.conclude import conclude

        return conclude(evidence)

    def page(self, result: Result) -> Page:
        """Lay out the tests."""
        from gpuproof.suites.load.page import page

        return page(result)


SUITE = LoadSuite()
