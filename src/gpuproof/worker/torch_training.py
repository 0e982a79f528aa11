"""A training step: forward, loss, backward, gradient average, update. All of it, and nothing else.

One step is one update of the weights over `gradient_accumulation_steps` micro-batches. Reading the loss
would wait for the device, so it is read once, after the window.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from gpuproof.records.case import Case, TrainingSpec
from gpuproof.worker.batch_source import BatchSource
from gpuproof.worker.gradients import clip_gradients, groups_alike, without_gradient_sync
from gpuproof.worker.precision import PrecisionPolicy
from gpuproof.worker.torch_model import LossFunction


class TrainingStep:
    """One update of the weights, as a function of nothing."""

    def __init__(
        self,
        case: Case,
        *,
        module: nn.Module,
        loss: LossFunction,
        pool: BatchSource,
        precision: PrecisionPolicy,
    ) -> None:
        self.last_loss: torch.Tensor | None = None
        self._module = module
        self._loss = loss
        self._pool = pool
        self._autocast = precision.autocast()
        self._num_micro_batches = case.parallel.gradient_accumulation_steps
        self._optimizer = make_optimizer(module, case.training)
        self._scaler = precision.gradient_scaler()
        self._without_sync = without_gradient_sync(module)
        self._clip = _gradient_clip(module, self._optimizer, self._scaler, case.training.grad_clip_norm)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """What updates the weights."""
        return self._optimizer

    def __call__(self) -> None:
        """Run one step."""
        self._optimizer.zero_grad(set_to_none=True)
        for _ in range(self._num_micro_batches - 1):
            with self._without_sync():
                self._micro_batch()
        self._micro_batch()
        self._clip()
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def _micro_batch(self) -> None:
        inputs, targets = self._pool.next_batch()
        with self._autocast:
            loss = self._loss(self._module(inputs), targets)
        share = loss / self._num_micro_batches if self._num_micro_batches > 1 else loss
        self._scaler.scale(share).backward()
        self.last_loss = loss


def make_optimizer(module: nn.Module, training: TrainingSpec) -> torch.optim.Optimizer:
    """Make the optimizer of a case over all parameters of `module`."""
    groups = [{"params": group} for group in groups_alike(module)]
    if training.optimizer == "Adam":
        return torch.optim.Adam(groups, lr=training.learning_rate, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        groups,
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )


def _gradient_clip(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    max_norm: float | None,
) -> Callable[[], None]:
    if max_norm is None:
        return lambda: None
    groups = groups_alike(module)

    def clip() -> None:
        scaler.unscale_(optimizer)
        clip_gradients(groups, max_norm)

    return clip
