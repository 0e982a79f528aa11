"""Linear layers in fp8 against the same layers in fp32: scales by hand, results within bounds."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpuproof.base.errors import UsageError
from gpuproof.worker.engine.host_clock import HostClock
from gpuproof.worker.step.fp8 import (
    FORWARD_TYPE,
    GRADIENT_TYPE,
    Fp8Linear,
    LinearLayers,
    casts_of_step,
    convert_linear_layers,
    count_linear_layers,
    quantize,
    time_casts,
)

E4M3_ROUNDING = 2**-4
"""Three bits of fraction: a value is at most half of 2⁻³ of itself off."""
E5M2_ROUNDING = 2**-3
BF16_ROUNDING = 2**-8
SMALLEST_STEP = {FORWARD_TYPE: 2**-9, GRADIENT_TYPE: 2**-16}
"""The distance of the smallest numbers: what is below is at most half of this off, whatever its size."""


def test_the_largest_magnitude_becomes_the_largest_of_the_format() -> None:
    # 3.5 becomes 448: the scale is 2⁻⁷, and 1 becomes 128, both exact in e4m3. 0.3 becomes 38.4,
    # whose neighbours are 36 and 40.
    scaled = quantize(torch.tensor([1.0, -3.5, 0.3, 0.0]), FORWARD_TYPE)
    assert scaled.scale.item() == 2**-7
    assert scaled.values.float().tolist() == [128.0, -448.0, 40.0, 0.0]


def test_gradients_have_the_format_of_the_wide_range() -> None:
    # 57,344 / 7 = 8,192: the scale is 2⁻¹³. 0.3 becomes 2,457.6: its neighbours are 2,048 and 2,560.
    scaled = quantize(torch.tensor([7.0, 0.3]), GRADIENT_TYPE)
    assert scaled.scale.item() == 2**-13
    assert scaled.values.float().tolist() == [57_344.0, 2_560.0]


def test_zeros_stay_zeros() -> None:
    scaled = quantize(torch.zeros(3), FORWARD_TYPE)
    assert scaled.values.float().tolist() == [0.0, 0.0, 0.0]
    assert torch.isfinite(scaled.scale)


def layers() -> tuple[Fp8Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(32, 48)
    converted = copy.deepcopy(plain)
    convert_linear_layers(converted, name="one layer")
    assert isinstance(converted, Fp8Linear)
    return converted, plain


def bound(left: torch.Tensor, right: torch.Tensor, types: tuple[torch.dtype, torch.dtype]) -> torch.Tensor:
    """Return how far left @ right may be off when each is rounded by the format of its type."""
    errors = []
    for operand, dtype in zip((left, right), types, strict=True):
        rounding = E4M3_ROUNDING if dtype == FORWARD_TYPE else E5M2_ROUNDING
        scale = operand.abs().max() / torch.finfo(dtype).max
        errors.append(rounding * operand.abs() + SMALLEST_STEP[dtype] / 2 * scale)
    of_left, of_right = errors
    rounded = left.abs() @ of_right + of_left @ right.abs() + of_left @ of_right
    return rounded + BF16_ROUNDING * (left.abs() @ right.abs() + rounded)


@pytest.mark.parametrize("rows", [16, 7], ids=["as it is", "padded"])
def test_forward_and_backward_are_within_the_rounding_of_their_formats(rows: int) -> None:
    converted, plain = layers()
    inputs = torch.randn(rows, 32, requires_grad=True)
    gradient = torch.randn(rows, 48).bfloat16()
    results = converted(inputs)
    results.backward(gradient)
    assert results.dtype == torch.bfloat16
    weight, exact = plain.weight.detach(), inputs.detach()
    gradient_f32 = gradient.float()

    allowed = bound(exact, weight.t(), (FORWARD_TYPE, FORWARD_TYPE)) + 2 * BF16_ROUNDING
    assert bool(((results.float() - plain(exact)).abs() <= allowed).all())
    assert inputs.grad is not None
    allowed = bound(gradient_f32, weight, (GRADIENT_TYPE, FORWARD_TYPE))
    assert bool(((inputs.grad - gradient_f32 @ weight).abs() <= allowed).all())
    assert converted.weight.grad is not None
    allowed = bound(gradient_f32.t(), exact, (GRADIENT_TYPE, FORWARD_TYPE))
    assert bool(((converted.weight.grad - gradient_f32.t() @ exact).abs() <= allowed).all())
    assert converted.bias.grad is not None
    torch.testing.assert_close(converted.bias.grad, gradient_f32.sum(0), rtol=0.02, atol=0.05)


def test_fp8_is_not_the_same_as_fp32() -> None:
    converted, plain = layers()
    inputs = torch.randn(16, 32)
    off = (converted(inputs).float() - plain(inputs)).abs().max() / plain(inputs).abs().max()
    assert off > 2 * BF16_ROUNDING


def test_any_leading_sizes_and_no_rows_at_all() -> None:
    converted, _ = layers()
    assert converted(torch.randn(2, 3, 5, 32)).shape == (2, 3, 5, 48)
    nothing = converted(torch.randn(0, 32))
    assert nothing.shape == (0, 48)
    nothing.sum().backward()
    assert converted.weight.grad is not None
    assert not converted.weight.grad.any()


def test_only_plain_layers_of_fitting_sizes_are_converted_and_weights_stay() -> None:
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 10), nn.Linear(20, 16), Own(16, 16))
    weight = model[0].weight
    convert_linear_layers(model, name="four layers")
    assert [type(layer) for layer in model] == [Fp8Linear, nn.Linear, nn.Linear, Own]
    assert model[0].weight is weight
    assert count_linear_layers(model) == LinearLayers(total=4, in_fp8=1)


def test_a_model_without_such_a_layer_is_refused() -> None:
    with pytest.raises(UsageError, match="tiny has no linear layer with sizes that are multiples of 16"):
        convert_linear_layers(nn.Linear(8, 8), name="tiny")


def two_layers() -> nn.Sequential:
    """Layers of 32 × 48 and 48 × 16, the first after a layer whose sizes do not fit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 32), nn.Linear(32, 48), nn.Linear(48, 16))
    convert_linear_layers(model, name="two layers")
    return model


@pytest.mark.parametrize(("trains", "passes"), [(False, 2), (True, 4)])
def test_a_step_s_casts_are_counted_by_what_they_round(trains: bool, passes: int) -> None:
    model, inputs = two_layers(), torch.randn(2, 10, 7)

    def step() -> None:
        with torch.set_grad_enabled(trains):
            result = model(inputs).sum()
        if trains:
            result.backward()

    seen = casts_of_step(model, step)
    assert sum(seen.values()) == passes
    assert {(c.rows, c.fan_in, c.fan_out) for c in seen} == {(32, 32, 48), (32, 48, 16)}  # 20 rows, padded
    assert {c.backward for c in seen} == {False, trains}
    assert all(c.to_inputs == trains for c in seen)
    assert not any(layer._forward_pre_hooks or layer._backward_pre_hooks for layer in model)


def test_a_pass_that_is_computed_again_is_cast_again() -> None:
    model, inputs = two_layers(), torch.randn(4, 7)
    again = casts_of_step(model, lambda: checkpoint(model, inputs, use_reentrant=False).sum().backward())
    assert [sum(n for c, n in again.items() if c.backward == way) for way in (False, True)] == [4, 2]


class CountedClock(HostClock):
    """A clock on which every pass takes 3 s, forward or backward."""

    def drain(self, *, in_flight: int) -> Sequence[float]:
        return [3.0 for _ in super().drain(in_flight=in_flight)]


def test_the_time_of_all_casts_of_a_step_is_their_sum() -> None:
    model, inputs = two_layers(), torch.randn(4, 7)
    seen = casts_of_step(model, lambda: model(inputs).sum().backward())
    beats: list[int] = []
    found = time_casts(seen, device=torch.device("cpu"), clock=CountedClock(), beat=lambda: beats.append(1))
    assert found == 4 * 3.0
    assert len(beats) == 4
