"""Was a collective slow or wrong, or did it hang? Decides when and how to search for the culprit.

Slowness is determined by the rules (`judging.short_of_rules`), by comparison with other hosts' own
collectives, and by other launches of the same collective. If none of these is conclusive, this is reported,
and the collective is not assumed to be fast.

In the search, a group of hosts, or of one host's devices, becomes a case: one collective operation of one
size over the group. A link direction is tested by a broadcast over the pair, in which the root sends and the
other rank receives. Wrong results, and a job that starts but does not finish, count as a test in which
nothing got through.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, sqrt
from statistics import median, stdev
from typing import Any, Literal

from gpuproof.base import units
from gpuproof.config.models import RunConfig
from gpuproof.launches.collectives import CollectiveValues, summarize_collectives
from gpuproof.records.case import Case, CollectiveWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import TRANSIENT_CAUSES, Start, is_host_failure
from gpuproof.records.work.collective import CollectiveSpec, Operation
from gpuproof.suites.base import HostPlace, LaunchKey
from gpuproof.suites.cases import build_case, place_case
from gpuproof.suites.validate.options import ValidateOptions
from gpuproof.suites.validate.placing import StageCase
from gpuproof.verdict.blame.evidence import Group
from gpuproof.verdict.blame.search import BlameSearch, begin

LEAST_NOISE = 0.02
"""Minimum noise of one test, however similar the launches were: a few launches underestimate it."""
CLEAR = 3.0
"""A host is slow if it is slower than its peers by this many standard deviations of a test and by
LEAST_SLOWER."""
LEAST_SLOWER = 0.05
APART = 0.2
"""If launches of one collective differ by more than this fraction of the fastest one, they differ too
much."""
MIN_PEERS, MIN_LAUNCHES = 3, 3
SOUGHT_SHARE = 0.8
"""The slowdown to search for, as a fraction of the observed one: a part of the group may be slowed by less
than the whole."""
NOTHING_THROUGH = 0.9
"""The slowdown to search for if results are wrong or a job hangs; such tests have the value 0."""
MOST_NOISE = 0.9
"""Upper limit for noise; larger scatter is capped at this value."""
TWO_SIDED_95 = 1.96
EVERY_LINK: tuple[Operation, ...] = ("all_to_all", "all_to_all_v")
"""Operations in which each rank sends to every other rank; the others use a ring or a tree."""
Part = Literal["host", "device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSeen:
    """The result of one launch of the collective stage."""

    records: CaseRecords
    points: tuple[CollectiveValues, ...]
    failure: str | None
    """Why it failed, if it started and did not finish normally."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that it was placed on."""
        return self.records.case.placement.hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """How a collective falls short."""

    why: str | None
    """Description of the problem; None if there is no problem, but a search was requested."""
    share: float
    """Shortfall as a fraction of what the collective should reach; 1 if no correct data gets through."""
    operation: str | None = None
    size_bytes: int | None = None
    """None for both operation and size means the first requested operation, at its largest size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCollective:
    """A collective that is slow or wrong, or that the user asks to have checked."""

    case: StageCase
    hosts: tuple[str, ...]
    reason: Shortfall
    slowdown: float
    """The slowdown to search for, as a fraction."""
    noise: float


def collective_seen(launch: CaseRecords) -> CollectiveSeen:
    """Return the result of one launch: its points and its failure."""
    figures, failure = summarize_collectives(launch), launch.primary_failure
    message = None
    is_of_launch = failure is not None and launch.status != "done" and bool(launch.of(Start))
    if is_of_launch and failure is not None and not is_host_failure(failure):
        message = None if failure.cause in TRANSIENT_CAUSES else f"{failure.cause}: {failure.message}"
    return CollectiveSeen(
        records=launch,
        points=() if figures is None else figures.figures,
        failure=message,
    )


def _error_of_median(times: Sequence[float]) -> float:
    """Return the relative standard error of a median, from the ranks of its 95 % interval.

    If a few iterations stall, as on a link that loses packets, the median does not change, but the standard
    deviation could become many times as large as the median.
    """
    ordered, num = sorted(times), len(times)
    reach = TWO_SIDED_95 * sqrt(num) / 2
    low, high = max(0, floor(num / 2 - reach)), min(num - 1, ceil(num / 2 + reach))
    return (ordered[high] - ordered[low]) / (2 * TWO_SIDED_95) / median(ordered)


def suspicions(
    cases: Sequence[StageCase],
    seen: Mapping[str, Sequence[CollectiveSeen]],
    short: Mapping[str, Shortfall],
    options: ValidateOptions,
) -> Iterator[SlowCollective]:
    """Yield what to search for after the collective stage.

    `seen` maps each case to its launches, and `short` to the rule that it failed.
    """
    if options.blame == "never":
        return
    noise = noise_of([launch for launches in seen.values() for launch in launches])
    best = {case_id: rate for case_id, launches in seen.items() if (rate := _best(launches))}
    for case in cases:
        launches = seen.get(case.case_id, ())
        if not launches:
            continue
        peers = [
            best[other.case_id]
            for other in cases
            if other.name == case.name
            and other.ranks_per_host == case.ranks_per_host
            and other.case_id in best
        ]
        reason = _breakage(launches) or short.get(case.case_id) or _slow(launches, peers, noise)
        if reason is None and options.blame == "always":
            reason = Shortfall(why=None, share=LEAST_SLOWER)
        if reason is not None:
            yield _sought(case, launches[-1].hosts, reason, noise)


def _sought(case: StageCase, hosts: tuple[str, ...], reason: Shortfall, noise: float) -> SlowCollective:
    sought = min(NOTHING_THROUGH, SOUGHT_SHARE * reason.share)
    slowdown = NOTHING_THROUGH if reason.share >= 1 else sought if reason.why else LEAST_SLOWER
    return SlowCollective(case=case, hosts=hosts, reason=reason, slowdown=slowdown, noise=noise)


def noise_of(launches: Sequence[CollectiveSeen]) -> float:
    """Return the relative standard deviation of a test: between launches, or within a single one."""
    by_point: dict[tuple[Any, ...], list[float]] = {}
    for launch in launches:
        for point in _largest(launch):
            by_point.setdefault((launch.hosts, point.operation), []).append(bytes_per_s(point))
    between = [stdev(v) / median(v) for v in by_point.values() if len(v) > 1]
    pooled = sqrt(sum(s * s for s in between) / len(between)) if between else 0.0
    within = [_error_of_median(point.iterations_s) for launch in launches for point in _largest(launch)]
    return min(MOST_NOISE, max(LEAST_NOISE, pooled, median(within) if within else 0.0))


def _largest(launch: CollectiveSeen) -> list[CollectiveValues]:
    """Return the first operation's point at the largest size; None for a launch without results."""
    points = [point for point in launch.points if point.operation == launch.points[0].operation]
    return [max(points, key=lambda point: point.size_bytes)] if points else []


def _best(launches: Sequence[CollectiveSeen]) -> float | None:
    figures = [bytes_per_s(point) for launch in launches for point in _largest(launch)]
    return median(figures) if figures else None


def _breakage(launches: Sequence[CollectiveSeen]) -> Shortfall | None:
    """Find wrong results, and jobs that did not finish."""
    for point in (point for launch in launches for point in launch.points if point.num_wrong):
        why = f"{point.num_wrong} elements of {point.operation} of {point.size_bytes:,} bytes are wrong"
        return Shortfall(why=why, share=1.0, operation=point.operation, size_bytes=point.size_bytes)
    failure = next((launch.failure for launch in launches if launch.failure), None)
    return None if failure is None else Shortfall(why=f"it did not finish ({failure})", share=1.0)


def _slow(launches: Sequence[CollectiveSeen], peers: Sequence[float], noise: float) -> Shortfall | None:
    """Return how much slower a collective is than on other hosts, or than in its other launches."""
    best, bound = _best(launches), max(LEAST_SLOWER, CLEAR * noise)
    if best is not None and len(peers) >= MIN_PEERS and best < median(peers) * (1 - bound):
        short = 1 - best / median(peers)
        return Shortfall(
            why=f"it is {units.share(short)} slower than on most of {len(peers)} hosts", share=short
        )
    figures = [bytes_per_s(point) for launch in launches for point in _largest(launch)]
    if len(figures) >= MIN_LAUNCHES and min(figures) < (1 - APART) * max(figures):
        short = 1 - min(figures) / max(figures)
        return Shortfall(why=f"its launches differ by {units.share(short)}", share=short)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blaming:
    """A search over a fleet's hosts or one host's devices, with the results of its launches."""

    config: RunConfig
    """A collective recipe; its operation and size are tested."""
    search: BlameSearch
    part: Part
    places: Mapping[str, HostPlace] = field(default_factory=dict)
    """Location of each member if members are hosts; their shared host if members are devices."""
    name: str = "blame"
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """Test results by case, for finished launches; includes results of later rounds if a run is resumed."""

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield the tests of this round that are neither running nor done; none once the search is over."""
        for case_id, group in self._round().items():
            if case_id not in self.figures and (case_id, 0) not in running:
                yield self.case(case_id, group)

    def settle(self, launch: CaseRecords) -> Blaming:
        """Return the state after a launch finished; launches outside this search change nothing.

        A round is evaluated once all its tests have finished, in any order.
        """
        if not launch.case.case_id.startswith(f"{self.name}-"):
            return self
        return self.with_figures({**self.figures, launch.case.case_id: value_of(launch)})

    def with_figures(self, figures: Mapping[str, float | None]) -> Blaming:
        """Return the state after these test results, by case; tests from other searches have no effect."""
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
        """Return the tests of the current round by name."""
        groups = self.search.next_round()
        return {f"{self.name}-{self.search.num_rounds}-{n}": group for n, group in enumerate(groups)}

    def case(self, case_id: str, group: Group) -> Case:
        """Build the test for a group.

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
    """Return the operation and largest size to test; for one direction, a broadcast from the first rank."""
    spec = work.collective
    operations: tuple[Operation, ...] = ("broadcast",) if one_way else spec.operations[:1]
    root = 0 if one_way else spec.root
    largest = spec.sizes_bytes[-1]
    return replace(spec, operations=operations, min_bytes=largest, max_bytes=largest, root=root)


def blame_hosts(
    config: RunConfig, places: Sequence[HostPlace], *, noise: float, slowdown: float, name: str = "blame"
) -> Blaming:
    """Start a search among hosts; `noise` and `slowdown` are as in `verdict.blame.search.begin`."""
    by_name = {place.name: place for place in places}
    every_link = config.collective.operations[0] in EVERY_LINK
    search = begin(tuple(by_name), noise=noise, slowdown=slowdown, every_link=every_link)
    return Blaming(config=config, search=search, part="host", places=by_name, name=name)


def blame_devices(
    config: RunConfig, place: HostPlace, devices: Sequence[int], *, noise: float, slowdown: float, name: str
) -> Blaming:
    """Start a search among the devices of one host, by the indices that its ranks use."""
    every_link = config.collective.operations[0] in EVERY_LINK
    members = tuple(map(str, devices))
    search = begin(members, noise=noise, slowdown=slowdown, every_link=every_link)
    return Blaming(config=config, search=search, part="device", places={place.name: place}, name=name)


def value_of(launch: CaseRecords) -> float | None:
    """Return the rate of a test; 0 if it produced no correct result, None if it did not start."""
    collectives = summarize_collectives(launch)
    if collectives is None or not collectives.figures:
        failures = [f for f in (launch.primary_failure,) if f is not None]
        began = bool(launch.of(Start)) and not any(is_host_failure(failure) for failure in failures)
        return 0.0 if began else None
    figures = collectives.figures[0]
    return 0.0 if figures.num_wrong else bytes_per_s(figures)


def bytes_per_s(figures: CollectiveValues) -> float:
    """Return the size divided by the median iteration time, using the slowest rank in each iteration."""
    return figures.size_bytes / median(figures.iterations_s)
