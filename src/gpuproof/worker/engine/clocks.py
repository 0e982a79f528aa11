"""Step clocks: pairs of device events on an accelerator, the monotonic clock on a processor.

Events are recorded without synchronising, in a ring of pairs that is read as they complete, so that
timing a step never makes the host wait for the device. `SynchronisedClock` does wait, on request
(`benchmark.sync_cuda`): stricter for a single step, slower for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Literal

import torch

from gpuproof.accelerators.base import TimingEvent
from gpuproof.accelerators.choose import accelerator_of

RING_PAIRS = 1024

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


class EventClock:
    """Times steps on the device by pairs of events from a ring."""

    name: ClockName = "device_event"

    def __init__(self, make_event: Callable[[], TimingEvent], synchronize: Callable[[], None]) -> None:
        self.caught_up = 0
        """Steps that the device had begun with when the host came to their end."""
        self._free = deque((make_event(), make_event()) for _ in range(RING_PAIRS))
        self._recorded: deque[tuple[TimingEvent, TimingEvent]] = deque()
        self._drained = 0
        self._is_open = False
        self.synchronize = synchronize

    @property
    def capacity(self) -> int:
        """Pairs that are free: never under half the ring after a `drain`."""
        return len(self._free)

    def begin(self) -> None:
        """Record the start of a step."""
        self._free[0][0].record()
        self._is_open = True

    def end(self) -> None:
        """Record the end of a step."""
        pair = self._free.popleft()
        self.caught_up += pair[0].query()
        pair[1].record()
        self._recorded.append(pair)
        self._is_open = False

    def drain(self, *, in_flight: int) -> Sequence[float]:
        """Wait until at most `in_flight` steps are under way, or half the ring; return the times of the rest.

        Of those under way, the ones that are done meanwhile are returned too.
        """
        too_many = len(self._recorded) - min(in_flight, RING_PAIRS // 2)
        if too_many > 0:
            self._recorded[too_many - 1][1].synchronize()
        times = []
        while self._recorded and self._recorded[0][1].query():
            pair = self._recorded.popleft()
            times.append(pair[0].elapsed_time(pair[1]) / 1e3)
            self._free.append(pair)
        self._drained += len(times)
        return times

    def progress(self) -> tuple[int, int, int]:
        """Return how many steps were launched, begun by the device and done by it; any thread may ask."""
        pairs = [*self._recorded]
        begins = [begin for begin, _ in pairs] + ([self._free[0][0]] if self._is_open else [])
        before = self._drained
        begun = sum(event.query() for event in begins)
        done = sum(end.query() for _, end in pairs)
        return before + len(begins), before + begun, before + done


def clock_for(device: torch.device, *, synchronised: bool) -> HostClock | EventClock:
    """Choose the clock of a device."""
    accelerator = accelerator_of(device)
    if not accelerator.asynchronous:
        return HostClock()
    synchronize = partial(accelerator.synchronize, device)
    if synchronised or not accelerator.has_events():
        return SynchronisedClock(synchronize)
    return EventClock(accelerator.make_event, synchronize)
