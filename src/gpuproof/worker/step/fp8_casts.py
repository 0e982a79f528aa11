"""How much of a step in fp8 goes into rounding to fp8? Its casts alone, timed after the window.

Eagerly, every operand is read and written several times before its product: the largest magnitude, the
division, the rounding, and for the backward pass a transpose. A compiler joins them to a pass or two. So the
speed of a step in fp8 without one says more of these passes than of products in fp8, and how much is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import nn

from gpuproof.worker.engine.loop import StepClock, StepFunction
from gpuproof.worker.step.fp8 import (
    FORWARD_TYPE,
    GRADIENT_TYPE,
    RESULT_TYPE,
    Fp8Linear,
    padded_rows,
    quantize,
    transposed,
)

REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCasts:
    """One pass through one layer, forward or backward: what it rounds."""

    rows: int
    """Of samples, with what they are padded to."""
    fan_in: int
    fan_out: int
    inputs: torch.dtype
    weight: torch.dtype
    backward: bool
    to_inputs: bool
    """Whether the gradient goes on to the inputs."""


def casts_of_step(module: nn.Module, step: StepFunction) -> Counter[LayerCasts]:
    """Run one step and count the passes through its layers in fp8, those that are computed again included."""
    seen: Counter[LayerCasts] = Counter()
    latest: dict[nn.Module, LayerCasts] = {}

    def note_forward(layer: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(layer, Fp8Linear)
        inputs = arguments[0]
        latest[layer] = LayerCasts(
            rows=padded_rows(inputs.numel() // layer.in_features),
            fan_in=layer.in_features,
            fan_out=layer.out_features,
            inputs=inputs.dtype,
            weight=layer.weight.dtype,
            backward=False,
            to_inputs=inputs.requires_grad,
        )
        seen[latest[layer]] += 1

    def note_backward(layer: nn.Module, _gradients: object) -> None:
        seen[replace(latest[layer], backward=True)] += 1

    hooks = [
        hook
        for layer in module.modules()
        if isinstance(layer, Fp8Linear)
        for hook in (
            layer.register_forward_pre_hook(note_forward),
            layer.register_full_backward_pre_hook(note_backward),
        )
    ]
    try:
        step()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


@torch.no_grad()
def time_casts(
    seen: Counter[LayerCasts], *, device: torch.device, clock: StepClock, beat: Callable[[], None]
) -> float:
    """Return the seconds that the casts of one step take: of each pass the median of its repeats."""
    total_s = 0.0
    for layer, times in seen.items():
        casts = _backward_casts(layer, device) if layer.backward else _forward_casts(layer, device)
        casts()
        clock.drain(in_flight=0)
        for _ in range(REPEATS):
            clock.begin()
            casts()
            clock.end()
        total_s += times * median(clock.drain(in_flight=0))
        beat()
    return total_s


def _forward_casts(layer: LayerCasts, device: torch.device) -> StepFunction:
    inputs = torch.randn(layer.rows, layer.fan_in, dtype=layer.inputs, device=device)
    weight = torch.randn(layer.fan_out, layer.fan_in, device=device).to(layer.weight)

    def casts() -> None:
        quantize(inputs, FORWARD_TYPE)
        if layer.weight != FORWARD_TYPE:  # else it was rounded once
            quantize(weight, FORWARD_TYPE)

    return casts


def _backward_casts(layer: LayerCasts, device: torch.device) -> StepFunction:
    gradient = torch.randn(layer.rows, layer.fan_out, dtype=RESULT_TYPE, device=device)
    inputs = quantize(torch.randn(layer.rows, layer.fan_in, device=device), FORWARD_TYPE)
    weight = quantize(torch.randn(layer.fan_out, layer.fan_in, device=device), FORWARD_TYPE)

    def casts() -> None:
        rounded = quantize(gradient, GRADIENT_TYPE)
        transposed(rounded)
        transposed(inputs)
        if layer.to_inputs:
            transposed(weight)

    return casts
