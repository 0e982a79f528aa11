"""Plain matmuls with operands on the device; built from the options in `catalogue.gemm`.

Operands are normally distributed random numbers; matmuls of zeros or patterns would run faster, since fewer
bits flip.
"""

from __future__ import annotations

import torch
from torch import nn

from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.gemm import GemmOptions

FP8 = torch.float8_e4m3fn
FP8_RESULT = torch.bfloat16
BEYOND_CACHES = 2**29
"""Minimum total bytes of the operands in rotation, more than fits into any cache: the largest known cache has
256 MiB."""


class MatrixProduct(nn.Module):
    """Computes C = A·B once per sample in a batch; the samples themselves are not used.

    With several sets of operands, each matmul uses the next set. If all sets together exceed any cache, every
    matmul reads its operands from memory, and the measured time includes only matmuls.
    """

    left: torch.Tensor
    right: torch.Tensor
    product: torch.Tensor
    scale: torch.Tensor
    """Scale for fp8, always 1, since no scaling is used."""

    def __init__(self, m: int, n: int, k: int, *, sets: int = 1) -> None:
        super().__init__()
        for name, shape in (("left", (sets, m, k)), ("right", (sets, k, n)), ("product", (m, n))):
            self.register_buffer(name, torch.randn(shape), persistent=False)
        self._next = 0
        self.last = 0
        """Index of the set of operands used most recently."""

    def in_type(self, dtype: torch.dtype) -> MatrixProduct:
        """Round the operands to `dtype`, the data type of the matmuls; for fp8, the result is bfloat16."""
        self.left, self.right = self.left.to(dtype), self.right.to(dtype)
        if dtype == FP8:  # the matmul needs its right operand in column-major order
            self.right = self.right.transpose(1, 2).contiguous().transpose(1, 2)
            self.register_buffer("scale", torch.ones((), device=self.left.device), persistent=False)
        self.product = self.product.to(FP8_RESULT if dtype == FP8 else dtype)
        return self

    def multiply(self) -> None:
        """Compute one matmul."""
        self.last = self._next
        self._next = (self._next + 1) % len(self.left)
        left, right = self.left[self.last], self.right[self.last]
        if left.dtype == FP8:
            self.product = torch._scaled_mm(  # torch has no public name for it
                left, right, scale_a=self.scale, scale_b=self.scale, out_dtype=FP8_RESULT
            )
        else:
            torch.mm(left, right, out=self.product)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Compute one matmul per sample; uses the autocast type if autocast is on and no type was set."""
        device = self.left.device.type
        if torch.is_autocast_enabled(device) and self.left.dtype == torch.float32:
            self.in_type(torch.get_autocast_dtype(device))
        for _ in range(len(samples)):
            self.multiply()
        return samples


def build_gemm(options: GemmOptions, _shape: InputShape) -> MatrixProduct:
    """Build the matmul for `options`; maps (batch, 1) to itself."""
    assert not isinstance(options.m, str)
    assert not isinstance(options.n, str)
    assert not isinstance(options.k, str)
    # computed for 2-byte numbers; with fp8, part of the data may still be cached
    set_bytes = 2 * (options.m * options.k + options.k * options.n)
    sets = 1 + -(-BEYOND_CACHES // set_bytes) if options.cold_cache else 1
    return MatrixProduct(options.m, options.n, options.k, sets=sets)
