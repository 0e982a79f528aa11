"""The one function that makes a rate, so that items and seconds are joined in one way everywhere.

A rate is total over total. A mean of per-step rates overstates: 99 steps of 7.8 ms and one of 100 ms,
64 items each, are 6,400 items in 0.8722 s.

>>> round(throughput(6_400, 0.8722), 1)
7337.8
"""

from __future__ import annotations

from math import isfinite


def throughput(items_total: float, longest_window_s: float) -> float:
    """Give items_per_s_total: the items of all ranks over the seconds of the longest rank's window.

    Raises:
        ValueError: the seconds are not above 0, the items are negative, or one is not finite.
    """
    if not (isfinite(longest_window_s) and longest_window_s > 0):
        raise ValueError(f"a rate needs a window longer than 0 s, not {longest_window_s} s")
    if not (isfinite(items_total) and items_total >= 0):
        raise ValueError(f"a rate needs a count of items, not {items_total}")
    return items_total / longest_window_s
