"""Residual networks for image classification (He et al. 2015, https://arxiv.org/abs/1512.03385)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from gpuproof.workloads.info.base import InputShape, Work, WorkloadInfo
from gpuproof.workloads.info.catalogue.counting import convolution, dense, sum_work

IMAGENET_SIZE, IMAGENET_CLASSES = 224, 1000
CIFAR_SIZE, CIFAR_CLASSES = 32, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetOptions:
    """A residual network has no options yet; image size and classes come from data and model keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetPlan:
    """Depth of each of the four stages, and the block type."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool

    @property
    def expansion(self) -> int:
        """Ratio of a block's output channels to its width."""
        return 4 if self.bottleneck else 1


RESNET_PLANS = {
    "resnet18": ResNetPlan(blocks=(2, 2, 2, 2), bottleneck=False),
    "resnet50": ResNetPlan(blocks=(3, 4, 6, 3), bottleneck=True),
}
STAGE_WIDTHS = (64, 128, 256, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A square convolution without bias, followed by batch norm. `size` is its output height and width."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    size: int


def _stem(image_size: int) -> Convolution:
    return Convolution(inputs=3, outputs=64, kernel=7, stride=2, size=_halved(image_size))


def _blocks(plan: ResNetPlan, *, image_size: int) -> Iterator[list[Convolution]]:
    """List the convolutions of each residual block."""
    size, inputs = _halved(_halved(image_size)), 64
    for stage, (width, depth) in enumerate(zip(STAGE_WIDTHS, plan.blocks, strict=True)):
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            yield list(block_convolutions(plan, inputs=inputs, width=width, stride=stride, size=size))
            size = _halved(size) if stride == 2 else size
            inputs = width * plan.expansion


def resnet_activation_values(plan: ResNetPlan, *, image_size: int) -> int:
    """Count the values one sample stores for the backward pass, in units of 4 bytes at float32.

    Each convolution stores its output for its batch norm, and the activation or sum that follows stores the
    input for the next convolution. A projected shortcut stores only its convolution's output. The pooling
    after the stem stores its output and its indices, which are 8 bytes each.
    """
    stem = _stem(image_size)
    pooled = stem.outputs * _halved(stem.size) ** 2
    depth = 3 if plan.bottleneck else 2
    num_values = 2 * stem.outputs * stem.size**2 + 3 * pooled
    for block in _blocks(plan, image_size=image_size):
        values = [c.outputs * c.size**2 for c in block]
        num_values += 2 * sum(values[:depth]) + sum(values[depth:])
    return num_values


def block_convolutions(
    plan: ResNetPlan, *, inputs: int, width: int, stride: int, size: int
) -> Iterator[Convolution]:
    """List the convolutions in one block with input height `size`; in v1.5, the 3×3 has the stride."""
    outputs = width * plan.expansion
    reduced = _halved(size) if stride == 2 else size
    if plan.bottleneck:
        yield Convolution(inputs=inputs, outputs=width, kernel=1, stride=1, size=size)
        yield Convolution(inputs=width, outputs=width, kernel=3, stride=stride, size=reduced)
        yield Convolution(inputs=width, outputs=outputs, kernel=1, stride=1, size=reduced)
    else:
        yield Convolution(inputs=inputs, outputs=width, kernel=3, stride=stride, size=reduced)
        yield Convolution(inputs=width, outputs=outputs, kernel=3, stride=1, size=reduced)
    if stride != 1 or inputs != outputs:
        yield Convolution(inputs=inputs, outputs=outputs, kernel=1, stride=stride, size=reduced)


def _halved(size: int) -> int:
    """Return the output size of a stride-2 layer with 'same' padding."""
    return (size + 1) // 2


def _resnet(
    name: str,
    summary: str,
    *,
    plan: str,
    image_size: int = IMAGENET_SIZE,
    num_classes: int = IMAGENET_CLASSES,
) -> WorkloadInfo:
    default_size, default_classes = image_size, num_classes

    def input_shape(_options: ResNetOptions, image_size: int | None, num_classes: int | None) -> InputShape:
        size = image_size or default_size
        return InputShape(kind="image", shape=(3, size, size), num_targets=num_classes or default_classes)

    def work(_options: ResNetOptions, shape: InputShape) -> Work:
        return resnet_work(RESNET_PLANS[plan], shape)

    def activation_values(_options: ResNetOptions, shape: InputShape) -> int:
        return resnet_activation_values(RESNET_PLANS[plan], image_size=shape.shape[-1])

    return WorkloadInfo(
        name=name,
        summary=summary,
        item="samples",
        options_type=ResNetOptions,
        input_shape=input_shape,
        work=work,
        implementation=f"gpuproof.workloads.torch.cnn:build_{plan}",
        loss="cross_entropy",
        activation_values=activation_values,
    )


def resnet_work(plan: ResNetPlan, shape: InputShape) -> Work:
    """Count a residual network with batch norm after every convolution."""
    size = shape.shape[-1]
    convolutions = [_stem(size), *chain.from_iterable(_blocks(plan, image_size=size))]
    layers = [
        convolution(c.inputs, c.outputs, kernel=c.kernel, size=c.size, bias=False) for c in convolutions
    ]
    layers.append(dense(STAGE_WIDTHS[-1] * plan.expansion, shape.num_targets))
    return sum_work(layers, other_parameters=sum(2 * c.outputs for c in convolutions))


RESNET18 = _resnet("resnet18", "ResNet-18, 11,689,512 parameters at 1000 classes", plan="resnet18")
RESNET50 = _resnet("resnet50", "ResNet-50 v1.5, 25,557,032 parameters at 1000 classes", plan="resnet50")
RESNET = _resnet(
    "resnet",
    "ResNet-18 with its 7×7 stem for images of 32 pixels, 11,181,642 parameters at 10 classes",
    plan="resnet18",
    image_size=CIFAR_SIZE,
    num_classes=CIFAR_CLASSES,
)
