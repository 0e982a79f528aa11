"""Closed forms of the built-in workloads against numbers worked out by hand and published counts."""

from __future__ import annotations

import pytest

from gpuproof import registry
from gpuproof.errors import UsageError
from gpuproof.workloads.base import Work, WorkloadInfo


def work_of(name: str, image_size: int | None = None, num_classes: int | None = None) -> Work:
    info = registry.load(registry.WORKLOADS, name)
    assert isinstance(info, WorkloadInfo)
    options = info.options_type()
    return info.work(options, info.input_shape(options, image_size, num_classes))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("medium", 13_056 + 32_896 + 8_256 + 195),
        ("large", 52_224 + 1_049_600 + 524_800 + 262_656 + 131_328 + 771),
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
    ],
)
def test_parameter_counts(name: str, parameters: int) -> None:
    assert work_of(name).num_parameters == parameters


def test_mlp_flops_by_hand() -> None:
    weights = 50 * 256 + 256 * 128 + 128 * 64 + 64 * 3
    work = work_of("medium")
    assert work.forward_flops == 2 * weights
    # Gradients of weights and of inputs cost a forward pass each, but nobody asks for those of the data.
    assert work.training_flops == 2 * (3 * weights - 50 * 256)


def test_resnet50_forward_is_the_published_4_1_gmac() -> None:
    assert work_of("resnet50").forward_flops / 2 == pytest.approx(4.09e9, rel=0.005)


def test_unknown_workload_is_a_usage_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"no workload is called 'resnet5'.*Did you mean 'resnet50'"):
        registry.load(registry.WORKLOADS, "resnet5")
