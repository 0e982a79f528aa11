"""Formulas that torch's FLOP counter lacks, or gets wrong: attention, groups of convolutions and of experts.

In: shapes of an operator's arguments, as `torch.utils.flop_counter` hands them to a formula. Out: operations,
a multiply-add being two.

Attention is counted as model FLOPs are: two products forward and four backward, over the full square,
whichever kernel runs. Torch's own formulas leave the CPU's kernel out, and add a fifth product backward, the
scores that fused kernels work out once more (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

ATTENTION_KERNELS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
Shape = tuple[int, ...]


def extra_formulas() -> dict[object, Callable[..., int]]:
    """Return every formula of ours by the operator that it is for; not every version of torch has all."""
    formulas: dict[object, Callable[..., int]] = {
        **_attention_formulas(),
        torch.ops.aten.convolution_backward: convolution_backward_flops,
    }
    grouped = getattr(torch.ops.aten, "_grouped_mm", None)
    return formulas if grouped is None else {**formulas, grouped: grouped_product_flops}


def _attention_formulas() -> dict[object, Callable[..., int]]:
    formulas: dict[object, Callable[..., int]] = {}
    for name in ATTENTION_KERNELS:
        for suffix, formula in (("", attention_flops), ("_backward", attention_backward_flops)):
            kernel = getattr(torch.ops.aten, name + suffix, None)
            if kernel is not None:
                formulas[kernel] = formula
    return formulas


def attention_flops(query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    """Count Q·Kᵀ and P·V; shapes are (batch, heads, length, width)."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (width + value[3])


def attention_backward_flops(
    _gradient: Shape, query: Shape, key: Shape, value: Shape, *_: object, **__: object
) -> int:
    """Count the gradients of Q, K, V and P: twice the forward pass."""
    return 2 * attention_flops(query, key, value)


def hidden_share(queries: int, keys: int) -> float:
    """Return which share of the scores a causal mask hides: query i sees the keys up to its own place.

    >>> hidden_share(4, 4), hidden_share(1, 4)
    (0.375, 0.75)
    """
    seen = sum(min(place, keys) for place in range(1, queries + 1))
    return 1 - seen / (queries * keys)


def grouped_product_flops(first: Shape, second: Shape, *_: object, **__: object) -> int:
    """Count products whose rows, columns or inner places are shared out among groups.

    >>> grouped_product_flops((6, 4), (3, 4, 5))  # 6 rows, each in one of 3 groups
    240
    """
    groups = first[0] if len(first) == len(second) == 3 else 1
    return int(2 * groups * first[-2] * first[-1] * second[-1])


def convolution_backward_flops(
    gradient: Shape, inputs: Shape, weights: Shape, *rest: Any, **_: object
) -> int:
    """Count the gradients that are asked for, of inputs and of weights, each at the cost of the forward pass.

    torch's own formula takes no account of groups in the gradient of the weights, and so gives a depthwise
    convolution the work of a full one: a factor as large as its channels.
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, output_mask = rest[:8]
    placed = inputs if transposed else gradient
    forward = 2 * placed[0] * math.prod(placed[2:]) * math.prod(weights)
    return int(forward * sum(output_mask[:2]))
