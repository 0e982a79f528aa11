"""An inference step: a forward pass in evaluation mode, without gradients; plus an output check."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from gpuproof.records.run import Evaluation
from gpuproof.worker.data.batch_source import Batches, BatchSource
from gpuproof.worker.engine.loop import StepTimesSink
from gpuproof.worker.step.cuda_graph import ModelStep
from gpuproof.worker.step.model import LossFunction
from gpuproof.worker.step.precision import PrecisionPolicy

SAMPLED = 2**16
"""Number of evenly spaced output elements to check; the check takes about 10 µs on a device, a few times a
second."""


class InferenceStep:
    """Forward pass of one batch, as a function without arguments. The clock decides whether to wait."""

    last_loss: torch.Tensor | None = None
    outputs: object = None

    def __init__(self, *, module: nn.Module, pool: Batches, precision: PrecisionPolicy) -> None:
        self.module = module.eval()
        self._pool = pool
        self._autocast = precision.autocast()

    def __call__(self) -> None:
        """Run one step."""
        inputs, _ = self._pool.next_batch()
        self.outputs = None  # frees the memory of earlier outputs, as if nothing referred to them
        with torch.inference_mode(), self._autocast:
            self.outputs = self.module(inputs)


class OutputWatch:
    """Checks whether step outputs are finite, between chunks of steps, without waiting for a device.

    It is inserted before the sink for a window's step times. The results of the checks are stored on the
    device.
    """

    def __init__(self, step: ModelStep, sink: StepTimesSink) -> None:
        self._step = step
        self._sink = sink
        self._num_done = 0
        self._seen: list[tuple[int, torch.Tensor]] = []

    def __call__(self, times_s: Sequence[float]) -> None:
        """Pass step times on, and check the outputs of the latest step."""
        self._sink(times_s)
        self._num_done += len(times_s)
        for tensor in _tensors(self._step.outputs) if times_s else ():
            self._seen.append((self._num_done, _is_finite(tensor)))
            break  # scores come first; anything else is derived from them, or is not numeric

    def not_finite_after(self) -> tuple[int, int] | None:
        """Return the steps after which outputs were last finite and first not finite; None if all were.

        Waits for the device.
        """
        last = 0
        for num_done, is_finite in self._seen:
            if not is_finite:
                return last, num_done
            last = num_done
        return None


def _tensors(outputs: object) -> Iterator[torch.Tensor]:
    """Yield the floating-point tensors that a model returns; this rank's part, if split over ranks."""
    if isinstance(outputs, torch.Tensor):
        local = outputs.to_local() if hasattr(outputs, "to_local") else outputs
        if local.is_floating_point() and local.numel():
            yield local.detach()
    elif isinstance(outputs, Mapping | Sequence) and not isinstance(outputs, str):
        for part in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from _tensors(part)


@torch.no_grad()
def _is_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Check on the device whether sampled elements (of the last row, if non-contiguous) are finite."""
    row = tensor if tensor.is_contiguous() else tensor[-1]
    sample = row.reshape(-1)[:: 1 + row.numel() // SAMPLED]
    # torch has no finiteness check for 8-bit types
    wide = sample.float() if sample.element_size() == 1 else sample
    return torch.isfinite(wide).all()


@torch.inference_mode()
def evaluate(
    module: nn.Module,
    *,
    pool: BatchSource,
    loss: LossFunction,
    precision: PrecisionPolicy,
    rank: int,
) -> Evaluation:
    """Return the mean loss over all samples of the source, and class accuracy or mean absolute error.

    The module's mode is preserved. Classes are along the last dimension, per sample or per token.
    """
    if not any(True for _ in module.parameters()):
        why = "a workload without weights does not learn"
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
        missing=None if classes else "accuracy applies to classes, and this workload is a regression",
        mean_absolute_error=None if classes else total_error / pool.num_samples,
    )
