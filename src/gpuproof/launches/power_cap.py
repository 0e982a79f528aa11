"""Was a launch measured at its power cap, and what does its window say then?

In: a launch and the readings beside it. Out: what `statistics.power_cap` makes of its step times where the
cap held a device for half of the window or longer, and sentences about it. The time is the driver's own
count, where it counts; `readings.throttling` believes no counter that stands still beside capped samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from gpuproof.base import units
from gpuproof.launches.generations import evened_steps
from gpuproof.launches.launch import Launch
from gpuproof.readings.window_readings import WindowReadings
from gpuproof.records.run import Window
from gpuproof.records.what_ran import AT_CAP, AT_POWER_CAP
from gpuproof.statistics.power_cap import PowerCapWindow, judge_power_cap

FROM_IDLE_S: Final = 0.1
"""An H100 met its cap after it."""


def capped_window(launch: Launch, readings: Sequence[WindowReadings]) -> PowerCapWindow | None:
    """Judge the window of a launch at its power cap; None where it was not at it, or kept no step times."""
    devices = (device for host in readings for device in host.devices)
    shares = ((device.throttle_shares or {}).get("power_cap", 0.0) for device in devices)
    if max(shares, default=0.0) < AT_CAP:
        return None
    return judge_power_cap(evened_steps(launch).times_s)


def rate_from_idle(launch: Launch) -> float | None:
    """Return the items a second of all ranks before the power cap was met; None where it was not."""
    cap = launch.slowest.power_cap
    if cap is None or cap.settled_after_s is None or not launch.settle_times_s:
        return None
    ends_s = list(accumulate(launch.settle_times_s))
    count = max(1, sum(end_s <= FROM_IDLE_S for end_s in ends_s))
    return count / ends_s[count - 1] * launch.items_total / launch.slowest.num_steps


def periods_text(window: PowerCapWindow) -> str:
    """Say how many periods of the cap's controller a window holds.

    >>> from gpuproof.statistics.power_cap import judge_power_cap
    >>> periods_text(judge_power_cap([1.0 + 0.1 * (step % 50 < 25) for step in range(1200)]))
    '24 periods of 52 s'
    """
    if window.period_s is None or window.num_periods is None:
        return f"{units.seconds(window.duration_s)} in which no period shows"
    return f"{window.num_periods:.0f} periods of {units.significant(window.period_s, 2)} s"


def resolution_text(window: PowerCapWindow) -> str | None:
    """Say which drift a window at the power cap would have shown; None of one that was too short."""
    if window.verdict == "too short" or window.detects is None:
        return None
    smallest = units.share(window.detects)
    return f"at the power cap for {periods_text(window)}: a drift of {smallest} over it would have shown"


def continuation(window: Window) -> str:
    """Say what was requested of a window that continued; nothing of one that did not."""
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
    return f"{requested} a launch requested, continued for {reason} (benchmark.{key})"
