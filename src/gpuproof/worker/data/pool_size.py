"""Number of batches in a sample pool: too many to fit in any cache, but no more than are read."""

from __future__ import annotations

import math

from gpuproof.records.case import ModelWork
from gpuproof.workloads.info.base import InputShape

POOL_BYTES = 256 * 2**20
"""Approximate size of a pool: far larger than any cache, but small compared with a device's memory."""
MIN_BATCHES, MAX_BATCHES = 2, 64


def num_pool_batches(shape: InputShape, batch_size: int, *, max_batches: int | None = None) -> int:
    """Return the number of batches in a pool: at most the number read, if known."""
    element_bytes = 8 if shape.kind == "tokens" else 4
    batch_bytes = batch_size * element_bytes * math.prod(shape.shape)
    count = min(MAX_BATCHES, max(MIN_BATCHES, POOL_BYTES // batch_bytes))
    return count if max_batches is None else min(count, max(max_batches, MIN_BATCHES))


def batches_read(work: ModelWork, *, min_window_s: float) -> int | None:
    """Count the batches read during warm-up and window; None if time or epochs end the window.

    `min_window_s` is the minimum duration of a window limited by steps on this device.
    """
    window = work.window
    least_s = min_window_s if window.min_seconds is None else window.min_seconds
    if not window.enabled or window.measure_by != "steps" or window.measure_steps is None or least_s:
        return None
    return (window.warmup_steps + window.measure_steps) * work.micro_batches
