"""The scaling suite: one training recipe on one device and on several, compared statistically."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import Plan, PlannedSuite, check_points, refuse_keys
from gpuproof.suites.scale.plan import NAME, ScaleOptions, plan, read_options, refuse_indivisible


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
            UsageError: the recipe is not a training recipe, is itself a sweep or one job over several hosts,
                or cannot fill the hosts with ranks.
        """
        if config.kind != "training" or config.matrix or config.search.kind is not None:
            raise UsageError(
                "scaling needs a single training recipe, without matrix or search",
                place="suite",
                next_step="Set kind to training, and the sizes in scale.batch_sizes and scale.num_devices",
            )
        if config.distributed.nodes > 1:
            raise UsageError(
                "a scaling study chooses the hosts of each point itself, so it is not one job over them all",
                place="distributed.nodes",
                next_step="Omit --one-job and distributed.nodes; with `gpus` for each host in the inventory, "
                "points with more devices than one host has use several hosts",
            )
        refuse_keys(
            NAME,
            (
                "data.batch_size",
                "batch_size" in config.data.changed(),
                "Remove it, and set scale.batch_sizes",
            ),
            (
                "distributed.nproc",
                "nproc" in config.distributed.changed(),
                "Remove it, and set scale.num_devices",
            ),
        )
        refuse_indivisible(read_options(config))
        return check_points(plan(config, places))


SUITE = ScaleSuite()
