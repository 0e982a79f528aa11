"""One collective operation after another over all ranks: what is asked for, and what each rank measured.

Sizes are counted as nccl-tests counts them, so that figures stand beside those that people know
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gpuproof.records.codec import Amounts, Natural
from gpuproof.records.journal import record_kind
from gpuproof.records.work.options import (
    SOME,
    Bytes,
    Factor,
    Iterations,
    Limits,
    Options,
    WarmUp,
    growing_sizes,
)

Operation = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
]
ElementType = Literal["float32", "float16", "bfloat16", "float64", "int8", "int32", "int64"]
Reduction = Literal["sum", "max", "min"]

ELEMENT_BYTES: dict[ElementType, int] = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
}
SHARED_OUT: frozenset[Operation] = frozenset(
    ("all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter")
)
"""Operations whose size is that of all ranks' parts together, each rank sending or getting one."""
REDUCING: frozenset[Operation] = frozenset(("all_reduce", "reduce_scatter", "reduce"))
ROOTED: frozenset[Operation] = frozenset(("broadcast", "reduce", "gather", "scatter"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSpec(Options):
    """Collective operations over all ranks, counted as nccl-tests counts them."""

    operations: Annotated[tuple[Operation, ...], SOME] = ("all_reduce",)
    """Operations to measure, in this order: all_reduce, all_gather, reduce_scatter, all_to_all,
    all_to_all_v, broadcast, reduce, gather, scatter, send_recv."""
    min_bytes: Bytes = 8
    """The smallest size, as 8, 64K, 128M or 2G (-b)."""
    max_bytes: Bytes = 64 * 2**20
    """The largest size (-e)."""
    factor: Factor = 4
    """Factor from one size to the next (-f)."""
    dtype: ElementType = "float32"
    """Type of the elements."""
    reduction: Reduction = "sum"
    """Reduction of all_reduce, reduce_scatter and reduce."""
    root: Annotated[int, Limits(ge=0, le=10**6)] = 0
    """The rank that broadcast and scatter begin at, and that reduce and gather end at."""
    iterations: Iterations = 20
    """Timed iterations of each size (-n)."""
    warmup_iterations: WarmUp = 5
    """Untimed iterations before them (-w)."""
    check_iterations: Annotated[int, Limits(ge=0, le=1000)] = 1
    """Iterations after them whose results are compared, element by element (-c); 0 compares nothing."""
    blocking: bool = False
    """Wait for the device and for all ranks between two iterations, outside of the time (-z)."""
    skew: Annotated[float, Limits(ge=1, le=1000)] = 4.0
    """Under all_to_all_v, what each rank sends to the last one, as a multiple of what it sends to others."""

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """Sizes, from the smallest up to the largest that the factor reaches."""
        return growing_sizes(self.min_bytes, self.max_bytes, self.factor)


@record_kind("collective")
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTrial:
    """One operation at one size, as one rank saw it."""

    rank: int
    operation: Operation
    asked_bytes: Natural
    size_bytes: Natural
    """As nccl-tests counts it, after rounding down to whole elements of every rank; 0 where none is left."""
    num_elements: Natural
    """That `size_bytes` is made of."""
    durations_s: Amounts
    """Of each iteration, in order, by the clock of the window."""
    num_checked: Natural
    """Elements of this rank's output that were compared with what they must be, over all checks."""
    num_wrong: Natural
    not_checked: str | None = None
    """Why no result was compared."""
