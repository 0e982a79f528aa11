"""A run of kind serving put together: what figures, page and files are made from."""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.config.models import RunConfig
from gpuproof.launches.bounds import RateJudgement
from gpuproof.launches.loadgen import find_knee
from gpuproof.launches.served import Served
from gpuproof.records.result import Doubt
from gpuproof.records.run import Failure
from gpuproof.statistics.percentiles import percentile
from gpuproof.suites.serving.search import Rates, RateSearch


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
