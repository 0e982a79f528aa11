"""Short bursts of steps after the window, timed by the clock of the window.

`BusyQueue` keeps the device busy while a burst is queued, so that no step of it waits for the host: times
between events then hold the device's own work alone, as with nvbench's blocking kernel. What keeps it busy
are products of matrices, as large as it takes for one of them to last some milliseconds.
"""

from __future__ import annotations

from math import ceil
from time import perf_counter

import torch

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.worker.engine.clocks import EventClock
from gpuproof.worker.engine.host_clock import HostClock
from gpuproof.worker.engine.loop import (
    FixedSteps,
    StepFunction,
    paused_collector,
    run_chunk,
    run_window,
    steps_within,
)
from gpuproof.worker.rank.recorder import rounded
from gpuproof.worker.step.preparation import Prepared
from gpuproof.worker.step.training import TrainingStep

BURST_S = 0.1
LEFT_OUT = 1
"""Steps at the beginning of a burst, in which no host is ahead of its device yet: ranks come to their
collectives as far apart as their hosts do (several milliseconds where eight share two processors)."""
PRODUCT_S = 2e-3
"""One of them at least: few launches keep a device busy for long."""
SMALLEST, LARGEST = 256, 8192
MARGIN = 2.0
"""The device is kept busy for so much longer than the host took to queue the same."""
LONGEST_S = 1.0
"""As a rule: where the host takes as long for a step, the device hardly waits for it."""


def without_sync(step: TrainingStep) -> StepFunction:
    """Return the step whose gradients stay on this rank."""

    def local_step() -> None:
        with step.without_sync():
            step()

    return local_step


def agreed_steps(prepared: Prepared, step: StepFunction, *, least: int, most: int) -> int:
    """Return the steps of a burst of about `BURST_S`, as many on every rank; takes one step to see."""
    begin_s = perf_counter()
    timed_burst(prepared, step, num_steps=1)
    planned = steps_within(BURST_S, step_s=perf_counter() - begin_s)
    return prepared.ranks.agree(min(most, max(least, planned)))


def timed_burst(prepared: Prepared, step: StepFunction, *, num_steps: int) -> tuple[float, ...]:
    """Return the seconds of each step of a burst, by the clock of the window."""
    times: list[float] = []
    run_window(step, prepared.clock, FixedSteps(num_steps), times.extend)
    return rounded(times)


def steady_burst(prepared: Prepared, step: StepFunction, *, num_steps: int) -> tuple[float, ...]:
    """Return the seconds of each step of a burst of all ranks, as steps in a row are: without the first."""
    prepared.ranks.barrier()
    return timed_burst(prepared, step, num_steps=LEFT_OUT + num_steps)[LEFT_OUT:]


def queued_burst(
    prepared: Prepared, step: StepFunction, busy: BusyQueue, *, num_steps: int, host_s: float
) -> tuple[float, ...]:
    """Return the same of a burst queued whole behind a busy device, so that no step waits for its host.

    `host_s` is what the host takes for one step. The window's loop would not do: it lets a device have two
    long steps before it, and waits for it.
    """
    prepared.clock.synchronize()
    prepared.ranks.barrier()
    with paused_collector():
        busy.hold((LEFT_OUT + num_steps) * host_s)
        run_chunk(step, prepared.clock, LEFT_OUT + num_steps)
        prepared.clock.synchronize()
    return rounded([*prepared.clock.drain(in_flight=0)])[LEFT_OUT:]


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
