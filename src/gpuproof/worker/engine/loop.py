"""The engine: run steps, time each one, stop, and report why it stopped.

It knows a step (a function without arguments), a clock and a plan, but nothing about training, inference,
ranks or devices. Steps run in chunks. Between chunks, several times a second, the times of finished steps are
passed on. Inside a chunk, only the step and the clock run.

A device that runs behind its host accepts steps far faster than it executes them. So the loop is paced by the
time of finished steps (`Pace`): it waits while more than a quarter of a second of work is in flight.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

StepFunction = Callable[[], None]
StepTimesSink = Callable[[Sequence[float]], None]

CHUNK_S = 0.25
"""Planned duration of a chunk: long compared with the work between chunks, short enough to stop on time."""
IN_FLIGHT_S = 0.25
"""Maximum duration of work queued on a device: long compared with the host's work between chunks."""
LEAST_IN_FLIGHT = 2
"""Minimum number of steps in flight: one running, and one queued behind it."""


class StepClock(Protocol):
    """Times steps without delaying them."""

    @property
    def capacity(self) -> int:
        """Number of steps that may be timed before `drain` must be called; at least 1 after a `drain`."""

    def begin(self) -> None:
        """Mark the start of a step."""

    def end(self) -> None:
        """Mark the end of a step."""

    def drain(self, *, in_flight: int) -> Sequence[float]:
        """Wait until at most `in_flight` steps are in flight; return the times of the finished steps.

        The times are in seconds, in order, for all steps finished since the last call.
        """

    def synchronize(self) -> None:
        """Wait until the device has finished all its work."""


class StepPlan(Protocol):
    """Decides, chunk by chunk, how many steps to run next."""

    stop_reason: str

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        """Return the length of the next chunk, at most `capacity`; 0 ends the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTiming:
    """The timing of one window."""

    num_steps: int
    begin_s: float
    end_s: float
    steps_s: float
    stop_reason: str

    @property
    def wall_s(self) -> float:
        """Duration in seconds from the synchronised start to the synchronised end."""
        return self.end_s - self.begin_s


def run_chunk(step: StepFunction, clock: StepClock, num_steps: int) -> None:
    """Run and time `num_steps` steps. The hot loop: nothing else belongs here."""
    begin, end = clock.begin, clock.end
    for _ in range(num_steps):
        begin()
        step()
        end()


class Pace:
    """Limits how many steps may be in flight, based on the time of finished steps."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._step_s: float | None = None
        self._host_s = 0.0

    @property
    def most(self) -> int:
        """Number of steps that may be in flight at once; two until the first step finishes."""
        return max(LEAST_IN_FLIGHT, steps_within(IN_FLIGHT_S, step_s=self._step_s))

    @property
    def room(self) -> int:
        """Number of steps that may be launched now; at least 1 after a call to make room."""
        return self.most - self.in_flight

    def launched(self, num_steps: int, *, host_s: float) -> None:
        """Record a chunk and how long its launch took, since the host may be slower than the device."""
        self.in_flight += num_steps
        self._host_s = host_s / num_steps

    def make_room(self, clock: StepClock) -> Iterator[Sequence[float]]:
        """Yield the times of finished steps until at most half of `most` is in flight.

        Normally it yields once. If steps have become slower, it yields several times, at the new pace, which
        is based only on the latest steps.
        """
        while True:
            times_s = clock.drain(in_flight=max(self.most // 2, self.in_flight - self.most))
            self.in_flight -= len(times_s)
            if times_s:
                self._step_s = max(sum(times_s) / len(times_s), self._host_s)
            yield times_s
            if self.room > 0:
                return


def run_window(step: StepFunction, clock: StepClock, plan: StepPlan, sink: StepTimesSink) -> WindowTiming:
    """Run steps until `plan` says stop, between two synchronisations; pass all step times to `sink`."""
    num_steps = 0
    steps_s = 0.0
    pace = Pace()
    with paused_collector():
        clock.synchronize()
        begin_s = now_s = perf_counter()
        while chunk := plan.next_steps(
            done=num_steps, elapsed_s=now_s - begin_s, capacity=min(clock.capacity, pace.room)
        ):
            launch_s = perf_counter()
            run_chunk(step, clock, chunk)
            num_steps += chunk
            pace.launched(chunk, host_s=perf_counter() - launch_s)
            for times in pace.make_room(clock):
                steps_s += sum(times)
                sink(times)
            gc.collect(0)
            now_s = perf_counter()
        clock.synchronize()
        end_s = perf_counter()
    times = clock.drain(in_flight=0)
    sink(times)
    return WindowTiming(
        num_steps=num_steps,
        begin_s=begin_s,
        end_s=end_s,
        steps_s=steps_s + sum(times),
        stop_reason=plan.stop_reason,
    )


@contextmanager
def paused_collector() -> Iterator[None]:
    """Keep the garbage collector from running inside steps.

    Objects alive now are not scanned again until `gc.unfreeze` is called: torch and its imports create some
    300,000 objects, and scanning them once takes longer than many warm-ups. Young objects are collected
    first, since they may hold device memory.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.collect(1)
    gc.freeze()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class FixedSteps:
    """Stop after a number of steps. `step_s`, an estimated step time, determines the chunk length."""

    def __init__(self, num_steps: int, *, step_s: float | None = None) -> None:
        self._num_steps = num_steps
        self._step_s = step_s
        self.stop_reason = f"{num_steps} steps"

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        """Return the length of the next chunk, about `CHUNK_S`, until no steps remain."""
        chunk = steps_within(CHUNK_S, step_s=elapsed_s / done if done else self._step_s)
        return min(self._num_steps - done, capacity, chunk)


class LongEnough(FixedSteps):
    """Run the requested steps, then continue on all ranks until the window has lasted `least_s`.

    The window ends with a whole epoch of `epoch_steps`, unless that would take more than `least_s` longer.
    `agree` returns the smallest of the ranks' proposals. Every step time must be passed to `take`: measured
    by the host's clock alone, steps still in flight would seem to take no time.
    """

    def __init__(
        self,
        num_steps: int,
        *,
        epoch_steps: int,
        least_s: float,
        agree: Callable[[int], int],
        step_s: float | None = None,
    ) -> None:
        super().__init__(num_steps, step_s=step_s)
        self._requested = self.stop_reason
        self._epoch_steps = epoch_steps
        self._least_s = least_s
        self._agree = agree
        self._num_finished = 0
        self._steps_s = 0.0

    def take(self, times_s: Sequence[float]) -> None:
        """Add the times of finished steps."""
        self._num_finished += len(times_s)
        self._steps_s += sum(times_s)

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        """Return the next chunk: first of the requested steps, then of those that fill the time."""
        if done == self._num_steps:
            more = self._agree(self._steps_more(done, elapsed_s))
            self._num_steps += more
            if more:
                self.stop_reason = f"{self._requested}, continued for at least {self._least_s:g} s"
        return super().next_steps(done=done, elapsed_s=elapsed_s, capacity=capacity)

    def _steps_more(self, done: int, elapsed_s: float) -> int:
        left_s = self._least_s - elapsed_s
        if left_s <= 0:
            return 0
        on_device_s = self._steps_s / self._num_finished if self._num_finished else 0.0
        step_s = max(on_device_s, elapsed_s / done)
        least = done + math.ceil(left_s / step_s)
        whole = math.ceil(least / self._epoch_steps) * self._epoch_steps
        return (whole if (whole - least) * step_s <= self._least_s else least) - done


class TimeLimit:
    """Stop after a number of seconds, at the same step on all ranks.

    `agree` returns the smallest of the ranks' proposals. If ranks stopped at different steps, they would wait
    for each other forever in the next collective.
    """

    def __init__(self, limit_s: float, *, agree: Callable[[int], int], step_s: float | None = None) -> None:
        self._limit_s = limit_s
        self._agree = agree
        self._step_s = step_s
        self.stop_reason = f"{limit_s:g} s"

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        """Return the agreed number of steps that fit in the time left: at least one until time is up."""
        left_s = self._limit_s - elapsed_s
        if left_s <= 0:
            return self._agree(0)
        step_s = elapsed_s / done if done else self._step_s
        return self._agree(min(capacity, steps_within(min(left_s, CHUNK_S), step_s=step_s)))


def steps_within(seconds: float, *, step_s: float | None) -> int:
    """Return how many whole steps of `step_s` fit: at least one, and only one if `step_s` is unknown.

    >>> steps_within(0.25, step_s=0.1), steps_within(0.25, step_s=3.0), steps_within(0.25, step_s=None)
    (2, 1, 1)
    """
    return max(1, int(seconds / step_s)) if step_s else 1
