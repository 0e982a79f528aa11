"""The built-in workloads, torch-free: shapes, parameter counts and FLOPs in closed form.

Every layer that multiplies is listed once, here; the torch modules are built from the same plans, and
tests hold the closed forms against torch's own counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from gpuproof.workloads.base import InputShape, Work, WorkloadInfo

IMAGENET_SIZE = 224
IMAGENET_CLASSES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplication:
    """A layer that is a matrix product: weights, biases and the multiply-adds of one sample."""

    num_weights: int
    num_biases: int
    macs: int


def _work(layers: list[Multiplication], *, other_parameters: int = 0) -> Work:
    forward = 2 * sum(layer.macs for layer in layers)
    return Work(
        num_parameters=sum(layer.num_weights + layer.num_biases for layer in layers) + other_parameters,
        forward_flops=forward,
        training_flops=3 * forward - 2 * layers[0].macs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpOptions:
    """Sizes of the two ends of a multilayer perceptron."""

    input_dim: int = 50
    output_dim: int = 3


MLP_HIDDEN = {"medium": (256, 128, 64), "large": (1024, 1024, 512, 512, 256)}
MLP_DROPOUT = {"medium": 0.2, "large": 0.3}


def _mlp(name: str) -> WorkloadInfo:
    def input_shape(options: MlpOptions, _image_size: int | None, _num_classes: int | None) -> InputShape:
        return InputShape(kind="features", shape=(options.input_dim,), num_targets=options.output_dim)

    def work(options: MlpOptions, _shape: InputShape) -> Work:
        widths = (options.input_dim, *MLP_HIDDEN[name], options.output_dim)
        return _work(
            [
                Multiplication(num_weights=fan_in * fan_out, num_biases=fan_out, macs=fan_in * fan_out)
                for fan_in, fan_out in pairwise(widths)
            ]
        )

    return WorkloadInfo(
        name=name,
        summary=f"perceptron, hidden layers {MLP_HIDDEN[name]}, ReLU, dropout {MLP_DROPOUT[name]}",
        item="samples",
        options_type=MlpOptions,
        input_shape=input_shape,
        work=work,
        implementation=f"gpuproof.workloads.mlp:build_{name}",
        loss="mean_squared_error",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetOptions:
    """A residual network has no options of its own yet; image size and classes come from data and model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetPlan:
    """Depth of the four stages and kind of block (He et al. 2015, https://arxiv.org/abs/1512.03385)."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool

    @property
    def expansion(self) -> int:
        """Output channels of a block over its width."""
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


def resnet_convolutions(plan: ResNetPlan, *, image_size: int) -> Iterator[Convolution]:
    """List every convolution of the network in order, shortcut projections after their block."""
    size = _halved(image_size)
    yield Convolution(inputs=3, outputs=64, kernel=7, stride=2, size=size)
    size = _halved(size)
    inputs = 64
    for stage, (width, depth) in enumerate(zip(STAGE_WIDTHS, plan.blocks, strict=True)):
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            yield from block_convolutions(plan, inputs=inputs, width=width, stride=stride, size=size)
            size = _halved(size) if stride == 2 else size
            inputs = width * plan.expansion


def block_convolutions(
    plan: ResNetPlan, *, inputs: int, width: int, stride: int, size: int
) -> Iterator[Convolution]:
    """List the convolutions of one block whose input is `size` high. v1.5: the 3×3 carries the stride."""
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
    """Output size of a stride-2 layer with 'same' padding."""
    return (size + 1) // 2


def _resnet(name: str, summary: str) -> WorkloadInfo:
    plan = RESNET_PLANS[name]

    def input_shape(_options: ResNetOptions, image_size: int | None, num_classes: int | None) -> InputShape:
        size = image_size or IMAGENET_SIZE
        return InputShape(kind="image", shape=(3, size, size), num_targets=num_classes or IMAGENET_CLASSES)

    def work(_options: ResNetOptions, shape: InputShape) -> Work:
        convolutions = list(resnet_convolutions(plan, image_size=shape.shape[-1]))
        layers = [
            Multiplication(
                num_weights=(weights := c.inputs * c.outputs * c.kernel**2),
                num_biases=0,
                macs=weights * c.size**2,
            )
            for c in convolutions
        ]
        features = STAGE_WIDTHS[-1] * plan.expansion
        classifier = features * shape.num_targets
        layers.append(Multiplication(num_weights=classifier, num_biases=shape.num_targets, macs=classifier))
        return _work(layers, other_parameters=sum(2 * c.outputs for c in convolutions))

    return WorkloadInfo(
        name=name,
        summary=summary,
        item="samples",
        options_type=ResNetOptions,
        input_shape=input_shape,
        work=work,
        implementation=f"gpuproof.workloads.vision:build_{name}",
        loss="cross_entropy",
    )


MEDIUM = _mlp("medium")
LARGE = _mlp("large")
RESNET18 = _resnet("resnet18", "ResNet-18, 11,689,512 parameters at 1000 classes")
RESNET50 = _resnet("resnet50", "ResNet-50 v1.5, 25,557,032 parameters at 1000 classes")
