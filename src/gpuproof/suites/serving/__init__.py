"""The suite for requests under load: one scenario, or a search for the highest rate within bounds."""

from __future__ import annotations

from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.suites.base import Remaining
from gpuproof.suites.points.plan import PlannedSuite


class Serving(PlannedSuite):
    """Send requests at a rate, in a closed loop, or all at once; or search for the highest rate."""

    name = "serving"
    summary = "requests under load, or the highest rate that meets a latency bound"
    is_sweep = False

    def answers(self, config: RunConfig) -> bool:
        """Accept recipes of kind serving."""
        return config.kind == "serving"

    def remaining(self, state: Any) -> Remaining:
        """Count the launches known to remain, and estimate their time; for a search, the maximum."""
        from gpuproof.suites.serving.plan import is_search

        searches = is_search(state.config.serving)
        return Remaining(
            num_launches=state.num_left,
            seconds=state.seconds_left,
            basis="limit" if searches else "estimate",
            until="the highest rate that meets the bound is found" if searches else None,
        )


SUITE = Serving()
