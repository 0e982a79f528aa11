"""What is sent, and what must come out: small whole numbers, so that every sum is exact in every type.

Element i of what rank r sends is i mod p + r mod q. It differs from its neighbours and between ranks, and so
does the sum over any number of ranks: a part that is shifted, left out, sent twice or taken from another rank
shows. A sum over n ranks is at most n·(p + q − 2), which the type must hold exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpuproof.records.work.collective import ElementType, Reduction

EXACT_UP_TO: dict[ElementType, int] = {
    "float64": 2**53,
    "float32": 2**24,
    "float16": 2**11,
    "bfloat16": 2**8,
    "int64": 2**63 - 1,
    "int32": 2**31 - 1,
    "int8": 2**7 - 1,
}
"""The whole number up to which every one is held: of floating-point formats by the significand (IEEE 754)."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """How many different values there are along the elements (p), and how many between ranks (q)."""

    along: int
    between: int

    def highest_sum(self, num_ranks: int) -> int:
        """Return the most that a sum over ranks can be."""
        return num_ranks * (self.along + self.between - 2)

    def sent_by(self, rank: int, first: int, count: int, *, like: torch.Tensor) -> torch.Tensor:
        """Return elements `first` … of what a rank sends, as `like` in type and device; shape (count,)."""
        return self._along(first, count, like).add_(rank % self.between).to(like.dtype)

    def reduced(
        self, reduction: Reduction, num_ranks: int, first: int, count: int, *, like: torch.Tensor
    ) -> torch.Tensor:
        """Return elements `first` … of the reduction over all ranks; shape (count,)."""
        of_ranks = [rank % self.between for rank in range(num_ranks)]
        along = self._along(first, count, like)
        if reduction == "sum":
            return (along * num_ranks + sum(of_ranks)).to(like.dtype)
        return (along + (max(of_ranks) if reduction == "max" else min(of_ranks))).to(like.dtype)

    def _along(self, first: int, count: int, like: torch.Tensor) -> torch.Tensor:
        return torch.arange(first, first + count, device=like.device) % self.along


LADDER = (Pattern(13, 7), Pattern(5, 3), Pattern(3, 2), Pattern(2, 1))
"""The more values the more shows: the first is taken whose sums are exact."""


def pattern_for(dtype: ElementType, reduction: Reduction, num_ranks: int) -> Pattern | None:
    """Return the pattern of so many ranks; None where no sum of different values is exact.

    >>> pattern_for("float32", "sum", 8), pattern_for("bfloat16", "sum", 64), pattern_for("int8", "sum", 200)
    (Pattern(along=13, between=7), Pattern(along=3, between=2), None)
    """
    if reduction != "sum":
        return LADDER[0]
    fitting = (pattern for pattern in LADDER if pattern.highest_sum(num_ranks) <= EXACT_UP_TO[dtype])
    return next(fitting, None)
