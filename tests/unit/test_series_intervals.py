"""Intervals within one process: block lengths, weights, differences, ratios."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuproof.statistics.bootstrap import (
    CHUNK_VALUES,
    MOST_COUNTED,
    Centre,
    _resampled_medians,
    _rows,
    choose_blocks,
    expanded_interval,
    resample,
)
from gpuproof.statistics.estimate import (
    FloatArray,
    Interval,
    Unavailable,
    interpolate,
    median,
    welch_degrees_of_freedom,
)
from gpuproof.statistics.series import TimeSeries, interval_between, interval_of_series

CENTRES: tuple[Centre, ...] = ("mean", "median")


def available(interval: Interval | Unavailable) -> Interval:
    assert isinstance(interval, Interval), interval
    return interval


def autoregressive(size: int, *, phi: float, seed: int) -> FloatArray:
    noise = np.random.default_rng(seed).standard_normal(size)
    for i in range(1, size):
        noise[i] = phi * noise[i - 1] + np.sqrt(1 - phi**2) * noise[i]
    return noise


def test_block_length_is_near_the_optimum_of_a_known_process() -> None:
    # AR(1) with φ = 0.6: G/ĝ(0) = 2φ/(1 − φ²) = 1.875, so (1.5·1.875²·n)^⅓·1.5 = 44.9 at n = 5,000.
    lengths = [choose_blocks(autoregressive(5000, phi=0.6, seed=seed)).length for seed in range(20)]
    assert 36 < np.median(lengths) < 54


def test_block_length_grows_with_autocorrelation_and_is_short_for_none() -> None:
    medians = [
        np.median([choose_blocks(autoregressive(1000, phi=phi, seed=seed)).length for seed in range(20)])
        for phi in (0.0, 0.5, 0.9)
    ]
    assert medians[0] <= 4 < medians[1] < medians[2]


def test_block_length_of_what_has_no_autocorrelation_to_measure() -> None:
    assert choose_blocks(np.arange(7.0)).length == 1
    assert choose_blocks(np.full(100, 3.0)).length == 1
    assert choose_blocks(np.tile([1.0, -1.0], 50)).length == 1


def test_block_length_of_a_trend_is_the_limit() -> None:
    assert choose_blocks(np.arange(90.0)).length == 30


def test_resamples_are_runs_of_the_series() -> None:
    # With the first value of each row's blocks known, a row of a straight line rises by 1 within a block.
    line = np.arange(100.0)
    seen: list[FloatArray] = []

    def keep(rows: FloatArray) -> FloatArray:
        seen.append(rows.copy())
        return np.asarray(rows.sum(axis=1))

    drawn = resample(line, centre=keep, num_resamples=50, rng=np.random.default_rng(0))
    length = choose_blocks(line).length
    rows = seen[1]
    assert rows.shape == (50, 100)
    for start in range(0, 100, length):
        assert (np.diff(rows[:, start : start + length], axis=1) == 1).all()
    assert drawn.statistic == 4950.0
    assert drawn.num_blocks == 100 // length
    # moved away from their mean by what blocks of this length hide of the variance
    sums, factor = rows.sum(axis=1), choose_blocks(line).variance_factor
    assert factor > 1
    assert drawn.resamples == pytest.approx(sums.mean() + factor**0.5 * (sums - sums.mean()))


def test_means_from_running_sums_are_the_means_of_the_resampled_rows() -> None:
    values = autoregressive(203, phi=0.6, seed=5)
    fast = resample(values, centre="mean", num_resamples=300, rng=np.random.default_rng(9))
    plain = resample(
        values, centre=lambda rows: rows.mean(axis=1), num_resamples=300, rng=np.random.default_rng(9)
    )
    assert fast.resamples == pytest.approx(plain.resamples, abs=1e-12)
    assert fast.statistic == pytest.approx(plain.statistic, abs=1e-12)


def test_medians_of_rows_are_medians_and_leave_the_series_alone() -> None:
    values = autoregressive(50, phi=0.0, seed=6)
    before = values.copy()
    for series in (values, values[:49]):
        drawn = resample(series, centre="median", num_resamples=10, rng=np.random.default_rng(1))
        assert drawn.statistic == np.median(series)
    assert (values == before).all()


def test_memory_is_bounded_by_working_in_chunks() -> None:
    sizes: list[int] = []

    def largest(rows: FloatArray) -> FloatArray:
        sizes.append(rows.size)
        return np.asarray(rows.max(axis=1))

    values = autoregressive(5000, phi=0.0, seed=7)
    drawn = resample(values, centre=largest, num_resamples=1000, rng=np.random.default_rng(1))
    assert drawn.resamples.size == 1000
    assert max(sizes) <= CHUNK_VALUES < sum(sizes)


def test_the_expanded_interval_by_hand() -> None:
    # 5 pieces: t(0.975; 4) = 2.776445, times √(5/4) is 3.104160; Φ(−3.104160) = 0.000954.
    # Of 99,999 evenly spaced resamples the quantile at p stands at p·100,000 = 95.4.
    low, high = expanded_interval(np.arange(1.0, 100_000.0), 0.95, 4)
    assert low == pytest.approx(95.4, abs=0.1)
    assert high == pytest.approx(100_000 - 95.4, abs=0.1)


def test_a_tail_too_thin_for_the_resamples_is_taken_as_normal() -> None:
    # 99 % with 4 degrees: t = 4.604095, times √(5/4) is 5.147534. Of 1, 2, 3 the mean is 2, the sd √(2/3).
    low, high = expanded_interval(np.array([1.0, 2.0, 3.0]), 0.99, 4)
    assert low == pytest.approx(2 - 5.147534 * 0.816497, abs=1e-5)
    assert high == pytest.approx(2 + 5.147534 * 0.816497, abs=1e-5)


def test_equal_readings_that_held_for_longer_and_longer_have_an_interval_without_width() -> None:
    series = TimeSeries(values=[0.1] * 60, durations_s=[0.1 * i for i in range(1, 61)])
    interval = available(interval_of_series(series, centre="mean"))
    assert (interval.low, interval.centre, interval.high) == (0.1, 0.1, 0.1)


def test_welch_degrees_by_hand() -> None:
    # (1 + 3)²/(1²/4 + 3²/9) = 16/1.25
    assert welch_degrees_of_freedom([1.0, 3.0], [4, 9]) == pytest.approx(12.8)


def test_the_time_weighted_mean() -> None:
    # 100 W for 3 s and 300 W for 1 s, again and again: (300 + 300)/4 = 150 W; unweighted it would be 200.
    series = TimeSeries(values=[100.0, 300.0] * 20, durations_s=[3.0, 1.0] * 20)
    interval = available(interval_of_series(series, centre="mean"))
    assert interval.centre == 150.0
    assert interval.low <= 150.0 <= interval.high
    assert (interval.num_launches, interval.between_launches) == (1, False)


def test_equal_durations_weigh_as_none() -> None:
    values = autoregressive(200, phi=0.5, seed=8)
    plain = available(interval_of_series(TimeSeries(values=values), centre="mean", seed=3))
    weighted = available(
        interval_of_series(TimeSeries(values=values, durations_s=np.full(200, 2.0)), centre="mean", seed=3)
    )
    assert weighted.low == pytest.approx(plain.low)
    assert weighted.high == pytest.approx(plain.high)


@pytest.mark.parametrize(
    ("durations", "message"), [([1.0] * 11, "12 values but 11 durations"), ([1.0] * 11 + [0.0], "above 0 s")]
)
def test_ill_formed_durations_are_refused(durations: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interval_of_series(TimeSeries(values=[1.0] * 12, durations_s=durations), centre="mean")


def test_durations_with_a_median_are_refused() -> None:
    with pytest.raises(ValueError, match="mean only"):
        interval_of_series(TimeSeries(values=[1.0] * 12, durations_s=[1.0] * 12), centre="median")


def test_a_confidence_in_percent_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        interval_of_series(TimeSeries(values=[1.0] * 12), confidence=95)


def test_a_series_that_only_rises_has_no_centre_to_speak_of() -> None:
    found = interval_of_series(TimeSeries(values=list(range(90))), centre="mean")
    assert found == Unavailable(
        reason="90 values are so strongly correlated that they count as 3 independent ones "
        "(at least 10 needed): the series drifts or is too short"
    )


def test_a_known_difference_and_ratio_are_in_their_intervals() -> None:
    # AR(1) with φ = 0.5 has a long-run variance of (1 + φ)/(1 − φ) = 3: the error of the difference is
    # √(3/1,600 + 3/2,400) = 0.0559, its 95 % half-width 0.110, and about a hundredth of that for the ratio.
    noise = [autoregressive(size, phi=0.5, seed=10) for size in (1600, 2400)]
    first, second = (TimeSeries(values=m + x - x.mean()) for m, x in zip((100, 110), noise, strict=True))
    difference = available(interval_between(first, second, what="difference"))
    ratio = available(interval_between(first, second, what="ratio"))
    assert difference.centre == pytest.approx(10)
    assert (difference.high - difference.low) / 2 == pytest.approx(0.110, rel=0.25)
    assert ratio.centre == pytest.approx(1.1)
    assert ratio.low < 1.1 < ratio.high
    assert ratio.high - ratio.low == pytest.approx((difference.high - difference.low) / 100, rel=0.25)
    assert difference.num_samples == 4000
    assert not difference.between_launches


@pytest.mark.parametrize("what", ["difference", "ratio"])
def test_the_series_that_is_too_short_is_named(what: Literal["difference", "ratio"]) -> None:
    short, long = TimeSeries(values=[1.0] * 3), TimeSeries(values=[1.0] * 20)
    reason = "series: an interval needs at least 10 values (3 measured)"
    assert interval_between(short, long, what=what) == Unavailable(reason=f"first {reason}")
    assert interval_between(long, short, what=what) == Unavailable(reason=f"second {reason}")


def test_constant_series_differ_exactly() -> None:
    first, second = TimeSeries(values=[2.0] * 20), TimeSeries(values=[3.0] * 20)
    interval = available(interval_between(first, second, what="difference"))
    assert (interval.low, interval.centre, interval.high) == (1.0, 1.0, 1.0)


def test_there_is_no_ratio_to_what_may_be_0() -> None:
    near_0 = TimeSeries(values=autoregressive(100, phi=0.0, seed=12))
    found = interval_between(near_0, TimeSeries(values=[1.0] * 20), what="ratio")
    assert found == Unavailable(reason="no ratio: the first series is not clearly above 0")


@settings(max_examples=30, derandomize=True, deadline=None)
@given(
    values=st.lists(st.integers(0, 1000).map(float), min_size=10, max_size=60),
    shift=st.integers(-1000, 1000),
    scale=st.sampled_from((0.5, 2.0, 1024.0)),
    centre=st.sampled_from(CENTRES),
)
def test_shifting_and_scaling_the_series_shifts_and_scales_the_interval(
    values: list[float], shift: int, scale: float, centre: Centre
) -> None:
    one = interval_of_series(TimeSeries(values=values), centre=centre, num_resamples=2000)
    moved = interval_of_series(
        TimeSeries(values=[scale * x + shift for x in values]), centre=centre, num_resamples=2000
    )
    assert type(one) is type(moved)
    if isinstance(one, Interval) and isinstance(moved, Interval):
        for end in ("low", "centre", "high"):
            assert getattr(moved, end) == pytest.approx(scale * getattr(one, end) + shift, abs=1e-6)
        assert one.low <= one.high


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40).map(sorted), st.floats(0, 1, exclude_max=True))
def test_interpolation_is_numpys_to_the_last_bit(ordered: list[float], share: float) -> None:
    array, n = np.array(ordered), len(ordered)
    assert interpolate(array, (n - 1) * share) == np.quantile(array, share)
    assert interpolate(array, n * share + share - 1) == np.quantile(array, share, method="weibull")


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40))
def test_the_median_is_numpys_to_the_last_bit(values: list[float]) -> None:
    assert median(np.array(values)) == np.median(values)


def test_what_is_kept_of_one_series_changes_nothing_for_the_next() -> None:
    series = TimeSeries(values=[1.0, 1.2, 0.9, 1.1] * 20)
    first = interval_of_series(series)
    assert interval_of_series(TimeSeries(values=[2.0, 1.2, 0.9, 1.1] * 20)) != first
    assert interval_of_series(series) == first


@pytest.mark.parametrize("size", [10, 61, MOST_COUNTED, MOST_COUNTED + 1, 400])
@pytest.mark.parametrize("length", [1, 3, 7])
def test_medians_by_counting_or_sorting_ranks_are_the_medians_of_the_rows(size: int, length: int) -> None:
    """Rounded values, so that many are equal; both ways draw the same resamples."""
    values = np.random.default_rng(size).standard_normal(size).round(1)
    quick = _resampled_medians(values, length, 500, np.random.default_rng(7))
    rows = np.concatenate(list(_rows(values, length, 500, np.random.default_rng(7))))
    assert np.concatenate(quick).tolist() == np.median(rows, axis=1).tolist()


def test_the_generator_goes_on_as_if_it_had_drawn() -> None:
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    values = np.arange(50.0)
    for _ in range(2):
        resample(values, centre="mean", num_resamples=99, rng=one)
        np.concatenate(list(_rows(values, choose_blocks(values - values.mean()).length, 99, other)))
    assert one.bit_generator.state == other.bit_generator.state
