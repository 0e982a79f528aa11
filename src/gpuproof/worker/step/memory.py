"""Memory used by training, counted from the tensors in one step, on any device.

In: a prepared case, and one of its warm-up steps to observe. Out: the memory record, along with the
closed-form value. Tensors that the backward pass needs are observed through torch's hooks on saved tensors,
each storage once. Parameters and samples are omitted, since they are in memory anyway.
https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.graph.saved_tensors_hooks
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from gpuproof.records.case import ModelWork, TrainingWork
from gpuproof.records.what_ran import Memory, MemoryParts
from gpuproof.worker.parallel.model import local_part
from gpuproof.worker.step.cuda_graph import CapturedStep
from gpuproof.worker.step.fp8 import count_linear_layers
from gpuproof.worker.step.precision import AUTOCAST_TYPES
from gpuproof.worker.step.preparation import Prepared
from gpuproof.worker.step.training import TrainingStep
from gpuproof.workloads.info.held import FLOAT32_BYTES, estimate_memory


class MemoryWatch:
    """The warm-up step: observed on its first run, and unchanged from then on."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._activations_bytes: int | None = None
        self._counted: MemoryParts | None = None
        self._missing: str | None = "no warm-up step to observe (benchmark.warmup_steps is 0)"

    def __call__(self) -> None:
        """Run one step; the first one is observed."""
        if self._missing is not None and self._counted is None:
            self._look()
        else:
            self._prepared.step()

    def _look(self) -> None:
        prepared = self._prepared
        step = prepared.step
        eager = prepared.eager_step
        optimizer = eager.optimizer if isinstance(eager, TrainingStep) else None
        self._missing = _reason_unseen(step, prepared.work)
        if self._missing is not None:
            step()
        else:
            saved = SavedTensors(prepared)
            with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
                step()
            self._activations_bytes = saved.num_bytes
        self._counted = count_parts(prepared.workload.module, optimizer)

    def record(self, *, device_used_bytes: int | None) -> Memory:
        """Combine the estimate and the counts; `device_used_bytes` was read after the window."""
        return Memory(
            rank=self._prepared.identity.rank,
            estimate=estimate_case_memory(self._prepared),
            counted=self._counted,
            activations_bytes=self._activations_bytes,
            activations_missing=self._missing,
            device_used_bytes=device_used_bytes,
            device_used_missing="device memory is only reported for CUDA devices"
            if device_used_bytes is None
            else None,
        )


def _reason_unseen(step: object, work: ModelWork) -> str | None:
    """Return why tensors saved for the backward pass cannot be counted; None if they can be."""
    if not work.trains:
        return f"{work.kind} does not save anything for a backward pass"
    if isinstance(step, CapturedStep):
        return "a replayed graph hides what is saved for the backward pass"
    if work.training.compile.enabled:
        return "torch.compile chooses what it saves for the backward pass"
    if work.activation_checkpointing != "none":
        return "checkpointed modules choose by themselves what they save"
    return None


class SavedTensors:
    """Counts what autograd saves in the first observed forward pass, each storage once.

    Nothing that was saved is freed before the backward pass starts, so an address identifies a storage
    uniquely.
    """

    def __init__(self, prepared: Prepared) -> None:
        pool = prepared.pool
        held = [*prepared.workload.module.parameters(), *prepared.workload.module.buffers()]
        self._addresses = {local_part(tensor).untyped_storage().data_ptr() for tensor in (*held, *pool.held)}
        self._forward = True
        self.num_bytes = 0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor that is being saved."""
        is_weight = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if self._forward and not is_weight:
            storage = local_part(tensor).untyped_storage()
            if storage.data_ptr() not in self._addresses:
                self._addresses.add(storage.data_ptr())
                self.num_bytes += storage.nbytes()
        return tensor.detach()  # if a saved output were returned unchanged, it would keep its own graph alive

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a saved tensor to the backward pass; counting stops when the backward pass starts."""
        self._forward = False
        return tensor


def count_parts(module: nn.Module, optimizer: torch.optim.Optimizer | None) -> MemoryParts:
    """Count the bytes in this rank's actual parameters, gradients and optimizer state."""
    parameters = list(module.parameters())
    states = () if optimizer is None else optimizer.state.values()
    state = (value for values in states for value in values.values())
    return MemoryParts(
        parameters_bytes=_num_bytes(parameters),
        gradients_bytes=_num_bytes(p.grad for p in parameters if p.grad is not None),
        optimizer_bytes=_num_bytes(value for value in state if isinstance(value, torch.Tensor)),
    )


def _num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(share.numel() * share.element_size() for share in map(local_part, tensors))


def estimate_case_memory(prepared: Prepared) -> MemoryParts:
    """Compute the closed-form value for this case."""
    work, workload = prepared.work, prepared.workload
    training = work.training if isinstance(work, TrainingWork) else None
    plan = workload.info.tensor_parallel
    options = workload.info.options_type(**work.model.options)
    gathered_type = (
        AUTOCAST_TYPES.get(prepared.precision.name) if prepared.precision.cast_by == "shards" else None
    )
    in_fp8 = count_linear_layers(workload.module)
    return estimate_memory(
        workload.num_parameters + in_fp8.untied_weights,
        num_whole_parameters=plan.num_whole_parameters(options, workload.shape) if plan else 0,
        arrangement=prepared.arrangement,
        optimizer=training.optimizer if training else None,
        momentum=training.momentum if training else 0.0,
        num_gathered_parameters=prepared.num_gathered_parameters,
        gathered_value_bytes=gathered_type.itemsize if gathered_type else FLOAT32_BYTES,
        value_bytes=getattr(torch, work.stored_type).itemsize,
        num_fp8_weights=in_fp8.stored_weights,
    )
