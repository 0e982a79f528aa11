"""How long does each part of a step take? Steps with marks between their parts, in a separate window.

The time before a mark belongs to the phase named by the mark. On a device that runs asynchronously, the marks
are events, and whole steps are queued behind a busy device, so that no phase includes a wait for the host.
Any step time outside the phases is attributed to the host. The first step in each queue is skipped, since
ranks do not reach it at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from time import perf_counter
from typing import Literal

from gpuproof.accelerators.base import TimingEvent
from gpuproof.accelerators.choose import accelerator_of
from gpuproof.records.breakdown import StepPhases
from gpuproof.worker.breakdown.bursts import BusyQueue, agreed_steps, steady_burst
from gpuproof.worker.engine.clocks import EventClock
from gpuproof.worker.engine.loop import StepFunction
from gpuproof.worker.rank.recorder import Recorder, rounded
from gpuproof.worker.step.preparation import Prepared
from gpuproof.worker.step.training import TrainingStep

NUM_QUEUES = 8
"""Number of queues of two steps each; only the second step is used."""
NUM_BURSTS = 5
MIN_STEPS, MAX_STEPS = 2, 20
"""Limits for the number of steps in a burst, with or without marks."""
PhaseOfStep = Literal["begin", "data", "forward", "backward", "optimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MarkedStep:
    """One marked step."""

    seconds: Mapping[PhaseOfStep, float]
    is_queued: bool
    """Whether the whole step was queued before it ran, or was complete when its call returned."""
    host_s: float
    """Host time for this step and the one before it."""
    allocated_bytes: tuple[int | None, int | None]
    """Memory as counted by torch's allocator, before and after the step."""


def measure_phases(prepared: Prepared, recorder: Recorder) -> None:
    """Break steps down into phases and record them, or record why there are none."""
    rank, clock, step = prepared.identity.rank, prepared.clock.name, prepared.step
    if not isinstance(step, TrainingStep):
        missing = "a captured graph is one launch, and its parts cannot be distinguished"
        recorder.write(StepPhases(rank=rank, clock=clock, is_queued=False, missing=missing))
        return
    last_loss = step.last_loss
    busy = BusyQueue(prepared.device, prepared.clock)
    marked = _marked_steps(prepared, step, busy, beat=recorder.heartbeat.beat)
    alone = []
    if prepared.parallelism is not None and prepared.parallelism.strategy == "ddp":
        with step.without_sync():
            alone = _marked_steps(prepared, step, busy, beat=recorder.heartbeat.beat)
    plain_s, marked_s = _bursts(prepared, step, beat=recorder.heartbeat.beat)
    step.last_loss = last_loss
    recorder.write(
        StepPhases(
            rank=rank,
            clock=clock,
            is_queued=busy.is_needed and all(one.is_queued for one in (*marked, *alone)),
            data_s=_of("data", marked),
            forward_s=_of("forward", marked),
            backward_s=_of("backward", marked),
            optimizer_s=_of("optimizer", marked),
            backward_without_sync_s=_of("backward", alone),
            plain_step_s=rounded(plain_s),
            marked_step_s=rounded(marked_s),
            allocated_before_bytes=_allocated(marked, 0),
            allocated_after_bytes=_allocated(marked, 1),
        )
    )


def _of(phase: PhaseOfStep, marked: Sequence[_MarkedStep]) -> tuple[float, ...]:
    return rounded([step.seconds[phase] for step in marked])


def _allocated(marked: Sequence[_MarkedStep], place: int) -> tuple[int, ...]:
    return tuple(count for step in marked if (count := step.allocated_bytes[place]) is not None)


def _marked_steps(
    prepared: Prepared, step: TrainingStep, busy: BusyQueue, *, beat: Callable[[], None]
) -> list[_MarkedStep]:
    """Run marked steps behind a busy device; return those that were fully queued, or all if none was."""
    first = _marked(prepared, step, busy, hold_s=0.0)  # this step shows how long the host takes
    steps, hold_s = list[_MarkedStep](), first.host_s
    for _ in range(NUM_QUEUES):
        steps.append(_marked(prepared, step, busy, hold_s=hold_s))
        hold_s *= 1 if steps[-1].is_queued else 2
        beat()
    return [one for one in steps if one.is_queued] or steps


def _marked(prepared: Prepared, step: TrainingStep, busy: BusyQueue, *, hold_s: float) -> _MarkedStep:
    """Queue two steps behind a busy device, and measure the second."""
    prepared.clock.synchronize()
    prepared.ranks.barrier()
    busy.hold(hold_s)
    begin_s = perf_counter()
    marked_step(step, _marks_for(prepared))
    marks = _marks_for(prepared)
    before = accelerator_of(prepared.device).allocated_bytes(prepared.device)
    marked_step(step, marks)
    after = accelerator_of(prepared.device).allocated_bytes(prepared.device)
    host_s = perf_counter() - begin_s
    is_queued = not (isinstance(marks, EventMarks) and marks.has_begun())
    return _MarkedStep(
        seconds=marks.take_s(), is_queued=is_queued, host_s=host_s, allocated_bytes=(before, after)
    )


def _bursts(
    prepared: Prepared, step: TrainingStep, *, beat: Callable[[], None]
) -> tuple[list[float], list[float]]:
    """Return the mean step time of bursts without marks and of bursts with marks, interleaved."""

    def with_marks() -> None:
        marked_step(step, _marks_for(prepared))

    kinds: tuple[StepFunction, ...] = (step, with_marks)
    num_steps = agreed_steps(prepared, step, least=MIN_STEPS, most=MAX_STEPS)
    means: tuple[list[float], list[float]] = ([], [])
    for _ in range(NUM_BURSTS):
        for kind, of_kind in zip(kinds, means, strict=True):
            of_kind.append(fmean(steady_burst(prepared, kind, num_steps=num_steps)))
            beat()
    return means


def _marks_for(prepared: Prepared) -> EventMarks | HostMarks:
    if isinstance(prepared.clock, EventClock):
        return EventMarks(accelerator_of(prepared.device).make_event)
    return HostMarks(prepared.clock.synchronize)


class HostMarks:
    """Timestamps from the host's clock, each taken once the device has finished all earlier work."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._moments: list[tuple[PhaseOfStep, float]] = []

    def mark(self, phase: PhaseOfStep) -> None:
        """End a phase at this point."""
        self._synchronize()
        self._moments.append((phase, perf_counter()))

    def take_s(self) -> Mapping[PhaseOfStep, float]:
        """Return the duration of each phase since `begin`, in seconds, and clear the marks."""
        moments, self._moments = self._moments, []
        return _added((phase, here - before) for (_, before), (phase, here) in pairwise(moments))


class EventMarks:
    """Marks in the device's queue; creating them does not block."""

    def __init__(self, make_event: Callable[[], TimingEvent]) -> None:
        self._make_event = make_event
        self._events: list[tuple[PhaseOfStep, TimingEvent]] = []

    def mark(self, phase: PhaseOfStep) -> None:
        """End a phase at this point."""
        event = self._make_event()
        event.record()
        self._events.append((phase, event))

    def has_begun(self) -> bool:
        """Return whether the device has reached the first mark."""
        return self._events[0][1].query()

    def take_s(self) -> Mapping[PhaseOfStep, float]:
        """Return the seconds of each phase since `begin`, and clear the marks; waits for the last one."""
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


def marked_step(step: TrainingStep, marks: EventMarks | HostMarks) -> None:
    """Run one step, with a mark after each of its parts."""
    marks.mark("begin")
    step.clear()
    marks.mark("optimizer")
    for _ in range(step.num_micro_batches - 1):
        with step.without_sync():
            _marked_micro_batch(step, marks)
    _marked_micro_batch(step, marks)
    step.update()
    marks.mark("optimizer")


def _marked_micro_batch(step: TrainingStep, marks: EventMarks | HostMarks) -> None:
    batch = step.next_batch()
    marks.mark("data")
    loss = step.forward(batch)
    marks.mark("forward")
    step.backward(loss)
    marks.mark("backward")
