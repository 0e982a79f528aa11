"""The suite that searches for the largest batch that fits."""

from __future__ import annotations

from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import AfterFailure
from gpuproof.suites.points.plan import PlannedSuite, after_failure


class BatchLimit(PlannedSuite):
    """Try ever larger batch sizes until memory runs out, then search between the last two."""

    name = "batch_limit"
    summary = "the largest batch that fits, and the smallest that is nearly as fast as the best"

    def answers(self, config: RunConfig) -> bool:
        """Accept recipes that search for a batch size."""
        return config.search.kind == "batch_size"

    def until(self, state: Any) -> str:
        """Return the condition that ends the search."""
        del state
        return "the largest batch that fits is found"

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Expect out-of-memory failures: a search for a limit has to exceed it."""
        from gpuproof.suites.batch_limit.plan import is_expected

        return "expected" if is_expected(launch) else after_failure(launch, is_sweep=True)

    def page(self, result: Result) -> Page:
        """Lay out the limits and the batch sizes that were tried."""
        from gpuproof.suites.points.page import points_page

        return points_page(result)


SUITE = BatchLimit()
