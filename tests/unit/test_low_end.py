"""The mean of a recording by the low end of its spectrum: how well it is known, or why it is too short."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from scipy.stats import t

from gpuproof.statistics.estimate import FloatArray, Unavailable
from gpuproof.statistics.low_end import LowEnd, difference_of_means, low_end
from gpuproof.statistics.series import TimeSeries

CONFIDENCE = 1 - 0.05 / 11
"""Of one of eleven metrics."""


def autoregressive(rng: np.random.Generator, size: int, phi: float) -> FloatArray:
    noise = rng.standard_normal(size)
    for place in range(1, size):
        noise[place] = phi * noise[place - 1] + sqrt(1 - phi**2) * noise[place]
    return noise


def slow_under_noise(rng: np.random.Generator, size: int) -> FloatArray:
    slow = sqrt(1 / 3) * autoregressive(rng, size, 0.97)
    return np.asarray(sqrt(2 / 3) * rng.standard_normal(size) + slow)


def known(values: FloatArray) -> LowEnd:
    end = low_end(TimeSeries(values=values))
    assert isinstance(end, LowEnd)
    return end


def alarms(shape: str, size: int, *, num: int, shift: float = 0.0) -> tuple[int, int]:
    """Return how many pairs that are `shift` apart are called different, and how many could be told."""
    rng = np.random.default_rng(26)
    called = told = 0
    for _ in range(num):
        drawn = [
            slow_under_noise(rng, size) if shape == "slow" else autoregressive(rng, size, float(shape))
            for _ in range(2)
        ]
        ends = [low_end(TimeSeries(values=x)) for x in (drawn[0], drawn[1] + shift)]
        if isinstance(ends[0], LowEnd) and isinstance(ends[1], LowEnd):
            between = difference_of_means(ends[0], ends[1], confidence=CONFIDENCE)
            told += 1
            called += not between.low <= 0 <= between.high
    return called, told


@pytest.mark.parametrize(
    ("shape", "size"), [("slow", 150), ("0.97", 300), ("0.9", 1000), ("0", 300), ("0.5", 60)]
)
def test_equal_series_are_hardly_ever_called_different(shape: str, size: int) -> None:
    """0.45 % of 500 are 2.3; 7 or more have a chance of 1 %. Blocks called 7 % of the first shape apart."""
    assert alarms(shape, size, num=500)[0] < 7


@pytest.mark.parametrize(
    ("shape", "size", "shift"), [("0", 150, 1.0), ("0", 1000, 0.3), ("0.9", 1000, 1.5), ("slow", 3000, 1.0)]
)
def test_a_real_difference_is_found_where_the_series_are_long_enough(
    shape: str, size: int, shift: float
) -> None:
    assert alarms(shape, size, num=60, shift=shift)[0] >= 54


def test_the_variance_of_independent_values_is_one_over_their_number() -> None:
    rng = np.random.default_rng(1)
    ends = [low_end(TimeSeries(values=rng.standard_normal(300))) for _ in range(300)]
    variances = [end.variance for end in ends if isinstance(end, LowEnd)]
    assert len(variances) > 285  # 1 in 60 looks slow by chance
    # Each has 5 degrees of freedom: a relative error of √(2/5/300) = 3.7 %.
    assert np.mean(variances) == pytest.approx(1 / 300, rel=0.11)


def test_two_known_variances_give_welchs_interval() -> None:
    first = LowEnd(mean=10.0, variance=0.09, freedom=5)
    second = LowEnd(mean=12.0, variance=0.16, freedom=5)
    found = difference_of_means(first, second, confidence=0.95)
    freedom = 0.25**2 / (0.09**2 / 5 + 0.16**2 / 5)
    assert found.centre == 2.0
    assert found.high - found.centre == pytest.approx(0.5 * t.ppf(0.975, freedom))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.ones(49), "too few values"),
        (np.arange(200.0), "values drift"),
        (np.repeat([1.0, 2.0], 100), "change so slowly"),
    ],
)
def test_what_is_too_short_or_drifts_says_so(values: FloatArray, reason: str) -> None:
    found = low_end(TimeSeries(values=values))
    assert isinstance(found, Unavailable)
    assert reason in found.reason


def test_equal_readings_are_known_exactly_and_durations_weigh() -> None:
    constant = known(np.full(60, 0.1))
    assert (constant.mean, constant.variance) == (0.1, 0.0)
    between = difference_of_means(constant, constant, confidence=0.95)
    assert (between.low, between.high) == (0.0, 0.0)
    weighed = low_end(TimeSeries(values=[1.0, 3.0] * 40, durations_s=[3.0, 1.0] * 40))
    assert isinstance(weighed, LowEnd)
    assert weighed.mean == pytest.approx(1.5)
