"""The ring of device events, over a device that is simulated: it finishes work when the test says so."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpuproof.worker.engine import clocks  # noqa: E402  # torch must be there first
from gpuproof.worker.engine.clocks import RING_PAIRS, EventClock, clock_for  # noqa: E402  # as above


class Queue:
    """A device that has reached a position in its queue; each step takes 2 ms of its own time."""

    def __init__(self) -> None:
        self.recorded = 0
        self.reached = 0
        self.waits = 0

    def finish_all(self) -> None:
        self.reached = self.recorded


class Event:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.position = -1

    def record(self) -> None:
        self.queue.recorded += 1
        self.position = self.queue.recorded

    def query(self) -> bool:
        return self.position <= self.queue.reached

    def synchronize(self) -> None:
        self.queue.waits += 1
        self.queue.reached = max(self.queue.reached, self.position)

    def elapsed_time(self, end: Event) -> float:
        assert self.query()
        assert end.query()
        return 2.0 * (end.position - self.position)


def run_steps(clock: EventClock, number: int) -> None:
    for _ in range(number):
        clock.begin()
        clock.end()


def test_only_finished_steps_are_read_and_none_is_lost() -> None:
    queue = Queue()
    clock = EventClock(lambda: Event(queue), queue.finish_all)
    run_steps(clock, 5)
    queue.reached = 6  # the end of the third step: two events a step
    assert list(clock.drain(in_flight=5)) == [0.002] * 3
    assert queue.waits == 0
    assert list(clock.drain(in_flight=0)) == [0.002] * 2
    assert clock.capacity == RING_PAIRS


def test_the_host_waits_until_no_more_than_so_many_are_under_way() -> None:
    queue = Queue()
    clock = EventClock(lambda: Event(queue), queue.finish_all)
    run_steps(clock, 5)
    assert list(clock.drain(in_flight=2)) == [0.002] * 3
    assert (queue.waits, queue.reached) == (1, 6)  # for the end of the third step, once
    assert list(clock.drain(in_flight=2)) == []


def test_the_host_waits_only_when_over_half_the_ring_is_under_way() -> None:
    queue = Queue()
    clock = EventClock(lambda: Event(queue), queue.finish_all)
    run_steps(clock, RING_PAIRS // 2)
    assert list(clock.drain(in_flight=RING_PAIRS)) == []
    assert queue.waits == 0
    run_steps(clock, 10)
    assert list(clock.drain(in_flight=RING_PAIRS)) == [0.002] * 10
    assert queue.waits == 1
    assert clock.capacity == RING_PAIRS // 2


class Asynchronous:
    """An accelerator that notes what it is asked for."""

    asynchronous = True

    def __init__(self) -> None:
        self.told: list[str] = []

    def has_events(self) -> bool:
        return True

    def make_event(self) -> Event:
        return Event(Queue())

    def synchronize(self, device: object) -> None:
        self.told.append("synchronize")


@pytest.mark.promise("S1.9")
def test_strict_timing_waits_for_the_device_at_both_ends_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmark.sync_cuda=true; without it no step waits."""
    found = Asynchronous()
    monkeypatch.setattr(clocks, "accelerator_of", lambda device: found)
    strict = clock_for(torch.device("cuda"), synchronised=True)
    for _ in range(3):
        strict.begin()
        found.told.append("step")
        strict.end()
    assert strict.name == "host_synchronised"
    assert found.told == ["synchronize", "step", "synchronize"] * 3
    assert len(strict.drain(in_flight=0)) == 3
    queued = clock_for(torch.device("cuda"), synchronised=False)
    assert isinstance(queued, EventClock)
    run_steps(queued, 3)
    assert found.told == ["synchronize", "step", "synchronize"] * 3
