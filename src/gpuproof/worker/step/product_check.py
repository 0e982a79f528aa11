"""Is the window's last matmul correct? Compares its result with the host's double-precision sums.

The CPU computes the reference from the rounded operands, since a faulty device would make the same mistake
twice. An element may be off by the rounding error of the computation:

    λ·r·u·‖a‖·‖b‖ + v·|c|,  λ = √(2·ln(2·m·n·k/δ)),  r = min(√k, λ/√2)

u is the unit roundoff of the sums, and v the unit roundoff of the result; ‖a‖·‖b‖ bounds Σ|aᵢ·bᵢ| (Cauchy and
Schwarz). The k rounding errors of one sum hardly ever add up to more than λ·√k individual errors (Higham and
Mary 2019, https://doi.org/10.1137/18M1226312), where δ is the probability of an exception: one matmul in a
million. Operands are drawn independently. So a running sum of l terms hardly ever exceeds λ·√l individual
terms either, nor do its rounding errors exceed λ·√(Σ l)·λ·u = λ²·u·k/√2, which is the smaller of the two
bounds for long sums. TF32 operands are rounded inside the device, which adds λ·2·w·‖a∘b‖, where w is TF32's
roundoff.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

import torch

from gpuproof.records.work.probe import ProbeReading
from gpuproof.records.work.training import Precision
from gpuproof.workloads.info.catalogue.gemm import gemm_flops
from gpuproof.workloads.torch.gemm import MatrixProduct

FALSE_ALARM = 1e-6
"""Probability that the result of a matmul exceeds the bound by chance."""
MOST_FLOPS = 2**39
"""Maximum cost of the reference in FLOPs; for larger matmuls, as many evenly spaced rows are compared as this
allows."""
ROWS_AT_ONCE = 256
MOST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Roundoff:
    """Unit roundoffs of a precision: for sums, for the result, and for operands inside the device."""

    sums: float
    result: float
    operands: float = 0.0


ROUNDOFFS: dict[Precision, Roundoff] = {
    "fp64": Roundoff(2**-52, 2**-53),
    "fp32": Roundoff(2**-24, 2**-24),
    "tf32": Roundoff(2**-23, 2**-24, operands=2**-10),
    "amp": Roundoff(2**-23, 2**-11),
    "bf16": Roundoff(2**-23, 2**-8),
    "fp8": Roundoff(2**-13, 2**-8),
}
"""Half-precision sums are accumulated in fp32, and tensor cores may truncate bits that other hardware
rounds, so the value for these sums is slightly larger. fp8 sums retain about 14 bits on Hopper
(https://arxiv.org/abs/2412.19437, 3.3.2). The fp64 reference is itself computed in fp64, so both may be
off."""


def check_product(product: MatrixProduct, precision: Precision, *, rank: int) -> ProbeReading:
    """Check the last matmul; the value of the returned reading is the number of wrong elements."""
    factors = product.left[product.last], product.right[product.last]
    return compare_product(*factors, product.product, precision, rank=rank)


def compare_product(
    left: torch.Tensor, right: torch.Tensor, product: torch.Tensor, precision: Precision, *, rank: int
) -> ProbeReading:
    """Compare the result of a matmul with the host's result; return how many elements are wrong."""
    left, right, got = (matrix.cpu().double() for matrix in (left, right, product))
    rows = _rows(left.shape[0], right.shape[1], left.shape[1])
    wrong, widest = 0, 0.0
    shown: list[str] = []
    for some in rows.split(ROWS_AT_ONCE):
        expected = left[some] @ right
        allowed = _allowed(left[some], right, expected, ROUNDOFFS[precision])
        off = ~((got[some] - expected).abs() <= allowed)  # a NaN also counts as wrong
        wrong += int(off.sum())
        widest = max(widest, float(allowed.max()))
        for row, column in off.nonzero()[: MOST_SHOWN - len(shown)].tolist():
            value, right_value = float(got[some[row], column]), float(expected[row, column])
            shown.append(f"element ({int(some[row])}, {column}) is {value:.6g}, not {right_value:.6g}")
    share = "all elements" if len(rows) == len(left) else f"{len(rows)} of {len(left)} rows"
    return ProbeReading(
        rank=rank,
        quantity="wrong values",
        unit="1",
        labels={"workload": "gemm", "pattern": "reference"},
        value=float(wrong),
        evidence=(f"{share} compared in fp64 on the host, with a tolerance of {widest:.3g}", *shown),
    )


def _rows(m: int, n: int, k: int) -> torch.Tensor:
    """Return the rows to compare: all of them, or as many as the reference's cost limit allows."""
    affordable = max(1, min(m, int(MOST_FLOPS / gemm_flops(1, n, k))))
    return torch.linspace(0, m - 1, affordable).round().long()


def _allowed(
    left: torch.Tensor, right: torch.Tensor, expected: torch.Tensor, roundoff: Roundoff
) -> torch.Tensor:
    """Return how far off each element may be; see the module docstring."""
    k = left.shape[1]
    usual = sqrt(2 * log(2 * expected.numel() * k / FALSE_ALARM))
    spread = min(sqrt(k), usual / sqrt(2))
    sums = usual * spread * roundoff.sums * torch.outer(left.norm(dim=1), right.norm(dim=0))
    allowed = sums + roundoff.result * expected.abs()
    if roundoff.operands:
        squares = torch.outer((left**2).norm(dim=1), (right**2).norm(dim=0)).sqrt()
        allowed += usual * 2 * roundoff.operands * squares
    return allowed
