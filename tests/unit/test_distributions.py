"""Distributions against mpmath's 140 digits, over what callers ask and far beyond it."""

from __future__ import annotations

from itertools import product
from math import inf, isclose

import mpmath
import numpy as np
import pytest

from gpuproof.statistics.distributions import (
    beta_cdf,
    beta_quantile,
    chi_square_limit,
    f_tail,
    normal_cdf,
    normal_quantile,
    student_t_cdf,
    student_t_quantile,
)
from gpuproof.statistics.low_end import _cosine_power

FREEDOMS = (1.0, 1.5, 2.0, 4.0, 7.3, 19.0, 333.3, 1e4, 1e6, 9e7)
PROBABILITIES = (1e-100, 1e-20, 1e-6, 0.025, 0.3, 0.4999, 0.5001, 0.8, 0.975, 0.999999)
COUNTS = (0.01, 0.3, 0.5, 1.0, 2.0, 7.0, 15.9, 16.0, 40.0, 1234.5, 1e5)
DEVIATIONS = (-20.0, -3.0, -1.0, 0.0, 1.0, 3.0)
FEW_COUNTS = (0.5, 1.0, 3.0, 17.0, 1e3, 1e6)
CLOSE = 1e-10
TOO_SMALL = 1e-110
"""For these digits, where a probability is what another lacks of 1."""
mpmath.mp.dps = 140


def beta_exactly(a: float, b: float, x: mpmath.mpf) -> mpmath.mpf:
    """Return it by the series of positive terms, from the end that is nearer."""
    from_above = x > 0.5
    a, b, x = map(mpmath.mpf, (b, a, 1 - x) if from_above else (a, b, x))
    first = x**a * (1 - x) ** b / (a * mpmath.beta(a, b))
    term = total = mpmath.mpf(1)
    while term > mpmath.mp.eps * total:
        a, term = a + 1, term * x * (a + b) / (a + 1)
        total += term
    return 1 - first * total if from_above else first * total


def t_exactly(freedom: float, t: float) -> mpmath.mpf:
    below = beta_exactly(freedom / 2, 0.5, freedom / (freedom + mpmath.mpf(t) ** 2)) / 2
    return below if t < 0 else 1 - below


def shares(a: float, b: float) -> list[float]:
    mean = a / (a + b)
    deviation = (a * b / (a + b + 1)) ** 0.5 / (a + b)
    near = [mean + times * deviation for times in DEVIATIONS]
    return [x for x in (*near, 1e-12, 0.1, 0.9, 0.999) if 0 < x < 1]


def test_beta_and_so_the_binomial_distribution() -> None:
    for a, b in product(COUNTS, COUNTS):
        for x in shares(a, b):
            exact = beta_exactly(a, b, mpmath.mpf(x))
            assert exact < TOO_SMALL or isclose(beta_cdf(a, b, x), float(exact), rel_tol=CLOSE), (a, b, x)
    assert (beta_cdf(2, 3, 0.0), beta_cdf(2, 3, 1.0)) == (0.0, 1.0)
    assert beta_cdf(2e9, 39, 0.9) == 0.0  # where a library of before had no number


def test_a_quantile_of_beta_is_passed_with_its_probability() -> None:
    for a, b, probability in product(FEW_COUNTS, FEW_COUNTS, (1e-30, 1e-6, 0.01, 0.5, 0.7, 0.99)):
        exact = beta_exactly(a, b, mpmath.mpf(beta_quantile(a, b, probability)))
        assert isclose(float(exact), probability, rel_tol=1e-8), (a, b, probability)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_student_t(freedom: float) -> None:
    for t in (-1e4, -20.0, -2.0, -0.1, -1e-6, 1e-3, 1.0, 9.0):
        exact = t_exactly(freedom, t)
        assert exact < TOO_SMALL or isclose(student_t_cdf(freedom, t), float(exact), rel_tol=CLOSE), t
    for probability in PROBABILITIES:
        t = mpmath.mpf(student_t_quantile(freedom, probability))
        density = mpmath.npdf(t) if freedom > 1e7 else t_density(freedom, t)
        off = (t_exactly(freedom, t) - mpmath.mpf(probability)) / density
        assert abs(off / t) < CLOSE, probability
    assert student_t_cdf(freedom, 0.0) == 0.5
    assert student_t_quantile(freedom, 0.5) == 0.0


def t_density(freedom: float, t: mpmath.mpf) -> mpmath.mpf:
    return (1 + t**2 / freedom) ** (-(freedom + 1) / 2) / (
        mpmath.sqrt(freedom) * mpmath.beta(freedom / 2, mpmath.mpf(0.5))
    )


def test_student_t_of_very_many_degrees_is_normal() -> None:
    assert student_t_quantile(inf, 0.975) == normal_quantile(0.975)
    for probability in (1e-15, 0.025, 0.9):
        below, above = (student_t_quantile(freedom, probability) for freedom in (0.999e8, 1.001e8))
        assert isclose(below, above, rel_tol=1e-9)


def test_ratios_of_variances() -> None:
    for freedom, below, ratio in product((1, 3, 50), (1, 5, 1000, 1e5), (1e-6, 0.5, 2.0, 12.0)):
        x = mpmath.mpf(below) / (below + freedom * mpmath.mpf(ratio))
        exact = float(beta_exactly(below / 2, freedom / 2, x))
        assert isclose(f_tail(freedom, below, ratio), exact, rel_tol=CLOSE), (freedom, below, ratio)
    assert f_tail(3, 5, 0.0) == 1.0


def test_chi_square() -> None:
    for freedom, tail in product((1, 2, 5, 33, 1001), (1e-30, 1e-6, 0.01, 0.5, 0.99)):
        half = mpmath.mpf(chi_square_limit(freedom, tail)) / 2
        exact = mpmath.gammainc(mpmath.mpf(freedom) / 2, half, regularized=True)
        assert isclose(float(exact), tail, rel_tol=1e-8), (freedom, tail)


def test_normal() -> None:
    for z in (-37.0, -8.0, -1e-8, 0.0, 1.0, 8.0):
        assert isclose(normal_cdf(z), float(mpmath.ncdf(z)), rel_tol=1e-12)
    for probability in PROBABILITIES:
        assert isclose(normal_cdf(normal_quantile(probability)), probability, rel_tol=1e-12)


@pytest.mark.parametrize("num", [2, 3, 64, 101, 1000])
def test_cosine_components_are_those_of_their_definition(num: int) -> None:
    values = np.random.default_rng(num).normal(size=num)
    places = np.arange(num)
    waves = np.cos(np.pi * places[1:, None] * (2 * places + 1) / (2 * num))
    assert _cosine_power(values) == pytest.approx((waves @ values) ** 2 * 2 / num, rel=1e-10, abs=1e-12)
    assert not _cosine_power(np.zeros(num)).any()
