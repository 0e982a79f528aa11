"""Windows at the power cap: when they begin, how long they are, and what the driver is believed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from controllers import Controller, window_of
from gpuproof.base.errors import UsageError
from gpuproof.devices.base import THROTTLE_REASONS
from gpuproof.devices.fake import open_twins
from gpuproof.devices.guard import GuardedDevices
from gpuproof.devices.simulated import SimulatedPowerCap, read_declaration
from gpuproof.records.readings import DeviceIdentity, PhysicalIndex, VendorIndex
from gpuproof.records.what_ran import AT_POWER_CAP
from gpuproof.statistics.power_cap import period_of_steps
from gpuproof.worker.engine.loop import StepPlan, TimeLimit
from gpuproof.worker.rank.power_cap import COUNTER, CapMeter, LongEnoughAtCap, Settling, period_of_ends

STEP_S = 0.1


class Driver(GuardedDevices):
    """One GPU, whose driver answers what a test wrote down, and nothing after it."""

    def __init__(self, answers: Iterator[Mapping[str, Any]]) -> None:
        self._answers = answers

    @property
    def identities(self) -> tuple[DeviceIdentity, ...]:
        return (
            DeviceIdentity(
                physical_index=PhysicalIndex(0),
                vendor="nvidia",
                vendor_index=VendorIndex(0),
                framework_index=None,
                uuid="GPU-1",
                pci_bus_id=None,
                name="GPU",
                static={},
                unavailable={},
            ),
        )

    def select(self, chosen: object) -> None:
        pass

    def gather(self, wanted: tuple[str, ...]) -> dict[PhysicalIndex, Any]:
        values = next(self._answers)
        return {PhysicalIndex(0): (dict(values), {name: "unknown" for name in wanted if name not in values})}


def meter_of(*answers: Mapping[str, Any]) -> CapMeter:
    return CapMeter(Driver(iter(answers)), "GPU-1")


def capped(*, counted_s: float | None = None) -> dict[str, Any]:
    return {THROTTLE_REASONS: ("power_cap",)} | ({} if counted_s is None else {COUNTER: counted_s})


def free(*, counted_s: float = 0.0) -> dict[str, Any]:
    return {THROTTLE_REASONS: (), COUNTER: counted_s}


def alone(proposal: int) -> int:
    return proposal


def lasted_s(plan: StepPlan) -> float:
    """Run steps of 0.1 s as a plan says."""
    done = 0
    while steps := plan.next_steps(done=done, elapsed_s=STEP_S * done, capacity=64):
        done += steps
        assert done < 1000
    return STEP_S * done


def test_the_driver_s_count_is_believed_where_it_counts_and_samples_where_it_stands_still() -> None:
    counting = meter_of(free(counted_s=5.0), free(counted_s=5.9), free(counted_s=6.8))
    for elapsed_s in (0.0, 1.0, 1.5, 2.0):  # not asked again after half a second
        counting.look(elapsed_s)
    assert counting.capped_s == pytest.approx(1.8)
    standing = meter_of(capped(counted_s=0.0), capped(counted_s=0.0), free(), capped(counted_s=0.0))
    for elapsed_s in (0.0, 1.0, 2.0, 3.0):
        standing.look(elapsed_s)
    assert standing.capped_s == pytest.approx(2.0)
    counting.restart()
    assert counting.capped_s == 0.0


def test_a_driver_that_does_not_tell_is_no_driver_that_says_never() -> None:
    silent = meter_of({})
    silent.look(0.0)
    assert (silent.missing, silent.capped_s) == ("unknown", 0.0)
    assert CapMeter(Driver(iter([])), "GPU-2").missing == "the driver does not list the device"


def test_steps_settle_for_a_moment_or_until_the_cap_was_met_for_three_seconds() -> None:
    never = Settling(meter_of(*[free()] * 20), agree=alone, step_s=STEP_S)
    assert lasted_s(never) == pytest.approx(0.5)
    assert never.met_s is None
    met = Settling(meter_of(free(), free(), *[capped()] * 60), agree=alone, step_s=STEP_S)
    assert lasted_s(met) == pytest.approx(3.3, abs=0.11)
    assert met.met_s == pytest.approx(0.2)


def test_a_window_goes_on_to_twenty_seconds_at_the_cap() -> None:
    plan = LongEnoughAtCap(
        TimeLimit(2.0, agree=alone, step_s=STEP_S), meter_of(*[capped()] * 60), limit_s=60.0, agree=alone
    )
    assert lasted_s(plan) == pytest.approx(20.0, abs=0.2)
    assert plan.stop_reason == "20 s at the power cap"
    assert plan.share(20.0) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("asked_s", "limit_s", "answers", "expected_s"),
    [
        (2.0, 60.0, [free()] * 60, 2.0),
        (2.0, 60.0, [capped()] + [free()] * 60, 2.0),
        (2.0, 5.0, [capped()] * 60, 5.0),
        (30.0, 60.0, [capped()] * 60, 30.0),
        (2.0, 60.0, [{}] * 60, 2.0),
    ],
)
def test_a_window_is_as_asked_for_elsewhere(
    asked_s: float, limit_s: float, answers: list[dict[str, Any]], expected_s: float
) -> None:
    plan = LongEnoughAtCap(
        TimeLimit(asked_s, agree=alone, step_s=STEP_S), meter_of(*answers), limit_s=limit_s, agree=alone
    )
    assert lasted_s(plan) == pytest.approx(expected_s, abs=0.2)


def test_all_ranks_go_on_where_another_is_at_its_cap() -> None:
    def other_is_capped(proposal: int) -> int:
        return min(proposal, -1) if proposal <= 0 and not wants_to_end else proposal

    wants_to_end = False
    plan = LongEnoughAtCap(
        TimeLimit(0.2, agree=alone, step_s=STEP_S),
        meter_of(*[free()] * 9),
        limit_s=60.0,
        agree=other_is_capped,
    )
    assert plan.next_steps(done=2, elapsed_s=0.2, capacity=64) == 2
    wants_to_end = True
    assert plan.next_steps(done=4, elapsed_s=0.4, capacity=64) == 0


def test_a_simulated_cap_reads_as_the_device_s_clock() -> None:
    now_s = 100.0
    twins = open_twins(
        '{"devices": 1, "power_cap": {"period_s": 2, "depth_percent": 20, "settles_after_s": 1}}',
        clock=lambda: now_s,
    )
    wanted = (THROTTLE_REASONS, "clock_sm_mhz", "power_w", COUNTER)
    assert twins.gather(VendorIndex(0), wanted)[0][THROTTLE_REASONS] == ()
    now_s = 101.5  # three quarters of a period: 15 % down
    assert twins.gather(VendorIndex(0), wanted)[0] == {
        THROTTLE_REASONS: ("power_cap",),
        "clock_sm_mhz": pytest.approx(1275.0),
        "power_w": 300.0,
        COUNTER: pytest.approx(0.5),
    }
    assert SimulatedPowerCap(period_s=2.0, depth_percent=20.0).clock_share(101.5) == pytest.approx(0.85)


@pytest.mark.parametrize("stated", ['{"depth_percent": 95}', '{"period": 1}', '{"period_s": 0}', "3"])
def test_a_cap_that_cannot_be_is_refused(stated: str) -> None:
    with pytest.raises(UsageError, match="power_cap"):
        read_declaration(f'{{"power_cap": {stated}}}')


def test_the_period_is_found_without_numpy_as_with_it_and_only_where_there_is_one() -> None:
    rng = np.random.default_rng(41)
    for period_s in (0.3, 1.0, 3.0):
        controller = Controller(wave="saw-tooth", period_s=period_s, depth=0.2, scatter=0.02)
        steps = controller.draw(rng, 20.4 * period_s)
        assert period_of_ends(list(accumulate(steps))) == pytest.approx(period_s, rel=0.05)
        assert period_of_steps(steps) == pytest.approx(period_s, rel=0.05)
    noise = 0.02 * (1 + 0.02 * rng.standard_normal(1000))
    for flat in (np.full(3500, 0.02), noise, noise + np.linspace(0, 0.002, 1000), noise[:3], noise[:1]):
        assert period_of_ends(list(accumulate(flat))) is None


@pytest.mark.parametrize(
    ("period_s", "limit_s", "expected_s"),
    [(0.3, 60.0, 20.0), (1.2, 60.0, 24.0), (3.0, 60.0, 60.0), (3.0, 40.0, 40.0)],
)
def test_a_window_at_the_cap_ends_with_twenty_seconds_and_periods_or_at_its_limit(
    period_s: float, limit_s: float, expected_s: float
) -> None:
    controller = Controller(wave="saw-tooth", period_s=period_s, depth=0.2, scatter=0.01)
    window_s, plan = window_of(controller.draw(np.random.default_rng(41), 65.0), limit_s=limit_s)
    assert plan.period_s == pytest.approx(period_s, rel=0.04, abs=0.04)  # a window in 512 parts
    assert window_s == pytest.approx(expected_s, rel=0.04)
    assert plan.stop_reason.endswith(AT_POWER_CAP)


@pytest.mark.parametrize(("every", "longer"), [(8, 1.1), (10, 1.3), (10, 3.0), (30, 2.0)])
def test_a_rhythm_of_the_work_does_not_end_a_window_before_the_controller_turned_often(
    every: int, longer: float
) -> None:
    controller = Controller(wave="saw-tooth", period_s=1.0, depth=0.1, scatter=0.01)
    steps = controller.draw(np.random.default_rng(7), 65.0)
    steps[::every] *= longer
    window_s, plan = window_of(steps)
    assert window_s >= 19.9
    assert plan.needed_s >= 20.0


def test_steps_that_took_no_time_are_no_period() -> None:
    assert period_of_ends([0.0, 0.0, 0.1, 0.1]) is None
