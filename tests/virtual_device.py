"""A device that runs ahead of its host, by hand: one queue, and time that passes where a test says so."""

from __future__ import annotations

import threading


class VirtualDevice:
    """A queue of kernels on a timeline of its own; the thread that made it is its host.

    `host_works` moves the host's time, `launch` puts a kernel behind the others: it begins when they are
    done, or now. Waiting moves the host's time to what it waits for.
    """

    _of_thread = threading.local()

    def __init__(self) -> None:
        self.now_s = 0.0
        self.busy_until_s = 0.0
        self.busy_s = 0.0
        self._ends_s: list[float] = []
        type(self)._of_thread.device = self

    @classmethod
    def time_of_this_thread(cls) -> float:
        """Return the time of this thread's device, for a test to put in the place of `perf_counter`."""
        device: VirtualDevice = cls._of_thread.device
        return device.now_s

    def host_works(self, seconds: float) -> None:
        self.now_s += seconds

    def launch(self, seconds: float) -> None:
        self.busy_until_s = max(self.now_s, self.busy_until_s) + seconds
        self.busy_s += seconds
        self._ends_s.append(self.busy_until_s)

    def num_in_flight(self) -> int:
        return sum(end_s > self.now_s for end_s in self._ends_s[-1000:])

    def synchronize(self) -> None:
        self.now_s = max(self.now_s, self.busy_until_s)

    def make_event(self) -> VirtualEvent:
        return VirtualEvent(self)


class VirtualEvent:
    """A moment in the queue."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device
        self.at_s = 0.0

    def record(self) -> None:
        self.at_s = max(self._device.now_s, self._device.busy_until_s)

    def query(self) -> bool:
        return self.at_s <= self._device.now_s

    def synchronize(self) -> None:
        self._device.now_s = max(self._device.now_s, self.at_s)

    def elapsed_time(self, end: VirtualEvent) -> float:
        return 1e3 * (end.at_s - self.at_s)
