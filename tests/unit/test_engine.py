"""The engine with a clock of our own: chunks worked out by hand, and every step time handed on in order."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from gpuproof.worker.engine.loop import FixedSteps, TimeLimit, run_chunk, run_window, steps_within


class ScriptedClock:
    """Gives out step times by their number; like a device, finishes the last step only when waited for."""

    def __init__(self, capacity: int = 1000) -> None:
        self.capacity = capacity
        self.begun = self.ended = self.synchronized = self._given = 0

    def begin(self) -> None:
        assert self.begun == self.ended
        self.begun += 1

    def end(self) -> None:
        self.ended += 1

    def drain(self, *, in_flight: int) -> Sequence[float]:
        first, self._given = self._given, max(self._given, self.ended - min(in_flight, 1))
        return [float(number) for number in range(first, self._given)]

    def synchronize(self) -> None:
        self.synchronized += 1


class Chunks:
    """A plan that says what it was told to."""

    stop_reason = "as told"

    def __init__(self, *chunks: int) -> None:
        self._chunks = list(chunks)
        self.asked: list[tuple[int, int]] = []

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        assert elapsed_s >= 0
        self.asked.append((done, capacity))
        return self._chunks.pop(0) if self._chunks else 0


def test_every_step_is_run_and_timed_once() -> None:
    clock, steps = ScriptedClock(), []
    run_chunk(lambda: steps.append(clock.begun), clock, 3)
    assert steps == [1, 2, 3]
    assert clock.ended == 3


def test_a_window_hands_on_all_step_times_in_order() -> None:
    clock, plan, chunks = ScriptedClock(capacity=7), Chunks(1, 3, 2), []
    timing = run_window(lambda: None, clock, plan, lambda times: chunks.append(list(times)))
    # The device is a step behind, until the end of the window waits for it.
    assert chunks == [[], [0.0, 1.0, 2.0], [3.0, 4.0], [5.0]]
    # Two may be under way until a step is done; after that the clock's room is less than a quarter second's,
    # until steps are found to take seconds.
    assert plan.asked == [(0, 2), (1, 1), (4, 1), (6, 1)]
    assert (timing.num_steps, timing.steps_s, timing.stop_reason) == (6, 15.0, "as told")
    assert timing.wall_s == timing.end_s - timing.begin_s >= 0
    assert clock.synchronized == 2


def test_an_empty_window_is_one() -> None:
    timing = run_window(lambda: None, ScriptedClock(), FixedSteps(0), lambda _times: None)
    assert (timing.num_steps, timing.steps_s, timing.stop_reason) == (0, 0.0, "0 steps")


def test_the_collector_rests_inside_the_window_only() -> None:
    seen: list[bool] = []
    run_window(lambda: seen.append(gc.isenabled()), ScriptedClock(), Chunks(2), lambda _times: None)
    assert seen == [False, False]
    assert gc.isenabled()
    gc.disable()
    try:
        run_window(lambda: None, ScriptedClock(), Chunks(1), lambda _times: None)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_step_that_raises_leaves_the_collector_on() -> None:
    def step() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        run_window(step, ScriptedClock(), Chunks(1), lambda _times: None)
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("seconds", "step_s", "expected"),
    [(0.25, 0.1, 2), (0.25, 0.25, 1), (0.25, 3.0, 1), (0.25, None, 1), (0.25, 0.0, 1), (0.25, 0.001, 250)],
)
def test_whole_steps_that_fit(seconds: float, step_s: float | None, expected: int) -> None:
    assert steps_within(seconds, step_s=step_s) == expected


def test_a_plan_by_steps_makes_chunks_of_a_quarter_second() -> None:
    plan = FixedSteps(1000, step_s=0.01)
    assert plan.next_steps(done=0, elapsed_s=0.0, capacity=512) == 25  # by the warm-up's 10 ms
    assert plan.next_steps(done=25, elapsed_s=0.05, capacity=512) == 125  # by the 2 ms that they took
    assert (
        plan.next_steps(done=150, elapsed_s=0.03, capacity=512) == 512
    )  # 1,250 would fit; the ring does not
    assert plan.next_steps(done=990, elapsed_s=0.99, capacity=512) == 10  # what is left
    assert plan.next_steps(done=1000, elapsed_s=1.0, capacity=512) == 0
    assert plan.stop_reason == "1000 steps"


def test_a_plan_without_a_guess_begins_with_one_step() -> None:
    assert FixedSteps(10).next_steps(done=0, elapsed_s=0.0, capacity=512) == 1
    assert TimeLimit(1.0, agree=lambda n: n).next_steps(done=0, elapsed_s=0.0, capacity=512) == 1


def test_a_plan_by_seconds_fits_its_last_chunk_into_the_time_left() -> None:
    plan = TimeLimit(2.0, agree=lambda n: n, step_s=0.01)
    assert plan.next_steps(done=0, elapsed_s=0.0, capacity=512) == 25
    assert plan.next_steps(done=25, elapsed_s=0.5, capacity=512) == 12  # 0.25 s of 20 ms
    assert plan.next_steps(done=95, elapsed_s=1.9, capacity=512) == 5  # 0.1 s of 20 ms
    assert plan.next_steps(done=99, elapsed_s=1.99, capacity=512) == 1  # under one step is left: one more
    assert plan.next_steps(done=100, elapsed_s=2.0, capacity=512) == 0
    assert plan.stop_reason == "2 s"


def test_ranks_stop_after_the_same_step() -> None:
    proposals: list[int] = []

    def smallest(own: int) -> int:
        proposals.append(own)
        return min(own, 3)  # another rank is slower

    plan = TimeLimit(2.0, agree=smallest, step_s=0.01)
    assert plan.next_steps(done=0, elapsed_s=0.0, capacity=512) == 3
    assert plan.next_steps(done=3, elapsed_s=2.5, capacity=512) == 0  # asked even when its own time is up
    assert proposals == [25, 0]
    ended = TimeLimit(2.0, agree=lambda _own: 0, step_s=0.01)
    assert ended.next_steps(done=5, elapsed_s=1.9, capacity=512) == 0  # another rank's time is up
