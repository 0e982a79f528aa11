"""Step clocks: pairs of device events on an accelerator, the monotonic clock on a CPU.

Events are recorded without synchronising, in a ring of pairs that are read as they complete, so timing a step
never makes the host wait for the device. `SynchronisedClock` does wait, on request (`benchmark.sync_cuda`);
that measures single steps more precisely, but makes all steps slower. `time_repeats` uses such a clock to
time the same computation repeatedly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch

from gpuproof.accelerators.base import TimingEvent
from gpuproof.accelerators.choose import accelerator_of
from gpuproof.worker.engine.host_clock import ClockName, HostClock, SynchronisedClock
from gpuproof.worker.engine.loop import StepClock, paused_collector

RING_PAIRS = 1024


class EventClock:
    """Times steps on the device, using pairs of events from a ring."""

    name: ClockName = "device_event"

    def __init__(self, make_event: Callable[[], TimingEvent], synchronize: Callable[[], None]) -> None:
        self.caught_up = 0
        """Number of steps that the device had already started before the host had finished queueing them."""
        self._free = deque((make_event(), make_event()) for _ in range(RING_PAIRS))
        self._recorded: deque[tuple[TimingEvent, TimingEvent]] = deque()
        self._drained = 0
        self._is_open = False
        self.synchronize = synchronize

    @property
    def capacity(self) -> int:
        """Number of free pairs: at least half the ring after a `drain`."""
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
        """Wait until at most `in_flight` steps, or half the ring, remain; return the other steps' times.

        The times of further steps that finish in the meantime are also returned.
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
        """Return how many steps were launched, and how many the device started and finished; thread-safe."""
        pairs = [*self._recorded]
        begins = [begin for begin, _ in pairs] + ([self._free[0][0]] if self._is_open else [])
        before = self._drained
        begun = sum(event.query() for event in begins)
        done = sum(end.query() for _, end in pairs)
        return before + len(begins), before + begun, before + done


def clock_for(device: torch.device, *, synchronised: bool) -> HostClock | EventClock:
    """Choose the clock for a device."""
    accelerator = accelerator_of(device)
    if not accelerator.asynchronous:
        return HostClock()
    synchronize = partial(accelerator.synchronize, device)
    if synchronised or not accelerator.has_events():
        return SynchronisedClock(synchronize)
    return EventClock(accelerator.make_event, synchronize)


def time_repeats(
    run: Callable[[], None],
    *,
    clock: StepClock,
    iterations: int,
    warmup_iterations: int,
    before: Callable[[], None] = lambda: None,
    meet: Callable[[], None] = lambda: None,
    is_blocking: bool = False,
    beat: Callable[[], None] = lambda: None,
) -> list[float]:
    """Return the seconds of each repeat, after the warm-up.

    `before` (e.g. restoring an input or evicting a cache) runs before each repeat, untimed. At `meet`, all
    ranks wait for each other: before the first timed repeat and, with `is_blocking`, after every repeat, once
    the device has finished it. `beat` is called when the device has finished more repeats, not when the host
    has merely launched them.
    """
    for _ in range(warmup_iterations):
        before()
        run()
    clock.synchronize()
    meet()
    times_s: list[float] = []
    with paused_collector():
        for _ in range(iterations):
            before()
            clock.begin()
            run()
            clock.end()
            done = clock.drain(in_flight=iterations)
            times_s += done
            if done:
                beat()
            if is_blocking:
                clock.synchronize()
                meet()
        times_s += clock.drain(in_flight=0)
    return times_s
