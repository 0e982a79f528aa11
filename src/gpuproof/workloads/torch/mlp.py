"""Multilayer perceptrons for regression on feature vectors, built from the plan in `catalogue.mlp`."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from torch import nn

from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.mlp import MLP_DROPOUT, MLP_HIDDEN, MlpOptions


def _build(name: str, options: MlpOptions, shape: InputShape) -> nn.Module:
    """Build linear layers with dropout between them; maps (batch, input_dim) to (batch, output_dim)."""
    layers: list[nn.Module] = []
    widths = (options.input_dim, *MLP_HIDDEN[name])
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU(), nn.Dropout(MLP_DROPOUT[name])]
    return nn.Sequential(*layers, nn.Linear(widths[-1], shape.num_targets))


build_medium = partial(_build, "medium")
build_large = partial(_build, "large")
