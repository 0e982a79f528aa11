"""Multilayer perceptrons for regression on feature vectors, built from the plan in `catalogue.mlp`."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.mlp import MLP_DROPOUT, MLP_HIDDEN, MlpOptions


def build_medium(options: MlpOptions, shape: InputShape) -> nn.Module:
    """Build 256-128-64 with dropout 0.2; maps (batch, input_dim) to (batch, output_dim)."""
    return _build("medium", options, shape)


def build_large(options: MlpOptions, shape: InputShape) -> nn.Module:
    """Build 1024-1024-512-512-256 with dropout 0.3; maps (batch, input_dim) to (batch, output_dim)."""
    return _build("large", options, shape)


def _build(name: str, options: MlpOptions, shape: InputShape) -> nn.Module:
    layers: list[nn.Module] = []
    widths = (options.input_dim, *MLP_HIDDEN[name])
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU(), nn.Dropout(MLP_DROPOUT[name])]
    return nn.Sequential(*layers, nn.Linear(widths[-1], shape.num_targets))
