"""How many floating-point operations does torch itself count? A check on closed forms, or a stand-in.

Comes in: something that computes, as a function of nothing, or a module with one batch. Goes out: the
operations of its matrix products, a multiply-add being two, as torch's own dispatcher saw them go by.

Counting runs the work once, eagerly, in Python, several times slower than a step: it belongs before the
window. It looks at the plain module, below torch.compile, CUDA graphs and data parallelism, which hide
operations from a counter; and it leaves weights, buffers and random numbers as they were.

Attention is counted as model FLOPs are: two products forward and four backward, over the full square,
whichever kernel runs. Torch's own formulas leave the CPU's kernel out, and add a fifth product backward, the
scores that fused kernels work out once more (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


ATTENTION_KERNELS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
Shape = tuple[int, ...]


def count_flops(work: Callable[[], object]) -> int:
    """Return the FLOPs of one call of `work`: those of its matrix products, convolutions and attention."""
    with FlopCounterMode(display=False, custom_mapping=_attention_formulas()) as counter:
        work()
    return int(counter.get_total_flops())


def _attention_formulas() -> dict[object, Callable[..., int]]:
    formulas: dict[object, Callable[..., int]] = {}
    for name in ATTENTION_KERNELS:
        for suffix, formula in (("", _attention), ("_backward", _attention_backward)):
            kernel = getattr(torch.ops.aten, name + suffix, None)  # not every version of torch has all
            if kernel is not None:
                formulas[kernel] = formula
    return formulas


def _attention(query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    """Count Q·Kᵀ and P·V; shapes are (batch, heads, length, width)."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (width + value[3])


def _attention_backward(
    _gradient: Shape, query: Shape, key: Shape, value: Shape, *_: object, **__: object
) -> int:
    return 2 * _attention(query, key, value)


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
            return count_flops(forward)
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
            return count_flops(forward_and_backward)
        finally:
            module.zero_grad(set_to_none=True)


@contextmanager
def _left_as_it_was(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Put back what a model keeps in buffers (running means of norms), and the state of random numbers."""
    kept = module.state_dict(keep_vars=True)
    saved = [(buffer, buffer.detach().clone()) for name, buffer in module.named_buffers() if name in kept]
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in saved:
                    buffer.copy_(before)
