"""Schedules: their rate, their gaps, and that a seed makes them again."""

from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from gpuproof.worker.serving.generator import at_once, schedule


def test_constant_arrivals_are_a_gap_apart() -> None:
    assert list(schedule("constant", rate_per_s=10, num_requests=4, seed=1)) == pytest.approx(
        [0.1, 0.2, 0.3, 0.4]
    )


def test_poisson_gaps_are_exponential() -> None:
    times = schedule("poisson", rate_per_s=200, num_requests=40_000, seed=3)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # An exponential's mean and standard deviation are both 1/rate; 4 standard errors of each.
    assert fmean(gaps) == pytest.approx(1 / 200, rel=0.02)
    assert pstdev(gaps) == pytest.approx(1 / 200, rel=0.03)
    # P[gap > 2/rate] = e⁻² = 0.1353
    assert sum(gap > 0.01 for gap in gaps) / len(gaps) == pytest.approx(0.1353, abs=0.007)


def test_the_seed_alone_decides() -> None:
    first = schedule("poisson", rate_per_s=50, num_requests=100, seed=7)
    assert first == schedule("poisson", rate_per_s=50, num_requests=100, seed=7)
    assert first != schedule("poisson", rate_per_s=50, num_requests=100, seed=8)


def test_offline_is_all_at_once() -> None:
    assert list(at_once(3)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_is_positive(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        schedule("constant", rate_per_s=rate, num_requests=1, seed=0)
