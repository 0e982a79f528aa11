"""The torch modules are what the torch-free catalogue says: parameters and operations, exactly."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpuproof import registry
from gpuproof.workloads.base import WorkloadInfo


@pytest.mark.parametrize(
    ("name", "image_size", "num_classes"),
    [
        ("medium", None, None),
        ("large", None, None),
        ("resnet18", 64, 10),
        ("resnet18", 75, 1000),
        ("resnet50", 64, 1000),
    ],
)
def test_closed_forms_agree_with_torch(name: str, image_size: int | None, num_classes: int | None) -> None:
    info = registry.load(registry.WORKLOADS, name)
    assert isinstance(info, WorkloadInfo)
    options = info.options_type()
    shape = info.input_shape(options, image_size, num_classes)
    work = info.work(options, shape)
    module = info.resolve_implementation()(options, shape)
    assert sum(p.numel() for p in module.parameters()) == work.num_parameters

    batch = 2
    with FlopCounterMode(display=False) as counter:
        output = module(torch.zeros(batch, *shape.shape))
    assert output.shape == (batch, shape.num_targets)
    assert counter.get_total_flops() == batch * work.forward_flops
    with counter:
        output = module(torch.zeros(batch, *shape.shape))
        output.sum().backward()
    assert counter.get_total_flops() == batch * work.training_flops
