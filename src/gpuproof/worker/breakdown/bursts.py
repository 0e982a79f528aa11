"""Short bursts of steps after the window, timed by the window's clock.

`BusyQueue` keeps the device busy while a burst is queued, so that none of its steps waits for the host. Times
between events then contain only the device's own work, as with nvbench's blocking kernel. The device is kept
busy with matmuls that each take a few milliseconds.
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
"""Number of steps to skip at the start of a burst. During these, no host is ahead of its device yet, so ranks
reach their collectives with the same time offsets as their hosts (several milliseconds if eight ranks share
two CPUs)."""
PRODUCT_S = 2e-3
"""Minimum duration of one matmul, so that a few launches keep a device busy for long enough."""
SMALLEST, LARGEST = 256, 8192
MARGIN = 2.0
"""Ratio of the time that the device is kept busy to the time that the host took to queue the work."""
LONGEST_S = 1.0
"""Default maximum time to keep the device busy. If the host takes this long for a step, the device hardly
waits for it."""


def without_sync(step: TrainingStep) -> StepFunction:
    """Return a step that does not synchronize gradients between ranks."""

    def local_step() -> None:
        with step.without_sync():
            step()

    return local_step


def agreed_steps(prepared: Prepared, step: StepFunction, *, least: int, most: int) -> int:
    """Return the number of steps in a burst of about `BURST_S`, equal on all ranks; times one step."""
    begin_s = perf_counter()
    timed_burst(prepared, step, num_steps=1)
    planned = steps_within(BURST_S, step_s=perf_counter() - begin_s)
    return prepared.ranks.agree(min(most, max(least, planned)))


def timed_burst(prepared: Prepared, step: StepFunction, *, num_steps: int) -> tuple[float, ...]:
    """Return each step's time in a burst, in seconds, on the window's clock."""
    times: list[float] = []
    run_window(step, prepared.clock, FixedSteps(num_steps), times.extend)
    return rounded(times)


def steady_burst(prepared: Prepared, step: StepFunction, *, num_steps: int) -> tuple[float, ...]:
    """Return the step times, in seconds, of a burst run by all ranks, without the first step."""
    prepared.ranks.barrier()
    return timed_burst(prepared, step, num_steps=LEFT_OUT + num_steps)[LEFT_OUT:]


def queued_burst(
    prepared: Prepared, step: StepFunction, busy: BusyQueue, *, num_steps: int, host_s: float
) -> tuple[float, ...]:
    """Return the same for a burst queued in full behind a busy device: no step waits for its host.

    `host_s` is the host's time for one step. The window's loop is not suitable, because it waits for the
    device as soon as two long steps are queued.
    """
    prepared.clock.synchronize()
    prepared.ranks.barrier()
    with paused_collector():
        busy.hold((LEFT_OUT + num_steps) * host_s)
        run_chunk(step, prepared.clock, LEFT_OUT + num_steps)
        prepared.clock.synchronize()
    return rounded([*prepared.clock.drain(in_flight=0)])[LEFT_OUT:]


class BusyQueue:
    """Keeps one device busy; does nothing if steps are already complete when their call returns."""

    def __init__(self, device: torch.device, clock: EventClock | HostClock) -> None:
        self._accelerator = accelerator_of(device)
        self._device = device
        self._product_s = 0.0
        if isinstance(clock, EventClock):
            self._calibrate()

    @property
    def is_needed(self) -> bool:
        """Whether the device runs asynchronously with respect to the host that times it."""
        return self._product_s > 0

    def hold(self, host_s: float, *, longest_s: float = LONGEST_S) -> None:
        """Keep the device busy for `MARGIN` times as many seconds as the host needs to queue the work."""
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
