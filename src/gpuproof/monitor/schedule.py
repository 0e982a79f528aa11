"""When is the next reading due? Absolute deadlines, so that late readings never shift the later ones.

In: the start and the interval. Out: the next deadline, and how many ticks were missed altogether.

>>> schedule = Schedule(start_s=100.0, interval_s=0.5)
>>> schedule.advance(now_s=100.1), schedule.deadline_s, schedule.missed_ticks
(None, 100.5, 0)
>>> schedule.advance(now_s=101.7), schedule.deadline_s, schedule.missed_ticks
(None, 101.5, 1)
"""

from __future__ import annotations

TOLERANCE_S = 1e-6


class Schedule:
    """Ticks at start + n · interval; a tick is missed when the next one is due before it was taken."""

    def __init__(self, *, start_s: float, interval_s: float) -> None:
        self._start_s = start_s
        self._interval_s = interval_s
        self._tick = 0
        self.missed_ticks = 0

    @property
    def deadline_s(self) -> float:
        """When the next tick is due, on the clock of `start_s`."""
        return self._start_s + self._tick * self._interval_s

    def is_due(self, now_s: float) -> bool:
        """Tell whether the next tick is due; rounding of the deadlines does not count."""
        return now_s >= self.deadline_s - TOLERANCE_S

    def advance(self, now_s: float) -> None:
        """Go on to the next tick after one was taken; those that are wholly past are missed."""
        following = self._tick + 1
        latest = int((now_s - self._start_s + TOLERANCE_S) / self._interval_s)
        self._tick = max(following, latest)
        self.missed_ticks += self._tick - following
