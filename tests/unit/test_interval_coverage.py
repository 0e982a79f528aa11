"""Do intervals hold the truth as often as they claim? Simulated launches, fixed seeds.

Each launch has a process effect (sd 2 %) on all of its steps, and step noise that is autocorrelated (AR(1),
φ = 0.6), skewed (log-normal) and has an sd of 3 %. The true centre is the median step time without process
effect, 1 s. `REPETITIONS` bound the Monte Carlo error of a coverage of 95 %: √(0.05·0.95/1,000) = 0.69 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, sqrt
from typing import Literal

import numpy as np
import pytest

from gpuproof.statistics.comparison import compare_launches
from gpuproof.statistics.estimate import FloatArray, Interval
from gpuproof.statistics.launches import interval_of_step_times
from gpuproof.statistics.series import TimeSeries, interval_between, interval_of_series

REPETITIONS = 1000
MONTE_CARLO_ERROR = 0.007
PHI, SHAPE, STEP_SD, PROCESS_SD = 0.6, 0.5, 0.03, 0.02


def step_noise(rng: np.random.Generator, *, series: int, steps: int) -> FloatArray:
    """Give step times of median 1: one row a series."""
    normal = rng.standard_normal((steps, series))
    normal[1:] *= sqrt(1 - PHI**2)
    for i in range(1, steps):
        normal[i] += PHI * normal[i - 1]
    sd_of_lognormal = sqrt(expm1(SHAPE**2) * exp(SHAPE**2))
    return np.ascontiguousarray(1 + STEP_SD * np.expm1(SHAPE * normal.T) / sd_of_lognormal)


def simulated_launches(seed: int, *, repetitions: int, launches: int, steps: int) -> FloatArray:
    """Give step times by repetition, launch and step."""
    rng = np.random.default_rng(seed)
    process = np.exp(PROCESS_SD * rng.standard_normal((repetitions * launches, 1)))
    times_s = process * step_noise(rng, series=repetitions * launches, steps=steps)
    return times_s.reshape(repetitions, launches, steps)


def holds(interval: object, truth: float) -> bool:
    assert isinstance(interval, Interval)
    return interval.low <= truth <= interval.high


def coverage(intervals: Sequence[object], truth: float) -> tuple[float, float]:
    """Give the share of series that carry an interval, and the share of these that hold the truth."""
    given = [found for found in intervals if isinstance(found, Interval)]
    return len(given) / len(intervals), sum(holds(found, truth) for found in given) / max(1, len(given))


@pytest.mark.parametrize("launches", [3, 5, 10, pytest.param(30, marks=pytest.mark.long)])
@pytest.mark.promise("S2.4")
def test_intervals_of_launches_cover_95_percent(launches: int) -> None:
    # Each launch is resampled by itself: thirty take 30 ms. The Monte Carlo error of 400 is 1.1 %.
    repetitions = REPETITIONS if launches < 30 else 400
    data = simulated_launches(40 + launches, repetitions=repetitions, launches=launches, steps=60)
    covered = np.mean([holds(interval_of_step_times(list(run), num_resamples=300), 1.0) for run in data])
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize("centre", ["median", "mean"])
def test_intervals_within_a_launch_of_500_steps_cover_at_least_90_percent(
    centre: Literal["median", "mean"],
) -> None:
    data = step_noise(np.random.default_rng(50), series=REPETITIONS, steps=500)
    # The mean of the log-normal's e^(σz) − 1 is e^(σ²/2) − 1, in the same scale.
    mean = 1 + STEP_SD * expm1(SHAPE**2 / 2) / sqrt(expm1(SHAPE**2) * exp(SHAPE**2))
    truth = 1.0 if centre == "median" else mean
    found = [interval_of_series(TimeSeries(values=run), centre=centre, num_resamples=300) for run in data]
    given, covered = coverage(found, truth)
    assert given >= 0.9
    assert 0.90 <= covered <= 0.98


def test_ratios_of_two_series_cover_at_least_90_percent() -> None:
    first = step_noise(np.random.default_rng(60), series=REPETITIONS, steps=400)
    second = 1.1 * step_noise(np.random.default_rng(61), series=REPETITIONS, steps=600)
    found = [
        interval_between(TimeSeries(values=a), TimeSeries(values=b), what="ratio", num_resamples=300)
        for a, b in zip(first, second, strict=True)
    ]
    given, covered = coverage(found, 1.1)
    assert given >= 0.9
    assert 0.90 <= covered <= 0.98


def autoregressive(rng: np.random.Generator, *, phi: float, series: int, size: int) -> FloatArray:
    """Give AR(1) series of mean 0 and variance 1: one row a series."""
    noise = rng.standard_normal((size, series))
    noise[1:] *= sqrt(1 - phi**2)
    for i in range(1, size):
        noise[i] += phi * noise[i - 1]
    return np.ascontiguousarray(noise.T)


@pytest.mark.parametrize(("phi", "size"), [(0.5, 300), (0.9, 1000), (0.97, 3000)])
def test_means_of_strongly_autocorrelated_series_are_covered(phi: float, size: int) -> None:
    data = autoregressive(np.random.default_rng(51), phi=phi, series=300, size=size)
    found = [interval_of_series(TimeSeries(values=x), centre="mean", num_resamples=300) for x in data]
    given, covered = coverage(found, 0.0)
    assert given >= 0.75
    assert covered >= 0.93  # Monte Carlo error: √(0.05·0.95/250) = 0.014


def test_a_series_too_short_for_its_autocorrelation_has_no_interval() -> None:
    data = autoregressive(np.random.default_rng(52), phi=0.97, series=300, size=300)
    found = [interval_of_series(TimeSeries(values=x), centre="mean", num_resamples=300) for x in data]
    assert coverage(found, 0.0)[0] <= 0.02


@pytest.mark.parametrize(("num_a", "num_b"), [(3, 3), (5, 5), (3, 10), (10, 30)])
def test_equal_programs_are_called_different_at_most_5_percent_of_the_time(num_a: int, num_b: int) -> None:
    repetitions = 4000
    data = simulated_launches(70 + num_a + num_b, repetitions=repetitions, launches=num_a + num_b, steps=20)
    medians = np.median(data, axis=2)
    verdicts = [compare_launches(run[:num_a], run[num_a:], better="lower").verdict for run in medians]
    false_alarms = 1 - verdicts.count("no difference shown") / repetitions
    assert false_alarms <= 0.05 + MONTE_CARLO_ERROR


def test_a_difference_of_the_detectable_size_is_shown_about_4_times_in_5() -> None:
    # Logs of launches have an sd of 2 %: 10 against 10 detect (2.1009 + 0.8620)·0.02·√(2/10) = 2.65 %.
    rng = np.random.default_rng(80)
    a = np.exp(PROCESS_SD * rng.standard_normal((2000, 10)))
    b = np.exp(0.0265 + PROCESS_SD * rng.standard_normal((2000, 10)))
    results = [compare_launches(x, y, better="lower") for x, y in zip(a, b, strict=True)]
    detectable = [result.min_detectable for result in results if result.min_detectable is not None]
    assert len(detectable) == 2000
    assert np.mean(detectable) == pytest.approx(0.0265, rel=0.05)
    assert np.mean([result.verdict == "slower" for result in results]) == pytest.approx(0.8, abs=0.04)
