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
    """Batch sizes on different numbers of devices, each launch in a fresh process."""

    name = NAME
    summary = "one device compared with several: speed-up, efficiency and advice"
    command = "scale"
    scope: Literal["each_host", "whole"] = "whole"
    options = ScaleOptions

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Plan:
        """Plan the launches of all points.

        Raises:
            UsageError: it is not a training recipe, it is itself a sweep, or hosts cannot be filled this way.
        """
        if config.kind != "training" or config.matrix or config.search.kind is not None:
            raise UsageError(
                "scaling needs a single training recipe, without matrix or search",
                place="suite",
                next_step="Set kind to training; sizes are scale.batch_sizes and scale.num_devices",
            )
        return check_points(plan(config, places))


SUITE = ScaleSuite()
