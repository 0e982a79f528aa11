"""The launches of a probe: `run.repeats` on each host separately, or for one job over all hosts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.base import HostPlace, LaunchKey
from gpuproof.suites.cases import CASE_ID, place_case, placed_name
from gpuproof.suites.points.plan import Plan, Point, check_points


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """A plan with one point per host or group of hosts, all with the same recipe."""

    plan: Plan
    places: Mapping[str, tuple[HostPlace, ...]]
    """The hosts of each point, by the id of the placed case."""

    @property
    def num_left(self) -> int:
        """Number of launches that are not settled."""
        return self.plan.num_left

    def settle(self, launch: CaseRecords) -> ProbePlan:
        """Return the plan after a launch has ended."""
        return replace(self, plan=self.plan.settle(launch))

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield launches that are neither settled nor running."""
        for case in self.plan.next(running):
            places = self.places[case.case_id]
            yield case if case.case_id == CASE_ID else place_case(replace(case, case_id=CASE_ID), *places)


def begin(config: RunConfig, places: Sequence[HostPlace]) -> ProbePlan:
    """Plan a probe's launches, alternating between hosts.

    Raises:
        UsageError: the probe cannot run.
    """
    groups = [tuple(places)] if config.distributed.nodes > 1 else [(place,) for place in places]
    by_name = {placed_name(CASE_ID, *group): group for group in groups}
    plan = Plan(
        points={name: Point(case_id=name, assignment={}, config=config) for name in by_name},
        order=tuple((name, replicate) for replicate in range(config.run.repeats) for name in by_name),
        is_sweep=False,
    )
    return ProbePlan(plan=check_points(plan), places=by_name)
