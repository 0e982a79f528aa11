"""`collective`: which collective operations are measured, at which sizes, how often (kind: collective)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpuproof.config.sections.base import Bytes, ConfigSection, growing_sizes
from gpuproof.records.work.collective import ElementType, Operation, Reduction


class CollectiveConfig(ConfigSection):
    """Collective operations over all ranks, counted as nccl-tests counts them."""

    operations: Annotated[tuple[Operation, ...], Field(min_length=1, strict=False)] = ("all_reduce",)
    """Operations to measure, in this order: all_reduce, all_gather, reduce_scatter, all_to_all,
    all_to_all_v, broadcast, reduce, gather, scatter, send_recv."""
    min_bytes: Bytes = 8
    """The smallest size, as 8, 64K, 128M or 2G (-b)."""
    max_bytes: Bytes = 64 * 2**20
    """The largest size (-e)."""
    factor: int = Field(default=4, ge=2, le=1024)
    """Factor from one size to the next (-f)."""
    dtype: ElementType = "float32"
    """Type of the elements."""
    reduction: Reduction = "sum"
    """Reduction of all_reduce, reduce_scatter and reduce."""
    root: int = Field(default=0, ge=0, le=10**6)
    """The rank that broadcast and scatter begin at, and that reduce and gather end at."""
    iterations: int = Field(default=20, ge=1, le=100_000)
    """Timed iterations of each size (-n)."""
    warmup_iterations: int = Field(default=5, ge=0, le=100_000)
    """Untimed iterations before them (-w)."""
    check_iterations: int = Field(default=1, ge=0, le=1000)
    """Iterations after them whose results are compared, element by element (-c); 0 compares nothing."""
    blocking: bool = False
    """Wait for the device and for all ranks between two iterations, outside of the time (-z)."""
    skew: float = Field(default=4.0, ge=1, le=1000)
    """Under all_to_all_v, what each rank sends to the last one, as a multiple of what it sends to others."""

    def sizes_bytes(self) -> tuple[int, ...]:
        """Return the sizes, from the smallest up to the largest that the factor reaches."""
        return growing_sizes(self.min_bytes, self.max_bytes, self.factor)
