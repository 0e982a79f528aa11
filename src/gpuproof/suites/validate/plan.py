"""Decide what to launch next: stage by stage, without lost hosts, within the time budget.

The state does not depend on the order of launches: it records which launches are settled, how long each took,
and which hosts are lost. A resumed run therefore continues with the same plan, in whatever order its launches
are read back. If a collective is suspicious, it is followed by searches among hosts and inside them, then by
a test without the blamed members. Their progress also depends only on the launches of the collective stage
and on the test results so far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import RankResult, Start
from gpuproof.suites.base import HostPlace, LaunchKey, launch_key
from gpuproof.suites.points.plan import config_at
from gpuproof.suites.validate.options import ValidateOptions, read_options
from gpuproof.suites.validate.placing import Stage, StageCase, lost_hosts, seconds_of, site_of
from gpuproof.suites.validate.stages import build_launch, recipe_of, stages_of
from gpuproof.suites.validate.suspicion import (
    Blaming,
    CollectiveSeen,
    SlowCollective,
    blame_devices,
    blame_hosts,
    collective_seen,
    suspicions,
    value_of,
)

PREFIX = "blame-"
"""Prefix of the case names of all group tests."""
TEST_S = 30.0
"""Expected duration of one group test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOrder:
    """The progress of a validation."""

    config: RunConfig
    options: ValidateOptions
    stages: tuple[Stage, ...]
    lost: frozenset[str] = frozenset()
    """Hosts that do not respond."""
    taken_ms: Mapping[LaunchKey, int] = field(default_factory=dict)
    """Durations of settled launches."""
    seen: Mapping[LaunchKey, CollectiveSeen] = field(default_factory=dict)
    """Observations from collective launches."""
    tested: Mapping[str, float | None] = field(default_factory=dict)
    """Results of group tests, by case."""
    spent_ms: Mapping[str, int] = field(default_factory=dict)
    """Time spent per host, in whole milliseconds so that the order of addition does not matter."""
    suspected: dict[frozenset[LaunchKey], tuple[SlowCollective, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Suspicions raised by the launches seen so far; queried after every test, but computed only once."""

    @property
    def num_left(self) -> int:
        """Number of launches still to run, as far as the time budget allows."""
        return sum(1 for stage in self.stages for _ in self._open(stage))

    @property
    def seconds_left(self) -> float:
        """Expected duration of these launches when run stage by stage."""
        return sum(seconds_of(case for case, _ in self._open(stage)) for stage in self.stages)

    def settle(self, launch: CaseRecords) -> StageOrder:
        """Return the state after a launch finished."""
        key, lost = launch_key(launch.case), lost_hosts(launch)
        is_test = key[0].startswith(PREFIX)
        if lost and not is_test and len(launch.case.placement.hosts) > 1:
            # the job will be launched again on the remaining hosts
            return replace(self, lost=self.lost | lost)
        if key in self.taken_ms:
            return self
        taken = _taken_ms(launch)
        spent = dict(self.spent_ms)
        for host in launch.case.placement.hosts or ("",):
            spent[host] = spent.get(host, 0) + taken
        return replace(
            self,
            lost=self.lost | lost,
            taken_ms={**self.taken_ms, key: taken},
            spent_ms=spent,
            seen={**self.seen, key: collective_seen(launch)}
            if launch.case.kind == "collective" and not is_test
            else self.seen,
            tested={**self.tested, key[0]: value_of(launch)} if is_test else self.tested,
        )

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield the launches of the first stage that is not fully settled."""
        for stage in self.stages:
            waiting = False
            for case, replicate in self._open(stage):
                waiting = True
                if (case.case_id, replicate) not in running:
                    yield build_launch(case, self.config, replicate, self.places_of(case))
            if not waiting and stage.name == "collective":
                for launch in self._follow_up(running):
                    waiting = True
                    if launch is not None:
                        yield launch
            if waiting:
                return

    def followed(self) -> tuple[FollowedUp, ...]:
        """Return the searches for the culprit, once the collectives have been measured."""
        stage = next((stage for stage in self.stages if stage.name == "collective"), None)
        if stage is None or any(True for _ in self._open(stage)):
            return ()
        if any(case.attached_hosts is not None for case in stage.cases):
            return ()  # a test uses only some of the ranks, and the user's own launcher provides all or none
        measured = frozenset(self.seen)
        if measured not in self.suspected:
            self.suspected[measured] = self._suspicions(stage)
        return tuple(follow(suspicion, self.config, self.tested) for suspicion in self.suspected[measured])

    def _suspicions(self, stage: Stage) -> tuple[SlowCollective, ...]:
        from gpuproof.suites.validate.judging import short_of_rules

        if self.options.blame == "never":
            return ()
        seen: dict[str, list[CollectiveSeen]] = {case.case_id: [] for case in stage.cases}
        for (case_id, _), launch in sorted(self.seen.items()):
            if case_id in seen:  # and not a measurement without the blamed members
                seen[case_id].append(launch)
        launches = {case_id: [launch.records for launch in of_case] for case_id, of_case in seen.items()}
        short = short_of_rules(stage, launches, self.config, self.options)
        return tuple(suspicions(stage.cases, seen, short, self.options))

    def added_cases(self) -> tuple[StageCase, ...]:
        """Return the collectives without the blamed members, if these can be excluded."""
        if not (self.options.allow_exclusions or self.options.spares > 0):
            return ()
        return tuple(without_accused(self.followed()))

    def _follow_up(self, running: Collection[LaunchKey]) -> Iterator[Case | None]:
        """Yield group tests, then the collectives without blamed members; None means one is running."""
        searches = [search for suspect in self.followed() for search in suspect.searches]
        for search in searches:
            if self.has_time_for(search):
                tests = list(search.next(running))
                yield from tests
                if not tests and not search.is_over:
                    yield None
        if any(not search.is_over and self.has_time_for(search) for search in searches):
            return
        for case in self.added_cases():
            for replicate in range(case.repeats):
                if (case.case_id, replicate) not in self.taken_ms and self.fits(case):
                    is_new = (case.case_id, replicate) not in running
                    places = self.places_of(case)
                    yield build_launch(case, self.config, replicate, places) if is_new else None

    def has_time_for(self, search: Blaming) -> bool:
        """Check whether a round of tests is expected to finish within the time budget."""
        budget_s = self.options.time_budget_s
        spent = max((self.spent_ms.get(name, 0) for name in search.places), default=0) / 1000
        return budget_s is None or spent + TEST_S <= budget_s

    def places_of(self, case: StageCase) -> tuple[HostPlace, ...]:
        """Return the hosts of a case that are not lost: a job across several hosts continues on these."""
        return tuple(place for place in case.places if place.name not in self.lost)

    def _open(self, stage: Stage) -> Iterator[tuple[StageCase, int]]:
        """Yield the launches of a stage that are not settled and may still start."""
        for case in stage.cases:
            if not self.can_be_placed(case) or case.is_part_of_launch:
                continue
            for replicate in range(case.repeats):
                if (case.case_id, replicate) not in self.taken_ms and self.fits(case):
                    yield case, replicate

    def can_be_placed(self, case: StageCase) -> bool:
        """Check whether any hosts are left for a case; one job across several hosts needs at least two."""
        return len(self.places_of(case)) >= min(2, len(case.places))

    def fits(self, case: StageCase) -> bool:
        """Check whether one more launch of a case is expected to finish within the time budget."""
        budget_s = self.options.time_budget_s
        if budget_s is None:
            return True
        spent = max((self.spent_ms.get(place.name, 0) for place in self.places_of(case)), default=0)
        return spent / 1000 + case.seconds <= budget_s


def begin_order(config: RunConfig, places: Sequence[HostPlace]) -> StageOrder:
    """Return the state before the first launch.

    Raises:
        UsageError: a stage has no recipe that can run, or the validation is meant for a queue.
    """
    if not places:
        raise UsageError(
            "each stage of a validation depends on earlier results, and a queue has no hosts to continue on",
            place="--on",
            next_step="In Slurm, start it inside an allocation (salloc). In Kubernetes, name the "
            "node in the file passed to --on kubernetes:FILE: node_selector "
            "{kubernetes.io/hostname: NODE}, gpus_per_node (all of them) and "
            "max_launches: 1",
        )
    options = read_options(config)
    if options.spares >= len(places):
        raise UsageError(
            f"{options.spares} spares out of {len(places)} hosts leave none to run on",
            place="--spares",
            next_step="List more hosts (--on), or set fewer spares",
        )
    order = planned_order(config, places, options)
    for stage in order.stages:
        seen: set[str] = set()
        for case in stage.cases:
            if case.name not in seen:  # a recipe is not rejected for any difference between hosts
                build_launch(case, config, 0, case.places)
                seen.add(case.name)
    return order


def planned_order(config: RunConfig, places: Sequence[HostPlace], options: ValidateOptions) -> StageOrder:
    """Return the plan of a run without checking it: a case launched once can be launched again."""
    site = site_of(config, places)
    options = options.on(gpus=site.has_gpus)
    return StageOrder(config=config, options=options, stages=stages_of(config, options, site))


def _taken_ms(launch: CaseRecords) -> int:
    """Return how long a launch took, by its ranks' clocks: each host measures its own time."""
    starts = {start.rank: start.monotonic_s for start in launch.of(Start)}
    ends = {end.rank: end.monotonic_s for end in launch.of(RankResult)}
    taken = [ends[rank] - starts[rank] for rank in starts.keys() & ends.keys()]
    if not taken:
        begun = min((start.unix_s for start in launch.of(Start)), default=None)
        failure = launch.primary_failure
        taken = [failure.unix_s - begun] if failure is not None and begun is not None else []
    return round(1000 * max(0.0, max(taken, default=0.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedUp:
    """A suspicion, and the searches it triggered."""

    suspicion: SlowCollective
    search: Blaming
    inside: Mapping[str, Blaming]
    """Searches among the devices of each blamed host, by host name."""

    @property
    def searches(self) -> tuple[Blaming, ...]:
        """All searches that follow up on the suspicion."""
        return (self.search, *self.inside.values())

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to test."""
        return all(search.is_over for search in self.searches)


def follow(suspicion: SlowCollective, config: RunConfig, figures: Mapping[str, float | None]) -> FollowedUp:
    """Return the searches for a suspicion, as far as the test results allow."""
    case, test = suspicion.case, _recipe(suspicion, config)
    noise, slowdown, name = suspicion.noise, suspicion.slowdown, f"{PREFIX}{case.case_id}"
    if not case.is_over_all:
        search = blame_devices(
            test, case.places[0], _devices(case), noise=noise, slowdown=slowdown, name=name
        )
        return FollowedUp(suspicion=suspicion, search=search.with_figures(figures), inside={})
    by_name = {place.name: replace(place, num_devices=case.ranks_per_host) for place in case.places}
    places = [by_name[host] for host in suspicion.hosts]
    search = blame_hosts(test, places, noise=noise, slowdown=slowdown, name=name).with_figures(figures)
    accused = _accused_members(search) if search.is_over and case.ranks_per_host > 1 else ()
    inside = {
        host: blame_devices(
            test, by_name[host], _devices(case), noise=noise, slowdown=slowdown, name=f"{name}-in@{host}"
        ).with_figures(figures)
        for host in accused
    }
    return FollowedUp(suspicion=suspicion, search=search, inside=inside)


def _recipe(suspicion: SlowCollective, config: RunConfig) -> RunConfig:
    """Return the recipe of a test: with the operation and size that were slow or wrong, if known."""
    recipe = recipe_of(suspicion.case, config)
    if suspicion.reason.operation is None:
        return recipe
    size = suspicion.reason.size_bytes
    one = {"operations": [suspicion.reason.operation], "min_bytes": size, "max_bytes": size}
    return config_at(recipe, {f"collective.{key}": value for key, value in one.items()})


def _devices(case: StageCase) -> Sequence[int]:
    return tuple(range(case.ranks_per_host)) if case.devices is None else case.devices


def _accused_members(search: Blaming) -> tuple[str, ...]:
    return tuple(member for group in search.search.findings().accused for member in group.members)


def without_accused(followed: Sequence[FollowedUp]) -> Iterator[StageCase]:
    """Yield the collectives once more, excluding the blamed hosts or devices."""
    for search in followed:
        case, accused = search.suspicion.case, _accused_members(search.search)
        if not accused or not search.is_over:
            continue
        if case.is_over_all:
            left: tuple[HostPlace, ...] = tuple(place for place in case.places if place.name not in accused)
            if len(left) > 1:
                yield replace(case, name=f"{case.name}-without", places=left)
            continue
        devices = tuple(index for index in _devices(case) if str(index) not in accused)
        if len(devices) > 1:
            ranks = len(devices)
            yield replace(case, name=f"{case.name}-without", devices=devices, ranks_per_host=ranks)
