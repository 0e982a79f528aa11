"""The search for who is to blame as launches: a group of hosts, or of one host's devices, becomes a case.

A group is tested by one collective operation of one size over it; a direction of a link by a broadcast over
the pair, in which the root sends and the other receives. Wrong results, and a job that begins and does not
come to its end, count as a test in which nothing got through.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from gpuproof.config.models import RunConfig
from gpuproof.launches.collectives import CollectiveFigures, summarize_collectives
from gpuproof.records.case import Case, CollectiveWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Start, is_host_failure
from gpuproof.records.work.collective import CollectiveSpec, Operation
from gpuproof.suites.base import HostPlace, LaunchKey
from gpuproof.suites.cases import build_case, place_case
from gpuproof.verdict.blame.evidence import Group
from gpuproof.verdict.blame.search import BlameSearch, begin

EVERY_LINK: tuple[Operation, ...] = ("all_to_all", "all_to_all_v")
"""Operations in which each rank sends to each; others go round a ring or along a tree."""
Part = Literal["host", "device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blaming:
    """A search over the hosts of a fleet, or over the devices of one host, and what its launches gave."""

    config: RunConfig
    """Of kind collective; its operation and size are tested."""
    search: BlameSearch
    part: Part
    places: Mapping[str, HostPlace] = field(default_factory=dict)
    """Of each member that is a host; the one host of all members that are devices."""
    name: str = "blame"
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """By case; of launches that ended, those of rounds to come included where a run is resumed."""

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield the tests of this round that neither run nor have ended; none once the search is over."""
        for case_id, group in self._round().items():
            if case_id not in self.figures and (case_id, 0) not in running:
                yield self.case(case_id, group)

    def settle(self, launch: CaseRecords) -> Blaming:
        """Return the state after a launch ended; one that is no test of this search changes nothing.

        A round is judged when all its tests have ended, in whichever order they did.
        """
        if not launch.case.case_id.startswith(f"{self.name}-"):
            return self
        return self.with_figures({**self.figures, launch.case.case_id: figure_of(launch)})

    def with_figures(self, figures: Mapping[str, float | None]) -> Blaming:
        """Return the state after tests, by case; those of other searches change nothing."""
        state = replace(self, figures=figures)
        while (groups := state._round()) and all(case_id in state.figures for case_id in groups):
            results = {group: state.figures[case_id] for case_id, group in groups.items()}
            state = replace(state, search=state.search.settle(results))
        return state

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to test."""
        return not self._round()

    def _round(self) -> dict[str, Group]:
        """Name the tests of the round that is due."""
        groups = self.search.next_round()
        return {f"{self.name}-{self.search.num_rounds}-{n}": group for n, group in enumerate(groups)}

    def case(self, case_id: str, group: Group) -> Case:
        """Build the test of a group.

        Raises:
            UsageError: the recipe cannot be run.
        """
        case = build_case(self.config, 0, case_id=case_id)
        assert isinstance(case.work, CollectiveWork)
        case = replace(case, work=replace(case.work, collective=_one_test(case.work, one_way=group.one_way)))
        if self.part == "host":
            placed = place_case(case, *(self.places[member] for member in group.members))
        else:
            placed = place_case(case, *self.places.values())
            devices = tuple(int(member) for member in group.members)
            placement = replace(placed.placement, devices=devices, ranks_per_host=len(devices))
            placed = replace(placed, placement=placement)
        return replace(placed, case_id=case_id)


def _one_test(work: CollectiveWork, *, one_way: bool) -> CollectiveSpec:
    """Return the first operation at the largest size; one way, a broadcast from the first rank."""
    spec = work.collective
    operations: tuple[Operation, ...] = ("broadcast",) if one_way else spec.operations[:1]
    root = 0 if one_way else spec.root
    largest = spec.sizes_bytes[-1]
    return replace(spec, operations=operations, min_bytes=largest, max_bytes=largest, root=root)


def blame_hosts(
    config: RunConfig, places: Sequence[HostPlace], *, noise: float, slowdown: float, name: str = "blame"
) -> Blaming:
    """Begin a search among hosts; `noise` and `slowdown` as in `verdict.blame.search.begin`."""
    by_name = {place.name: place for place in places}
    every_link = config.collective.operations[0] in EVERY_LINK
    search = begin(tuple(by_name), noise=noise, slowdown=slowdown, every_link=every_link)
    return Blaming(config=config, search=search, part="host", places=by_name, name=name)


def blame_devices(
    config: RunConfig, place: HostPlace, devices: Sequence[int], *, noise: float, slowdown: float, name: str
) -> Blaming:
    """Begin a search among the devices of one host, by the indices that its ranks count them by."""
    every_link = config.collective.operations[0] in EVERY_LINK
    members = tuple(map(str, devices))
    search = begin(members, noise=noise, slowdown=slowdown, every_link=every_link)
    return Blaming(config=config, search=search, part="device", places={place.name: place}, name=name)


def figure_of(launch: CaseRecords) -> float | None:
    """Return the rate of a test; 0 where nothing right got through, None where it did not begin."""
    collectives = summarize_collectives(launch)
    if collectives is None or not collectives.figures:
        failures = [f for f in (launch.primary_failure,) if f is not None]
        began = bool(launch.of(Start)) and not any(is_host_failure(failure) for failure in failures)
        return 0.0 if began else None
    figures = collectives.figures[0]
    return 0.0 if figures.num_wrong else bytes_per_s(figures)


def bytes_per_s(figures: CollectiveFigures) -> float:
    """Return the size over the median iteration, each as long as on the rank that took longest."""
    return figures.size_bytes / median(figures.iterations_s)
