"""Intervals over launches: Student's t by hand, the method by number of launches, refusals."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.launches import interval_of_launches, interval_of_step_times, required_launches


def available(interval: Interval | Unavailable) -> Interval:
    assert isinstance(interval, Interval), interval
    return interval


def test_students_t_by_hand() -> None:
    # Mean 11, squares 1 + 1 + 0 = 2, s = √(2/2) = 1; t(0.975; 2) = 4.302653; 4.302653/√3 = 2.484138.
    interval = available(interval_of_launches([10.0, 12.0, 11.0]))
    assert interval.low == pytest.approx(11 - 2.484138, abs=1e-6)
    assert interval.high == pytest.approx(11 + 2.484138, abs=1e-6)
    assert (interval.centre, interval.num_launches, interval.num_samples) == (11.0, 3, 3)
    assert interval.between_launches
    assert interval.relative_half_width == pytest.approx(2.484138 / 11, abs=1e-6)


def test_a_centre_of_0_has_no_relative_width() -> None:
    assert available(interval_of_launches([-1.0, 1.0])).relative_half_width is None


@pytest.mark.parametrize(
    ("values", "reason"),
    [([], "no launches"), ([5.0], "one launch does not show how much launches vary (needs 2)")],
)
def test_too_few_launches(values: list[float], reason: str) -> None:
    assert interval_of_launches(values) == Unavailable(reason=reason)
    assert required_launches(values, relative_half_width=0.01) == Unavailable(reason=reason)


def test_from_two_launches_the_interval_is_that_of_their_medians() -> None:
    steps = [[9.0, 10.0, 50.0], [12.0, 12.0], [10.0, 11.0, 12.0, 11.0]]
    interval = available(interval_of_step_times(steps))
    medians = available(interval_of_launches([10.0, 12.0, 11.0]))
    assert (interval.low, interval.high) == (medians.low, medians.high)
    assert (interval.num_launches, interval.num_samples) == (3, 9)
    assert interval.method == "Student's t on medians of launches"
    assert interval.between_launches


def test_one_launch_is_named_so_and_not_for_comparison() -> None:
    rng = np.random.default_rng(1)
    interval = available(interval_of_step_times([rng.normal(10, 1, 200)]))
    assert interval.method.endswith("within one launch")
    assert not interval.between_launches
    assert (interval.num_launches, interval.num_samples) == (1, 200)
    assert interval.low < interval.centre < interval.high


@pytest.mark.parametrize(
    ("launches", "reason"),
    [
        ([], "no launches"),
        ([[1.0], [], [2.0], []], "no steps in launch 2, 4"),
        ([[1.0, 2.0]], "an interval needs at least 10 values (2 measured)"),
    ],
)
def test_too_few_steps(launches: list[list[float]], reason: str) -> None:
    assert interval_of_step_times(launches) == Unavailable(reason=reason)


def test_nineteen_launches_take_t_and_twenty_the_bootstrap_of_about_the_same_width() -> None:
    rng = np.random.default_rng(2)
    steps = [rng.normal(rng.normal(100, 2), 3, 50) for _ in range(20)]
    assert available(interval_of_step_times(steps[:19])).method.startswith("Student")
    interval = available(interval_of_step_times(steps))
    assert interval.method.startswith("hierarchical bootstrap")
    assert (interval.num_launches, interval.num_samples) == (20, 1000)
    medians = [float(np.median(launch)) for launch in steps]
    assert interval.centre == pytest.approx(np.mean(medians))
    by_t = available(interval_of_launches(medians))
    assert interval.high - interval.low == pytest.approx(by_t.high - by_t.low, rel=0.1)


def test_within_launch_noise_is_counted_once() -> None:
    # Without a process effect the medians' spread is all within-launch noise: resampling both levels as
    # they are would give about √2 times the t interval's width.
    rng = np.random.default_rng(3)
    steps = [rng.normal(100, 3, 50) for _ in range(40)]
    interval = available(interval_of_step_times(steps))
    by_t = available(interval_of_launches([float(np.median(launch)) for launch in steps]))
    assert 0.8 < (interval.high - interval.low) / (by_t.high - by_t.low) < 1.3


def test_launches_that_agree_in_every_digit_have_an_interval_without_width() -> None:
    interval = available(interval_of_step_times([[2.0, 2.0, 2.0]] * 20))
    assert (interval.low, interval.centre, interval.high) == (2.0, 2.0, 2.0)


def test_launches_of_one_step_each_are_enough_if_they_are_many() -> None:
    values = [float(i) for i in range(1, 31)]
    interval = available(interval_of_step_times([[value] for value in values]))
    by_t = available(interval_of_launches(values))
    assert interval.centre == 15.5
    assert interval.high - interval.low == pytest.approx(by_t.high - by_t.low, rel=0.1)


def test_the_same_seed_gives_the_same_interval() -> None:
    rng = np.random.default_rng(4)
    steps = [rng.normal(10, 1, 30) for _ in range(25)]
    assert interval_of_step_times(steps, seed=7) == interval_of_step_times(steps, seed=7)
    assert interval_of_step_times(steps, seed=7) != interval_of_step_times(steps, seed=8)


def test_required_launches_by_hand() -> None:
    # Mean 100, s = √((4 + 0 + 4)/2) = 2; the target is ± 2. t(k − 1)·2/√k ≤ 2 means t ≤ √k:
    # k = 6: 2.570582 > 2.449490; k = 7: 2.446912 ≤ 2.645751.
    assert sqrt(6) < 2.570582
    assert sqrt(7) >= 2.446912
    assert required_launches([98.0, 100.0, 102.0], relative_half_width=0.02) == 7


def test_launches_without_spread_need_two() -> None:
    assert required_launches([5.0, 5.0], relative_half_width=0.01) == 2


def test_a_target_out_of_reach_has_a_reason() -> None:
    found = required_launches([1.0, 100.0], relative_half_width=1e-9)
    assert found == Unavailable(reason="even 1,000,000 launches would not reach the target")


@pytest.mark.parametrize("target", [0.0, -0.01, float("nan")])
def test_a_target_that_is_none_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        required_launches([1.0, 2.0], relative_half_width=target)


def test_a_confidence_of_1_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        interval_of_step_times([[1.0], [2.0]], confidence=1.0)


whole = st.integers(-1000, 1000).map(float)


@settings(deadline=None)
@given(
    values=st.lists(whole, min_size=2, max_size=20),
    shift=st.integers(-1000, 1000),
    scale=st.sampled_from((0.5, 2.0, 1024.0)),
)
def test_shifting_and_scaling_the_values_shifts_and_scales_the_interval(
    values: list[float], shift: int, scale: float
) -> None:
    one = available(interval_of_launches(values))
    moved = available(interval_of_launches([scale * x + shift for x in values]))
    for end in ("low", "centre", "high"):
        assert getattr(moved, end) == pytest.approx(scale * getattr(one, end) + shift, abs=1e-6)
    assert one.low <= one.centre <= one.high


@settings(deadline=None)
@given(values=st.lists(whole, min_size=2, max_size=20))
def test_more_confidence_is_never_a_narrower_interval(values: list[float]) -> None:
    usual, sure = (available(interval_of_launches(values, confidence=c)) for c in (0.9, 0.99))
    assert sure.low <= usual.low <= usual.high <= sure.high
