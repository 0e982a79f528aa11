"""Keep the memory that the process frees in one step for the next one, for steps on a CPU.

glibc's allocator returns freed blocks to the kernel, either from the end of the heap or, for large blocks,
immediately. The next step then gets new pages, which the kernel zeroes first. The time of those page faults
varies, especially on virtual machines. GPU steps are not affected, since torch keeps its own memory.

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
    """Keep freed memory until this process exits: map no block separately, and never trim the heap."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIMMED)


def reason_freed_memory_is_not_kept(accelerator: Accelerator) -> str | None:
    """Return why steps on this device cannot keep the memory they free; None if they can."""
    if accelerator.asynchronous:
        return "a step on a device uses device memory, which torch keeps in any case"
    if not hasattr(ctypes.CDLL(None), _GLIBC):
        return "only glibc's allocator supports this, and this system uses another"
    preloaded = [name for name in _OTHER_ALLOCATORS if name in os.environ.get("LD_PRELOAD", "")]
    return f"LD_PRELOAD replaces glibc's allocator with {preloaded[0]}" if preloaded else None
