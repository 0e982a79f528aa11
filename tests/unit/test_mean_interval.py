"""The interval of a launch's mean step: how often it holds the truth, and when there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shapes
from gpuproof.hardware.boards import find_peak
from gpuproof.statistics.estimate import FloatArray, Interval, Unavailable
from gpuproof.statistics.launches import interval_of_mean
from gpuproof.verdict.summary import summarize
from records_by_hand import one_rank

WINDOWS = 1000
"""√(0.05 · 0.95/1,000) = 0.69 %: the bounds of the whole simulation in `benchmarks/`, with two of these."""
ERROR = 0.014
NAMED = ("1 % of steps × 10", "2 % of steps × 20", "AR(1) 0.9, 5 %", "normal, 1 %")


def coverage(name: str, steps: int, seed: int) -> tuple[float, float]:
    """Return the share of intervals that hold the truth, and of windows that have one."""
    shape = shapes.CARRIED[name]
    drawn = shape.draw(np.random.default_rng(seed), WINDOWS, steps)
    given = [found for times in drawn if isinstance(found := interval_of_mean(times), Interval)]
    held = sum(found.low <= shape.mean <= found.high for found in given)
    return held / len(given), len(given) / WINDOWS


@pytest.mark.parametrize("steps", [1000, 3000])
@pytest.mark.parametrize("name", NAMED)
def test_from_1000_steps_the_interval_holds_the_truth_in_95_percent(name: str, steps: int) -> None:
    held, given = coverage(name, steps, seed=1)
    assert 0.93 - ERROR <= held <= 0.97 + ERROR
    assert given >= 0.92


@pytest.mark.parametrize("steps", [500, 750, 999])
@pytest.mark.parametrize("name", NAMED)
def test_from_500_steps_it_does_in_90_percent(name: str, steps: int) -> None:
    held, given = coverage(name, steps, seed=2)
    assert held >= 0.90
    assert given >= 0.80


def test_one_slow_step_carries_no_interval() -> None:
    found = interval_of_mean([1.0, 1.01] * 50 + [30.0])
    assert isinstance(found, Unavailable)
    assert found.reason.startswith("one or two of 101 steps account for nearly all of the scatter")


def rare(times: float, *, rate: float, seen: int, steps: int, seed: int = 5) -> list[FloatArray]:
    """Return steady windows, ± 0.05 %, that show so many steps `times` as long, which come at this rate."""
    rng = np.random.default_rng(seed)
    shape = shapes.rare(rate, times, deviation=0.0005)
    return [window for window in shape.draw(rng, WINDOWS, steps) if (window > (1 + times) / 2).sum() == seen]


@pytest.mark.parametrize("times", [1.01, 1.1])
@pytest.mark.parametrize("seen", [1, 2])
@pytest.mark.parametrize("steps", [123, 500])
def test_rare_slow_steps_bound_what_they_add_to_the_mean(times: float, seen: int, steps: int) -> None:
    """At the rate seen, and at twice it: windows that show fewer than usual hold the truth too."""
    for rate in (seen / steps, 2 * seen / steps):
        found = [interval_of_mean(window) for window in rare(times, rate=rate, seen=seen, steps=steps)]
        given = [interval for interval in found if isinstance(interval, Interval)]
        truth = 1 + rate * (times - 1)
        assert len(given) >= 0.95 * len(found) >= 100
        assert sum(x.low <= truth <= x.high for x in given) >= 0.93 * len(given)
        assert np.median([x.relative_reach or 1.0 for x in given]) <= (0.002 if times == 1.01 else 0.02)


def test_what_rare_steps_of_ten_times_the_length_add_is_not_known() -> None:
    for window in rare(10, rate=2 / 123, seen=2, steps=123):
        assert isinstance(interval_of_mean(window), Unavailable)
    times = np.tile([1.0, 1.0001], 60)
    times[[30, 90]] = 10.0
    found = interval_of_mean(times)
    assert isinstance(found, Unavailable)
    # 2 of 119 allow a rate of 5.9 % (Clopper and Pearson): 0.059 · 2 · 9 = 107 %
    assert found.reason.endswith("they could add 107 % to the mean")


def test_the_memory_passes_of_a_steady_card_have_an_interval() -> None:
    # 123 passes of 16.87 ms ± 0.05 %, the first and the third 1 % longer, as an H100 has shown them
    times = 16.87e-3 * (1 + 0.0005 * np.random.default_rng(3).standard_normal(123))
    times[[0, 2]] = 17.04e-3
    found = interval_of_mean(times)
    assert isinstance(found, Interval)
    assert found.relative_reach is not None
    assert found.relative_reach < 0.001


def test_two_slow_steps_side_by_side_are_one_event() -> None:
    times = np.tile([1.0, 1.0001], 100)
    times[[50, 51]] = 1.01
    together = interval_of_mean(times)
    times[[50, 51]], times[[50, 150]] = 1.0, 1.01
    apart = interval_of_mean(times)
    assert isinstance(together, Interval)
    assert isinstance(apart, Interval)
    # one event of 2 × 1 % at the rate of 1 in 200, against two of 1 % at the rate of 2: 5.57/7.22 · 2 = 1.5
    assert (together.high - together.centre) / (apart.high - apart.centre) == pytest.approx(1.7, abs=0.25)


def test_a_longer_first_step_takes_no_interval_away() -> None:
    # the first of 206 steps, as a device that runs ahead has shown it: 20.23 ms before 205 of 19.93 ± 0.001
    rest = [19.929, 19.931] * 102 + [19.930]
    found = interval_of_mean([20.23, *rest])
    assert isinstance(found, Interval)
    # (20.23 + 205 · 19.93)/206 = 19.931456; the others know theirs to t(204)·0.001/√205 = 0.00014
    assert found.centre == found.high == pytest.approx(19.931456, abs=1e-6)
    assert found.low == pytest.approx(19.92986, abs=2e-5)
    assert found.num_samples == 206
    for deviation in (0.0, 0.0001, 0.0002, 0.001):
        drawn = shapes.first_longer(0.015, deviation=deviation).draw(np.random.default_rng(4), 300, 206)
        intervals = [found for times in drawn if isinstance(found := interval_of_mean(times), Interval)]
        assert len(intervals) >= 298
        assert sum(x.low - 1e-12 <= 1 <= x.high + 1e-12 for x in intervals) >= 0.93 * 300


def test_of_a_first_step_that_is_very_long_the_interval_reaches_to_the_mean_with_it() -> None:
    found = interval_of_mean([10.0, *[1.0] * 99])
    assert isinstance(found, Interval)
    assert (found.low, found.centre, found.high) == pytest.approx((1.0, 1.09, 1.09))


@pytest.mark.parametrize("slow", [1, 50, 100])
def test_a_slow_step_elsewhere_carries_no_interval_whatever_the_first_took(slow: int) -> None:
    times = [1.0, 1.01] * 50 + [1.0]
    times[0], times[slow] = 5.0, 30.0
    assert isinstance(interval_of_mean(times), Unavailable)


def test_steps_that_drift_carry_no_interval() -> None:
    found = interval_of_mean(np.linspace(1, 2, 100))
    assert isinstance(found, Unavailable)
    assert found.reason.startswith("steps are correlated over such a long time")


def test_too_few_steps_carry_no_interval() -> None:
    assert interval_of_mean([1.0] * 9) == Unavailable(
        reason="an interval needs at least 10 values (9 measured)"
    )
    with pytest.raises(ValueError, match="confidence"):
        interval_of_mean([1.0] * 10, confidence=95)


def test_independent_symmetric_steps_have_student_s_interval() -> None:
    # Behind the first 1, 3, 3, 1 in turns: s = √(40/39), Σ of neighbours' products −1: nothing is to widen.
    found = interval_of_mean([2.0, *[1.0, 3.0, 3.0, 1.0] * 10])
    assert isinstance(found, Interval)
    # t(39) = 2.0227; 2.0227 · √(40/39)/√40 = 0.32389
    assert (found.low, found.centre, found.high) == pytest.approx((1.67611, 2.0, 2.32389), abs=1e-4)
    equal = interval_of_mean([0.1] * 30)
    assert isinstance(equal, Interval)
    assert equal.low == pytest.approx(equal.high) == pytest.approx(0.1)


def test_slow_steps_make_the_interval_reach_farther_up() -> None:
    found = interval_of_mean(([1.0] * 19 + [10.0]) * 10)
    assert isinstance(found, Interval)
    assert found.high - found.centre > 1.1 * (found.centre - found.low)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    st.lists(st.floats(1e-6, 1e3), min_size=10, max_size=120),
    st.floats(1.0, 3.0),
)
def test_the_headline_rate_always_lies_in_its_own_interval(times_s: list[float], idle: float) -> None:
    records = one_rank(times_s=times_s, wall_s=sum(times_s) * idle).records()
    summary = summarize([records], num_planned=1, find_peak=find_peak)
    rate, interval = summary.rate, summary.throughput_interval
    assert rate is not None
    if isinstance(interval, Interval):
        assert 0 < interval.low <= rate <= interval.high
        assert interval.high <= rate * (sum(times_s) / len(times_s)) / min(times_s) * (1 + 1e-9)
        assert not interval.between_launches
    else:
        assert interval.reason
