"""Do requests at a given rate meet their bounds? Evaluated over all launches, each with new arrivals.

In: each launch's requests as arrays, and the bounds. Out: for every bound, whether it is met, missed, or
undecided, with the number of requests needed to decide it. A single launch never confirms a rate. All
launches together must meet every bound at 99 % confidence, given their effective number of requests
(`statistics/spells.py`), and three or more launches must each be within the bounds on their own. A server
starts each launch idle, which makes the first requests look faster, or cold, which does the opposite.
Therefore, "met" and "missed" must also hold with the first tenth of every launch dropped, and must agree with
the result for the second halves.

A single launch is evaluated with the early-stopping rule of MLPerf LoadGen, and with its counterpart for a
missed bound. The rule is exact for independent requests; requests within one busy period are not independent,
so it is only a rule of thumb. Source:
https://github.com/mlcommons/inference_policies/blob/master/inference_rules.adoc, Appendix Early Stopping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

from gpuproof.records.work.serving import ServingSpec
from gpuproof.statistics.estimate import FloatArray, Unavailable
from gpuproof.statistics.percentiles import under_limit_needed
from gpuproof.statistics.spells import (
    chance_of_so_few,
    chance_of_so_many,
    design_effect,
    effective_needed,
    share_bound,
)

RISK = 0.01
MIN_LAUNCHES_TO_MISS = 2
"""A stall in a single launch does not rule out a rate."""
ONE_LAUNCH = (
    "a single launch cannot rule out a rate, since it may have stalled by chance: set run.repeats "
    "to 2 or more"
)
HEAD = 10
"""Number of equal parts of a launch; "met" and "missed" must also hold with the first part of each launch
dropped."""
BoundName = Literal["latency", "time to first token", "time per token", "all bounds"]
ALL: BoundName = "all bounds"
CONFIDENCE = 0.99
MIN_POINTS = 4
MIN_DEPTH = 0.1
"""If a curve stays below the chord by less than this fraction of the height, it has no meaningful knee."""
BoundOutcome = Literal["met", "missed", "undecided", "client"]


@dataclass(frozen=True, slots=True)
class RequestSeries:
    """A launch's requests in order of arrival; times are in seconds, infinite if a request failed."""

    latency_s: FloatArray
    first_token_s: FloatArray
    """Time to first token of each request; also infinite if a response has no first token."""
    token_s: FloatArray
    """Mean time per token after the first; 0 for a single-token answer, since no user waits for more."""

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.latency_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A limit on a percentile of the requests."""

    name: BoundName
    limit: float
    """Limit in seconds. For "all bounds" it is 1: each request is then represented by its largest ratio of
    value to bound."""
    q: float
    parts: tuple[Bound, ...] = ()
    """The bounds that must all hold, for "all bounds"."""

    @property
    def allowed(self) -> float:
        """Return the fraction of requests that may exceed the limit."""
        return 1 - self.q / 100

    def values(self, series: RequestSeries) -> FloatArray:
        """Return, for each request, the value that is compared with the limit."""
        match self.name:
            case "latency":
                return series.latency_s
            case "time to first token":
                return series.first_token_s
            case "time per token":
                return series.token_s
        largest: FloatArray = np.max([part.values(series) / part.limit for part in self.parts], axis=0)
        return largest

    def percentile(self, *launches: RequestSeries) -> float:
        """Return the q-th percentile of the compared values; infinite if that is a failed request."""
        ordered = np.sort(np.concatenate([self.values(series) for series in launches]))
        return float(ordered[min(int(self.q / 100 * len(ordered)), len(ordered) - 1)])


def separate_bounds(spec: ServingSpec) -> tuple[Bound, ...]:
    """Return the bounds that a launch must meet, each with its own percentile."""
    limits_of_tokens = spec.bounds
    limits: tuple[tuple[BoundName, float | None, float], ...] = (
        ("latency", spec.latency_bound_s, spec.latency_percentile),
        ("time to first token", limits_of_tokens.ttft_s, limits_of_tokens.ttft_percentile),
        ("time per token", limits_of_tokens.tpot_s, limits_of_tokens.tpot_percentile),
    )
    return tuple(Bound(name=name, limit=limit, q=q) for name, limit, q in limits if limit is not None)


def bounds_judged(spec: ServingSpec) -> tuple[Bound, ...]:
    """Return the bounds used to evaluate a rate: each separately, or all at once for goodput."""
    bounds, q = separate_bounds(spec), spec.bounds.goodput_percentile
    return bounds if q is None or not bounds else (Bound(name=ALL, limit=1.0, q=q, parts=bounds),)


def num_within(series: RequestSeries, bounds: Sequence[Bound]) -> int:
    """Return the number of requests within all bounds, the numerator of goodput."""
    within = [bound.values(series) <= bound.limit for bound in bounds]
    return int(np.logical_and.reduce(within).sum()) if within else int(np.isfinite(series.latency_s).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundStanding:
    """Result of all launches at one rate for one bound."""

    name: BoundName
    limit: float
    q: float
    outcome: BoundOutcome
    num_requests: int
    num_over: int
    """Number of requests that exceed the bound, including failed ones."""
    num_confirming: int
    """Number of launches that are within the bound on their own."""
    effective_requests: float | None
    """Effective number of independent requests; None if unknown."""
    largest_share_over: float | None
    """Upper limit, at 99 % confidence, on the fraction of future requests that exceed the bound."""
    percentile: float | None
    """The q-th percentile of all requests, in the unit of the limit; None if it is a failed request."""
    percentile_at_most: float | None
    """Upper bound of that percentile at 99 % confidence; None if there are too few requests."""
    needed_requests: float | None
    """Number of requests needed to decide if the trend so far is real; None if it is decided or unknown."""
    reason: str | None
    """Why the bound is undecided."""


def judge(launches: Sequence[RequestSeries], bound: Bound, *, confirmations: int) -> BoundStanding:
    """Evaluate one bound over all launches at a rate, given in launch order."""
    values = [bound.values(series) for series in launches]
    num, num_over = sum(map(len, values)), sum(int((part > bound.limit).sum()) for part in values)
    confirming = sum(float((part > bound.limit).mean()) <= bound.allowed for part in values)
    effect = design_effect(values, bound.limit)
    outcome = _outcome(values, bound, effect)
    is_confirmed = outcome != "met" or confirming >= confirmations
    is_alone = len(launches) < MIN_LAUNCHES_TO_MISS and num_over > bound.allowed * num
    deff = None if isinstance(effect, Unavailable) else effect
    at_most = None if deff is None else _at_most(values, bound, deff)
    middle = bound.percentile(*launches)
    return BoundStanding(
        name=bound.name,
        limit=bound.limit,
        q=bound.q,
        outcome=outcome if is_confirmed else "undecided",
        num_requests=num,
        num_over=num_over,
        num_confirming=confirming,
        effective_requests=None if deff is None else num / deff,
        largest_share_over=None if deff is None else share_bound(num_over / deff, num / deff, risk=RISK),
        percentile=middle if middle < inf else None,
        percentile_at_most=at_most,
        needed_requests=None if outcome != "undecided" or is_alone else _needed(num, num_over, bound, effect),
        reason=ONE_LAUNCH
        if outcome == "undecided" and is_alone
        else _reason(outcome, effect, confirming, confirmations, len(launches)),
    )


def _outcome(values: Sequence[FloatArray], bound: Bound, effect: float | Unavailable) -> BoundOutcome:
    """Return the outcome if it also holds without each launch's first part and in the second halves."""
    outcome = _by_counts(values, bound, effect)
    if outcome == "undecided" or not _second_halves_agree(values, bound, outcome):
        return "undecided"
    later = [part[len(part) // HEAD :] for part in values]
    return outcome if _by_counts(later, bound, effect) == outcome else "undecided"


def _second_halves_agree(values: Sequence[FloatArray], bound: Bound, outcome: BoundOutcome) -> bool:
    over = np.concatenate([part[len(part) // 2 :] for part in values]) > bound.limit
    return bool(over.mean() > bound.allowed) == (outcome == "missed")


def _by_counts(values: Sequence[FloatArray], bound: Bound, effect: float | Unavailable) -> BoundOutcome:
    if isinstance(effect, Unavailable):
        # Launches are independent however long their busy periods are: one launch over the bound is one
        # observation.
        over = sum(float((part > bound.limit).mean()) for part in values)
        is_refuted = chance_of_so_many(over, len(values), bound.allowed) <= RISK
        return "missed" if is_refuted and len(values) >= MIN_LAUNCHES_TO_MISS else "undecided"
    num = sum(map(len, values)) / effect
    over = sum(int((part > bound.limit).sum()) for part in values) / effect
    if chance_of_so_few(over, num, bound.allowed) <= RISK:
        return "met"
    is_refuted = chance_of_so_many(over, num, bound.allowed) <= RISK and len(values) >= MIN_LAUNCHES_TO_MISS
    return "missed" if is_refuted else "undecided"


def _at_most(values: Sequence[FloatArray], bound: Bound, effect: float) -> float | None:
    """Return the upper bound of the percentile: a value that few enough requests exceed."""
    ordered = np.sort(np.concatenate(values))
    low, high = -1, len(ordered) - 1  # low is still allowed; high is not
    while high - low > 1:
        middle = (low + high) // 2
        fits = chance_of_so_few(middle / effect, len(ordered) / effect, bound.allowed) <= RISK
        low, high = (middle, high) if fits else (low, middle)
    bounding = float(ordered[len(ordered) - 1 - low]) if low >= 0 else inf
    return bounding if bounding < inf else None


def _needed(num: int, num_over: int, bound: Bound, effect: float | Unavailable) -> float | None:
    if isinstance(effect, Unavailable):
        return None
    return effective_needed(num_over / num, bound.allowed, risk=RISK) * effect


def _reason(
    outcome: BoundOutcome,
    effect: float | Unavailable,
    confirming: int,
    confirmations: int,
    num_launches: int,
) -> str | None:
    if outcome == "missed":
        return None
    if outcome == "met":
        missing = confirmations - confirming
        more = "" if num_launches < confirmations else " that are within the bound on their own"
        return f"{confirming} of {confirmations} launches{more}" if missing > 0 else None
    if isinstance(effect, Unavailable):
        return effect.reason
    return "the fraction over the bound is too close to the allowed fraction for this many requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateJudgement:
    """Result of the launches at one rate, covering all bounds."""

    outcome: BoundOutcome
    num_launches: int
    num_requests: int
    standings: tuple[BoundStanding, ...]

    @property
    def num_confirming(self) -> int:
        """Return the number of launches that meet a bound on their own, for the worst bound."""
        return min((standing.num_confirming for standing in self.standings), default=0)

    @property
    def needed_requests(self) -> float | None:
        """Return the number of requests needed to decide; None if decided, or if there are too few."""
        needed = [standing.needed_requests for standing in self.standings if standing.outcome == "undecided"]
        counts = [value for value in needed if value is not None]
        return max(counts) if counts and len(counts) == len(needed) else None

    @property
    def reason(self) -> str | None:
        """Return the reason why the rate is undecided."""
        return next((standing.reason for standing in self.standings if standing.outcome == "undecided"), None)


def judge_rate(
    launches: Sequence[RequestSeries], bounds: Sequence[Bound], *, confirmations: int
) -> RateJudgement:
    """Evaluate all bounds: "met" if each is met, "missed" if any is missed."""
    standings = tuple(judge(launches, bound, confirmations=confirmations) for bound in bounds)
    outcomes = {standing.outcome for standing in standings}
    outcome: BoundOutcome = "missed" if "missed" in outcomes else "undecided"
    return RateJudgement(
        outcome="met" if outcomes == {"met"} else outcome,
        num_launches=len(launches),
        num_requests=sum(map(len, launches)),
        standings=standings,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundVerdict:
    """Verdict on a latency bound at a percentile, from a given number of requests."""

    outcome: BoundOutcome
    bound_s: float
    q: float
    num_requests: int
    num_over: int
    """Number of requests that exceed the bound, including failed ones."""
    num_needed: int
    """Smallest number of requests for which the bound is still met with this many over it."""


def judge_bound(*, num_requests: int, num_over: int, bound_s: float, q: float) -> BoundVerdict:
    """Decide, at 99 % confidence, whether the q-th percentile is below the bound.

    Met: requests ≥ h(t) + t, where t is the number over the bound. Missed: at most 1 % of windows would have
    this many requests over the bound if the fraction over it were 1 − q/100.

    >>> judge_bound(num_requests=661, num_over=1, bound_s=0.1, q=99).outcome
    'undecided'
    >>> judge_bound(num_requests=662, num_over=1, bound_s=0.1, q=99).outcome
    'met'
    """
    needed = under_limit_needed(num_over, q, confidence=CONFIDENCE) + num_over
    outcome: BoundOutcome = "undecided"
    if num_requests >= needed:
        outcome = "met"
    elif num_over and chance_of_so_many(num_over, num_requests, 1 - q / 100) <= 1 - CONFIDENCE:
        outcome = "missed"
    return BoundVerdict(
        outcome=outcome,
        bound_s=bound_s,
        q=q,
        num_requests=num_requests,
        num_over=num_over,
        num_needed=needed,
    )


def find_knee(points: Sequence[tuple[float, float]]) -> int | None:
    """Return the index of the knee of a convex, rising curve; None if there are too few points or no knee."""
    if len(points) < MIN_POINTS:
        return None
    (low_x, low_y), (high_x, high_y) = points[0], points[-1]
    if not (high_x > low_x and high_y > low_y):
        return None
    depths = [(x - low_x) / (high_x - low_x) - (y - low_y) / (high_y - low_y) for x, y in points]
    index = max(range(len(points)), key=depths.__getitem__)
    return index if depths[index] >= MIN_DEPTH else None
