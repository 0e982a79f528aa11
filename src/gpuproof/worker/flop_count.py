"""How many floating-point operations does torch itself count? A check on closed forms, or a stand-in.

Comes in: something that computes, as a function of nothing, or a module with one batch. Goes out: the
operations of its matrix products, a multiply-add being two, as torch's own dispatcher saw them go by.

Counting runs the work once, eagerly, in Python, several times slower than a step: it belongs before the
window. It looks at the plain module, below torch.compile, CUDA graphs and data parallelism, which hide
operations from a counter; and it leaves weights, buffers, gradients and random numbers as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def count_flops(work: Callable[[], object], *, device: torch.device) -> int:
    """Return the FLOPs of one call of `work`: those of its matrix products, convolutions and attention.

    On a processor attention runs as plain products meanwhile: torch's counter knows no formula for the fused
    kernel there (https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html).
    """
    plain = sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()
    with plain, FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def count_forward_flops(
    module: nn.Module,
    inputs: torch.Tensor,
    *,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> int:
    """Return the FLOPs of one forward pass of a batch, in evaluation mode; the module keeps its own."""

    def forward() -> None:
        with torch.no_grad(), autocast():
            module(inputs)

    was_training = module.training
    module.eval()
    try:
        with _left_as_it_was(module, inputs.device):
            return count_flops(forward, device=inputs.device)
    finally:
        module.train(was_training)


def count_training_flops(
    module: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    loss: LossFunction,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> int:
    """Return the FLOPs of forward, loss and backward of one batch; the optimizer multiplies no matrices.

    Gradients are gone afterwards: call it between steps.
    """

    def forward_and_backward() -> None:
        with autocast():
            value = loss(module(inputs), targets)
        value.backward()

    with _left_as_it_was(module, inputs.device):
        try:
            return count_flops(forward_and_backward, device=inputs.device)
        finally:
            module.zero_grad(set_to_none=True)


@contextmanager
def _left_as_it_was(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Put buffers (the running means of norms) and the state of random numbers back at the end."""
    saved = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in saved:
                    buffer.copy_(before)
