"""Which device can compute in which precision, and the words of a refusal; no device is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from gpuproof.accelerators.base import Arithmetic
from gpuproof.accelerators.choose import accelerator_of, find_accelerator
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.training import Precision
from gpuproof.worker.step.precision import apply_precision, refusal

H100 = Arithmetic(
    name="an H100",
    in_software=False,
    capability=(9, 0),
    has_bf16=True,
    has_scaled_products=True,
    tf32_override=None,
)
A100 = replace(H100, name="an A100", capability=(8, 0))
L4 = replace(H100, name="an L4", capability=(8, 9))
T4 = replace(H100, name="a T4", capability=(7, 5), has_bf16=False)
MI300X = replace(H100, name="an MI300X", capability=None)
CPU = replace(H100, in_software=True, name="the CPU", capability=None)


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [
        ("fp32", T4, None),
        ("amp", T4, None),
        ("bf16", T4, "a T4 does not support bfloat16 arithmetic"),
        ("bf16", A100, None),
        ("tf32", A100, None),
        ("tf32", T4, "TF32 needs compute capability 8.0; a T4 has 7.5"),
        ("tf32", MI300X, "TF32 needs NVIDIA's tensor cores, and an MI300X has none"),
        ("tf32", CPU, "TF32 needs NVIDIA's tensor cores, and the CPU has none"),
        ("fp8", H100, None),
        ("fp8", L4, None),
        ("fp8", CPU, None),
        ("fp8", A100, "fp8 needs compute capability 8.9; an A100 has 8.0"),
        (
            "fp8",
            MI300X,
            "fp8 is implemented for NVIDIA's formats (e4m3fn, e5m2), and an MI300X is not an NVIDIA GPU",
        ),
    ],
)
def test_a_precision_is_refused_with_the_reason(
    precision: Precision, device: Arithmetic, expected: str | None
) -> None:
    refused = refusal(precision, device)
    assert (refused and refused.reason) == expected
    assert refused is None or refused.is_of_hardware == (device is not MI300X or precision == "tf32")


def test_a_torch_without_products_of_fp8_refuses_them() -> None:
    refused = refusal("fp8", replace(H100, has_scaled_products=False))
    assert refused is not None
    assert "has no fp8 matrix products" in refused.reason
    assert not refused.is_of_hardware


def test_the_variable_that_overrules_torch_is_seen() -> None:
    always, never = replace(A100, tf32_override="1"), replace(A100, tf32_override="0")
    reasons = {
        "fp32": "NVIDIA_TF32_OVERRIDE=1 makes NVIDIA's libraries use TF32 in fp32",
        "tf32": "NVIDIA_TF32_OVERRIDE=0 disables TF32 in NVIDIA's libraries",
    }
    for refused, reason in (
        (refusal("fp32", always), reasons["fp32"]),
        (refusal("tf32", never), reasons["tf32"]),
    ):
        assert refused is not None
        assert refused.reason == reason
        assert refused.next_step == "Unset NVIDIA_TF32_OVERRIDE"
        assert not refused.is_of_hardware
    assert refusal("tf32", always) is None
    assert refusal("fp32", never) is None


def test_the_processor_of_this_machine_refuses_tf32_and_reads_back_none() -> None:
    device = torch.device("cpu")
    with pytest.raises(EnvironmentUnfitError, match=r"training\.precision: TF32 needs NVIDIA"):
        apply_precision("tf32", device)
    assert apply_precision("fp32", device).name == "fp32"
    assert accelerator_of(device).tf32_switch() is None


@pytest.fixture
def _switches_restored() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.usefixtures("_switches_restored")
@pytest.mark.parametrize(
    ("products", "convolutions", "expected"),
    [(True, True, "on"), (False, False, "off"), (True, False, "mixed"), (False, True, "mixed")],
)
def test_both_switches_of_tf32_are_read_back(products: bool, convolutions: bool, expected: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = products
    torch.backends.cudnn.allow_tf32 = convolutions
    assert find_accelerator("cuda").tf32_switch() == expected
