"""The torch half of the workload, which is only imported by the ranks on the node."""

from __future__ import annotations

from math import prod

from torch import nn

from gpuproof.workloads.info.base import InputShape
from gpuproof_example_workload import PerceptronOptions


def build(options: PerceptronOptions, shape: InputShape) -> nn.Module:
    """Build the model; gpuproof adds the loss, the optimizer and the loop."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape.shape), options.hidden),
        nn.ReLU(),
        nn.Linear(options.hidden, shape.num_targets),
    )
