"""Pairs of neighbouring launches: their interval by hand, how many there must be, and limits of a gate."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest

from gpuproof.statistics.comparison import (
    compare_pairs,
    is_beyond,
    is_within,
    launches_for_ratio,
    pairs_to_find,
)
from gpuproof.statistics.estimate import Unavailable

T_3, T_9 = 3.182446, 2.262157
"""Student's t at 97.5 % with 3 and 9 degrees of freedom."""


def test_an_interval_of_pairs_by_hand() -> None:
    # Logarithms of B/A: 0.01, 0.03, 0.01, 0.03: mean 0.02, s² = 4·0.0001/3, whatever both drift by.
    a = [1.0, 2.0, 3.0, 4.0]
    b = [x * exp(d) for x, d in zip(a, (0.01, 0.03, 0.01, 0.03), strict=True)]
    found = compare_pairs(a, b, better="higher")
    error = sqrt(0.0004 / 3 / 4)
    assert found.ratio is not None
    assert log(found.ratio.centre) == pytest.approx(0.02)
    assert log(found.ratio.low) == pytest.approx(0.02 - T_3 * error, rel=1e-5)
    assert log(found.ratio.high) == pytest.approx(0.02 + T_3 * error, rel=1e-5)
    assert found.verdict == "faster"


def test_a_pilot_that_scattered_more_counts() -> None:
    ratios = [0.05, -0.05, 0.04, -0.04, *[0.001, -0.001] * 3]
    b = [exp(ratio) for ratio in ratios]
    found = compare_pairs([1.0] * 10, b, better="higher", num_pilot=4)
    assert found.ratio is not None
    pilot = np.std(ratios[:4], ddof=1)
    assert log(found.ratio.high) == pytest.approx(T_3 * pilot / sqrt(10), rel=1e-5)
    calm = compare_pairs([1.0] * 10, b[::-1], better="higher", num_pilot=4)
    assert calm.ratio is not None
    assert log(calm.ratio.high) == pytest.approx(T_9 * np.std(ratios, ddof=1) / sqrt(10), rel=1e-5)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ([1.0, 2.0], [1.0, 2.0], "A has 2 launches but needs 3"),
        ([1.0, 2.0, 4.0], [2.0, 4.0, 8.0], "all pairs are identical"),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], "all launches are identical"),
    ],
)
def test_pairs_that_cannot_tell_say_why(a: list[float], b: list[float], reason: str) -> None:
    found = compare_pairs(a, b, better="lower")
    assert found.verdict == "cannot tell"
    assert (found.reason or "").startswith(reason)


def test_launches_without_a_partner_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="3 launches of A cannot be paired with 2 of B"):
        compare_pairs([1.0, 2.0, 3.0], [1.0, 2.0], better="lower")


def test_the_number_of_pairs_by_hand() -> None:
    # s = 0.02 of five; t(0.975; 4) = 2.776445 and t(0.9; 4) = 1.533206: ((4.309651·0.02)/0.03)² = 8.25
    pilot = [0.02 * sqrt(4 / 5) * sign * sqrt(5 / 4) for sign in (1, -1, 1, -1, 0)]
    assert float(np.std(pilot, ddof=1)) == pytest.approx(0.02)
    assert pairs_to_find(pilot, effect=0.03, confidence=0.95, power=0.9) == 9
    assert pairs_to_find(pilot, effect=0.3, confidence=0.95, power=0.9) == 5  # never fewer than the pilot
    with pytest.raises(ValueError, match="needs two pairs"):
        pairs_to_find([0.1], effect=0.03, confidence=0.95, power=0.9)


def test_the_number_of_launches_for_a_ratio_by_hand() -> None:
    # √(s² + s²) = 0.01·√2; log(1.01) = 0.00995: n = 10 gives 2.262·0.01414/√10 = 0.01012, n = 11 0.00950
    side = [0.01 * sign for sign in (1, -1, 0)]
    assert float(np.std(side, ddof=1)) == pytest.approx(0.01)
    assert launches_for_ratio(side, side, relative_half_width=0.01) == 11
    assert isinstance(launches_for_ratio([0.0], side, relative_half_width=0.01), Unavailable)


def test_a_regression_lies_beyond_a_limit_with_its_whole_interval() -> None:
    slower = compare_pairs([1.0, 1.0, 1.0], [1.030, 1.031, 1.029], better="lower")
    assert is_beyond(slower, 0.02, better="lower")
    assert not is_beyond(slower, 0.029, better="lower")
    assert is_within(slower, 0.04, better="lower")
    assert not is_beyond(slower, 0.0, better="higher"), "a higher rate is no regression"
    assert is_within(slower, 0.0, better="higher")
