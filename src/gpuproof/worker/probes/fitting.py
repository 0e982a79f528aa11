"""How large may matrices be that a device is done with them in time? Tried from small ones up.

The time of twice the width is foreseen as eight times that of a repeat, whose kernels are there by then.
Ranks of a launch agree on the smallest, so that all do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from gpuproof.worker.rank.bench import Bench

SMALLEST_EDGE = 256
"""Done by every device in any case: what all of a fleet have in common."""


def fitting_edge(edge: int, limit_s: float | None, attempt: Callable[[int], object], bench: Bench) -> int:
    """Return the largest width up to `edge` at which an attempt fits into `limit_s` on every rank."""
    tried = min(SMALLEST_EDGE, edge)
    while limit_s is not None and tried < edge:
        larger = min(2 * tried, edge)
        attempt(tried)
        bench.clock.synchronize()
        begin_s = monotonic()
        attempt(tried)
        bench.clock.synchronize()
        bench.beat()
        if (monotonic() - begin_s) * (larger / tried) ** 3 > limit_s:
            return bench.ranks.agree(tried)
        tried = larger
    return bench.ranks.agree(edge)
