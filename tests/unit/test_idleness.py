"""A device that waits for its host, on a timeline by hand: what the clock sees, how much it is, what is said.

A step is twenty kernels. The host launches them one by one, so that a device that is faster waits between
kernels, where no pair of events shows it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from gpuproof.accelerators.base import Accelerator
from gpuproof.accelerators.choose import PROCESSOR
from gpuproof.hardware.boards import find_peak
from gpuproof.launches.limits import idle_share
from gpuproof.records.run import DeviceBusy, Window
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.suites.recipe.measures import recipe_measures
from gpuproof.suites.results import rates_of_launches
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.window import gaps, limited
from gpuproof.verdict.summary import summarize
from gpuproof.worker.engine import loop
from gpuproof.worker.engine.clocks import EventClock
from gpuproof.worker.engine.loop import FixedSteps, run_window
from gpuproof.worker.rank.idleness import (
    BLOCKS,
    UnseenWorkError,
    block_steps,
    busy_blocks,
    busy_during,
    may_wait,
    reason_unseen,
)
from records_by_hand import Story, case, window
from virtual_device import VirtualDevice

KERNELS = 20
LAUNCH_S = 1e-4
ANY = torch.device("cpu")


class VirtualAccelerator(Accelerator):
    """The virtual device, which counts for how long it works."""

    type = "virtual"
    title = "virtual"
    simulated = True

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device

    def synchronize(self, device: torch.device) -> None:
        self._device.synchronize()

    def busy_s(self, device: torch.device) -> float | None:
        return self._device.busy_s


class Trial:
    """A window of steps of which the device idles a share, and the look after it."""

    def __init__(self, idle: float, *, seed: int = 0, stall_every: int = 0, stall_s: float = 0.0) -> None:
        self.device = VirtualDevice()
        self._kernel_s = LAUNCH_S * (1 - idle)
        self._chance = random.Random(seed)
        self._stall_every, self._stall_s = stall_every, stall_s
        self._num_steps = 0

    def step(self) -> None:
        self._num_steps += 1
        if self._stall_every and self._num_steps % self._stall_every == 0:
            self.device.host_works(self._stall_s)
        for _ in range(KERNELS):
            self.device.host_works(LAUNCH_S * self._chance.uniform(0.8, 1.2))
            self.device.launch(self._kernel_s * self._chance.uniform(0.95, 1.05))

    def measured(self, num_steps: int = 300) -> Story:
        clock = EventClock(self.device.make_event, self.device.synchronize)
        timing = run_window(self.step, clock, FixedSteps(num_steps), lambda _times: None)
        seen = window(
            num_steps=num_steps,
            items=num_steps * 10,
            wall_s=timing.wall_s,
            steps_s=timing.steps_s,
            clock="device_event",
            caught_up_steps=clock.caught_up,
        )
        return Story(windows=[seen], extra=list(self._look(seen)))

    def _look(self, seen: Window) -> Sequence[DeviceBusy]:
        if not may_wait(seen.caught_up_steps, num_steps=seen.num_steps):
            return ()
        num_steps = block_steps(seen.wall_s / seen.num_steps)
        during = partial(busy_during, accelerator=VirtualAccelerator(self.device), device=ANY)
        busy = tuple(busy_blocks(self.step, num_steps=num_steps, busy_during=during))
        assert len(busy) == BLOCKS
        return (busy_record(*busy, steps=num_steps),)


def busy_record(*busy_s: float, steps: int = 2, **changes: Any) -> DeviceBusy:
    base = DeviceBusy(rank=0, steps_per_block=steps, busy_s_per_step=busy_s, missing=None)
    return replace(base, **changes)


def codes(story: Story) -> list[str]:
    measured = Measured(launch=story.launch())
    return [doubt.code for doubt in (*gaps(measured), *limited(measured))]


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "perf_counter", VirtualDevice.time_of_this_thread)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("idle", "said"), [(0.05, []), (0.2, ["host-bound"]), (0.5, ["host-bound"]), (0.8, ["host-bound"])]
)
def test_a_device_that_waits_between_kernels_is_named_from_a_tenth_on(
    idle: float, said: list[str], seed: int
) -> None:
    story = Trial(idle, seed=seed).measured()
    (seen,) = story.windows
    assert seen.steps_s == pytest.approx(seen.wall_s, rel=0.01)  # pairs of events show no gap
    assert seen.caught_up_steps is not None
    assert seen.caught_up_steps > 0.9 * seen.num_steps  # at 5 % as at 80 %
    found = idle_share(story.launch())
    assert isinstance(found, Interval)
    assert found.centre == pytest.approx(idle, abs=0.02)
    assert found.low <= found.centre <= found.high
    assert codes(story) == said


@pytest.mark.parametrize(("idle", "most"), [(-0.05, 25), (-0.5, 3), (-5.0, 1)])
def test_a_device_that_is_behind_its_host_is_not_said_to_wait(idle: float, most: int) -> None:
    """It catches up until its queue is a step long: for 20 steps where it is 5 % slower."""
    story = Trial(idle).measured()
    assert story.windows[0].caught_up_steps in range(1, most + 1)
    assert bool(story.extra) == (most > 3)
    assert codes(story) == []


def test_pauses_between_steps_are_found_too() -> None:
    """Every tenth step comes late, by three of them: 23 % idle on a device that keeps up otherwise."""
    trial = Trial(-0.01, stall_every=10, stall_s=3 * KERNELS * LAUNCH_S)
    story = trial.measured(400)
    found = idle_share(story.launch())
    assert isinstance(found, Interval)
    assert found.centre == pytest.approx(0.23, abs=0.03)
    assert codes(story) == ["host-bound"]


def one(seen: Window, *extra: DeviceBusy, latency: bool = False) -> Story:
    asked = case(kind="inference", inference={"mode": "latency"}) if latency else None
    return Story(windows=[seen], extra=extra, case=asked)


@pytest.mark.parametrize(
    ("busy_s", "said"),
    [
        ((0.0089, 0.0089, 0.0089), ["host-bound"]),  # of steps of 10 ms
        ((0.0091, 0.0091, 0.0091), []),
        ((0.0080, 0.0089, 0.0098), []),  # 11 % in the mean, and anything between -11 and 33
    ],
)
def test_the_lower_end_of_the_interval_decides(busy_s: tuple[float, ...], said: list[str]) -> None:
    seen = window(clock="device_event", caught_up_steps=100)
    assert codes(one(seen, busy_record(*busy_s))) == said


@pytest.mark.parametrize(("caught_up", "said"), [(10, []), (11, ["idle-unknown"]), (100, ["idle-unknown"])])
def test_a_wait_that_nobody_could_measure_is_said(caught_up: int, said: list[str]) -> None:
    seen = window(clock="device_event", caught_up_steps=caught_up)
    unseen = busy_record(missing="torch's profiler did not see any work on the device")
    story = one(seen, unseen)
    assert codes(story) == said
    assert idle_share(story.launch()) == Unavailable(
        reason="torch's profiler did not see any work on the device"
    )


def test_the_rank_that_idles_most_is_told_of_and_one_that_nobody_could_look_at_hides_none() -> None:
    windows = [window(rank, clock="device_event", caught_up_steps=100) for rank in range(3)]
    looks = [
        busy_record(0.0099, 0.0099),
        busy_record(0.005, 0.005, rank=1),
        busy_record(rank=2, missing="no"),
    ]
    found = idle_share(Story(windows=windows, extra=looks).launch())
    assert isinstance(found, Interval)
    assert found.centre == pytest.approx(0.5)


def test_the_wait_for_a_loader_is_a_figure_of_its_own() -> None:
    seen = window(clock="device_event", caught_up_steps=100, data_wait_s=0.3)
    found = idle_share(one(seen, busy_record(0.0065, 0.0065)).launch())
    assert isinstance(found, Interval)
    assert found.centre == pytest.approx(0.05)


def test_old_records_and_steps_that_wait_by_design_say_nothing() -> None:
    assert idle_share(one(window(clock="device_event")).launch()) is None
    waiting = window(clock="host_synchronised", steps_s=0.5)
    assert codes(one(waiting, busy_record(0.001, 0.001), latency=True)) == []


def test_a_processor_has_no_kernels_to_look_at() -> None:
    with pytest.raises(UnseenWorkError, match="torch's profiler did not see any work on the device"):
        busy_during(lambda: None, PROCESSOR, ANY)


def test_a_device_that_the_profiler_does_not_know_says_so() -> None:
    class Unknown(Accelerator):
        type = "mps"
        title = "Apple MPS"

    assert reason_unseen(Unknown(), ANY) == "torch's profiler does not see the work of Apple MPS devices"
    assert reason_unseen(VirtualAccelerator(VirtualDevice()), ANY) is None


def test_a_rank_that_sees_nothing_ends_the_look_of_all_after_the_same_step() -> None:
    steps: list[str] = []

    def blind(block: Callable[[], None]) -> float:
        block()
        raise UnseenWorkError("nothing seen")

    def seeing(block: Callable[[], None]) -> float:
        block()
        return 1.0

    def look(during: Callable[[Callable[[], None]], float], others: int) -> list[float]:
        steps.clear()
        step = partial(steps.append, "step")
        agree = partial(min, others)
        return list(busy_blocks(step, num_steps=3, busy_during=during, agree=agree))

    assert look(seeing, 1) == [1 / 3] * BLOCKS
    with pytest.raises(UnseenWorkError, match="nothing seen"):
        look(blind, 1)
    assert len(steps) == 3
    with pytest.raises(UnseenWorkError, match="of another rank"):
        look(seeing, 0)
    assert len(steps) == 3


def test_the_share_is_a_figure_of_the_result_where_it_was_looked_at() -> None:
    def shown(story: Story) -> list[tuple[str, str]]:
        records = [story.records()]
        summary = summarize(records, num_planned=1, find_peak=find_peak)
        rates = rates_of_launches(records, summary.launches)
        found = recipe_measures(summary, rates, None)
        return [(measure.text, measure.detail or "") for measure in found if measure.name == "device idle"]

    seen = window(clock="device_event", caught_up_steps=100)
    ((text, detail),) = shown(one(seen, busy_record(0.0048, 0.0050, 0.0052)))
    assert text == "50 %"
    assert detail == "50 % of the window (45 % to 55 %), measured in 3 blocks of steps after the window"
    assert shown(one(seen)) == []
