"""The process's own memory under a step on a processor: what a step frees is kept for the next.

The allocator of glibc gives freed blocks at the heap's end, and large ones at once, back to the kernel, which
clears new pages in the next step. Those page faults take time that scatters, on virtual machines above all.
A GPU's steps have none of it, since torch keeps its memory.

Source: https://man7.org/linux/man-pages/man3/mallopt.3.html
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from gpuproof.accelerators.base import Accelerator

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
_NEVER_TRIMMED: Final = -1
_GLIBC: Final = "gnu_get_libc_version"
_OTHER_ALLOCATORS: Final = ("jemalloc", "tcmalloc", "mimalloc")


def keep_freed_memory() -> None:
    """Keep what this process frees, until it ends: no block is mapped by itself, and the heap is not cut."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIMMED)


def reason_freed_memory_is_not_kept(accelerator: Accelerator) -> str | None:
    """Return why steps on this device cannot be told to keep what they free; None where they can."""
    if accelerator.asynchronous:
        return "a step on a device uses the device's memory, which torch keeps in any case"
    if not hasattr(ctypes.CDLL(None), _GLIBC):
        return "only glibc's allocator can be told so, and this system has another"
    preloaded = [name for name in _OTHER_ALLOCATORS if name in os.environ.get("LD_PRELOAD", "")]
    return f"LD_PRELOAD puts {preloaded[0]} in the place of glibc's allocator" if preloaded else None
