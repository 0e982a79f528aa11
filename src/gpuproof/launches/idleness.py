"""For what share of the window did the device wait for data, or have nothing to do at all?

Data was waited for only where a loader ran: with all samples on the device before the window every answer is
None. The rank that waited longest decides, since all others wait for it in every step.

How idle a device was: in come a window, how often its device had come to the end of its queue, and the busy
time of a step in blocks after it. Out comes the share with its interval over the blocks; time in which a
loader was waited for is left out, since it is a figure of its own. It is the share of this window; how busy
the device is in a step is taken to be the same in it and after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.base.units import share
from gpuproof.launches.launch import Launch
from gpuproof.records.run import DeviceBusy, Window
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.launches import interval_of_launches


def data_wait_share(launches: Sequence[Launch]) -> float | None:
    """Return the share of all windows together that was waited; None where no loader ran.

    >>> data_wait_share([]) is None
    True
    """
    waits = [waiting_window(launch) for launch in launches]
    pairs = [(w.data_wait_s, w.wall_s) for w in waits if w is not None and w.data_wait_s is not None]
    if not pairs or len(pairs) < len(launches):
        return None
    return sum(wait_s for wait_s, _ in pairs) / sum(wall_s for _, wall_s in pairs)


def waiting_window(launch: Launch) -> Window | None:
    """Return the window of the rank that waited longest; None where none waited by a clock."""
    windows = [window for window in launch.windows if window.data_wait_s is not None]
    return max(windows, key=lambda window: window.data_wait_s or 0.0, default=None)


def idle_share(launch: Launch) -> Interval | Unavailable | None:
    """Return the share of the rank whose device was idle the most, by the interval's lower end.

    None where no device was seen to wait, and so nobody looked; the reason where looking told nothing.
    """
    by_rank = {window.rank: window for window in launch.windows}
    shares = [_of_rank(by_rank[busy.rank], busy) for busy in launch.busy if busy.rank in by_rank]
    measured = [interval for interval in shares if isinstance(interval, Interval)]
    return max(measured, key=lambda interval: interval.low) if measured else next(iter(shares), None)


def idle_text(idle: Interval) -> str:
    """Write the share of the window, and its interval where that tells anything.

    >>> idle_text(Interval(low=0.5, high=0.52, centre=0.51, confidence=0.95, method="", num_launches=1,
    ...                    num_samples=6, between_launches=False))
    '51 % of the window (50 % to 52 %)'
    """
    low, high = share(idle.low), share(idle.high)
    return f"{share(idle.centre)} of the window" + (f" ({low} to {high})" if low != high else "")


def _of_rank(window: Window, busy: DeviceBusy) -> Interval | Unavailable:
    if busy.missing is not None:
        return Unavailable(reason=busy.missing)
    per_step = interval_of_launches(busy.busy_s_per_step)  # blocks, like launches, are taken as independent
    if isinstance(per_step, Unavailable):
        return Unavailable(reason="the device was looked at only once")
    step_s = window.wall_s / window.num_steps
    waited = (window.data_wait_s or 0.0) / window.wall_s

    def idle(busy_s: float) -> float:
        return min(1.0, max(0.0, 1 - busy_s / step_s - waited))

    return Interval(
        low=idle(per_step.high),
        high=idle(per_step.low),
        centre=idle(per_step.centre),
        confidence=per_step.confidence,
        method="Student's t on blocks of steps after the window",
        num_launches=1,
        num_samples=len(busy.busy_s_per_step),
        between_launches=False,
    )
