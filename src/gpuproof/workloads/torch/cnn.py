"""Convolutional classifiers, built from the plans in `catalogue.cnn` and `catalogue.resnet`.

ResNet is v1.5: in a bottleneck, the stride is on the 3×3 convolution, as in the models for which throughput
is commonly published and compared. Weights are initialised as in He et al. 2015
(https://arxiv.org/abs/1502.01852).
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
from torch import nn

from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.cnn import (
    CNN_CHANNELS,
    CNN_DROPOUT,
    CNN_HIDDEN,
    LENET_KERNEL,
    LENET_MAPS,
    LeNetOptions,
    SimpleCnnOptions,
    cnn_features,
    lenet_widths,
)
from gpuproof.workloads.info.catalogue.resnet import (
    RESNET_PLANS,
    STAGE_WIDTHS,
    Convolution,
    ResNetOptions,
    ResNetPlan,
    block_convolutions,
)


def build_simple_cnn(_options: SimpleCnnOptions, shape: InputShape) -> nn.Module:
    """Build three blocks of convolution, ReLU and pool; maps (batch, 3, size, size) to (batch, classes)."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(CNN_CHANNELS):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(cnn_features(shape.shape[-1]), CNN_HIDDEN),
        nn.ReLU(),
        nn.Dropout(CNN_DROPOUT),
        nn.Linear(CNN_HIDDEN, shape.num_targets),
    )


def build_lenet5(options: LeNetOptions, shape: InputShape) -> nn.Module:
    """Build LeNet-5 (tanh, average pooling); maps (batch, channels, size, size) to (batch, classes)."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((options.channels, *LENET_MAPS)):
        layers += [nn.Conv2d(inputs, outputs, LENET_KERNEL), nn.Tanh(), nn.AvgPool2d(2)]
    layers.append(nn.Flatten())
    *hidden, last = pairwise(lenet_widths(shape))
    for fan_in, fan_out in hidden:
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(*last))


class _FreshConvolution(nn.Conv2d):
    """A convolution with weights initialised only once: torch's initialisation would be discarded."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")


def _convolve(plan: Convolution) -> nn.Sequential:
    convolution = _FreshConvolution(
        plan.inputs, plan.outputs, plan.kernel, stride=plan.stride, padding=plan.kernel // 2, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(plan.outputs))


class ResidualBlock(nn.Module):
    """Two or three convolutions and a shortcut, which is projected if the shape changes."""

    def __init__(self, plan: ResNetPlan, *, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        depth = 3 if plan.bottleneck else 2
        # The sizes in the plan affect only the operation count: any even size yields the same layers.
        convolutions = list(block_convolutions(plan, inputs=inputs, width=width, stride=stride, size=2))
        self.convolutions = nn.ModuleList(_convolve(c) for c in convolutions[:depth])
        self.shortcut = _convolve(convolutions[depth]) if len(convolutions) > depth else nn.Identity()
        self.activation = nn.ReLU(inplace=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (batch, channels, h, w) to (batch, width × expansion, h / stride, w / stride)."""
        *first, last = self.convolutions
        hidden = inputs
        for convolution in first:
            hidden = self.activation(convolution(hidden))
        result: torch.Tensor = self.activation(last(hidden) + self.shortcut(inputs))
        return result


class ResNet(nn.Module):
    """Stem, four stages of residual blocks, mean over the image, linear classifier."""

    def __init__(self, plan: ResNetPlan, *, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _convolve(Convolution(inputs=3, outputs=64, kernel=7, stride=2, size=1)),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        inputs = 64
        for stage, (width, depth) in enumerate(zip(STAGE_WIDTHS, plan.blocks, strict=True)):
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(ResidualBlock(plan, inputs=inputs, width=width, stride=stride))
                inputs = width * plan.expansion
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (batch, 3, size, size) to class scores (batch, classes)."""
        features = self.blocks(self.stem(images)).mean(dim=(2, 3))
        scores: torch.Tensor = self.classifier(features)
        return scores


def _build(name: str, _options: ResNetOptions, shape: InputShape) -> nn.Module:
    """Build a residual network; maps (batch, 3, size, size) to (batch, classes)."""
    return ResNet(RESNET_PLANS[name], num_classes=shape.num_targets)


build_resnet18 = partial(_build, "resnet18")
build_resnet50 = partial(_build, "resnet50")
