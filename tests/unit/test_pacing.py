"""Pacing on a device that runs ahead of the host: nobody sleeps, time is a number that host and device move.

A launch costs the host 20 µs and the device 50 ms, as a replay of a large graph does. What a window may
overshoot, how much may be under way, and how long nothing is heard of it are counted on that timeline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat

import pytest

from gpuproof.worker.engine import loop
from gpuproof.worker.engine.clocks import EventClock
from gpuproof.worker.engine.loop import FixedSteps, LongEnough, StepPlan, TimeLimit, WindowTiming, run_window
from gpuproof.worker.engine.stopping import PrecisionLimit, feed_plan
from virtual_device import VirtualDevice

LAUNCH_S = 20e-6
STEP_S = 0.05


class Window:
    """A window on a device of its own, and what could be seen of it while it ran."""

    def __init__(self, steps_s: Iterable[float], *, launch_s: float = LAUNCH_S) -> None:
        self.device = VirtualDevice()
        self.times: list[float] = []
        self.heard_s: list[float] = [0.0]
        self.most_in_flight = 0
        self.most_in_flight_s = 0.0
        self._steps_s = iter(steps_s)
        self._launch_s = launch_s

    def step(self) -> None:
        self.device.host_works(self._launch_s)
        self.device.launch(next(self._steps_s))
        self.most_in_flight = max(self.most_in_flight, self.device.num_in_flight())
        self.most_in_flight_s = max(self.most_in_flight_s, self.device.busy_until_s - self.device.now_s)

    def hear(self, times_s: Sequence[float]) -> None:
        self.times += times_s
        if times_s:
            self.heard_s.append(self.device.now_s)

    def run(self, plan: StepPlan) -> WindowTiming:
        clock = EventClock(self.device.make_event, self.device.synchronize)
        timing = run_window(self.step, clock, plan, feed_plan(plan, self.hear))
        assert len(self.times) == timing.num_steps
        return timing

    @property
    def longest_silence_s(self) -> float:
        return max(after - before for before, after in zip(self.heard_s, self.heard_s[1:], strict=False))


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "perf_counter", VirtualDevice.time_of_this_thread)


def limit(seconds: float) -> TimeLimit:
    return TimeLimit(seconds, agree=int)


@pytest.mark.parametrize("seconds", [1.0, 10.0])
@pytest.mark.parametrize("step_s", [0.001, 0.05, 0.4, 3.0])
def test_a_window_by_seconds_ends_on_time(seconds: float, step_s: float) -> None:
    window = Window(repeat(step_s))
    timing = window.run(limit(seconds))
    assert seconds <= timing.wall_s <= seconds + 2 * step_s + 0.3
    assert timing.wall_s == pytest.approx(timing.steps_s, rel=0.01)  # the device never waited for the host
    assert window.most_in_flight_s <= max(2 * step_s, 0.25) + step_s
    assert window.longest_silence_s <= max(2 * step_s, 0.3)


def test_no_more_than_two_steps_are_given_before_one_is_done() -> None:
    window = Window(repeat(STEP_S))
    window.run(FixedSteps(2))
    assert window.most_in_flight == 2


def test_a_window_by_steps_keeps_the_device_fed_and_is_heard_of() -> None:
    window = Window(repeat(STEP_S))
    timing = window.run(FixedSteps(400))
    assert timing.num_steps == 400
    assert timing.wall_s == pytest.approx(20.0, rel=0.001)
    assert window.most_in_flight <= 5  # a quarter of a second
    assert window.longest_silence_s <= 0.3


def test_a_guess_of_the_warm_up_gives_no_more_at_once() -> None:
    window = Window(repeat(STEP_S))
    window.run(FixedSteps(100, step_s=LAUNCH_S))
    assert window.most_in_flight <= 5


def test_one_slow_step_amid_fast_ones() -> None:
    window = Window(chain(repeat(0.002, 300), [2.0], repeat(0.002)))
    timing = window.run(limit(10.0))
    assert 10.0 <= timing.wall_s <= 10.3
    assert timing.wall_s == pytest.approx(timing.steps_s, rel=0.01)
    assert window.longest_silence_s <= 2.3


def test_a_slow_step_at_the_very_end() -> None:
    window = Window(chain(repeat(0.002, 495), [2.0], repeat(0.002)))  # from 0.99 s on
    assert window.run(limit(1.0)).wall_s <= 1.0 + 2.0 + 0.3


def slower_and_slower() -> Iterator[float]:
    """Steps of 2 ms that take 1 % longer each, up to half a second."""
    step_s = 0.002
    while True:
        yield step_s
        step_s = min(0.5, step_s * 1.01)


def test_steps_that_become_slower() -> None:
    window = Window(slower_and_slower())
    timing = window.run(limit(10.0))
    assert 10.0 <= timing.wall_s <= 10.0 + 2 * window.times[-1] + 0.3
    jump = Window(chain(repeat(0.005, 1000), repeat(0.1)))
    timing = jump.run(limit(10.0))
    assert 10.0 <= timing.wall_s <= 10.0 + 2 * 0.1 + 0.3
    assert jump.longest_silence_s <= 0.25 / 0.005 * 0.1  # what was under way when they became slow


def test_a_host_that_is_slower_than_its_device_ends_on_time_too() -> None:
    """It makes its batches, say: a launch takes 100 ms, and the device 1 ms."""
    window = Window(repeat(0.001), launch_s=0.1)
    assert 1.0 <= window.run(limit(1.0)).wall_s <= 1.0 + 2 * 0.1 + 0.3
    assert window.longest_silence_s <= 0.4


def test_a_window_by_precision_ends_on_time_and_when_it_knows() -> None:
    window = Window(repeat(STEP_S))
    plan = PrecisionLimit(0.01, min_steps=60, limit_s=10.0, agree=int)
    timing = window.run(plan)
    assert timing.stop_reason in ("precision reached", "time limit")
    assert timing.wall_s <= 10.0 + 2 * STEP_S + 0.3
    unsteady = Window(STEP_S * (1 + (n * n % 7) / 7) for n in range(10_000))
    late = unsteady.run(PrecisionLimit(1e-6, min_steps=60, limit_s=2.0, agree=int))
    assert late.stop_reason == "time limit"
    assert 2.0 <= late.wall_s <= 2.0 + 4 * STEP_S + 0.3


def agreeing(num_ranks: int) -> Callable[[int], int]:
    """Return what ranks, a thread each, agree by: the smallest of their proposals."""
    proposals: list[int] = []
    smallest: list[int] = []

    def decide() -> None:
        smallest[:] = [min(proposals)]
        proposals.clear()

    together, apart = threading.Barrier(num_ranks, decide), threading.Barrier(num_ranks)

    def agree(own: int) -> int:
        proposals.append(own)
        together.wait(timeout=300)
        found = smallest[0]
        apart.wait(timeout=300)
        return found

    return agree


@pytest.mark.parametrize("plan", ["seconds", "precision"])
def test_ranks_of_unlike_speed_stop_after_the_same_step(plan: str) -> None:
    agree, timings = agreeing(2), dict[int, WindowTiming]()

    def run_rank(rank: int) -> None:
        window = Window(repeat(STEP_S * (1 + 0.3 * rank)))
        chosen: StepPlan = (
            TimeLimit(4.0, agree=agree)
            if plan == "seconds"
            else PrecisionLimit(1e-9, min_steps=10**6, limit_s=4.0, agree=agree)
        )
        timings[rank] = window.run(chosen)

    ranks = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=300)
    assert timings[0].num_steps == timings[1].num_steps
    assert max(timing.wall_s for timing in timings.values()) <= 4.0 + 2 * 1.3 * STEP_S + 0.3


def continued(
    steps_s: Iterable[float], *, num_steps: int, epoch_steps: int, least_s: float = 5.0
) -> tuple[Window, WindowTiming]:
    window = Window(steps_s)
    plan = LongEnough(num_steps, epoch_steps=epoch_steps, least_s=least_s, agree=lambda wish: wish)
    return window, window.run(plan)


@pytest.mark.parametrize("step_s", [0.0007, 0.003, 0.02])
def test_a_window_of_few_steps_continues_to_the_end_of_an_epoch(step_s: float) -> None:
    _, timing = continued(repeat(step_s), num_steps=30, epoch_steps=30)
    assert 5.0 <= timing.wall_s <= 5.0 + 31 * step_s + 2 * loop.IN_FLIGHT_S
    assert timing.num_steps % 30 == 0
    assert timing.stop_reason == "30 steps, continued for at least 5 s"


def test_a_window_that_is_long_enough_has_exactly_its_steps() -> None:
    _, timing = continued(repeat(0.05), num_steps=101, epoch_steps=10)
    assert (timing.num_steps, timing.stop_reason) == (101, "101 steps")


def test_an_epoch_that_takes_longer_than_the_least_is_not_waited_for() -> None:
    _, timing = continued(repeat(0.05), num_steps=20, epoch_steps=1000)
    assert 5.0 <= timing.wall_s <= 5.0 + 2 * loop.IN_FLIGHT_S
    assert timing.num_steps < 1000


def test_steps_that_become_faster_are_continued_again() -> None:
    _, timing = continued(chain(repeat(0.1, 20), repeat(0.01)), num_steps=20, epoch_steps=20)
    assert timing.wall_s >= 5.0
    assert timing.num_steps % 20 == 0


def test_ranks_of_different_pace_continue_by_the_same_steps() -> None:
    """Each goes on by the least that any wishes for; when one has had its time, none goes on."""
    barrier, wishes = threading.Barrier(2), [0, 0]
    done = [0, 0]

    def run_rank(rank: int, step_s: float) -> None:
        def agree(wish: int) -> int:
            wishes[rank] = wish
            barrier.wait(timeout=30)
            least = min(wishes)
            barrier.wait(timeout=30)
            return least

        plan = LongEnough(10, epoch_steps=10, least_s=5.0, agree=agree)
        while chunk := plan.next_steps(done=done[rank], elapsed_s=done[rank] * step_s, capacity=10_000):
            done[rank] += chunk

    ranks = [threading.Thread(target=run_rank, args=(rank, 0.1 + 0.1 * rank)) for rank in range(2)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(timeout=60)
    assert done == [30, 30], "30 steps of 0.2 s are the first whole epochs of the slower that last 5 s"
