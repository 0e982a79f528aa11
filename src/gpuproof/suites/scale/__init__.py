"""The suite of scaling: one training recipe on one device and on several, compared with honest statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpuproof.config.models import RunConfig
from gpuproof.errors import UsageError
from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import AfterFailure, Conclusion, HostPlace
from gpuproof.suites.points.plan import Plan, PlannedSuite, after_failure, checked
from gpuproof.suites.scale.plan import NAME, ScaleOptions, plan


class ScaleSuite(PlannedSuite):
    """Batch sizes by numbers of devices, each launch a fresh process."""

    name = NAME
    summary = "one device against several: speed-up, efficiency and advice"
    command = "scale"
    scope: Literal["each_host", "whole"] = "whole"
    options = ScaleOptions

    def answers(self, config: RunConfig) -> bool:
        """Take no recipe that does not name it."""
        return False

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Plan:
        """Plan the launches of all points.

        Raises:
            UsageError: it is no training recipe, it is a sweep of its own, or hosts cannot be filled so.
        """
        if config.kind != "training" or config.matrix or config.search.kind is not None:
            raise UsageError(
                "scaling is of one training recipe, without matrix or search",
                place="suite",
                next_step="Set kind to training; sizes are scale.batch_sizes and scale.num_devices",
            )
        return checked(plan(config, places))

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Go on: what several devices lack, one may do without."""
        return after_failure(launch, is_sweep=True)

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Compare numbers of devices at each batch size."""
        from gpuproof.suites.scale.conclude import conclude

        return conclude(evidence)

    def page(self, result: Result) -> Page:
        """Lay out speed-ups, efficiencies and advice."""
        from gpuproof.suites.scale.page import page

        return page(result)


SUITE = ScaleSuite()
