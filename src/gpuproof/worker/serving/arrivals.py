"""When do requests arrive? Schedules that are drawn before the window, from a seed.

In: rate, number or duration. Out: seconds from the window's begin, in order. Generator and batcher each draw
the same schedule from the same seed, so that it need not be sent. Latency is counted from these times, not
from when a request could be sent: a server that stalls holds up no clock (no coordinated omission).
"""

from __future__ import annotations

import random
from array import array
from typing import Literal

Arrivals = Literal["poisson", "constant"]


def schedule(arrivals: Arrivals, *, rate_per_s: float, num_requests: int, seed: int) -> array[float]:
    """Return the arrival times of `num_requests` requests in seconds; the first comes after one gap.

    Poisson arrivals have independent exponential gaps of mean 1/rate, as users who know nothing of each
    other.

    >>> list(schedule("constant", rate_per_s=4, num_requests=3, seed=0))
    [0.25, 0.5, 0.75]

    Raises:
        ValueError: the rate is not above 0.
    """
    if not rate_per_s > 0:
        raise ValueError(f"a rate is above 0 requests/s, not {rate_per_s}")
    if arrivals == "constant":
        return array("d", ((k + 1) / rate_per_s for k in range(num_requests)))
    draw = random.Random(seed).expovariate  # noqa: S311  # a schedule, no secret
    times = array("d", bytes(8 * num_requests))
    now_s = 0.0
    for k in range(num_requests):
        now_s += draw(rate_per_s)
        times[k] = now_s
    return times


def at_once(num_requests: int) -> array[float]:
    """Return the schedule of MLPerf's offline scenario: all that there is, at the window's begin."""
    return array("d", bytes(8 * num_requests))
