"""Two small convolutional classifiers: one with three blocks for CIFAR's images, and LeNet-5.

LeNet-5 (LeCun et al. 1998, http://yann.lecun.com/exdb/publis/pdf/lecun-98.pdf) accepts one channel of 32×32
pixels. With every map in its second layer connected to all maps in its first layer, it has 61,706 parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from gpuproof.base.errors import UsageError
from gpuproof.workloads.info.base import InputShape, Work, WorkloadInfo, require_positive
from gpuproof.workloads.info.catalogue.counting import convolution, dense, sum_work

IMAGE_SIZE, NUM_CLASSES = 32, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleCnnOptions:
    """The simple CNN has no options; image size and classes are set by data and model keys."""


CNN_CHANNELS = (3, 32, 64, 128)
"""Number of channels in the input and after each 3×3 convolution, which is followed by a pooling layer that
halves the image."""
CNN_HIDDEN = 512
CNN_DROPOUT = 0.5


def _cnn_input(_options: SimpleCnnOptions, image_size: int | None, num_classes: int | None) -> InputShape:
    size = _at_least(image_size or IMAGE_SIZE, 8, name="simple_cnn")
    return InputShape(
        kind="image", shape=(CNN_CHANNELS[0], size, size), num_targets=num_classes or NUM_CLASSES
    )


def cnn_features(image_size: int) -> int:
    """Return the number of values passed to the first linear layer, after three pools."""
    return CNN_CHANNELS[-1] * (image_size // 8) ** 2


def _cnn_work(_options: SimpleCnnOptions, shape: InputShape) -> Work:
    size = shape.shape[-1]
    layers = [
        convolution(inputs, outputs, kernel=3, size=size // 2**halvings, bias=True)
        for halvings, (inputs, outputs) in enumerate(pairwise(CNN_CHANNELS))
    ]
    layers += [dense(cnn_features(size), CNN_HIDDEN), dense(CNN_HIDDEN, shape.num_targets)]
    return sum_work(layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeNetOptions:
    """Number of image channels: the classic network has 1; use 3 for colour data sets."""

    channels: int = 1

    def __post_init__(self) -> None:
        require_positive(self)


LENET_MAPS = (6, 16)
LENET_KERNEL = 5
LENET_HIDDEN = (120, 84)


def _lenet_input(options: LeNetOptions, image_size: int | None, num_classes: int | None) -> InputShape:
    size = _at_least(image_size or IMAGE_SIZE, 16, name="lenet5")
    return InputShape(
        kind="image", shape=(options.channels, size, size), num_targets=num_classes or NUM_CLASSES
    )


def lenet_sizes(image_size: int) -> tuple[int, int]:
    """Return the feature maps' height after each unpadded convolution; pooling then halves the maps."""
    first = image_size - LENET_KERNEL + 1
    return first, first // 2 - LENET_KERNEL + 1


def lenet_widths(shape: InputShape) -> tuple[int, ...]:
    """Return the widths of the linear layers, from the pooled feature maps to the classes."""
    pooled = lenet_sizes(shape.shape[-1])[-1] // 2
    return (LENET_MAPS[-1] * pooled**2, *LENET_HIDDEN, shape.num_targets)


def _lenet_work(options: LeNetOptions, shape: InputShape) -> Work:
    maps = pairwise((options.channels, *LENET_MAPS))
    layers = [
        convolution(inputs, outputs, kernel=LENET_KERNEL, size=size, bias=True)
        for (inputs, outputs), size in zip(maps, lenet_sizes(shape.shape[-1]), strict=True)
    ]
    layers += [dense(fan_in, fan_out) for fan_in, fan_out in pairwise(lenet_widths(shape))]
    return sum_work(layers)


def _at_least(image_size: int, smallest: int, *, name: str) -> int:
    if image_size < smallest:
        raise UsageError(
            f"{name} pools an image of {image_size} pixels down to nothing",
            place="data.image_size",
            next_step=f"Use {smallest} or more; null uses the model's own {IMAGE_SIZE}",
        )
    return image_size


SIMPLE_CNN = WorkloadInfo(
    name="simple_cnn",
    summary="3 convolutions and 2 linear layers, 1,147,466 parameters at 32 pixels and 10 classes",
    item="samples",
    options_type=SimpleCnnOptions,
    input_shape=_cnn_input,
    work=_cnn_work,
    implementation="gpuproof.workloads.torch.cnn:build_simple_cnn",
    loss="cross_entropy",
)
LENET5 = WorkloadInfo(
    name="lenet5",
    summary="LeNet-5, 61,706 parameters at one channel of 32 pixels and 10 classes",
    item="samples",
    options_type=LeNetOptions,
    input_shape=_lenet_input,
    work=_lenet_work,
    implementation="gpuproof.workloads.torch.cnn:build_lenet5",
    loss="cross_entropy",
)
