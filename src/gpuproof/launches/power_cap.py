"""Was a launch measured at its power cap, and how does that affect its window?

In: a launch and its readings. Out: the result of `statistics.power_cap` for its step times, if the cap slowed
a device down for at least half of the window, and sentences about it. The time at the cap is the driver's own
count, if available; `readings.totals` does not trust a counter that does not move while samples show a cap.

Decode step times are evaluated without the effect of their position in a generation (`evened_steps`), because
each step attends to one token more than the step before, until the cache is reset to the prompt. If a window
contains twenty generations or more, the effect of a position is the median of its steps; with fewer, it is
read from a line through the medians of ten parts of a generation, provided that these medians lie on a line.
Steps that replay one graph per bucket of lengths take equally long within a bucket, so the bucket's median is
used. With fewer than two generations, time and position coincide, and a device that slows down looks like a
growing cache: `is_separable` indicates whether the two effects can be separated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuproof.base import units
from gpuproof.launches.launch import Launch
from gpuproof.readings.evidence import WindowReadings
from gpuproof.records.run import Window
from gpuproof.records.what_ran import AT_CAP, AT_POWER_CAP
from gpuproof.statistics.estimate import FloatArray
from gpuproof.statistics.power_cap import PowerCapWindow, judge_power_cap

FROM_IDLE_S: Final = 0.1
"""Time that an H100 starting from idle needed to reach its cap."""
Places = NDArray[np.signedinteger]
MANY_GENERATIONS = 20
"""Minimum number of generations for a median; with fewer, it would absorb much of the noise."""
TOLD_APART = 2
"""Minimum number of generations needed to separate position from time."""
NUM_PARTS = 10
FEWEST_STEPS = 20
"""Minimum number of steps for fitting a line."""
ON_A_LINE = 0.9
"""Minimum correlation of the parts' medians with their positions; without growth, 2 in 10,000 get this close
by chance."""


def capped_window(launch: Launch, readings: Sequence[WindowReadings]) -> PowerCapWindow | None:
    """Evaluate a launch's window at its power cap; None if not at the cap or without step times."""
    devices = (device for host in readings for device in host.devices)
    shares = ((device.throttle_shares or {}).get("power_cap", 0.0) for device in devices)
    if max(shares, default=0.0) < AT_CAP:
        return None
    return judge_power_cap(evened_steps(launch).times_s)


def rate_from_idle(launch: Launch) -> float | None:
    """Return the items per second of all ranks before the power cap; None if it was not reached."""
    cap = launch.slowest.power_cap
    if cap is None or cap.settled_after_s is None or not launch.settle_times_s:
        return None
    ends_s = list(accumulate(launch.settle_times_s))
    count = max(1, sum(end_s <= FROM_IDLE_S for end_s in ends_s))
    return count / ends_s[count - 1] * launch.items_total / launch.slowest.num_steps


def periods_text(window: PowerCapWindow) -> str:
    """Report how many periods of the power cap's controller a window contains.

    >>> from gpuproof.statistics.power_cap import judge_power_cap
    >>> periods_text(judge_power_cap([1.0 + 0.1 * (step % 50 < 25) for step in range(1200)]))
    '24 periods of 52 s'
    """
    if window.period_s is None or window.num_periods is None:
        return f"{units.seconds(window.duration_s)} without a visible period"
    return f"{window.num_periods:.0f} periods of {units.significant(window.period_s, 2)} s"


def resolution_text(window: PowerCapWindow) -> str | None:
    """Report the drift that a window at the power cap would have revealed; None if it was too short."""
    if window.verdict == "too short" or window.detects is None:
        return None
    smallest = units.share(window.detects)
    return (
        f"at the power cap for {periods_text(window)}: a drift of {smallest} during that time "
        "would have been detected"
    )


def continuation(window: Window) -> str:
    """Report what was requested for an extended window; nothing if the window was not extended."""
    is_at_cap = window.stop_reason.endswith(AT_POWER_CAP)
    if window.requested_steps and window.num_steps > window.requested_steps:
        requested = f"{units.count(window.requested_steps)} steps"
    elif window.requested_s and is_at_cap:
        requested = f"{window.requested_s:g} s"
    else:
        return ""
    key, reason = ("min_seconds", "readings and intervals")
    if is_at_cap:
        period_s = window.power_cap.period_s if window.power_cap else None
        each = f" of {units.significant(period_s, 2)} s" if period_s else ""
        key, reason = ("power_cap_limit_s", f"periods{each} of the power cap")
    return f"{requested} per launch requested, then extended for {reason} (benchmark.{key})"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenedSteps:
    """Step times of a launch, adjusted as if all steps were equal."""

    times_s: tuple[float, ...]
    growth: float | None
    """Growth from the first position of a generation in the window to the last (0.1 is 10 %); None if step
    times do not grow, or if nothing was adjusted."""
    is_separable: bool
    """Whether growth with the position can be separated from a change over time."""


def evened_steps(launch: Launch) -> EvenedSteps:
    """Return a launch's step times with the growth within generations removed; others are unchanged."""
    times_s = launch.step_times_s
    length, begin = launch.case.model_work.steps_of_a_generation, launch.slowest.tokens_before
    enough = length is not None and len(times_s) >= MANY_GENERATIONS * length
    if length is None or len(times_s) < FEWEST_STEPS or (begin is None and not enough):
        return EvenedSteps(times_s=times_s, growth=None, is_separable=True)
    times, places = np.array(times_s), ((begin or 0) + np.arange(len(times_s))) % length
    buckets = None if begin is None else _buckets(launch, places)
    if buckets is not None:
        expected: FloatArray | None = _medians(times, buckets)
    else:
        expected = _medians(times, places) if enough else _line(times, places)
    if expected is None:
        return EvenedSteps(times_s=times_s, growth=None, is_separable=True)
    evened = times / expected * np.median(times)
    first, last = expected[np.argmin(places)], expected[np.argmax(places)]
    return EvenedSteps(
        times_s=tuple(evened.tolist()),
        growth=float(last / first) - 1,
        is_separable=len(times_s) >= TOLD_APART * length,
    )


def _buckets(launch: Launch, places: Places) -> Places | None:
    """Return the bucket of each step if steps in a bucket share one graph; None without buckets."""
    options, prompt = launch.setup.options, launch.setup.input_shape
    if options is None or not options.graph_ends or prompt is None:
        return None
    return np.searchsorted(options.graph_ends, prompt[0] + 1 + places)


def _medians(times: FloatArray, places: Places) -> FloatArray:
    """Replace each step time by the median at the step's position."""
    by_place = {place: np.median(times[places == place]) for place in np.unique(places).tolist()}
    return np.array([by_place[place] for place in places.tolist()])


def _line(times: FloatArray, places: Places) -> FloatArray | None:
    """Replace each step time by the line's value at its position; None if times do not grow linearly."""
    if len(np.unique(places)) < NUM_PARTS:
        return None
    parts = np.array_split(np.argsort(places, kind="stable"), NUM_PARTS)
    middles = [float(np.mean(places[part])) for part in parts]
    medians = [float(np.median(times[part])) for part in parts]
    if np.ptp(medians) == 0 or np.corrcoef(middles, medians)[0, 1] < ON_A_LINE:
        return None
    slope, start = np.polyfit(middles, medians, 1)
    if start <= 0:
        return None
    expected: FloatArray = start + slope * places
    return expected
