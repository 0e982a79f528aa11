"""A device that is kept busy while work is queued behind it: then that work never waits for the host.

Times between events hold the device's own work alone, as with nvbench's blocking kernel. What keeps it busy
are products of matrices, as large as it takes for one of them to last some milliseconds.
"""

from __future__ import annotations

from math import ceil

import torch

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.worker.engine.clocks import EventClock
from gpuproof.worker.engine.host_clock import HostClock

PRODUCT_S = 2e-3
"""One of them at least: few launches keep a device busy for long."""
SMALLEST, LARGEST = 256, 8192
MARGIN = 2.0
"""The device is kept busy for so much longer than the host took to queue the same."""
LONGEST_S = 1.0
"""As a rule: where the host takes as long for a step, the device hardly waits for it."""


class BusyQueue:
    """Keeps one device busy; does nothing where steps are done when they return."""

    def __init__(self, device: torch.device, clock: EventClock | HostClock) -> None:
        self._accelerator = accelerator_of(device)
        self._device = device
        self._product_s = 0.0
        if isinstance(clock, EventClock):
            self._calibrate()

    @property
    def is_needed(self) -> bool:
        """Whether the device runs ahead of what is timed on it."""
        return self._product_s > 0

    def hold(self, host_s: float, *, longest_s: float = LONGEST_S) -> None:
        """Keep the device busy for `MARGIN` times the seconds that the host takes to queue the work."""
        if self.is_needed:
            self._multiply(ceil(min(longest_s, MARGIN * host_s) / self._product_s))

    def _calibrate(self) -> None:
        size = SMALLEST
        while True:
            self._matrix = torch.zeros(size, size, device=self._device)
            self._multiply(1)
            begin, end = self._accelerator.make_event(), self._accelerator.make_event()
            self._multiply(1)
            begin.record()
            self._multiply(2)
            end.record()
            end.synchronize()
            self._product_s = begin.elapsed_time(end) / 2e3
            if self._product_s >= PRODUCT_S or size >= LARGEST:
                return
            size *= 2

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._matrix, self._matrix)
