"""A complete training step: forward, loss, backward, gradient averaging, update.

One step is one update of the weights, over `gradient_accumulation_steps` micro-batches; between these,
gradient averaging is suspended. Reading the loss would wait for the device, so it is read only once, after
the window. Under tensor parallelism, some parameters are split over ranks and others are not, and torch's
foreach kernels do not accept a mixture. So parameters are grouped by how they are distributed: an optimizer
updates one group after another, and clipping combines the norms of the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpuproof.records.case import TrainingWork
from gpuproof.worker.data.batch_source import Batch, Batches
from gpuproof.worker.step.model import LossFunction
from gpuproof.worker.step.optimizers import clip_norm, make_optimizer
from gpuproof.worker.step.precision import PrecisionPolicy

if TYPE_CHECKING:
    from gpuproof.worker.step.pruning import Pruner

Parameters = list[nn.Parameter]


class TrainingStep:
    """One update of the weights, as a function without arguments."""

    def __init__(
        self,
        work: TrainingWork,
        *,
        module: nn.Module,
        loss: LossFunction,
        pool: Batches,
        precision: PrecisionPolicy,
        total_steps: int | None = None,
    ) -> None:
        """Build the step; `total_steps` is the number of updates in the launch, or None if time-limited."""
        self.last_loss: torch.Tensor | None = None
        self.module = module
        self._loss = loss
        self.next_batch = pool.next_batch
        self._autocast = precision.autocast()
        self.num_micro_batches = work.parallel.gradient_accumulation_steps
        is_scaled = precision.name == "amp"  # for other precisions, the scaler does nothing
        self._scaler = torch.amp.GradScaler(precision.device_type, enabled=is_scaled)
        self.without_sync = without_gradient_sync(module)
        training, groups = work.training, groups_alike(module)
        total_steps = training.total_steps or total_steps
        self.optimizer = make_optimizer(
            groups, training, capturable=bool(work.training.cuda_graphs), total_steps=total_steps
        )
        self.pruner: Pruner | None = None
        if training.pruning.method != "none":
            from gpuproof.worker.step.pruning import Pruner

            self.pruner = Pruner(module, self.optimizer, training.pruning, total_steps=total_steps)
        max_norm = clip_norm(training)
        # runs after the pruner's hook, so that pruned weights do not count towards any norm
        if max_norm is not None:
            self.optimizer.register_step_pre_hook(lambda *_: clip_gradients(groups, max_norm))
        is_read = max_norm is not None or self.pruner is not None
        self._reads_gradients = is_read or training.optimizer == "AdamWSpam"

    def __call__(self) -> None:
        """Run one step."""
        self.clear()
        for _ in range(self.num_micro_batches - 1):
            with self.without_sync():
                self._micro_batch()
        self._micro_batch()
        self.update()

    @property
    def outputs(self) -> torch.Tensor | None:
        """The loss, which shows whether the step computed anything meaningful."""
        return self.last_loss

    def _micro_batch(self) -> None:
        self.backward(self.forward(self.next_batch()))

    def clear(self) -> None:
        """Clear the gradients of the previous step."""
        self.optimizer.zero_grad(set_to_none=True)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the loss for a batch."""
        inputs, targets = batch
        with self._autocast:
            return self._loss(self.module(inputs), targets)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients computed from the loss of a micro-batch."""
        share = loss / self.num_micro_batches if self.num_micro_batches > 1 else loss
        self._scaler.scale(share).backward()
        self.last_loss = loss.detach()  # the attached graph would tie the gradients to this stream

    def update(self) -> None:
        """Clip gradients as requested, and update the weights."""
        if self._reads_gradients:
            self._scaler.unscale_(self.optimizer)
        self._scaler.step(self.optimizer)
        self._scaler.update()

    @property
    def loss_scale(self) -> float | None:
        """Return the factor by which amp multiplies losses; None without amp. Waits for the device."""
        return float(self._scaler.get_scale()) if self._scaler.is_enabled() else None

    @contextmanager
    def through(self, module: nn.Module) -> Iterator[None]:
        """Make steps call a different wrapper around the same parameters inside this context."""
        saved = self.module, self.without_sync
        self.module, self.without_sync = module, without_gradient_sync(module)
        try:
            yield
        finally:
            self.module, self.without_sync = saved


def groups_alike(module: nn.Module) -> list[Parameters]:
    """Group a model's parameters by the mesh they are distributed over; plain ones form one group."""
    groups: dict[object, Parameters] = {}
    for parameter in module.parameters():
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(groups.values())


def clip_gradients(groups: Sequence[Parameters], max_norm: float) -> None:
    """Scale all gradients so that their norm over all groups and ranks is at most `max_norm`."""
    if len(groups) == 1:
        nn.utils.clip_grad_norm_(groups[0], max_norm)
        return
    norms = [_total_norm(group) for group in groups]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    for group in groups:
        # Scale only this rank's shards: the factor is the same on every rank, so no distributed operation is
        # needed.
        shares = [_local(p.grad) for p in group if p.grad is not None]
        torch._foreach_mul_(shares, torch.clamp(max_norm / (norm + 1e-6), max=1.0))


def _total_norm(group: Parameters) -> torch.Tensor:
    norm = nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])
    whole = getattr(norm, "full_tensor", None)
    result: torch.Tensor = norm if whole is None else whole()
    return result


def _local(gradient: torch.Tensor) -> torch.Tensor:
    to_local = getattr(gradient, "to_local", None)
    result: torch.Tensor = gradient if to_local is None else to_local()
    return result


def without_gradient_sync(module: nn.Module) -> Callable[[], AbstractContextManager[object]]:
    """Return a context for all micro-batches except the last; only the last one sums gradients."""
    if isinstance(module, DistributedDataParallel):
        return module.no_sync
    # for a sharded module, whether compiled or not
    set_sync = getattr(module, "set_requires_gradient_sync", None)
    if set_sync is None:
        return nullcontext

    @contextmanager
    def without_sync() -> Iterator[None]:
        set_sync(False)
        try:
            yield
        finally:
            set_sync(True)

    return without_sync
