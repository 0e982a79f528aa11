"""Search for the highest rate at which requests stay within bounds, and the run it belongs to.

Input: the finished launches. Output: which rates are confirmed, refuted or undecided, and the next launch.
Nothing is guessed: an offline launch measures the server's maximum, and bisection between the highest
confirmed and the lowest refuted rate narrows the range. If a rate in between cannot be decided within its
time, the search narrows down the edges of that gap. Finally, the rate found is tested for all of its
remaining time, and may still be refuted. The answer is a range. A rate at which the client's own limit would
be measured is neither confirmed nor refuted, and the search ends below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import median
from typing import TypeAlias

from gpuproof.base.groups import grouped
from gpuproof.config.models import RunConfig
from gpuproof.launches.bounds import Bound, BoundOutcome, RateJudgement, RequestSeries, find_knee, judge_rate
from gpuproof.launches.served import Served
from gpuproof.records.result import Doubt
from gpuproof.records.run import Failure
from gpuproof.records.serving import ClientAlone
from gpuproof.records.work.serving import Scenario
from gpuproof.statistics.percentiles import percentile

LOWEST_SHARE = 1 / 64
"""Fraction of the offline rate at which the search gives up: if not even this rate is confirmed, the search
reports none."""
MOST_UNTOLD = 2
"""Number of undecided rates after which the search for the lower edge of the gap stops; twice as many for the
upper edge."""
HOPELESS = 3.0
"""Limit on the requests that a decision needs: beyond this multiple of the requests left for a rate, the
remaining ones are not sent."""
MIN_LATE_LAUNCHES = 2
"""Minimum number of launches in which the client must be late: in a single one, something else may have
delayed it."""
SPARE = 1.2
"""Factor by which more requests are sent than seem to be needed."""
Rates: TypeAlias = Mapping[float, RateJudgement]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """A run of kind serving, with the data for its report."""

    config: RunConfig
    launches: tuple[Served, ...]
    failures: tuple[Failure, ...]
    doubts: tuple[Doubt, ...]
    search: RateSearch | None
    """The search for the highest rate; None if the recipe specifies a rate, or a scenario without one."""
    rates: Rates
    """The combined result of the launches at each rate."""
    num_planned: int

    @property
    def main(self) -> tuple[Served, ...]:
        """The main launches: launches at the highest confirmed rate, or launches of the single scenario."""
        if self.search is None:
            return self.launches
        return self.at(self.search.met_per_s)

    def at(self, rate_per_s: float | None) -> tuple[Served, ...]:
        """Return the launches at a rate, or none if there is no rate."""
        return tuple(s for s in self.launches if s.window.offered_per_s == rate_per_s) if rate_per_s else ()

    @property
    def judgement(self) -> RateJudgement | None:
        """Evaluation of the run's main launches against the bounds; None if there is no rate or bound."""
        rate_per_s = self.main[0].window.offered_per_s if self.main else None
        judgement = None if rate_per_s is None else self.rates.get(rate_per_s)
        return judgement if judgement and judgement.standings else None

    @property
    def is_of_before(self) -> bool:
        """Whether the run is from a version that evaluated each rate from a single launch."""
        return any(served.is_of_before for served in self.launches)

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Rate and median latency of the launches at every rate with responses, sorted by rate."""
        points = [
            (served.window.offered_per_s, value)
            for served in self.launches
            if served.window.offered_per_s is not None
            and (value := percentile(served.latencies_s, 50).value) is not None
        ]
        return sorted((rate, median(values)) for rate, values in grouped(points).items())

    @property
    def knee_per_s(self) -> float | None:
        """The rate at which the curve bends upwards; None if it has no clear bend."""
        index = find_knee(self.curve)
        return None if index is None else self.curve[index][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The measurement budget for one rate."""

    confirmations: int
    """Minimum number of launches with fresh arrivals."""
    min_requests: int
    window_s: float
    """Minimum duration of every launch, which also has at least `min_requests` requests."""
    time_at_a_rate_s: float
    """Maximum duration of arrivals per rate, in seconds: each rate gets its first launches, and only the rate
    found gets all of this time."""

    def first_requests(self, rate_per_s: float) -> int:
        """Return the number of requests in each of a rate's first launches."""
        return max(self.min_requests, ceil(rate_per_s * self.window_s))

    def most_requests(self, rate_per_s: float) -> int:
        """Return the maximum total number of requests for all launches at a rate."""
        return max(
            ceil(rate_per_s * self.time_at_a_rate_s), self.first_requests(rate_per_s) * self.confirmations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Contribution of a finished launch to the search."""

    scenario: Scenario
    requests_per_s: float
    offered_per_s: float | None
    series: RequestSeries | None = None
    outcome_then: BoundOutcome | None = None
    """The evaluation stored by a version that used a single launch per rate; None for later versions."""
    is_client_late: bool = False
    client: ClientAlone | None = None
    """The client's own limit, measured by the launch before a search with an endpoint."""

    @classmethod
    def of(cls, served: Served) -> Trial:
        """Build a trial from the results of a window."""
        verdict = served.verdict
        return cls(
            scenario=served.window.scenario,
            requests_per_s=served.requests_per_s,
            offered_per_s=served.window.offered_per_s,
            series=served.series,
            outcome_then=verdict.outcome if verdict and served.is_of_before else None,
            is_client_late=served.is_client_late,
            client=served.window.client,
        )


def judge_rates(
    trials: Sequence[Trial], bounds: Sequence[Bound], *, confirmations: int, client_per_s: float = inf
) -> Rates:
    """Evaluate rates from their launches; rates that the client cannot reliably send stay undecided."""
    by_rate: dict[float, list[Trial]] = {}
    for trial in trials:
        if trial.offered_per_s is not None and (trial.series is not None or trial.outcome_then):
            by_rate.setdefault(trial.offered_per_s, []).append(trial)
    return {
        rate: _judge_earlier(of_rate)
        if of_rate[0].outcome_then
        else _judge_rate(of_rate, bounds, confirmations, is_over_client=rate > client_per_s)
        for rate, of_rate in sorted(by_rate.items())
    }


def _judge_rate(
    trials: Sequence[Trial], bounds: Sequence[Bound], confirmations: int, *, is_over_client: bool
) -> RateJudgement:
    launches = [trial.series for trial in trials if trial.series is not None]
    judgement = judge_rate(launches, bounds, confirmations=confirmations)
    late = sum(trial.is_client_late for trial in trials)
    if not is_over_client and (late < MIN_LATE_LAUNCHES or 2 * late < len(trials)):
        return judgement
    standings = tuple(replace(x, outcome="client", needed_requests=None) for x in judgement.standings)
    return replace(judgement, outcome="client", standings=standings)


def _judge_earlier(trials: Sequence[Trial]) -> RateJudgement:
    """Evaluate a rate from an earlier version: it misses its bounds if at least one launch does."""
    outcomes = [trial.outcome_then or "undecided" for trial in trials]
    worst: BoundOutcome = "met" if set(outcomes) == {"met"} else "missed"
    return RateJudgement(outcome=worst, num_launches=len(trials), num_requests=0, standings=())


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSearch:
    """The progress of the search for the highest rate."""

    ceiling_per_s: float | None
    """Requests per second of the offline launch; None before it."""
    rates: Rates
    precision: float
    effort: Effort
    time_left_s: float = inf
    """Time limit for the entire search."""
    beside_s: float = 0.0
    """Time that a launch needs beyond its arrival period: to start, and to answer the last requests."""
    lowest_per_s: float = 0.0
    """Rates below this are not tried."""
    client_per_s: float = inf
    """The highest rate at which a test before the search showed that the client is not the limit."""

    @property
    def met_per_s(self) -> float | None:
        """Return the highest confirmed rate that is below all refuted rates."""
        lowest = self.not_met_per_s
        met = [rate for rate, judgement in self.rates.items() if judgement.outcome == "met"]
        return max((rate for rate in met if lowest is None or rate < lowest), default=None)

    @property
    def not_met_per_s(self) -> float | None:
        """Return the lowest rate that missed the bounds."""
        return min((rate for rate, x in self.rates.items() if x.outcome == "missed"), default=None)

    @property
    def untold(self) -> list[float]:
        """Return the rates between the edges that are still undecided with no time left, lowest first."""
        low, high = self.met_per_s or 0.0, self._upper
        return [
            rate
            for rate, judgement in self.rates.items()
            if low < rate < high and judgement.outcome == "undecided" and not self.requests_left(rate)
        ]

    @property
    def client_limit_per_s(self) -> float | None:
        """Return the rate above which the client's limit prevents a decision, if the search ends there."""
        of_client = [rate for rate, judgement in self.rates.items() if judgement.outcome == "client"]
        limit = min([self.client_per_s, *of_client])
        others = (x for x in (self.ceiling_per_s, self.not_met_per_s) if x is not None)
        return limit if limit < min(others, default=0.0) else None

    @property
    def _upper(self) -> float:
        assert self.ceiling_per_s is not None
        edges = (self.ceiling_per_s, self.not_met_per_s, self.client_limit_per_s)
        return min(edge for edge in edges if edge is not None)

    def requests_left(self, rate_per_s: float) -> int:
        """Return the number of requests in a rate's next launch; 0 if the rate is settled or abandoned."""
        first, most = self.effort.first_requests(rate_per_s), self.effort.most_requests(rate_per_s)
        judgement = self.rates.get(rate_per_s)
        if judgement is None:
            return first
        if judgement.outcome != "undecided":
            return 0
        if judgement.num_launches < self.effort.confirmations:
            return first
        left = most - judgement.num_requests
        needed = judgement.needed_requests
        # Use the same number again if the number needed is unknown, or should already have been enough.
        is_estimate = needed is not None and needed > judgement.num_requests
        more = SPARE * needed - judgement.num_requests if needed and is_estimate else judgement.num_requests
        if left < first or more > HOPELESS * left:
            return 0
        return int(min(max(more, first), left))

    @property
    def next_launch(self) -> tuple[float, int] | None:
        """Return rate and requests for the next launch; None if the search is over or has not started."""
        wanted = self.wanted
        return wanted if wanted is not None and self.fits(*wanted) else None

    def fits(self, rate_per_s: float, num_requests: int) -> bool:
        """Report whether a launch would finish in the time left."""
        return num_requests / rate_per_s + self.beside_s <= self.time_left_s

    @property
    def wanted(self) -> tuple[float, int] | None:
        """Return the next launch that would start if there were time."""
        if self.ceiling_per_s is None:
            return None
        rate = self._next_to_judge()
        if rate is not None:
            return rate, self.requests_left(rate)
        return self._proof()

    def _next_to_judge(self) -> float | None:
        low, high, untold = self.met_per_s or 0.0, self._upper, self.untold
        begun = [rate for rate in self.rates if low < rate < high and self.requests_left(rate)]
        if begun:
            return begun[0]
        if not untold:
            return self._middle(low, high)
        below = self._middle(low, untold[0]) if len(untold) < MOST_UNTOLD or not low else None
        above = self._middle(untold[-1], high) if len(untold) < 2 * MOST_UNTOLD else None
        return below or above

    def _proof(self) -> tuple[float, int] | None:
        """Return the highest rate and how many more requests its budget allows; more reveal rare stalls."""
        rate = self.met_per_s
        # empty in runs from a version that evaluated a single launch per rate
        if rate is None or not self.rates[rate].standings:
            return None
        left = self.effort.most_requests(rate) - self.rates[rate].num_requests
        return (rate, max(left, self.effort.first_requests(rate))) if left > 0 else None

    def _middle(self, low: float, high: float) -> float | None:
        """Return the midpoint; None if both rates are as close as required, or nothing is left to find."""
        assert self.ceiling_per_s is not None
        lowest = max(self.ceiling_per_s * LOWEST_SHARE, self.lowest_per_s)
        is_near = high <= low * (1 + self.precision) if low else high <= lowest
        return None if is_near else max((low + high) / 2, lowest)

    @property
    def is_finished(self) -> bool:
        """Report whether the search has nothing left to launch."""
        return self.ceiling_per_s is not None and self.next_launch is None
