"""The simple CNN and LeNet-5, built from the plans in `catalogue.cnn`."""

from __future__ import annotations

from itertools import pairwise

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
    """Build LeNet-5 with tanh and mean pools; maps (batch, channels, size, size) to (batch, classes)."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((options.channels, *LENET_MAPS)):
        layers += [nn.Conv2d(inputs, outputs, LENET_KERNEL), nn.Tanh(), nn.AvgPool2d(2)]
    layers.append(nn.Flatten())
    *hidden, last = pairwise(lenet_widths(shape))
    for fan_in, fan_out in hidden:
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(*last))
