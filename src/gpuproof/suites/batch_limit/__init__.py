"""The suite that searches the largest batch that fits."""

from __future__ import annotations

from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import AfterFailure
from gpuproof.suites.points.plan import PlannedSuite, after_failure


class BatchLimit(PlannedSuite):
    """Up a ladder of batch sizes until memory is out, then between the last two."""

    name = "batch_limit"
    summary = "the largest batch that fits, and the smallest that is nearly as fast as the best"

    def answers(self, config: RunConfig) -> bool:
        """Take recipes that search a batch size."""
        return config.search.kind == "batch_size"

    def until(self, state: Any) -> str:
        """Say when the search ends."""
        del state
        return "the largest batch that fits is found"

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Expect memory to run out: a search for a limit has to cross it."""
        from gpuproof.suites.batch_limit.plan import is_expected

        return "expected" if is_expected(launch) else after_failure(launch, is_sweep=True)

    def page(self, result: Result) -> Page:
        """Lay out the limits and the sizes that were tried."""
        from gpuproof.suites.points.page import points_page

        return points_page(result)


SUITE = BatchLimit()
