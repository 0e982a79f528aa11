"""Plain matrix products with operands on the device; built from the options in `catalogue.gemm`.

Operands are random and normal: products of zeros or of patterns run faster, since fewer bits flip.
"""

from __future__ import annotations

import torch
from torch import nn

from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.gemm import GemmOptions


class MatrixProduct(nn.Module):
    """C = A·B, once for each sample of a batch; the samples themselves are not looked at."""

    left: torch.Tensor
    right: torch.Tensor
    product: torch.Tensor

    def __init__(self, m: int, n: int, k: int) -> None:
        super().__init__()
        for name, shape in (("left", (m, k)), ("right", (k, n)), ("product", (m, n))):
            self.register_buffer(name, torch.randn(shape), persistent=False)

    def in_type(self, dtype: torch.dtype) -> MatrixProduct:
        """Round the operands to `dtype`, in which products are then made."""
        self.left, self.right = self.left.to(dtype), self.right.to(dtype)
        self.product = self.product.to(dtype)
        return self

    def multiply(self) -> None:
        """Make one product."""
        torch.mm(self.left, self.right, out=self.product)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Make one product for each sample, in the type of autocast where that is on."""
        device = self.left.device.type
        if torch.is_autocast_enabled(device) and self.left.dtype != torch.get_autocast_dtype(device):
            self.in_type(torch.get_autocast_dtype(device))
        for _ in range(len(samples)):
            self.multiply()
        return samples


def build_gemm(options: GemmOptions, _shape: InputShape) -> MatrixProduct:
    """Build the product of `options`; maps (batch, 1) to itself."""
    return MatrixProduct(options.m, options.n, options.k)
