"""Marks between the parts of a training step: what came before a mark belongs to the phase that it names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from time import perf_counter
from typing import Literal, Protocol

from gpuproof.accelerators.base import TimingEvent
from gpuproof.worker.step.training import TrainingStep

PhaseOfStep = Literal["begin", "data", "forward", "backward", "optimizer"]


class Marks(Protocol):
    """Moments in a step."""

    def mark(self, phase: PhaseOfStep) -> None:
        """End a phase here."""

    def take_s(self) -> Mapping[PhaseOfStep, float]:
        """Return the seconds of each phase since `begin`, and forget the marks; all must have passed."""


class HostMarks:
    """Marks of the host's clock, each taken when the device has done what came before."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._moments: list[tuple[PhaseOfStep, float]] = []

    def mark(self, phase: PhaseOfStep) -> None:
        """End a phase here."""
        self._synchronize()
        self._moments.append((phase, perf_counter()))

    def take_s(self) -> Mapping[PhaseOfStep, float]:
        """Return the seconds of each phase."""
        moments, self._moments = self._moments, []
        return _added((phase, here - before) for (_, before), (phase, here) in pairwise(moments))


class EventMarks:
    """Marks in the device's queue; making them holds nothing up."""

    def __init__(self, make_event: Callable[[], TimingEvent]) -> None:
        self._make_event = make_event
        self._events: list[tuple[PhaseOfStep, TimingEvent]] = []

    def mark(self, phase: PhaseOfStep) -> None:
        """End a phase here."""
        event = self._make_event()
        event.record()
        self._events.append((phase, event))

    def has_begun(self) -> bool:
        """Say whether the device has come to the first mark."""
        return self._events[0][1].query()

    def take_s(self) -> Mapping[PhaseOfStep, float]:
        """Return the seconds of each phase; waits for the last mark."""
        events, self._events = self._events, []
        events[-1][1].synchronize()
        return _added(
            (phase, before.elapsed_time(here) / 1e3) for (_, before), (phase, here) in pairwise(events)
        )


def _added(parts: Iterable[tuple[PhaseOfStep, float]]) -> Mapping[PhaseOfStep, float]:
    phases: defaultdict[PhaseOfStep, float] = defaultdict(float)
    for phase, seconds in parts:
        phases[phase] += seconds
    return phases


def marked_step(step: TrainingStep, marks: Marks) -> None:
    """Take one step, with a mark after each of its parts."""
    marks.mark("begin")
    step.clear()
    marks.mark("optimizer")
    for _ in range(step.num_micro_batches - 1):
        with step.without_sync():
            _marked_micro_batch(step, marks)
    _marked_micro_batch(step, marks)
    step.update()
    marks.mark("optimizer")


def _marked_micro_batch(step: TrainingStep, marks: Marks) -> None:
    batch = step.next_batch()
    marks.mark("data")
    loss = step.forward(batch)
    marks.mark("forward")
    step.backward(loss)
    marks.mark("backward")
