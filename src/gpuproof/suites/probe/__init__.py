"""The suite for probes: one property of devices, links or a disk, on all hosts at the same time."""

from __future__ import annotations

from typing import Literal

from gpuproof.config.models import RunConfig
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.base import AfterFailure
from gpuproof.suites.points.plan import PlannedSuite, after_failure


class ProbeSuite(PlannedSuite):
    """Run a probe on each host, or as one job across all hosts, and compare all results together."""

    name = "probe"
    summary = "one property of devices, links or a disk: bandwidth, memory, identical results, overlap"
    scope: Literal["each_host", "whole"] = "whole"

    def answers(self, config: RunConfig) -> bool:
        """Accept recipes of kind probe."""
        return config.kind == "probe"

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Stop if the machine lacks something that every launch needs, unless other hosts may have it."""
        return after_failure(launch, is_sweep=launch.case.placement.host is not None)


SUITE = ProbeSuite()
