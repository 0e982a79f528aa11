"""What torch counts is what a step multiplies, and counting changes nothing that a step would see."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpuproof.worker.step.effective import attention_backward_flops, attention_flops
from gpuproof.worker.step.flop_count import (
    count_flops,
    count_forward_flops,
    count_training_flops,
)


def test_a_product_is_two_operations_for_each_of_its_multiply_adds() -> None:
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    assert count_flops(lambda: a @ b).total == 2 * 3 * 5 * 7


@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_attention_is_two_products_forward_and_four_backward_in_every_kernel(kernel: SDPBackend) -> None:
    query = torch.randn(2, 4, 6, 8, requires_grad=True)  # batch, heads, positions, width of a head
    forward = 2 * (2 * 2 * 4 * 6 * 6 * 8)

    def attend() -> torch.Tensor:
        with sdpa_kernel(kernel):
            return functional.scaled_dot_product_attention(query, query * 1, query * 2, is_causal=True)

    assert count_flops(attend).total == forward
    assert count_flops(lambda: attend().sum().backward()).total == 3 * forward


def test_the_formulas_for_fused_attention_allow_for_unequal_lengths() -> None:
    query, key, value = (3, 4, 5, 8), (3, 2, 7, 8), (3, 2, 7, 10)
    assert attention_flops(query, key, value) == 2 * 3 * 4 * 5 * 7 * 8 + 2 * 3 * 4 * 5 * 7 * 10
    assert attention_backward_flops(query, query, key, value) == 2 * attention_flops(query, key, value)


def _classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def test_forward_and_backward_without_the_gradient_that_nobody_asks_for() -> None:
    module, inputs, targets = _classifier(), torch.randn(10, 6), torch.randint(3, (10,))
    forward = 2 * 10 * (6 * 8 + 8 * 3)
    assert count_forward_flops(module, inputs).total == forward
    counted = count_training_flops(module, inputs, targets, loss=functional.cross_entropy)
    assert counted.total == 3 * forward - 2 * 10 * 6 * 8


@pytest.mark.parametrize("training", [True, False])
def test_counting_leaves_no_trace(training: bool) -> None:
    module, inputs, targets = _classifier().train(training), torch.randn(10, 6), torch.randint(3, (10,))
    state = {name: value.clone() for name, value in module.state_dict().items()}
    random = torch.get_rng_state()

    count_forward_flops(module, inputs)
    count_training_flops(module, inputs, targets, loss=functional.cross_entropy)

    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert module.training is training
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_model_that_fails_is_put_back_too() -> None:
    module = _classifier()
    mean = next(iter(module.buffers())).clone()

    def broken(*_: torch.Tensor) -> torch.Tensor:
        raise ValueError("no loss")

    with pytest.raises(ValueError, match="no loss"):
        count_training_flops(module, torch.randn(4, 6), torch.zeros(4), loss=broken)
    assert torch.equal(next(iter(module.buffers())), mean)


@pytest.mark.parametrize("autocast", [lambda: torch.autocast("cpu", dtype=torch.bfloat16)])
def test_the_type_of_the_arithmetic_does_not_change_its_amount(
    autocast: Callable[[], torch.autocast],
) -> None:
    module, inputs = _classifier(), torch.randn(10, 6)
    assert count_forward_flops(module, inputs, autocast=autocast) == count_forward_flops(module, inputs)


@pytest.mark.parametrize(("is_causal", "share"), [(True, 7 / 16), (False, 0)])
def test_what_a_causal_mask_hides_is_counted_apart(is_causal: bool, share: float) -> None:
    heads = torch.randn(2, 4, 8, 16, requires_grad=True)  # of 8 × 8 scores 28 lie above the diagonal

    def attend() -> torch.Tensor:
        return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=is_causal)

    counted = count_flops(lambda: attend().sum().backward())
    assert counted.hidden == pytest.approx(share * counted.total)
