"""Closed forms of the built-in workloads against numbers worked out by hand and published counts."""

from __future__ import annotations

from typing import Any

import pytest

from gpuproof.base import registry
from gpuproof.base.errors import UsageError
from gpuproof.workloads.info.base import InputShape, Work, WorkloadInfo


def shape_and_work(
    name: str, image_size: int | None = None, num_classes: int | None = None, **options: Any
) -> tuple[InputShape, Work]:
    info = registry.load(registry.WORKLOADS, name)
    assert isinstance(info, WorkloadInfo)
    chosen = info.options_type(**options)
    shape = info.input_shape(chosen, image_size, num_classes)
    work = info.work(chosen, shape)
    assert work is not None
    return shape, work


def work_of(name: str, image_size: int | None = None, num_classes: int | None = None, **options: Any) -> Work:
    return shape_and_work(name, image_size, num_classes, **options)[1]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("medium", 13_056 + 32_896 + 8_256 + 195),
        ("large", 52_224 + 1_049_600 + 524_800 + 262_656 + 131_328 + 771),
        ("simple_cnn", 896 + 18_496 + 73_856 + 1_049_088 + 5_130),
        ("simple_cnn", 1_147_466),
        ("lenet5", 156 + 2_416 + 48_120 + 10_164 + 850),
        ("lenet5", 61_706),
        ("resnet", 11_181_642),
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        # An encoder layer: 3,148,800 + 1,049,600 + 4,198,400 + 4,195,328, and 4,096 of its norms.
        ("transformer", 12 * 12_596_224 + 1_024_000 + 1_025_000),
        ("transformer", 153_203_688),
        # Patches, class token, 197 positions, 12 layers, the last norm, the classifier.
        ("vit_b_16", 590_592 + 768 + 151_296 + 12 * 7_087_872 + 1_536 + 769_000),
        ("vit_b_16", 86_567_656),
    ],
)
@pytest.mark.promise("R0.8", "S2.5", "S2.6", "S2.7", "S3.4")
def test_parameter_counts(name: str, parameters: int) -> None:
    assert work_of(name).num_parameters == parameters


def test_a_larger_vision_transformer_by_options_has_the_published_count() -> None:
    large = {"d_model": 1024, "num_layers": 24, "num_heads": 16, "d_ff": 4096}
    assert work_of("vit_b_16", **large).num_parameters == 304_326_632


def test_each_workload_has_its_own_image_size_and_classes() -> None:
    expected: dict[str, tuple[tuple[int, ...], int]] = {
        "simple_cnn": ((3, 32, 32), 10),
        "lenet5": ((1, 32, 32), 10),
        "resnet": ((3, 32, 32), 10),
        "resnet18": ((3, 224, 224), 1000),
        "vit_b_16": ((3, 224, 224), 1000),
        "transformer": ((512,), 1000),
        "decoder": ((2048,), 8_192),
    }
    shapes = {name: shape_and_work(name)[0] for name in expected}
    assert {name: (shape.shape, shape.num_targets) for name, shape in shapes.items()} == expected


def test_convolutions_take_other_images() -> None:
    # 64 pixels leave 8×8 maps of 128 channels: 8,192 · 512 weights more than 2,048 · 512.
    assert work_of("simple_cnn", 64).num_parameters == 1_147_466 + (8_192 - 2_048) * 512
    # Maps of 24, 12, 8 and 4 pixels: 16 · 16 values instead of 400. Each colour has 6 · 25 weights.
    assert work_of("lenet5", 28, channels=3).num_parameters == 61_706 - (400 - 256) * 120 + 2 * 150


@pytest.mark.promise("S2.7")
def test_mlp_flops_by_hand() -> None:
    weights = 50 * 256 + 256 * 128 + 128 * 64 + 64 * 3
    work = work_of("medium")
    assert work.forward_flops == 2 * weights
    # Gradients of weights and of inputs cost a forward pass each, but nobody asks for those of the data.
    assert work.training_flops == 2 * (3 * weights - 50 * 256)


def test_lenet_flops_by_hand() -> None:
    macs = 28 * 28 * 150 + 10 * 10 * 2400 + 400 * 120 + 120 * 84 + 84 * 10
    work = work_of("lenet5")
    assert work.forward_flops == 2 * macs
    assert work.training_flops == 2 * (3 * macs - 28 * 28 * 150)


def test_transformer_flops_by_hand() -> None:
    weights = 12 * (4 * 1024**2 + 2 * 1024 * 4096) + 1024 * 1000
    attention = 12 * 2 * 512**2 * 1024
    work = work_of("transformer")
    assert work.forward_flops == 2 * (512 * weights + attention)
    assert work.training_flops == 3 * work.forward_flops


def test_published_multiply_adds() -> None:
    assert work_of("resnet50").forward_flops / 2 == pytest.approx(4.09e9, rel=0.005)
    # Patches, linear layers, attention, classifier: the 17.56 G that torchvision lists for ViT-B/16.
    macs = 196 * 589_824 + 197 * 12 * 7_077_888 + 12 * 2 * 197**2 * 768 + 768_000
    assert work_of("vit_b_16").forward_flops == 2 * macs
    assert macs == pytest.approx(17.56e9, rel=0.001)


@pytest.mark.parametrize(
    ("name", "image_size", "message"),
    [
        ("simple_cnn", 7, "simple_cnn pools an image of 7 pixels down to nothing. Use 8 or more"),
        ("lenet5", 15, "lenet5 pools an image of 15 pixels down to nothing. Use 16 or more"),
        ("vit_b_16", 100, "100 pixels are not divisible into patches of 16. Use a multiple of 16"),
    ],
)
def test_an_image_that_does_not_fit_is_refused(name: str, image_size: int, message: str) -> None:
    with pytest.raises(UsageError, match=f"^data.image_size: {message}"):
        work_of(name, image_size)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("medium", {"input_dim": 0}, "input_dim is 0, but must be 1 or more"),
        ("lenet5", {"channels": -1}, "channels is -1, but must be 1 or more"),
        ("transformer", {"num_heads": 3}, "d_model 1024 is not divisible into 3 heads"),
        ("vit_b_16", {"num_layers": 0}, "num_layers is 0, but must be 1 or more"),
    ],
)
def test_options_that_make_no_model_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        work_of(name, **options)


def test_a_sequence_counts_for_its_tokens_and_an_image_for_itself() -> None:
    counts = {}
    for name in ("transformer", "vit_b_16", "medium"):
        info = registry.load(registry.WORKLOADS, name)
        shape = info.input_shape(info.options_type(), None, None)
        counts[name] = (info.item, info.items_per_sample(shape))
    assert counts == {"transformer": ("tokens", 512), "vit_b_16": ("samples", 1), "medium": ("samples", 1)}


def test_unknown_workload_is_a_usage_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"no workload is called 'resnet5'.*Did you mean 'resnet50'"):
        registry.load(registry.WORKLOADS, "resnet5")
