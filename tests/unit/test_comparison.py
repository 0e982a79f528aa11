"""Comparing launches: verdicts, Welch's test by hand, and refusals."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuproof.statistics.comparison import compare_launches

E1, E2 = exp(0.01), exp(0.02)


def test_welch_by_hand() -> None:
    # Logs of A: 0, 0.01, 0.02: mean 0.01, s² = 0.0002/2 = 0.0001. B is A·1.1: the same spread.
    # Error √(2·0.0001/3) = 0.0081650; degrees of freedom 4; t(0.975; 4) = 2.776445; t(0.8; 4) = 0.940965.
    result = compare_launches([1.0, E1, E2], [1.1, 1.1 * E1, 1.1 * E2], better="lower")
    error = sqrt(0.0002 / 3)
    assert result.ratio is not None
    assert result.ratio.centre == pytest.approx(1.1, rel=1e-12)
    assert result.ratio.low == pytest.approx(1.1 * exp(-2.776445 * error), rel=1e-6)
    assert result.ratio.high == pytest.approx(1.1 * exp(2.776445 * error), rel=1e-6)
    assert result.ratio.between_launches
    assert result.min_detectable == pytest.approx(exp((2.776445 + 0.940965) * error) - 1, rel=1e-5)
    # The t distribution with 4 degrees in closed form: P(T > t) = 1/2 − x·(3 − x²)/4, x = t/√(t² + 4).
    t = log(1.1) / error
    x = t / sqrt(t**2 + 4)
    assert result.p_value == pytest.approx(2 * (0.5 - x * (3 - x**2) / 4), rel=1e-6)
    assert (result.verdict, result.reason) == ("slower", None)
    assert (result.num_launches_a, result.num_launches_b) == (3, 3)


@pytest.mark.parametrize(
    ("factor", "better", "verdict"),
    [
        (0.8, "lower", "faster"),
        (1.25, "lower", "slower"),
        (0.8, "higher", "slower"),
        (1.25, "higher", "faster"),
    ],
)
def test_which_way_is_faster(factor: float, better: Literal["lower", "higher"], verdict: str) -> None:
    a = [1.0, 1.01, 0.99]
    assert compare_launches(a, [factor * x for x in a], better=better).verdict == verdict


def test_a_difference_within_the_noise_is_not_shown_and_the_detectable_one_is_stated() -> None:
    result = compare_launches([1.00, 1.03, 0.97], [1.01, 1.04, 0.98], better="lower")
    assert result.verdict == "no difference shown"
    assert result.min_detectable is not None
    assert result.min_detectable > 0.01


def test_few_launches_against_many_get_the_degrees_of_the_few() -> None:
    # Logs of A: 0, 0.01, 0.02, of B: 0, 0.02, 0.04 twice. s²/n: 0.0001/3 and 4·0.0004/5/6 = 0.00032/6.
    # Welch: (3.33 + 5.33)²/(3.33²/2 + 5.33²/5) = 75.1/11.2 = 6.7 degrees; allowed are 2·(3 − 1) = 4.
    a, b = [1.0, E1, E2], [1.0, E2, exp(0.04)] * 2
    result = compare_launches(a, b, better="lower")
    error = sqrt(0.0001 / 3 + 0.00032 / 6)
    assert result.ratio is not None
    # B's mean log is 0.01 over A's.
    assert log(result.ratio.high) == pytest.approx(0.01 + 2.776445 * error, rel=1e-6)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (
            [1.0],
            [1.0, 2.0, 3.0],
            "A has 1 launch but needs 3: even two launches of the same configuration differ",
        ),
        ([1.0, 2.0, 3.0], [1.0, 2.0], "B has 2 launches but needs 3"),
        ([1.0, 2.0, 3.0], [], "B has 0 launches but needs 3"),
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], "all launches are identical"),
    ],
)
def test_what_cannot_be_told_has_a_reason(a: list[float], b: list[float], reason: str) -> None:
    result = compare_launches(a, b, better="lower")
    assert result.verdict == "cannot tell"
    assert result.reason is not None
    assert result.reason.startswith(reason)
    assert (result.ratio, result.p_value, result.min_detectable) == (None, None, None)


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_times_and_rates_are_above_0(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        compare_launches([1.0, bad, 2.0], [1.0, 2.0, 3.0], better="lower")


def test_a_confidence_in_percent_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, not 95"):
        compare_launches([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], better="lower", confidence=95)


launches = st.lists(st.floats(0.5, 2.0), min_size=3, max_size=8).filter(lambda x: max(x) / min(x) > 1.001)


@settings(deadline=None)
@given(a=launches, b=launches)
def test_swapping_sides_inverts_the_answer(a: list[float], b: list[float]) -> None:
    one, other = compare_launches(a, b, better="lower"), compare_launches(b, a, better="lower")
    assert one.ratio is not None
    assert other.ratio is not None
    assert one.ratio.low == pytest.approx(1 / other.ratio.high)
    assert one.ratio.low <= one.ratio.centre <= one.ratio.high
    assert one.p_value == pytest.approx(other.p_value)
    assert {one.verdict, other.verdict} in ({"faster", "slower"}, {"no difference shown"})


@settings(deadline=None)
@given(a=launches, b=launches)
def test_the_verdict_is_the_tests(a: list[float], b: list[float]) -> None:
    result = compare_launches(a, b, better="lower")
    assert result.p_value is not None
    if abs(result.p_value - 0.05) > 1e-9:
        assert (result.p_value > 0.05) == (result.verdict == "no difference shown")


@pytest.mark.parametrize("num", [3, 5, 10])
def test_runs_of_two_days_keep_their_error_rate(num: int) -> None:
    """1 % from day to day, 0.5 % between launches: without the days 30, 58 and 74 % of intervals miss 1.

    Of 400, 5 % are 20; 34 or more have a chance of 0.2 %.
    """
    rng = np.random.default_rng(num)
    found = []
    for _ in range(400):
        a, b = (np.exp(0.01 * rng.standard_normal() + 0.005 * rng.standard_normal(num)) for _ in range(2))
        found.append(compare_launches(a, b, better="higher", is_cautious=True, between_sessions=0.01).verdict)
    assert len(found) - found.count("no difference shown") < 34


def test_the_error_of_two_sessions_is_added() -> None:
    """Where launches hardly scatter, √2·1 % is left: 1.96 and 0.84 of them are exp(3.96 %) apart."""
    a, b = [1.0, 1.0000001, 0.9999999], [1.0, 1.0000002, 0.9999998]
    found = compare_launches(a, b, better="lower", between_sessions=0.01)
    assert found.ratio is not None
    assert found.ratio.high == pytest.approx(np.exp(1.96 * 2**0.5 * 0.01), rel=1e-5)
    assert found.min_detectable == pytest.approx(np.expm1(2.8016 * 2**0.5 * 0.01), rel=1e-3)
