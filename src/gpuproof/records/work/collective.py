"""One collective operation after another over all ranks: what is asked for, and what each rank measured.

Sizes are counted as nccl-tests counts them, so that figures stand beside those that people know
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuproof.records.codec import Amounts, Natural
from gpuproof.records.journal import record_kind

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
class CollectiveSpec:
    """Which operations, at which sizes, how often."""

    operations: tuple[Operation, ...]
    sizes_bytes: tuple[int, ...]
    dtype: ElementType
    reduction: Reduction
    root: int
    warmup_iterations: int
    iterations: int
    check_iterations: int
    blocking: bool
    """Wait for the device and for all ranks between two iterations, outside of the time that is taken."""
    skew: float
    """Under all_to_all_v, what each rank sends to the last one over what it sends to any other."""
    seed: int = 0


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
