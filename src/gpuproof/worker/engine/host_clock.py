"""Host clocks: one for steps that are complete when they return, one that waits for each step.

They are independent of any framework: the function that waits for a device is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Literal

ClockName = Literal["device_event", "host", "host_synchronised"]


class HostClock:
    """Times steps that are complete when their call returns."""

    name: ClockName = "host"
    capacity: int = 65_536
    caught_up: int | None = None
    """Always None: this clock cannot detect it."""

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
        """Return the step times since the last call; none is ever in flight."""
        times, self._times_s = self._times_s, []
        self._drained += len(times)
        return times

    def progress(self) -> tuple[int, int, int]:
        """Return how many steps were launched, started and finished; steps start when launched."""
        return self._begun, self._begun, self._drained + len(self._times_s)

    def synchronize(self) -> None:
        """Do nothing: a CPU has finished its work when the call returns."""


class SynchronisedClock(HostClock):
    """Times steps on the host, each between two synchronisations of the device."""

    name: ClockName = "host_synchronised"

    def __init__(self, synchronize: Callable[[], None]) -> None:
        super().__init__()
        self.synchronize = synchronize  # type: ignore[method-assign]  # the device's own, without a detour

    def begin(self) -> None:
        """Mark the start of a step once the device is idle."""
        self.synchronize()
        super().begin()

    def end(self) -> None:
        """Mark the end of a step once the device has finished it."""
        self.synchronize()
        super().end()
