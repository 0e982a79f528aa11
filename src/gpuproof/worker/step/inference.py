"""An inference step: one forward pass of a batch in evaluation mode, without gradients."""

from __future__ import annotations

import math

import torch
from torch import nn

from gpuproof.records.run import Evaluation
from gpuproof.worker.data.batch_source import Batches, BatchSource
from gpuproof.worker.step.model import LossFunction
from gpuproof.worker.step.precision import PrecisionPolicy


class InferenceStep:
    """One batch forward, as a function of nothing. The clock decides whether to wait for it."""

    last_loss: torch.Tensor | None = None

    def __init__(self, *, module: nn.Module, pool: Batches, precision: PrecisionPolicy) -> None:
        self.module = module.eval()
        self._pool = pool
        self._autocast = precision.autocast()

    def __call__(self) -> None:
        """Run one step."""
        inputs, _ = self._pool.next_batch()
        with torch.inference_mode(), self._autocast:
            self.module(inputs)


@torch.inference_mode()
def evaluate(
    module: nn.Module,
    *,
    pool: BatchSource,
    loss: LossFunction,
    precision: PrecisionPolicy,
    rank: int,
) -> Evaluation:
    """Return mean loss over all samples of the source, and accuracy of classes or mean absolute error.

    The module keeps its mode. Classes are the outputs' last dimension: of a sample, or of each of its tokens.
    """
    if not any(True for _ in module.parameters()):
        why = "a workload without weights learns nothing"
        return Evaluation(rank=rank, samples=0, mean_loss=None, accuracy=None, missing=why)
    was_training = module.training
    module.eval()
    total_loss, total_error = 0.0, 0.0
    num_correct, num_targets = 0, 0
    classes = False
    for _ in range(math.ceil(pool.num_samples / pool.batch_size)):
        inputs, targets = pool.next_batch()
        with precision.autocast():
            outputs = module(inputs)
            total_loss += float(loss(outputs, targets)) * len(targets)
        classes = not targets.is_floating_point()
        if classes:
            num_correct += int((outputs.argmax(dim=-1) == targets).sum())
            num_targets += targets.numel()
        else:
            total_error += float((outputs - targets).abs().mean()) * len(targets)
    module.train(was_training)
    return Evaluation(
        rank=rank,
        samples=pool.num_samples,
        mean_loss=total_loss / pool.num_samples,
        accuracy=num_correct / num_targets if classes else None,
        missing=None if classes else "accuracy is for classes; this workload is a regression",
        mean_absolute_error=None if classes else total_error / pool.num_samples,
    )
