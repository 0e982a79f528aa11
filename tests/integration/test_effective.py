"""What the kernels of a step were given: FLOPs against hand counts, types and layouts as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpuproof.records.what_ran import Effective
from gpuproof.worker.step.effective import memory_layout, observe

BATCH = 8


def look(step: Callable[[], object]) -> Effective:
    def run() -> None:
        step()

    return observe(run, rank=3)


def table(effective: Effective) -> dict[tuple[str, str, str | None], tuple[float, int]]:
    return {(w.operation, w.dtype, w.layout): (w.flops, w.calls) for w in effective.work}


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_a_linear_layer_in_training_is_three_products() -> None:
    layer = nn.Linear(32, 48)
    inputs = torch.randn(BATCH, 32, requires_grad=True)
    seen = look(lambda: layer(inputs).sum().backward())
    assert seen.rank == 3
    assert table(seen) == {("matrix product", "float32", None): (3 * 2 * BATCH * 32 * 48, 3)}


@pytest.mark.promise("S1.4")
def test_autocast_is_seen_and_what_stays_outside_of_it() -> None:
    inside, outside = nn.Linear(32, 48), nn.Linear(48, 16)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = inside(torch.randn(BATCH, 32))
        outside(hidden.float())

    assert table(look(step)) == {
        ("matrix product", "bfloat16", None): (2 * BATCH * 32 * 48, 1),
        ("matrix product", "float32", None): (2 * BATCH * 48 * 16, 1),
    }


def test_inference_mode_hides_nothing() -> None:
    layer, shape = nn.Linear(32, 48), (1, 2, 8, 4)

    def step() -> None:
        with torch.inference_mode():
            layer(torch.randn(BATCH, 32))
            query = torch.randn(shape)
            functional.scaled_dot_product_attention(query, query, query)

    assert table(look(step)) == {
        ("matrix product", "float32", None): (2 * BATCH * 32 * 48, 1),
        # Queries with keys, and scores with values: 8 × 8 × 4 each, in two heads.
        ("attention", "float32", None): (2 * 2 * 2 * 8 * 8 * 4, 1),
    }


def test_attention_backward_is_five_products_for_two() -> None:
    query = torch.randn(1, 2, 8, 4, requires_grad=True)
    seen = look(lambda: functional.scaled_dot_product_attention(query, query, query).sum().backward())
    assert table(seen) == {("attention", "float32", None): ((2 + 5) * 2 * 2 * 8 * 8 * 4, 2)}


@pytest.mark.parametrize("channels_last", [True, False])
def test_a_convolution_has_the_layout_of_its_images(channels_last: bool) -> None:
    layer = nn.Conv2d(3, 4, 3, bias=False)
    images = torch.randn(BATCH, 3, 10, 10)
    if channels_last:
        images = images.to(memory_format=torch.channels_last)
    seen = look(lambda: layer(images).sum().backward())
    forward = 2 * BATCH * 8 * 8 * 3 * 4 * 9
    layout = "NHWC" if channels_last else "NCHW"
    # Backward: the gradient of the weights only, since nothing asks for the images'.
    assert table(seen) == {("convolution", "float32", layout): (2 * forward, 2)}


@pytest.mark.promise("S1.5")
def test_layouts_by_hand() -> None:
    images = torch.zeros(2, 3, 4, 4)
    assert memory_layout(images) == "NCHW"
    assert memory_layout(images.to(memory_format=torch.channels_last)) == "NHWC"
    assert memory_layout(torch.zeros(2, 1, 4, 4)) == "either"
    assert memory_layout(torch.zeros(2, 3, 1, 1)) == "either"
    assert memory_layout(images[..., ::2]) == "other"


def test_a_step_without_such_work_says_so() -> None:
    seen = look(lambda: torch.ones(3) + 1)
    assert seen.work == ()
    assert seen.missing == "no product, convolution or attention with a known FLOP count was seen"


def test_looking_changes_no_result() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    images = torch.randn(BATCH, 3, 10, 10)
    model(images).square().sum().backward()
    plain = gradients(model)
    model.zero_grad()
    look(lambda: model(images).square().sum().backward())
    assert all(map(torch.equal, plain, gradients(model)))
