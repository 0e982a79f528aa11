"""Clocks of the host: of steps that are done when they return, and of steps that are waited for.

They know no framework: what waits for a device is given to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Literal

ClockName = Literal["device_event", "host", "host_synchronised"]


class HostClock:
    """Times steps that are done when they return."""

    name: ClockName = "host"
    capacity: int = 65_536
    caught_up: int | None = None
    """Not seen by this clock."""

    def __init__(self) -> None:
        self._begin_s = 0.0
        self._times_s: list[float] = []
        self._begun = 0
        self._drained = 0

    def begin(self) -> None:
        """Mark the start of a step."""
        self._begun += 1
        self._begin_s = perf_counter()

    def end(self) -> None:
        """Mark the end of a step."""
        self._times_s.append(perf_counter() - self._begin_s)

    def drain(self, *, in_flight: int) -> Sequence[float]:
        """Return the step times since the last call; none is ever under way."""
        times, self._times_s = self._times_s, []
        self._drained += len(times)
        return times

    def progress(self) -> tuple[int, int, int]:
        """Return how many steps were launched, begun and done; one that is launched has begun."""
        return self._begun, self._begun, self._drained + len(self._times_s)

    def synchronize(self) -> None:
        """Do nothing: a processor has done its work when the call returns."""


class SynchronisedClock(HostClock):
    """Times steps on the host between two synchronisations of the device."""

    name: ClockName = "host_synchronised"

    def __init__(self, synchronize: Callable[[], None]) -> None:
        super().__init__()
        self.synchronize = synchronize  # type: ignore[method-assign]  # the device's own, without a detour

    def begin(self) -> None:
        """Mark the start of a step, the device being idle."""
        self.synchronize()
        super().begin()

    def end(self) -> None:
        """Mark the end of a step when the device has done it."""
        self.synchronize()
        super().end()
