"""The torch half of the benchmark workloads."""

from __future__ import annotations

from time import sleep

import torch
from benchmark_workloads import DenseOptions, SleepOptions
from torch import nn

from gpuproof.workloads.info.base import InputShape


class Sleep(nn.Module):
    """Sleeps, then scales its input by its single weight."""

    def __init__(self, sleep_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self._sleep_s = sleep_s

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        sleep(self._sleep_s)
        return inputs * self.weight


def build_sleep(options: SleepOptions, _shape: InputShape) -> nn.Module:
    """Build the module that sleeps `options.sleep_s` seconds per batch."""
    return Sleep(options.sleep_s)


def build_dense(options: DenseOptions, shape: InputShape) -> nn.Module:
    """Build the layer; maps (batch, width) to (batch, width)."""
    return nn.Linear(options.width, shape.num_targets)
