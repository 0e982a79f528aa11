"""How much work saturates a device? A fixed table (records/sizes.csv) by memory and cache size.

If a recipe sets a size to `auto`, the case stores `auto`, and the rank that has the device replaces it with a
number. The rank's setup record contains the number and the reason. A CPU, and a device with less memory than
the smallest in the table, get `UNFITTED`.

>>> sizes_for(80 * 2**30, cache_bytes=50 * 2**20)
DeviceSizes(gemm_edge=8192, buffer_bytes=4294967296, batch_of_350m=8)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuproof.base.files import packaged_rows

Auto = Literal["auto"]
AUTO: Auto = "auto"
GIB, MIB = 2**30, 2**20
CACHES_PER_BUFFER = 32
"""A memory pass over this many times the cache size reads almost nothing from the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSizes:
    """Workload sizes for a device."""

    gemm_edge: int
    """m = n = k of the matmul."""
    buffer_bytes: int
    """Size of each buffer in a memory pass."""
    batch_of_350m: int | None = None
    """Sequences of 2,048 tokens per step of the 350M decoder; None if the decoder does not fit."""


UNFITTED = DeviceSizes(gemm_edge=1024, buffer_bytes=64 * MIB)
"""Sizes for CPUs, which are slow, and for devices too small for training."""


def sizes_for(memory_bytes: int | None, *, cache_bytes: int | None = None) -> DeviceSizes:
    """Return the sizes for a device with this much memory; None means a CPU, or unknown.

    If the cache is larger than in the table, the buffer is enlarged.
    """
    for row in packaged_rows("records/sizes.csv"):
        if memory_bytes is not None and memory_bytes >= int(row["memory_gib"]) * GIB:
            batch, least = row["batch_of_350m"], CACHES_PER_BUFFER * (cache_bytes or 0)
            return DeviceSizes(
                gemm_edge=int(row["gemm_edge"]),
                buffer_bytes=max(int(row["buffer_mib"]) * MIB, least),
                batch_of_350m=None if batch is None else int(batch),
            )
    return UNFITTED
