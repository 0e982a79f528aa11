"""Percentiles: LoadGen's sample counts, the bound that samples support, and the reason for none."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuproof.statistics.percentiles import (
    conservative_index,
    over_limit_allowed,
    percentile,
    samples_needed,
    under_limit_needed,
)

QS = (50, 90, 95, 99, 99.9)
# Samples needed (h + t) by confidence and t, one column a percentile of QS; 662 is in MLPerf's own config.
TABLE = {
    (0.99, 0): (7, 44, 90, 459, 4603),
    (0.99, 1): (11, 64, 130, 662, 6636),
    (0.95, 0): (5, 29, 59, 299, 2995),
    (0.95, 1): (8, 46, 93, 473, 4742),
}


@pytest.mark.parametrize(("confidence", "over"), TABLE)
def test_sample_counts_are_those_of_the_published_rule(confidence: float, over: int) -> None:
    counts = tuple(under_limit_needed(over, q, confidence=confidence) + over for q in QS)
    assert counts == TABLE[confidence, over]


def test_one_sample_less_does_not_do_by_the_binomial_sum_itself() -> None:
    # P[Binomial(n, 0.1) ≤ 1] = 0.9ⁿ + n·0.1·0.9ⁿ⁻¹ must be at most 0.05: not with 45, with 46.
    def risk(n: int) -> float:
        return float(sum(comb(n, k) * 0.1**k * 0.9 ** (n - k) for k in (0, 1)))

    assert risk(45) > 0.05 >= risk(46)
    assert under_limit_needed(1, 90) + 1 == 46


def test_a_percentile_below_the_median_needs_as_many_samples_as_its_mirror() -> None:
    assert samples_needed(1) == samples_needed(99) == 299


@pytest.mark.parametrize(("samples", "allowed"), [(298, None), (299, 0), (472, 0), (473, 1)])
def test_samples_over_the_limit_that_are_allowed(samples: int, allowed: int | None) -> None:
    assert over_limit_allowed(samples, 99) == allowed


def test_the_conservative_place_is_the_exact_bounds() -> None:
    # 662 samples allow t = 1 at 99 %: the bound drops 1 sample (place 660).
    assert conservative_index(662, 99, confidence=0.99) == 660
    assert conservative_index(459, 99, confidence=0.99) == 458
    assert conservative_index(458, 99, confidence=0.99) is None


def test_the_value_is_interpolated_between_sorted_samples() -> None:
    # 0 … 100 in any order: position 100·0.9 = 90 is the value 90.
    found = percentile(list(range(100, -1, -1)), 90)
    assert found.value == pytest.approx(90.0, rel=1e-12)
    assert (found.reason, found.num_samples, found.num_needed) == (None, 101, 29)
    # P[Binomial(101, 0.1) ≤ t] is 0.0221 at t = 4 and 0.0543 at 5: four are dropped, place 96 bounds.
    assert (found.bound, found.bound_q) == (96.0, 90)


def test_too_few_samples_give_the_reason_and_the_bound_they_support() -> None:
    found = percentile(range(100), 99)
    assert found.value is None
    assert found.reason == "p99 needs at least 299 values (100 measured)"
    # p¹⁰⁰ = 0.05 at p = exp(ln 0.05 / 100) = exp(−0.029957) = 0.970487.
    assert found.bound == 99.0
    assert found.bound_q == pytest.approx(97.0487, abs=1e-4)


def test_low_percentiles_are_bounded_from_below() -> None:
    enough = percentile(range(101), 10)
    assert enough.value == pytest.approx(10.0)
    assert (enough.bound, enough.bound_q) == (4.0, 10)
    few = percentile(range(100), 1)
    assert few.reason == "p1 needs at least 299 values (100 measured)"
    assert few.bound == 0.0
    assert few.bound_q == pytest.approx(2.9513, abs=1e-4)


def test_no_samples_support_no_bound() -> None:
    found = percentile([], 99.9)
    assert (found.value, found.bound, found.bound_q) == (None, None, None)
    assert found.reason == "p99.9 needs at least 2,995 values (0 measured)"


@pytest.mark.parametrize("q", [0, 100, -1, 101])
def test_a_percentile_out_of_range_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0], q)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative: -1"):
        under_limit_needed(-1, 99)


@settings(deadline=None)
@example(samples=468, q=90, confidence=0.9)
@given(samples=st.integers(1, 3000), q=st.sampled_from(QS), confidence=st.sampled_from((0.9, 0.95, 0.99)))
def test_allowed_and_needed_are_the_same_rule_read_both_ways(
    samples: int, q: float, confidence: float
) -> None:
    allowed = over_limit_allowed(samples, q, confidence=confidence)
    least = -1 if allowed is None else allowed
    if allowed is not None:
        assert under_limit_needed(allowed, q, confidence=confidence) + allowed <= samples
    assert under_limit_needed(least + 1, q, confidence=confidence) + least + 1 > samples


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=29, max_size=200))
def test_the_bound_is_no_lower_than_the_percentile(values: list[float]) -> None:
    found = percentile(values, 90)
    assert found.value is not None
    assert found.bound is not None
    assert found.bound >= found.value - 1e-9 * abs(found.value)


def test_the_bound_holds_as_often_as_it_claims() -> None:
    rng = np.random.default_rng(20)
    true_p90 = -np.log(0.1)  # of the exponential distribution
    index = conservative_index(100, 90)
    bounds = np.sort(rng.exponential(size=(20_000, 100)), axis=1)[:, index]
    # Monte Carlo error: √(0.05·0.95/20,000) = 0.0015; three of them.
    assert np.mean(bounds >= true_p90) >= 0.95 - 0.0046
