"""The launches of one recipe: `run.repeats`, plus as many as `run.target_precision` requires."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuproof.base import units
from gpuproof.config.models import RunConfig, RunSection
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.base import HostPlace, LaunchKey
from gpuproof.suites.cases import CASE_ID
from gpuproof.suites.points.plan import Plan, plan_repeats

FEWEST_BEFORE_A_STOP = 5
"""Minimum number of launches before stopping early. Stopping when an interval happens to be narrow lowers the
probability that it contains the true value: to 93 % at worst with at least 5 launches, and to 90 % with at
least 3 (`benchmarks/repeats_until.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """A plan that grows by one launch whenever all have ended and the result is too imprecise."""

    plan: Plan
    run: RunSection
    figures: tuple[float, ...] = ()
    """Results, one per successful launch: its throughput, or in latency mode its median latency."""
    taken_s: float = 0.0
    """Total duration of all launches, in seconds."""

    @property
    def num_left(self) -> int:
        """Number of launches known to be pending."""
        return self.plan.num_left

    @property
    def until(self) -> str | None:
        """The condition under which no more launches are added; None if none can be added."""
        if not self._may_grow:
            return None
        return f"±{100 * (self.run.target_precision or 0):g} % or {units.duration(self.run.target_time_s)}"

    @property
    def _may_grow(self) -> bool:
        return self.run.target_precision is not None and self.run.repeats >= FEWEST_BEFORE_A_STOP

    def settle(self, launch: CaseRecords) -> Repeats:
        """Return the state after a launch ended."""
        plan = self.plan.settle(launch)
        is_foreign = plan is self.plan
        if is_foreign or not self._may_grow:
            return replace(self, plan=plan)
        from gpuproof.suites.results import compared_values  # this imports numpy

        after = replace(
            self,
            plan=plan,
            figures=(*self.figures, *compared_values(launch).values()),
            taken_s=self.taken_s + (launch.taken_s or 0.0),
        )
        return after if plan.num_left or not after._needs_another() else after._with_another()

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield launches that are neither settled nor running."""
        return self.plan.next(running)

    def _needs_another(self) -> bool:
        """Return whether the interval is too wide, no launch failed, and there is time for one more."""
        num_launches, target = len(self.plan.order), self.run.target_precision
        if target is None or len(self.figures) < num_launches or is_precise(self.figures, target):
            return False
        return self.taken_s * (num_launches + 1) / num_launches <= self.run.target_time_s

    def _with_another(self) -> Repeats:
        order = (*self.plan.order, (CASE_ID, len(self.plan.order)))
        return replace(self, plan=replace(self.plan, order=order))


def begin(config: RunConfig, _places: Sequence[HostPlace]) -> Repeats:
    """Plan the launches that are fixed from the start.

    Raises:
        UsageError: the recipe cannot run.
    """
    return Repeats(plan=plan_repeats(config), run=config.run)


def is_precise(figures: Sequence[float], target: float) -> bool:
    """Return whether the 95 % interval of the launches is within ± `target` of their result."""
    from gpuproof.statistics.launches import interval_of_rates

    reach = getattr(interval_of_rates(figures), "relative_reach", None)
    return reach is not None and reach <= target
