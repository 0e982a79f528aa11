"""One collective operation after another over all ranks: the request, and each rank's result.

Sizes are counted as in nccl-tests, so that results can be compared with familiar numbers
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
"""Operations for which the size is the total over all ranks: each rank sends or receives one part of it."""
REDUCING: frozenset[Operation] = frozenset(("all_reduce", "reduce_scatter", "reduce"))
ROOTED: frozenset[Operation] = frozenset(("broadcast", "reduce", "gather", "scatter"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSpec(Options):
    """Collective operations over all ranks, counted as in nccl-tests."""

    operations: Annotated[tuple[Operation, ...], SOME] = ("all_reduce",)
    """The operations to measure, in order: all_reduce, all_gather, reduce_scatter, all_to_all, all_to_all_v,
    broadcast, reduce, gather, scatter, send_recv."""
    min_bytes: Bytes = 8
    """The smallest size, e.g. 8, 64K, 128M or 2G (-b)."""
    max_bytes: Bytes = 64 * 2**20
    """The largest size (-e)."""
    factor: Factor = 4
    """Factor from one size to the next (-f)."""
    dtype: ElementType = "float32"
    """Data type of the elements."""
    reduction: Reduction = "sum"
    """Reduction operation for all_reduce, reduce_scatter and reduce."""
    root: Annotated[int, Limits(ge=0, le=10**6)] = 0
    """The root rank: the source of broadcast and scatter, and the destination of reduce and gather."""
    iterations: Iterations = 20
    """Timed iterations per size (-n)."""
    warmup_iterations: WarmUp = 5
    """Untimed warm-up iterations before the timed ones (-w)."""
    check_iterations: Annotated[int, Limits(ge=0, le=1000)] = 1
    """Additional iterations with an element-by-element comparison of results (-c); 0 disables the
    comparison."""
    blocking: bool = False
    """Wait for the device and all ranks between two iterations, outside the measured time (-z)."""
    skew: Annotated[float, Limits(ge=1, le=1000)] = 4.0
    """For all_to_all_v: how much each rank sends to the last rank, as a multiple of what it sends to each
    other rank."""

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """The sizes, from the smallest up to the largest that can be reached with the factor."""
        return growing_sizes(self.min_bytes, self.max_bytes, self.factor)


@record_kind("collective")
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTrial:
    """One operation at one size, as seen by one rank."""

    rank: int
    operation: Operation
    asked_bytes: Natural
    size_bytes: Natural
    """Size as counted by nccl-tests, rounded down to whole elements per rank; 0 if none are left."""
    num_elements: Natural
    """Number of elements in `size_bytes`."""
    durations_s: Amounts
    """The time of each iteration, in order, on the window's clock."""
    num_checked: Natural
    """Number of elements of this rank's output that were compared with expected values, over all checks."""
    num_wrong: Natural
    not_checked: str | None = None
    """Why no result was compared."""
