"""The search for the highest rate whose requests stay within their bounds, and the run that it is part of.

In: the launches that ended. Out: for each rate confirmed, refuted or not told, and the next launch. Nothing
is guessed: an offline launch gives what the server can do at all, and halving the distance between the
highest rate that was confirmed and the lowest that was refuted closes in. Where a rate in between cannot be
told in its time, the search closes in on the edges of that gap. At last the rate that was found is given all
of its time: what it does then may still refute it. The answer is a range. A rate at which the client's own
limit would be measured is neither confirmed nor refuted, and the search ends below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import TypeAlias

from gpuproof.config.models import RunConfig
from gpuproof.launches.bounds import Bound, BoundOutcome, RateJudgement, RequestSeries, find_knee, judge_rate
from gpuproof.launches.served import Served
from gpuproof.records.result import Doubt
from gpuproof.records.run import Failure
from gpuproof.records.serving import ClientAlone
from gpuproof.records.work.serving import Scenario
from gpuproof.statistics.percentiles import percentile

LOWEST_SHARE = 1 / 64
"""Of the offline rate: where even this is not confirmed, no rate is."""
MOST_UNTOLD = 2
"""Rates that could not be told after which the lower edge of the gap is not looked for any more; the upper
edge is not after twice as many."""
HOPELESS = 3.0
"""Times the requests that are left for a rate: where more are needed, they are not spent."""
MIN_LATE_LAUNCHES = 2
"""A client that is late in one launch may have been held up by something else."""
SPARE = 1.2
"""How many more requests are asked for than seem to be needed."""
Rates: TypeAlias = Mapping[float, RateJudgement]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """A run of kind serving, with what its report is made from."""

    config: RunConfig
    launches: tuple[Served, ...]
    failures: tuple[Failure, ...]
    doubts: tuple[Doubt, ...]
    search: RateSearch | None
    """None where the recipe names a rate or a scenario without one."""
    rates: Rates
    """What the launches at each rate say together."""
    num_planned: int

    @property
    def main(self) -> tuple[Served, ...]:
        """The launches that the run is about: at the highest confirmed rate, or of the one scenario."""
        if self.search is None:
            return self.launches
        return self.at(self.search.met_per_s)

    def at(self, rate_per_s: float | None) -> tuple[Served, ...]:
        """Return the launches at a rate."""
        return tuple(s for s in self.launches if s.window.offered_per_s == rate_per_s) if rate_per_s else ()

    @property
    def judgement(self) -> RateJudgement | None:
        """What the launches that the run is about say of the bounds; None where there is no rate or bound."""
        rate_per_s = self.main[0].window.offered_per_s if self.main else None
        judgement = None if rate_per_s is None else self.rates.get(rate_per_s)
        return judgement if judgement and judgement.standings else None

    @property
    def is_of_before(self) -> bool:
        """Whether it is of a version that judged a rate by one launch."""
        return any(served.is_of_before for served in self.launches)

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Rate and median latency of every schedule that was answered, by rate."""
        points = [
            (served.window.offered_per_s, median.value)
            for served in self.launches
            if served.window.offered_per_s is not None
            and (median := percentile(served.latencies_s, 50)).value is not None
        ]
        return sorted((rate, value) for rate, value in points if value is not None)

    @property
    def knee_per_s(self) -> float | None:
        """The rate at which the curve turns up; None where it has no clear bend."""
        index = find_knee(self.curve)
        return None if index is None else self.curve[index][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much a rate is given."""

    confirmations: int
    """Launches of fresh arrivals, at least."""
    min_requests: int
    window_s: float
    """A launch has both, at least."""
    time_at_a_rate_s: float
    """Seconds of arrivals, at most; each rate gets its first launches, and the one found all of it."""

    def first_requests(self, rate_per_s: float) -> int:
        """Return the requests of a rate's first launches."""
        return max(self.min_requests, ceil(rate_per_s * self.window_s))

    def most_requests(self, rate_per_s: float) -> int:
        """Return the requests of all launches at a rate."""
        return max(
            ceil(rate_per_s * self.time_at_a_rate_s), self.first_requests(rate_per_s) * self.confirmations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a launch that ended says for the search."""

    scenario: Scenario
    requests_per_s: float
    offered_per_s: float | None
    series: RequestSeries | None = None
    outcome_then: BoundOutcome | None = None
    """What a version that judged a rate by one launch made of it; None for launches since."""
    is_client_late: bool = False
    client: ClientAlone | None = None
    """Of the launch before a search of an endpoint."""

    @classmethod
    def of(cls, served: Served) -> Trial:
        """Read it from the figures of a window."""
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
    """Judge every rate by its launches; one over what the client is trusted with is not told."""
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
    """Read a rate of an earlier version: one that any launch did not meet was not met."""
    outcomes = [trial.outcome_then or "undecided" for trial in trials]
    worst: BoundOutcome = "met" if set(outcomes) == {"met"} else "missed"
    return RateJudgement(outcome=worst, num_launches=len(trials), num_requests=0, standings=())


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSearch:
    """How far the search for the highest rate is."""

    ceiling_per_s: float | None
    """Requests a second of the offline launch; None before it."""
    rates: Rates
    precision: float
    effort: Effort
    time_left_s: float = inf
    """Of what the whole search may take."""
    beside_s: float = 0.0
    """What a launch takes beside its arrivals: to start, and to answer the last requests."""
    lowest_per_s: float = 0.0
    """No rate under it is tried."""
    client_per_s: float = inf
    """The highest rate at which a client was seen to be no limit, before the search."""

    @property
    def met_per_s(self) -> float | None:
        """Return the highest rate that was confirmed, and below all that were refuted."""
        lowest = self.not_met_per_s
        met = [rate for rate, judgement in self.rates.items() if judgement.outcome == "met"]
        return max((rate for rate in met if lowest is None or rate < lowest), default=None)

    @property
    def not_met_per_s(self) -> float | None:
        """Return the lowest rate that was refuted."""
        return min((rate for rate, x in self.rates.items() if x.outcome == "missed"), default=None)

    @property
    def untold(self) -> list[float]:
        """Return the rates between that had their time and stayed undecided, lowest first."""
        low, high = self.met_per_s or 0.0, self._upper
        return [
            rate
            for rate, judgement in self.rates.items()
            if low < rate < high and judgement.outcome == "undecided" and not self.requests_left(rate)
        ]

    @property
    def client_limit_per_s(self) -> float | None:
        """Return the rate from which nothing can be told for the client, where the search ends at it."""
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
        """Return the requests of the next launch at a rate; 0 where it is settled or gets none any more."""
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
        # As many again, where it cannot be said how many are needed, or where it should have been enough.
        is_estimate = needed is not None and needed > judgement.num_requests
        more = SPARE * needed - judgement.num_requests if needed and is_estimate else judgement.num_requests
        if left < first or more > HOPELESS * left:
            return 0
        return int(min(max(more, first), left))

    @property
    def next_launch(self) -> tuple[float, int] | None:
        """Return rate and requests of the next launch; None where the search is over or has not begun."""
        wanted = self.wanted
        return wanted if wanted is not None and self.fits(*wanted) else None

    def fits(self, rate_per_s: float, num_requests: int) -> bool:
        """Say whether a launch would end in the time that is left."""
        return num_requests / rate_per_s + self.beside_s <= self.time_left_s

    @property
    def wanted(self) -> tuple[float, int] | None:
        """Return what would be launched next if there were time."""
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
        """Return the highest rate and what its time still allows: few requests show no stall that is rare."""
        rate = self.met_per_s
        if rate is None or not self.rates[rate].standings:  # none of a version that judged by one launch
            return None
        left = self.effort.most_requests(rate) - self.rates[rate].num_requests
        return (rate, max(left, self.effort.first_requests(rate))) if left > 0 else None

    def _middle(self, low: float, high: float) -> float | None:
        """Return the middle; None where the two are as near as asked, or nothing is to be found."""
        assert self.ceiling_per_s is not None
        lowest = max(self.ceiling_per_s * LOWEST_SHARE, self.lowest_per_s)
        is_near = high <= low * (1 + self.precision) if low else high <= lowest
        return None if is_near else max((low + high) / 2, lowest)

    @property
    def is_finished(self) -> bool:
        """Say whether nothing is left to be launched for it."""
        return self.ceiling_per_s is not None and self.next_launch is None
