"""Count the parameters and floating-point operations in a list of layers.

Only matmuls and convolutions are counted, as in torch's own counter: bias additions, norms and activations
are omitted. In the backward pass, a layer costs twice as much as in the forward pass: once for the gradients
of its weights and once for the gradients of its inputs. The two matmuls in attention have no weights; their
backward pass computes the gradients of both operands.

>>> sum_work([dense(50, 3)])
Work(num_parameters=153, forward_flops=300, training_flops=600, num_active_parameters=None)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuproof.workloads.info.base import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplication:
    """Counts for a layer with multiplications: weights, biases and multiply-adds per sample."""

    num_weights: int
    num_biases: int
    macs: int


def dense(fan_in: int, fan_out: int, *, bias: bool = True, positions: int = 1) -> Multiplication:
    """Return the counts of a linear layer applied at each of `positions` positions in a sample."""
    weights = fan_in * fan_out
    return Multiplication(num_weights=weights, num_biases=fan_out if bias else 0, macs=weights * positions)


def convolution(inputs: int, outputs: int, *, kernel: int, size: int, bias: bool) -> Multiplication:
    """Return the counts of a square convolution with output height and width `size`."""
    weights = inputs * outputs * kernel**2
    return Multiplication(num_weights=weights, num_biases=outputs if bias else 0, macs=weights * size**2)


def attention(positions: int, width: int, *, keys: int | None = None) -> Multiplication:
    """Count the two matmuls in attention over the full square; `width` is the total head width.

    `keys` is the number of positions attended to, if it differs from `positions`: with a cache, it is larger.
    A causal mask makes half of the computation unnecessary, and some kernels skip that half; model FLOPs
    include it by convention (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
    """
    return Multiplication(num_weights=0, num_biases=0, macs=2 * positions * (keys or positions) * width)


def sum_work(
    layers: Sequence[Multiplication],
    *,
    other_parameters: int = 0,
    idle_parameters: int | None = None,
    first_input_is_data: bool = True,
) -> Work:
    """Sum up the counts for a model.

    `other_parameters` are those outside the given layers: norms and embeddings. `idle_parameters` are those
    that are inactive for a given token, in models with routing. `first_input_is_data` means that the gradient
    of the first layer's input is not needed; if the input comes from an embedding, it is needed.
    """
    num_parameters = sum(layer.num_weights + layer.num_biases for layer in layers) + other_parameters
    forward = 2 * sum(layer.macs for layer in layers)
    return Work(
        num_parameters=num_parameters,
        forward_flops=forward,
        training_flops=3 * forward - (2 * layers[0].macs if first_input_is_data else 0),
        num_active_parameters=None if idle_parameters is None else num_parameters - idle_parameters,
    )
