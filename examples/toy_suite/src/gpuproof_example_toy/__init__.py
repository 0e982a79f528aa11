"""A suite of another package: each host trains by itself, then one job runs over two that were chosen.

Everything that it needs of gpuproof is named here and in the three files beside this one. Of these `conclude`
and `page` are found by their names when they are used: planning does not load them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import PlannedSuite
from gpuproof_example_toy.plan import ToyOptions, ToyState, check, plan


class Toy(PlannedSuite):
    """Each host by itself, then the two slowest or fastest as one job."""

    name = "toy"
    summary = "each host by itself, then one job over the two slowest or fastest"
    scope: Literal["each_host", "whole"] = "whole"
    options: type | None = ToyOptions

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> ToyState:
        """Begin with nothing launched."""
        check(config)
        state = plan(config, places)
        next(state.next(()))  # a workload, or an option of it, that is wrong is refused here
        return state


TOY = Toy()
