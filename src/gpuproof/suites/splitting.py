"""Can the workload be split over ranks as the strategy asks? Refused here, before anything is launched."""

from __future__ import annotations

from typing import Any

from gpuproof.config.sections.distributed import DistributedConfig
from gpuproof.errors import UsageError
from gpuproof.workloads.info.base import WorkloadInfo


def refuse_unsplittable(distributed: DistributedConfig, info: WorkloadInfo, options: Any) -> None:
    """Check that the workload has a tensor-parallel plan, and sizes that its groups can share.

    Under `tensor` with a null size the ranks that are started decide; the worker checks the same then.

    Raises:
        UsageError: it has no plan, or a size does not divide.
    """
    if info.tensor_parallel is None:
        raise UsageError(
            f"{info.name} has no tensor-parallel plan: nothing says how its layers are split",
            place="distributed.strategy",
            next_step="Use ddp, fsdp or hsdp, or register a plan with the workload (tensor_parallel)",
        )
    size = distributed.tensor_parallel_size
    if size is None:
        return
    undivided = info.tensor_parallel.undivided(options, size=size)
    if undivided is not None:
        raise UsageError(
            f"{info.name} does not divide over {size} ranks: {undivided}",
            place="distributed.tensor_parallel_size",
            next_step="Use a size that divides the heads and the hidden layers",
        )
