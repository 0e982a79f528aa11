"""A training step: forward, loss, backward, gradient average, update. All of it, and nothing else.

One step is one update of the weights over `gradient_accumulation_steps` micro-batches. Reading the loss
would wait for the device, so it is read once, after the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from gpuproof.records.case import TrainingWork
from gpuproof.worker.data.batch_source import Batch, Batches
from gpuproof.worker.parallel.gradients import clip_gradients, groups_alike, without_gradient_sync
from gpuproof.worker.step.model import LossFunction
from gpuproof.worker.step.optimizers import clip_norm, make_optimizer
from gpuproof.worker.step.precision import PrecisionPolicy

if TYPE_CHECKING:
    from gpuproof.worker.step.pruning import Pruner


class TrainingStep:
    """One update of the weights, as a function of nothing."""

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
        """Build the step; `total_steps` are all updates of the launch, None where time ends it."""
        self.last_loss: torch.Tensor | None = None
        self.module = module
        self._loss = loss
        self.next_batch = pool.next_batch
        self._autocast = precision.autocast()
        self.num_micro_batches = work.parallel.gradient_accumulation_steps
        self._scaler = precision.gradient_scaler()
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
        if max_norm is not None:  # after the pruner's hook: what is pruned counts in no norm
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
        """What tells whether the step came to anything: its loss."""
        return self.last_loss

    def _micro_batch(self) -> None:
        self.backward(self.forward(self.next_batch()))

    def clear(self) -> None:
        """Let go of the gradients of the step before."""
        self.optimizer.zero_grad(set_to_none=True)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        with self._autocast:
            return self._loss(self.module(inputs), targets)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a micro-batch's loss."""
        share = loss / self.num_micro_batches if self.num_micro_batches > 1 else loss
        self._scaler.scale(share).backward()
        self.last_loss = loss.detach()  # its graph would keep the gradients to this stream

    def update(self) -> None:
        """Clip gradients as asked, and update the weights."""
        if self._reads_gradients:
            self._scaler.unscale_(self.optimizer)
        self._scaler.step(self.optimizer)
        self._scaler.update()

    @contextmanager
    def through(self, module: nn.Module) -> Iterator[None]:
        """Have steps call another wrapper of the same parameters meanwhile."""
        saved = self.module, self.without_sync
        self.module, self.without_sync = module, without_gradient_sync(module)
        try:
            yield
        finally:
            self.module, self.without_sync = saved
