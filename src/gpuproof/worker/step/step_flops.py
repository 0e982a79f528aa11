"""What torch counts for one step of this case on this rank, or why it was not counted.

The count stands beside the closed form in the setup record: the two must agree, and where there is no closed
form the count takes its place. It is made on the plain module and one micro-batch, before the warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpuproof.worker.step.flop_count import UncountableError, count_forward_flops, count_training_flops
from gpuproof.worker.step.preparation import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFlops:
    """FLOPs of this rank in one step, as torch counts them; None with the reason."""

    flops_per_step: float | None
    missing: str | None = None


def count_step_flops(prepared: Prepared) -> CountedFlops:
    """Count the FLOPs of one step; takes one batch from the pool.

    A model that torch cannot count is no failure of the case: its reason is kept. A lack of memory is one,
    since a step needs more of it.

    Raises:
        torch.OutOfMemoryError: the device has no room for one forward and backward pass.
    """
    case = prepared.case
    if prepared.identity.world_size > 1 and case.kind == "training" and case.parallel.strategy != "ddp":
        return CountedFlops(
            flops_per_step=None,
            missing=f"a model shared over ranks ({case.parallel.strategy}) hides its products",
        )
    if case.generates:
        return CountedFlops(flops_per_step=None, missing="a phase of generation is known by closed form only")
    try:
        return CountedFlops(flops_per_step=float(_count(prepared)))
    except torch.OutOfMemoryError:
        raise
    except UncountableError as error:
        return CountedFlops(flops_per_step=None, missing=str(error))
    except Exception as error:  # noqa: BLE001  # whatever a user's model or a mode of torch's may raise
        first_line = (str(error).splitlines() or [""])[0]
        return CountedFlops(
            flops_per_step=None, missing=f"torch could not count: {type(error).__name__}: {first_line}"
        )


def _count(prepared: Prepared) -> int:
    module, workload = prepared.workload.module, prepared.workload
    inputs, targets = prepared.pool.next_batch()
    autocast = prepared.precision.autocast
    if prepared.case.kind == "inference":
        return count_forward_flops(module, inputs, autocast=autocast)
    return prepared.case.parallel.gradient_accumulation_steps * count_training_flops(
        module, inputs, targets, loss=workload.loss, autocast=autocast
    )
