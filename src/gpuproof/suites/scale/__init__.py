"""The scaling suite: one training recipe on one device and on several, compared statistically."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import Plan, PlannedSuite, check_points
from gpuproof.suites.scale.plan import NAME, ScaleOptions, plan


class ScaleSuite(PlannedSuite):
    """Measure batch sizes on different device counts, with each launch in a fresh process."""

    name = NAME
    summary = "one device compared with several: speed-up, efficiency and advice"
    command = "scale"
    scope: Literal["each_host", "whole"] = "whole"
    options = ScaleOptions

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Plan:
        """Plan the launches of all points.

        Raises:
            UsageError: the recipe is not a training recipe, is itself a sweep, or cannot fill the hosts with
                ranks.
        """
        if config.kind != "training" or config.matrix or config.search.kind is not None:
            raise UsageError(
                "scaling needs a single training recipe, without matrix or search",
                place="suite",
                next_step="Set kind to training, and the sizes in scale.batch_sizes and scale.num_devices",
            )
        return check_points(plan(config, places))


SUITE = ScaleSuite()
