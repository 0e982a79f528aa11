"""Linear layers in fp8: e4m3 forward values, e5m2 gradients, one scale per tensor and step.

Every operand is scaled so that its largest magnitude becomes the largest value of its format, then rounded,
multiplied with fp32 accumulation, and scaled back (https://arxiv.org/abs/2209.05433). Weights in training
keep their precision, and are rounded again at each step; the weights of a deployed model are rounded once.
torch's own matmul is used; on a CPU it is computed in software. In eager mode, every operand is read and
written several times before its matmul: for the largest magnitude, the division, the rounding, and a
transpose for the backward pass. A compiler fuses these into one or two passes. So without a compiler, the
speed of a step in fp8 depends more on these passes than on matmuls in fp8. `time_casts` shows how much: it
times the casts alone, after the window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpuproof.base.errors import UsageError
from gpuproof.worker.engine.loop import StepClock, StepFunction

FORWARD_TYPE = torch.float8_e4m3fn
GRADIENT_TYPE = torch.float8_e5m2
RESULT_TYPE = torch.bfloat16
MULTIPLE = 16
"""Tensor cores require fp8 matrices with sizes that are multiples of this, so sample rows are padded."""
SMALLEST = 1e-12
"""Minimum for a tensor's largest magnitude, so that a tensor of zeros can be scaled."""
REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A tensor in fp8: `values` times the scalar `scale` (fp32) approximate the original."""

    values: torch.Tensor
    scale: torch.Tensor


def quantize(tensor: torch.Tensor, dtype: torch.dtype) -> Scaled:
    """Round a tensor to fp8, mapping its largest magnitude to the largest value of `dtype`."""
    largest = torch.finfo(dtype).max
    scale = tensor.abs().amax().float().clamp(min=SMALLEST) / largest
    values = (tensor.float() / scale).clamp(-largest, largest).to(dtype)
    return Scaled(values=values, scale=scale)


def scaled_product(left: Scaled, right_transposed: Scaled, *, fast: bool) -> torch.Tensor:
    """Multiply (m, k) by the transpose of (n, k): returns (m, n) in bfloat16; operands are row-major.

    `fast` lets tensor cores keep fewer bits of the running sum, which is common in the forward pass but not
    in the backward pass.
    """
    product: torch.Tensor = torch._scaled_mm(  # torch has no public name for it
        left.values,
        right_transposed.values.t(),
        scale_a=left.scale,
        scale_b=right_transposed.scale,
        out_dtype=RESULT_TYPE,
        use_fast_accum=fast,
    )
    return product


def transposed(matrix: Scaled) -> Scaled:
    """Transpose a matrix in memory, to the layout that the matmul expects."""
    return Scaled(values=matrix.values.t().contiguous(), scale=matrix.scale)


class _LinearInFp8(torch.autograd.Function):
    """Compute inputs (rows, fan_in) × weight (fan_out, fan_in)ᵀ and gradients; 16 must divide rows."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rounded, rounded_weight = quantize(inputs, FORWARD_TYPE), quantize(weight, FORWARD_TYPE)
        ctx.save_for_backward(rounded.values, rounded.scale, rounded_weight.values, rounded_weight.scale)
        ctx.types = inputs.dtype, weight.dtype
        return scaled_product(rounded, rounded_weight, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        values, scale, weight_values, weight_scale = ctx.saved_tensors
        inputs_type, weight_type = ctx.types
        gradient = quantize(gradients[0], GRADIENT_TYPE)
        of_inputs = of_weight = None
        if ctx.needs_input_grad[0]:
            weight = Scaled(values=weight_values, scale=weight_scale)
            of_inputs = scaled_product(gradient, transposed(weight), fast=False).to(inputs_type)
        if ctx.needs_input_grad[1]:
            inputs = transposed(Scaled(values=values, scale=scale))
            of_weight = scaled_product(transposed(gradient), inputs, fast=False).to(weight_type)
        return of_inputs, of_weight


def padded_rows(rows: int) -> int:
    """Return the number of rows to multiply, including padding, for this many rows.

    >>> padded_rows(0), padded_rows(16), padded_rows(17)
    (16, 16, 32)
    """
    return max(MULTIPLE, -(-rows // MULTIPLE) * MULTIPLE)


class Fp8Linear(nn.Linear):
    """A linear layer with three fp8 matmuls, forward and backward; its result is bfloat16."""

    scale: torch.Tensor
    """Scale of a weight that is stored in fp8."""
    untied = False
    """Whether the stored weight is a copy: an embedding tied to the weight keeps its own type."""

    def store_in_fp8(self, *, is_tied: bool) -> None:
        """Round the weight once, for inference only; if the weight is tied, round a copy."""
        rounded = quantize(self.weight.detach(), FORWARD_TYPE)
        self.untied = is_tied
        self.weight = nn.Parameter(rounded.values, requires_grad=False)
        self.register_buffer("scale", rounded.scale)

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        if self.weight.dtype == FORWARD_TYPE:
            stored = Scaled(values=self.weight, scale=self.scale)
            return scaled_product(quantize(rows, FORWARD_TYPE), stored, fast=True)
        product: torch.Tensor = _LinearInFp8.apply(rows, self.weight)  # type: ignore[no-untyped-call]  # torch has no types here
        return product

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # the name in nn.Linear
        """Map (…, in_features) to (…, out_features) in bfloat16."""
        rows = input.flatten(0, -2)
        missing = padded_rows(rows.shape[0]) - rows.shape[0]
        padded = functional.pad(rows, (0, 0, 0, missing)) if missing else rows
        result: torch.Tensor = self._multiply(padded)[: rows.shape[0]].unflatten(0, input.shape[:-1])
        return result if self.bias is None else result + self.bias.to(RESULT_TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayers:
    """How many linear layers a model has, and how many of them use fp8."""

    total: int
    in_fp8: int
    stored_weights: int = 0
    """Number of weights stored in fp8, one byte each."""
    untied_weights: int = 0
    """Number of weights stored in fp8 that are copies of weights also stored in another type."""


def count_linear_layers(module: nn.Module) -> LinearLayers:
    """Count a module's linear layers."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    in_fp8 = [layer for layer in layers if isinstance(layer, Fp8Linear)]
    return LinearLayers(
        total=len(layers),
        in_fp8=len(in_fp8),
        stored_weights=sum(layer.weight.numel() for layer in in_fp8 if layer.weight.dtype == FORWARD_TYPE),
        untied_weights=sum(layer.weight.numel() for layer in in_fp8 if layer.untied),
    )


def convert_linear_layers(module: nn.Module, *, name: str, split: bool = False, stored: bool = False) -> None:
    """Make the plain linear layers of `module` multiply in fp8 if both sizes are multiples of 16.

    Only the class of the layers changes: names, parameters and ties stay the same. `stored` rounds their
    weights once, for inference.

    Raises:
        UsageError: the model called `name` has no such layer, or is to be `split` across ranks.
    """
    if split:
        raise UsageError(
            "torch has no fp8 matrix products that are split over ranks",
            place="training.precision",
            next_step="Use bf16, or a strategy without tensor parallelism",
        )
    names = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    for layer in module.modules():
        # A subclass may multiply in its own way or only store weights, so subclasses are left unchanged.
        if type(layer) is nn.Linear and not (layer.in_features % MULTIPLE or layer.out_features % MULTIPLE):
            layer.__class__ = Fp8Linear
            if stored:
                assert isinstance(layer, Fp8Linear)
                layer.store_in_fp8(is_tied=names[id(layer.weight)] > 1)
    if not count_linear_layers(module).in_fp8:
        raise UsageError(
            f"{name} has no linear layer with sizes that are multiples of {MULTIPLE}, so nothing "
            "would use fp8",
            place="training.precision",
            next_step="Use bf16, or a model with larger linear layers",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCasts:
    """Casts to fp8 in one pass through one layer, forward or backward."""

    rows: int
    """Number of sample rows, including padding."""
    fan_in: int
    fan_out: int
    inputs: torch.dtype
    weight: torch.dtype
    backward: bool
    to_inputs: bool
    """Whether the gradient is passed on to the layer's inputs."""


def casts_of_step(module: nn.Module, step: StepFunction) -> Counter[LayerCasts]:
    """Run one step and count the passes through its fp8 layers, including recomputed passes."""
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
    """Return the seconds that one step spends on casts, from the median of each pass's repeats."""
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
        if layer.weight != FORWARD_TYPE:  # otherwise it was already rounded once
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
