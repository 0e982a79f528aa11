"""How many parameters and floating-point operations a list of layers has.

Only products are counted, as torch's own counter does: additions of biases, norms and activations are
left out. In the backward pass a layer costs its forward work twice, once for the gradients of its weights
and once for those of its inputs; attention, whose two products have no weights, for both their operands.

>>> sum_work([dense(50, 3)])
Work(num_parameters=153, forward_flops=300, training_flops=600, num_active_parameters=None)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuproof.workloads.info.base import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplication:
    """A layer that is a matrix product: weights, biases and the multiply-adds of one sample."""

    num_weights: int
    num_biases: int
    macs: int


def dense(fan_in: int, fan_out: int, *, bias: bool = True, positions: int = 1) -> Multiplication:
    """Count a linear layer, applied at each of `positions` places of a sample."""
    weights = fan_in * fan_out
    return Multiplication(num_weights=weights, num_biases=fan_out if bias else 0, macs=weights * positions)


def convolution(inputs: int, outputs: int, *, kernel: int, size: int, bias: bool) -> Multiplication:
    """Count a square convolution whose output is `size` high and wide."""
    weights = inputs * outputs * kernel**2
    return Multiplication(num_weights=weights, num_biases=outputs if bias else 0, macs=weights * size**2)


def attention(positions: int, width: int, *, keys: int | None = None) -> Multiplication:
    """Count the two products of attention, all heads together `width` wide, over the full square.

    `keys` is how many are attended to where that is not `positions`: with a cache, it is more.
    A causal mask makes half of it needless, and some kernels skip that half; model FLOPs count it by
    custom (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
    """
    return Multiplication(num_weights=0, num_biases=0, macs=2 * positions * (keys or positions) * width)


def sum_work(
    layers: Sequence[Multiplication],
    *,
    other_parameters: int = 0,
    idle_parameters: int | None = None,
    first_input_is_data: bool = True,
) -> Work:
    """Sum up a model.

    `other_parameters` are those that multiply no matrix: norms and embeddings. `idle_parameters` are those
    that a token does not go through, in models that choose. `first_input_is_data` says that nothing asks
    for the gradient of the first layer's input; after an embedding something does.
    """
    num_parameters = sum(layer.num_weights + layer.num_biases for layer in layers) + other_parameters
    forward = 2 * sum(layer.macs for layer in layers)
    return Work(
        num_parameters=num_parameters,
        forward_flops=forward,
        training_flops=3 * forward - (2 * layers[0].macs if first_input_is_data else 0),
        num_active_parameters=None if idle_parameters is None else num_parameters - idle_parameters,
    )
