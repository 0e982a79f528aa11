"""The suite of scaling: one training recipe on one device and on several, compared with honest statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import Plan, PlannedSuite, check_points
from gpuproof.suites.scale.plan import NAME, ScaleOptions, plan


class ScaleSuite(PlannedSuite):
    """Batch sizes by numbers of devices, each launch a fresh process."""

    name = NAME
    summary = "one device against several: speed-up, efficiency and advice"
    command = "scale"
    scope: Literal["each_host", "whole"] = "whole"
    options = ScaleOptions

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
        return check_points(plan(config, places))


SUITE = ScaleSuite()
