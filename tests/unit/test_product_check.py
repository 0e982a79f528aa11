"""One wrong element of a product is found in every number format, and right ones are never accused."""

from __future__ import annotations

import pytest
import torch

from gpuproof.records.work.training import Precision
from gpuproof.worker.step.product_check import check_product
from gpuproof.workloads.torch.gemm import FP8, MatrixProduct

TYPES: dict[Precision, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "amp": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": FP8,
}


def product(precision: Precision, *, k: int = 256, seed: int = 0) -> MatrixProduct:
    torch.manual_seed(seed)
    made = MatrixProduct(96, 64, k).in_type(TYPES[precision])
    made.multiply()
    return made


@pytest.mark.parametrize("precision", TYPES)
def test_right_products_pass_whatever_the_seed(precision: Precision) -> None:
    wrong = [
        check_product(product(precision, k=k, seed=s), precision, rank=0).value
        for s in range(4)
        for k in (16, 512)
    ]
    assert sum(value or 0 for value in wrong) == 0


@pytest.mark.parametrize("precision", TYPES)
def test_one_wrong_element_is_found_with_its_place(precision: Precision) -> None:
    made = product(precision)
    made.product[17, 33] += 16.0
    found = check_product(made, precision, rank=0)
    assert found.value == 1
    assert "element (17, 33)" in found.evidence[1]


def test_a_nan_is_wrong() -> None:
    made = product("fp32")
    made.product[0, 0] = torch.nan
    assert check_product(made, "fp32", rank=0).value == 1


def test_operands_in_tf32_pass_for_tf32_and_not_for_fp32() -> None:
    """TF32 keeps 10 bits of each operand: emulated by cutting the other 13 off."""
    torch.manual_seed(1)
    made = MatrixProduct(96, 64, 256)

    def cut(numbers: torch.Tensor) -> torch.Tensor:
        return (numbers.view(torch.int32) & ~0x1FFF).view(torch.float32)

    made.product = cut(made.left[0]) @ cut(made.right[0])
    assert check_product(made, "tf32", rank=0).value == 0
    assert (check_product(made, "fp32", rank=0).value or 0) > 0


def test_each_product_takes_the_next_operands_and_is_checked_with_its_own() -> None:
    torch.manual_seed(0)
    made = MatrixProduct(32, 32, 32, sets=3)
    for expected in (0, 1, 2, 0):
        made.multiply()
        assert made.last == expected
        assert check_product(made, "fp32", rank=0).value == 0
