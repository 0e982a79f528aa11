"""Probabilities and quantiles, for single numbers, of the distributions used for intervals.

Student's t, F, chi-square and the binomial distribution are all computed here from one function: the beta
distribution over the log odds ln(x/(1 − x)). Its density there is x^a·(1 − x)^b/B(a, b), and the logarithm of
its probability is concave, so Newton's method finds a quantile from any starting point. Results are accurate
to 1e-10; decision 34 explains why we implement this ourselves.

>>> round(student_t_quantile(4, 0.975), 6)
2.776445
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from math import copysign, erfc, exp, expm1, inf, lgamma, log, log1p, pi, sqrt
from statistics import NormalDist

KEPT_ANSWERS = 4096
PRECISION = 1e-15
"""Relative change below which a continued fraction stops."""
LAST_STEP = 1e-11
"""Size of the last step: Newton's method squares its error, so the error that remains after such a step is
negligible."""
STIRLING_FROM = 16.0
"""Value from which four terms of Stirling's series are accurate to 1e-14."""
NORMAL_FROM = 1e8
"""Degrees of freedom from which Student's t equals the normal distribution with a first-order correction, to
1e-11."""
CERTAIN = 1e14
"""Half the degrees of freedom from which a variance counts as known: F then reduces to chi-square."""


def normal_cdf(z: float) -> float:
    """Return P[Z ≤ z] of the standard normal distribution."""
    return erfc(-z / sqrt(2)) / 2


def normal_quantile(probability: float) -> float:
    """Return the z with P[Z ≤ z] = `probability`, which is strictly between 0 and 1."""
    return NormalDist().inv_cdf(probability)


def student_t_cdf(freedom: float, t: float) -> float:
    """Return P[T ≤ t] of Student's t; `freedom` is positive and need not be an integer."""
    if t == 0:
        return 0.5
    tail = exp(_log_beta_cdf(log(freedom) - 2 * log(abs(t)), freedom / 2, 0.5)[0]) / 2
    return tail if t < 0 else 1 - tail


@lru_cache(maxsize=KEPT_ANSWERS)
def student_t_quantile(freedom: float, probability: float) -> float:
    """Return the t with P[T ≤ t] = `probability`, between 0 and 1; `freedom` is positive, or infinite."""
    if freedom >= NORMAL_FROM:
        z = normal_quantile(probability)
        return z + (z**3 + z) / (4 * freedom)
    both_tails = 2 * min(probability, 1 - probability)
    log_odds = _beta_log_odds(freedom / 2, 0.5, both_tails, 1 - both_tails)
    return copysign(sqrt(freedom) * exp(-log_odds / 2), probability - 0.5)


def f_tail(freedom: float, freedom_below: float, ratio: float) -> float:
    """Return P[F ≥ ratio] if F has `freedom` and `freedom_below` degrees of freedom."""
    if ratio <= 0:
        return 1.0
    log_odds = log(freedom_below) - log(freedom) - log(ratio)
    return exp(_log_beta_cdf(log_odds, freedom_below / 2, freedom / 2)[0])


@lru_cache(maxsize=KEPT_ANSWERS)
def chi_square_limit(freedom: float, tail: float) -> float:
    """Return the upper chi-square quantile for `freedom` at probability `tail`, between 0 and 1."""
    return 2 * CERTAIN * exp(_beta_log_odds(freedom / 2, CERTAIN, 1 - tail, tail))


def beta_cdf(a: float, b: float, x: float) -> float:
    """Return P[X ≤ x] of the beta distribution, the regularised incomplete beta function; a, b ≥ 0.01."""
    if not 0 < x < 1:
        return float(x >= 1)
    return exp(_log_beta_cdf(log(x) - log1p(-x), a, b)[0])


def beta_quantile(a: float, b: float, probability: float) -> float:
    """Return the x with P[X ≤ x] = `probability`, between 0 and 1; a, b ≥ 0.01."""
    return _shares(_beta_log_odds(a, b, probability, 1 - probability))[0]


def _beta_log_odds(a: float, b: float, below: float, above: float) -> float:
    """Return the log odds of the quantile with probability `below` below it and `above` above it."""
    if below > above:
        return -_beta_log_odds(b, a, above, below)
    if below == 0:
        return -inf
    log_odds = log(a / b)
    while True:
        log_cdf, log_density = _log_beta_cdf(log_odds, a, b)
        step = (log(below) - log_cdf) * exp(log_cdf - log_density)
        log_odds += step
        if not abs(step) > LAST_STEP * max(1.0, abs(log_odds)):
            return log_odds


def _log_beta_cdf(log_odds: float, a: float, b: float) -> tuple[float, float]:
    """Return the logarithms of P[X ≤ x] and of the density over log odds, both at `log_odds` of x."""
    x, y = _shares(log_odds)
    beyond_mean = x * b - y * a
    lost = log1p(exp(-abs(log_odds)))
    log_density = (
        a * _log_to_mean(beyond_mean / a, min(log_odds, 0.0) - lost + log1p(b / a))
        + b * _log_to_mean(-beyond_mean / b, min(-log_odds, 0.0) - lost + log1p(a / b))
        + (log(a) - log1p(a / b) - log(2 * pi)) / 2
        + (_stirling_rest(a + b) - _stirling_rest(a) - _stirling_rest(b))
    )
    if beyond_mean <= 0:
        return log_density - log(_fraction(x, a, b, -beyond_mean)), log_density
    log_above = log_density - log(_fraction(y, b, a, beyond_mean))
    return log(-expm1(log_above)) if log_above < 0 else -inf, log_density


def _shares(log_odds: float) -> tuple[float, float]:
    """Return x and 1 − x, both accurately."""
    odds = exp(-abs(log_odds))
    smaller, larger = odds / (1 + odds), 1 / (1 + odds)
    return (smaller, larger) if log_odds < 0 else (larger, smaller)


def _log_to_mean(excess: float, logarithm: float) -> float:
    """Return ln(1 + excess) for a fraction relative to its mean, using the more accurate input."""
    return log1p(excess) if excess > -0.5 else logarithm


def _stirling_rest(a: float) -> float:
    """Return the logarithm of Γ(a) divided by √(2π/a)·(a/e)^a."""
    if a < STIRLING_FROM:
        return lgamma(a) - (a - 0.5) * log(a) + a - log(2 * pi) / 2
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / a**2) / a**2) / a**2) / a


def _fraction(x: float, a: float, b: float, below_mean: float) -> float:
    """Return the density divided by the probability below x, for x no greater than the mean.

    Uses the continued fraction of Didonato and Morris (1992, Algorithm 708, ACM Transactions on Mathematical
    Software 18), evaluated forwards (Lentz); at the mean, it needs about √max(a, b) terms.
    """
    value = ratio = a * (below_mean + 1) / (a + 1)
    inverse = 0.0
    for m in count(1.0):
        odd = a + 2 * m - 1
        above = m * (a + m - 1) / odd * ((a + b + m - 1) / odd) * (b - m) * x * x
        below = m + m * (b - m) * x / odd + (a + m) * (below_mean + 1 + m * (2 - x)) / (odd + 2)
        inverse = 1 / (below + above * inverse)
        ratio = below + above / ratio
        value *= ratio * inverse
        if not abs(ratio * inverse - 1) > PRECISION:
            break
    return value
