"""Decide whether B is faster or slower than A, and how many launches are needed to tell.

The input is one value per launch for each side. The output is a verdict with the ratio B/A, its interval and
the smallest difference that these launches could have detected. Steps of one process are not replicates:
pooling them as if they were makes equal programs look different far more often than the stated 5 %. The
spread of the measured launches determines how many pairs are needed to find a difference of a given size, or
to narrow the ratio's interval to a given width.

>>> compare_launches([1.00, 1.01, 0.99], [0.80, 0.81, 0.79], better="lower").verdict
'faster'
>>> compare_launches([1.0], [0.8, 0.8, 0.8], better="lower").reason
'A has 1 launch but needs 3: even two launches of the same configuration differ'
>>> pairs_to_find([0.01, -0.01, 0.01, -0.01, 0.01, -0.01], effect=0.03, confidence=0.95, power=0.9)
6
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil, exp, expm1, inf, log1p, sqrt
from typing import Literal

import numpy as np

from gpuproof.statistics.distributions import student_t_cdf, student_t_quantile
from gpuproof.statistics.estimate import (
    FloatArray,
    Interval,
    Numbers,
    Unavailable,
    check_confidence,
    finite,
    welch_degrees_of_freedom,
)
from gpuproof.statistics.series import POWER

ComparisonVerdict = Literal["faster", "slower", "no difference shown", "cannot tell"]
MIN_LAUNCHES = 3
"""Minimum number of launches per side: with two, the estimated spread is so poor that no test keeps its
false-alarm rate."""
ROUNDING = 1e-12
"""Size of rounding differences between the logarithms of equal values."""
MOST_LAUNCHES = 10**5


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing launches of B with launches of A."""

    verdict: ComparisonVerdict
    """Verdict on B: "faster" and "slower" apply at `confidence`, and are returned if the interval of `ratio`
    excludes 1."""
    reason: str | None
    """The reason if the verdict is "cannot tell"."""
    ratio: Interval | None
    """The ratio B/A, from the geometric means over launches; None for "cannot tell"."""
    p_value: float | None
    """Two-tailed p-value of Welch's test; None for "cannot tell"."""
    min_detectable: float | None
    """The relative difference (0.02 is 2 %) that this many launches with this noise would detect with 80 %
    probability."""
    num_launches_a: int
    num_launches_b: int
    confidence: float


def compare_launches(
    a: Numbers,
    b: Numbers,
    *,
    better: Literal["lower", "higher"],
    confidence: float = 0.95,
    is_cautious: bool = False,
    between_sessions: float = 0.0,
) -> Comparison:
    """Compare one value per launch of A and B: step times (lower is better) or rates (higher is).

    This is Welch's t-test, two-tailed, on the logarithms. Effects on speed are multiplicative, and the
    interval of the ratio then excludes 1 if and only if the test rejects equality. A cautious test uses only
    the degrees of freedom of the smaller side, which is valid for any difference in spread (Mickey and Brown
    1966, Bounds on the distribution functions of the Behrens-Fisher statistic, Annals of Mathematical
    Statistics 37); Welch's own degrees of freedom are too high if a few launches scatter five times as much
    as the rest. In a cautious test, the standard error is at least the one for a common spread, because a few
    launches that all used the same one of two algorithms seem to scatter less than they really do. If both
    sides have the same number of launches, the two errors are equal.

    If each side was measured in a separate session, `between_sessions` is the known relative standard
    deviation between sessions. It does not shrink with more launches, and the interval includes it.

    Raises:
        ValueError: a value is not finite or not above 0, or the confidence is not between 0 and 1.
    """
    check_confidence(confidence)
    logs_a, logs_b = _logarithms(a), _logarithms(b)
    reason = _reason_against(logs_a, logs_b)
    if reason is not None:
        return not_compared(reason, num_a=logs_a.size, num_b=logs_b.size, confidence=confidence)
    variance, freedom = _spread(logs_a, logs_b, is_cautious, between_sessions)
    difference = _Difference(
        centre=float(logs_b.mean() - logs_a.mean()),
        error=sqrt(variance),
        freedom=freedom,
        method="Welch's t-test on the log of the per-launch results"
        + (", from separate sessions" if between_sessions else ""),
    )
    return _comparison(difference, logs_a.size, logs_b.size, better, confidence)


def _spread(
    logs_a: FloatArray, logs_b: FloatArray, is_cautious: bool, between_sessions: float
) -> tuple[float, float]:
    """Return the variance of the difference of the means, and its degrees of freedom."""
    variances = [float(logs.var(ddof=1)) / logs.size for logs in (logs_a, logs_b)]
    variance, freedom = sum(variances), _degrees_of_freedom(variances, logs_a.size, logs_b.size)
    if is_cautious:
        freedom = min(freedom, min(logs_a.size, logs_b.size) - 1)
        variance = max(variance, _pooled_variance(logs_a, logs_b))
    if not between_sessions:
        return variance, freedom
    of_sessions = 2 * between_sessions**2
    return variance + of_sessions, welch_degrees_of_freedom([variance, of_sessions], [freedom, inf])


def compare_pairs(
    a: Numbers,
    b: Numbers,
    *,
    better: Literal["lower", "higher"],
    confidence: float = 0.95,
    num_pilot: int | None = None,
) -> Comparison:
    """Compare launches of A and B that ran in adjacent pairs: the n-th of A with the n-th of B.

    This is Student's t-test on the logarithms of the pairs' ratios. Slow changes (clocks, temperature, other
    processes) affect both launches of a pair equally, and the sides may have different spreads. If
    `num_pilot` pairs determined the number of pairs (`pairs_to_find`), the pilot's spread is used when it
    leads to the wider interval: only then does the error rate hold exactly (Stein 1945, A Two-Sample Test for
    a Linear Hypothesis Whose Power Is Independent of the Variance, https://doi.org/10.1214/aoms/1177731088).

    Raises:
        ValueError: A and B differ in length, or for any of the reasons listed under `compare_launches`.
    """
    check_confidence(confidence)
    logs_a, logs_b = _logarithms(a), _logarithms(b)
    if logs_a.size != logs_b.size:
        raise ValueError(f"{logs_a.size} launches of A cannot be paired with {logs_b.size} of B")
    num_pairs, differences = logs_a.size, logs_b - logs_a
    reason = _reason_against(logs_a, logs_b)
    if reason is None and np.ptp(differences) <= ROUNDING:
        reason = "all pairs are identical: they are copies, or the clock is too coarse"
    if reason is not None:
        return not_compared(reason, num_a=num_pairs, num_b=num_pairs, confidence=confidence)
    decisive = [differences] if num_pilot is None else [differences, differences[:num_pilot]]
    error, freedom = max(
        ((float(values.std(ddof=1)) / sqrt(num_pairs), values.size - 1.0) for values in decisive),
        key=lambda pair: pair[0] * student_t_quantile(pair[1], (1 + confidence) / 2),
    )
    centre = float(differences.mean())
    method = "Student's t-test on the log of the ratios of adjacent launches"
    difference = _Difference(centre=centre, error=error, freedom=freedom, method=method)
    return _comparison(difference, num_pairs, num_pairs, better, confidence)


def is_beyond(comparison: Comparison, limit: float, *, better: Literal["lower", "higher"]) -> bool:
    """Return whether the whole interval lies beyond a regression of `limit` (0.02 is 2 %)."""
    ratio = comparison.ratio
    if ratio is None:
        return False
    return ratio.low > 1 + limit if better == "lower" else ratio.high < 1 - limit


def is_within(comparison: Comparison, limit: float, *, better: Literal["lower", "higher"]) -> bool:
    """Return whether the whole interval excludes a regression of more than `limit`."""
    ratio = comparison.ratio
    if ratio is None:
        return False
    return ratio.high <= 1 + limit if better == "lower" else ratio.low >= 1 - limit


def not_compared(reason: str, *, num_a: int, num_b: int, confidence: float) -> Comparison:
    """Return "cannot tell", with the reason."""
    return Comparison(
        verdict="cannot tell",
        reason=reason,
        ratio=None,
        p_value=None,
        min_detectable=None,
        num_launches_a=num_a,
        num_launches_b=num_b,
        confidence=confidence,
    )


def _logarithms(values: Numbers) -> FloatArray:
    launches = finite(values)
    if (launches <= 0).any():
        raise ValueError("per-launch times and rates must be above 0")
    return np.log(launches)


def _reason_against(logs_a: FloatArray, logs_b: FloatArray) -> str | None:
    for name, logs in (("A", logs_a), ("B", logs_b)):
        if logs.size < MIN_LAUNCHES:
            had = f"{logs.size} launch{'' if logs.size == 1 else 'es'}"
            return (
                f"{name} has {had} but needs {MIN_LAUNCHES}: even two launches of the same "
                "configuration differ"
            )
    if max(np.ptp(logs_a), np.ptp(logs_b)) <= ROUNDING:
        return "all launches are identical: they are copies, or the clock is too coarse"
    return None


def _pooled_variance(logs_a: FloatArray, logs_b: FloatArray) -> float:
    squares = sum(float(logs.var()) * logs.size for logs in (logs_a, logs_b))
    return squares / (logs_a.size + logs_b.size - 2) * (1 / logs_a.size + 1 / logs_b.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Difference of the mean logarithms, B minus A."""

    centre: float
    error: float
    freedom: float
    method: str


def _comparison(
    difference: _Difference, num_a: int, num_b: int, better: Literal["lower", "higher"], confidence: float
) -> Comparison:
    quantile = student_t_quantile(difference.freedom, (1 + confidence) / 2)
    ratio = Interval(
        low=exp(difference.centre - quantile * difference.error),
        high=exp(difference.centre + quantile * difference.error),
        centre=exp(difference.centre),
        confidence=confidence,
        method=difference.method,
        num_launches=num_a + num_b,
        num_samples=num_a + num_b,
        between_launches=True,
    )
    return Comparison(
        verdict=_verdict(ratio, better),
        reason=None,
        ratio=ratio,
        p_value=2 * student_t_cdf(difference.freedom, -abs(difference.centre) / difference.error),
        min_detectable=expm1((quantile + student_t_quantile(difference.freedom, POWER)) * difference.error),
        num_launches_a=num_a,
        num_launches_b=num_b,
        confidence=confidence,
    )


def _degrees_of_freedom(variances: list[float], num_a: int, num_b: int) -> float:
    """Return Welch's degrees of freedom, capped at the value for two samples of the smaller size.

    When a few launches are compared with many, Welch's test alone too often finds differences between
    identical programs, because the few launches dominate the error and their own spread is poorly estimated.
    """
    welch = welch_degrees_of_freedom(variances, [num_a - 1, num_b - 1])
    return min(welch, 2 * (min(num_a, num_b) - 1))


def _verdict(ratio: Interval, better: Literal["lower", "higher"]) -> ComparisonVerdict:
    if ratio.low <= 1 <= ratio.high:
        return "no difference shown"
    return "faster" if (ratio.centre < 1) == (better == "lower") else "slower"


def pairs_to_find(pilot: Numbers, *, effect: float, confidence: float, power: float) -> int:
    """Return how many pairs, including `pilot`, detect `effect` (log ratio) with probability `power`.

    This is Stein's two-stage rule: n ≥ ((t(1 − α/2) + t(power))·s/effect)², with the spread s and the degrees
    of freedom estimated from the pilot's pairs alone. The interval with that same s (`compare_pairs`,
    `num_pilot`) keeps its error rate for any n and, for normally distributed values, has at least the stated
    power.

    Raises:
        ValueError: there are fewer than two pairs, a value is not finite, or a number is out of range.
    """
    ratios = finite(pilot)
    check_confidence(power)
    if ratios.size < 2 or not effect > 0:
        raise ValueError(f"needs two pairs and an effect above 0, not {ratios.size} and {effect}")
    freedom = ratios.size - 1
    quantile = student_t_quantile(freedom, (1 + check_confidence(confidence)) / 2)
    reach = quantile + student_t_quantile(freedom, power)
    return max(ratios.size, ceil((reach * float(ratios.std(ddof=1)) / effect) ** 2))


def launches_for_ratio(
    a: Numbers, b: Numbers, *, relative_half_width: float, confidence: float = 0.95
) -> int | Unavailable:
    """Return the launches per side needed for a ratio interval of ± `relative_half_width`.

    This is the smallest n ≥ 3 for which t(n − 1)·√(s²(A) + s²(B))/√n is within log(1 + target), given the
    observed spreads. `a` and `b` are logarithms of values; for pairs, pass their differences and zeros.

    Raises:
        ValueError: a value is not finite, or the target or the confidence is out of range.
    """
    sides = [finite(a), finite(b)]
    check_confidence(confidence)
    if not relative_half_width > 0:
        raise ValueError(f"a target half-width must be above 0, not {relative_half_width}")
    if min(side.size for side in sides) < 2:
        return Unavailable(reason="one launch does not show how much launches vary (needs 2)")
    spread = sqrt(sum(float(side.var(ddof=1)) for side in sides))
    target, numbers = log1p(relative_half_width), range(3, MOST_LAUNCHES)

    def is_enough(num: int) -> bool:
        return student_t_quantile(num - 1, (1 + confidence) / 2) * spread / sqrt(num) <= target

    place = bisect_left(numbers, True, key=is_enough)
    if place == len(numbers):
        return Unavailable(reason=f"even {MOST_LAUNCHES:,} launches would not reach the target")
    return numbers[place]
