"""How large is work that is to fill a device? One fixed table (records/sizes.csv), by memory and cache.

A size of `auto` in a recipe goes into the case as it is, and the rank that has the device puts the number in
its place. Its setup record says which, and why. A processor, and a device of less memory than the table's
smallest, get `UNFITTED`.

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
"""A pass over so many caches reads next to nothing from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSizes:
    """What work is to be like on a device."""

    gemm_edge: int
    """m = n = k of a matrix product."""
    buffer_bytes: int
    """Of each buffer of a pass over memory."""
    batch_of_350m: int | None = None
    """Sequences of 2,048 tokens in a step of the 350M decoder; None where it does not fit."""


UNFITTED = DeviceSizes(gemm_edge=1024, buffer_bytes=64 * MIB)
"""Of a processor, which takes its time, and of devices too small to be for training."""


def sizes_for(memory_bytes: int | None, *, cache_bytes: int | None = None) -> DeviceSizes:
    """Return the sizes for a device of so much memory; None is a processor, or not known.

    A cache that is larger than the table's raises the buffer.
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
