"""Was a latency bound met? MLPerf LoadGen's early-stopping rule, and its counterpart for a bound missed.

In: how many requests there were and how many were over the bound. Out: met, missed, or too few to tell.
The rule is exact for independent requests; requests of one busy spell are not, so it is a rule, and no more.
Source: https://github.com/mlcommons/inference_policies/blob/master/inference_rules.adoc, Appendix Early
Stopping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpuproof.statistics.distributions import beta_cdf
from gpuproof.statistics.percentiles import under_limit_needed

CONFIDENCE = 0.99
MIN_POINTS = 4
MIN_DEPTH = 0.1
"""Below the chord by less than this, of the whole height, a curve has no knee worth a name."""
BoundOutcome = Literal["met", "missed", "undecided", "client"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundVerdict:
    """What so many requests say of a latency bound at a percentile."""

    outcome: BoundOutcome
    bound_s: float
    q: float
    num_requests: int
    num_over: int
    """Requests over the bound, those that failed among them."""
    num_needed: int
    """Requests from which so many over the bound would still meet it."""


def judge_bound(*, num_requests: int, num_over: int, bound_s: float, q: float) -> BoundVerdict:
    """Judge whether the q-th percentile lies under the bound, at 99 % confidence.

    Met: requests ≥ h(t) + t, t being those over the bound. Missed: so many over it would be seen in at most
    1 % of windows if the share over it were 1 − q/100.

    >>> judge_bound(num_requests=661, num_over=1, bound_s=0.1, q=99).outcome
    'undecided'
    >>> judge_bound(num_requests=662, num_over=1, bound_s=0.1, q=99).outcome
    'met'
    """
    needed = under_limit_needed(num_over, q, confidence=CONFIDENCE) + num_over
    outcome: BoundOutcome = "undecided"
    if num_requests >= needed:
        outcome = "met"
    elif num_over and _chance_of_so_many(num_over, num_requests, 1 - q / 100) <= 1 - CONFIDENCE:
        outcome = "missed"
    return BoundVerdict(
        outcome=outcome,
        bound_s=bound_s,
        q=q,
        num_requests=num_requests,
        num_over=num_over,
        num_needed=needed,
    )


def _chance_of_so_many(num_over: int, num_requests: int, share: float) -> float:
    """Give P[Binomial(n, share) ≥ k] = I_share(k, n − k + 1)."""
    return beta_cdf(num_over, num_requests - num_over + 1, share)


def find_knee(points: Sequence[tuple[float, float]]) -> int | None:
    """Return the index of the knee of a convex rising curve; None for too few points or no clear bend."""
    if len(points) < MIN_POINTS:
        return None
    (low_x, low_y), (high_x, high_y) = points[0], points[-1]
    if not (high_x > low_x and high_y > low_y):
        return None
    depths = [(x - low_x) / (high_x - low_x) - (y - low_y) / (high_y - low_y) for x, y in points]
    index = max(range(len(points)), key=depths.__getitem__)
    return index if depths[index] >= MIN_DEPTH else None
