"""The suite of probes: one property of devices, links or a disk, on every host at once."""

from __future__ import annotations

from typing import Literal

from gpuproof.config.models import RunConfig
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.base import AfterFailure
from gpuproof.suites.points.plan import PlannedSuite, after_failure


class ProbeSuite(PlannedSuite):
    """A probe on each host, or one job over all; results of all hosts are compared in one place."""

    name = "probe"
    summary = "one property of devices, links or a disk: bandwidth, memory, same results, overlap"
    scope: Literal["each_host", "whole"] = "whole"

    def answers(self, config: RunConfig) -> bool:
        """Take recipes of kind probe."""
        return config.kind == "probe"

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Stop where the machine lacks what every launch needs; other hosts may have it."""
        return after_failure(launch, is_sweep=launch.case.placement.host is not None)


SUITE = ProbeSuite()
