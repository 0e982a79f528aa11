"""Determine which percentile a number of samples supports, and compute its value.

A p99 of 100 samples is a guess at the tail. MLPerf LoadGen's early-stopping rule specifies the minimum number
of samples at which a percentile has an upper bound at a stated confidence. It uses only the binomial
distribution, so no model of the latencies is needed. Samples are assumed to be independent.

>>> percentile(range(100), 99).reason
'p99 needs at least 299 values (100 measured)'
>>> percentile(range(100), 90).value
89.10000000000001
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpuproof.statistics.distributions import beta_cdf
from gpuproof.statistics.estimate import Numbers, check_confidence, finite, interpolate

KEPT_ANSWERS = 4096
"""Number of cached results: launches have the same number of samples, and each result needs dozens of
incomplete beta function evaluations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile:
    """A percentile, or the reason why it is missing, with the bound that the samples do support."""

    q: float
    value: float | None
    """Value of the percentile, by linear interpolation between the sorted samples at position (n − 1)·q/100,
    counted from 0."""
    reason: str | None
    """Reason why `value` is None."""
    num_samples: int
    num_needed: int
    confidence: float
    bound: float | None
    """Exact one-sided bound on the percentile `bound_q`: an upper bound, or a lower one for q below 50."""
    bound_q: float | None
    """Percentile that the bound applies to: q if there are enough samples; otherwise the most extreme one
    that they can bound."""


@lru_cache(maxsize=KEPT_ANSWERS)
def under_limit_needed(over_limit: int, q: float, *, confidence: float = 0.95) -> int:
    """Return LoadGen's h(t): how many samples must be below a limit if t = `over_limit` are above it.

    With h(t) + t samples, the q-th percentile is below the limit at that confidence. Here, h(t) is the
    smallest h with P[Binomial(h + t, 1 − q/100) ≤ t] = I_{q/100}(h, t + 1) ≤ 1 − confidence.

    Raises:
        ValueError: `over_limit` is negative, or `q` or `confidence` is out of range.
    """
    if over_limit < 0:
        raise ValueError(f"a count must not be negative: {over_limit}")
    share, risk = _checked_share(q), 1 - check_confidence(confidence)

    def enough(under: int) -> bool:
        return beta_cdf(under, over_limit + 1, share) <= risk

    limit = 2
    while not enough(limit):
        limit *= 2
    return 1 + bisect_left(range(1, limit), True, key=enough)


def samples_needed(q: float, *, confidence: float = 0.95) -> int:
    """Return the minimum number of samples that can bound the q-th percentile; mirrored below 50."""
    return under_limit_needed(0, max(q, 100 - q), confidence=confidence)


@lru_cache(maxsize=KEPT_ANSWERS)
def over_limit_allowed(num_samples: int, q: float, *, confidence: float = 0.95) -> int | None:
    """Return the largest t with h(t) + t ≤ `num_samples`; None if even t = 0 needs more samples."""
    share, risk = _checked_share(q), 1 - check_confidence(confidence)
    over = bisect_left(range(num_samples), True, key=lambda t: beta_cdf(num_samples - t, t + 1, share) > risk)
    return over - 1 if over else None


def conservative_index(num_samples: int, q: float, *, confidence: float = 0.95) -> int | None:
    """Return the 0-based index, in the sorted samples, of an upper bound on the q-th percentile.

    The t highest samples are discarded, so this is the exact binomial bound. None if there are too few
    samples.
    """
    over = over_limit_allowed(num_samples, q, confidence=confidence)
    return None if over is None else num_samples - over - 1


def percentile(values: Numbers, q: float, *, confidence: float = 0.95) -> Percentile:
    """Return the q-th percentile (0 < q < 100) of `values`, in their unit, if there are enough values.

    Raises:
        ValueError: `q` or `confidence` is out of range, or a value is not finite.
    """
    sign, upper_q = (1, q) if q >= 50 else (-1, 100 - q)
    ordered = np.sort(sign * finite(values))
    needed = samples_needed(upper_q, confidence=confidence)
    index = conservative_index(ordered.size, upper_q, confidence=confidence)
    value = bound = bound_q = None
    if index is not None:
        value = sign * interpolate(ordered, (ordered.size - 1) * (upper_q / 100))
        bound, bound_q = sign * float(ordered[index]), q
    elif ordered.size:
        # The largest of n values exceeds the percentile p with probability 1 − pⁿ: solve for p.
        supported = 100 * (1 - confidence) ** (1 / ordered.size)
        bound, bound_q = sign * float(ordered[-1]), supported if sign > 0 else 100 - supported
    reason = (
        None if index is not None else f"p{q:g} needs at least {needed:,} values ({ordered.size:,} measured)"
    )
    return Percentile(
        q=q,
        value=value,
        reason=reason,
        num_samples=ordered.size,
        num_needed=needed,
        confidence=confidence,
        bound=bound,
        bound_q=bound_q,
    )


def _checked_share(q: float) -> float:
    if not 0 < q < 100:
        raise ValueError(f"a percentile must be between 0 and 100, not {q}")
    return q / 100
