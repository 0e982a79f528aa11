"""The model of a case on its device: built, seeded, in its memory layout, compiled as requested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from gpuproof.accelerators.choose import accelerator_of, free_bytes_of
from gpuproof.records.case import ModelWork
from gpuproof.records.work.training import TrainingSpec
from gpuproof.worker.step.generation import counted_item, generation_flops, prompt_length, require_room
from gpuproof.workloads.info.base import InputShape, Work, WorkloadInfo
from gpuproof.workloads.info.lookup import find_workload

Run = TypeVar("Run", bound=Callable[..., object])
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def token_cross_entropy(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over all positions; scores are (batch, seq_len, vocab_size)."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


LOSSES: dict[str, LossFunction] = {
    "cross_entropy": nn.functional.cross_entropy,
    "token_cross_entropy": token_cross_entropy,
    "mean_squared_error": nn.functional.mse_loss,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOnTorch:
    """A registered workload, with its options and shapes resolved for one case."""

    info: WorkloadInfo
    shape: InputShape
    num_parameters: int
    num_active_parameters: int | None
    module: nn.Module
    loss: LossFunction
    item: str
    items_per_sample: int
    """Number of items that one sample contributes to the count behind a rate."""
    flops_per_sample: float | None
    """Closed-form FLOP count for the case's kind of step; None if there is no such formula."""
    bytes_per_step: float | None = None
    """Closed-form byte count; None if there is no closed form."""


def load_workload(work: ModelWork, device: torch.device) -> WorkloadOnTorch:
    """Build the case's model on `device`; it depends only on the seed.

    Raises:
        UsageError: there is no such workload, or its package cannot be imported.
        TypeError: the options are invalid. The control side has already checked them, so this is a bug.
    """
    info = find_workload(work.model.name)
    options = info.options_type(**work.model.options)
    shape = info.resolve_shape(options, work.data.image_size, work.model.num_classes)
    if work.generates:
        shape = replace(shape, shape=(prompt_length(work),))
        size, free_bytes = info.work(options, shape), free_bytes_of(device)
        if size is not None and free_bytes is not None:
            require_room(work, info, num_parameters=size.num_parameters, free_bytes=free_bytes)
    torch.manual_seed(work.training.seed)
    with torch.device(device):
        module = info.resolve_implementation()(options, shape)
    module = module.to(device)
    if uses_channels_last(work, device, shape):
        module = module.to(memory_format=torch.channels_last)
    costs = info.work(options, shape)
    item, items_per_sample = counted_item(work, info, shape)
    return WorkloadOnTorch(
        info=info,
        shape=shape,
        num_parameters=sum(parameter.numel() for parameter in module.parameters()),
        num_active_parameters=None if costs is None else costs.num_active_parameters,
        module=module,
        loss=LOSSES[info.loss],
        item=item,
        items_per_sample=items_per_sample,
        flops_per_sample=_flops(work, info, costs),
        bytes_per_step=info.bytes_per_step(options, shape, work.data.batch_size)
        if info.bytes_per_step
        else None,
    )


def stored_as(workload: WorkloadOnTorch, dtype: torch.dtype) -> WorkloadOnTorch:
    """Store a workload's weights and buffers in `dtype`, in place; return it with an fp32 loss.

    Inputs of another floating-point type are rounded first, as autocast does. A half-precision type then
    applies everywhere, including norms and residuals.
    """

    def round_inputs(_module: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(
            x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs
        )

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return workload.loss(outputs.float(), targets)

    module = workload.module.to(dtype)
    module.register_forward_pre_hook(round_inputs)
    return replace(workload, module=module, loss=loss)


def _flops(work: ModelWork, info: WorkloadInfo, costs: Work | None) -> float | None:
    """Return the FLOPs for one sample in one step of the case, computed analytically."""
    if work.generates:
        return generation_flops(work, info)
    if costs is None:
        return None
    return costs.training_flops if work.trains else costs.forward_flops


def uses_channels_last(work: ModelWork, device: torch.device, shape: InputShape) -> bool:
    """Return whether tensors use the NHWC layout: only if requested, on a GPU, and for images."""
    has_layout = accelerator_of(device).has_channels_last
    return work.model.channels_last and has_layout and shape.kind == "image"


def compiled(run: Run, compute: TrainingSpec) -> Run:
    """Return a module or function, compiled as requested; a compiler error fails the case."""
    if not compute.compile.enabled:
        return run
    mode, fullgraph = compute.compile.mode, compute.compile.fullgraph
    dynamic = compute.compile.dynamic
    result: Run = torch.compile(run, mode=mode, fullgraph=fullgraph, dynamic=dynamic)  # type: ignore[assignment]  # torch wraps a module in a module
    return result
