"""Plan the cases of a matrix: which cases, in what order, how many at once, and for how long.

A case is built when it is launched. Its kind is its configuration without the seed. The durations of finished
launches are used to predict the others of the same kind.
"""

from __future__ import annotations

import random
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuproof.base.errors import UsageError
from gpuproof.config.matrix import (
    MAX_CASES,
    Assignment,
    chosen_cases,
    matrix_keys,
    names_from_template,
    point_names,
    short_names,
)
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case, CommandWork, DeviceShare
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Start
from gpuproof.records.work.command import CommandEnded, value_text
from gpuproof.suites.base import HostPlace, LaunchKey, launch_key
from gpuproof.suites.cases import CASE_ID, build_case, described_hosts, describing
from gpuproof.suites.points.plan import Point, config_at

MOST_ALIKE = 3
"""If this many launches fail for the same reason before any succeeds, the others are not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Number and total duration of the finished launches of one kind."""

    num: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPlan:
    """Every launch of the matrix, and the progress so far."""

    config: RunConfig
    cases: Mapping[str, Assignment]
    order: tuple[LaunchKey, ...]
    at_once: int
    on_queue: bool = False
    """Whether a scheduler starts each case as a separate job with its own devices."""
    position: int = 0
    """Position in the order; all launches before it are settled."""
    ahead: frozenset[LaunchKey] = frozenset()
    """Settled launches at or after that position."""
    hosts: frozenset[str] = frozenset()
    """Hosts that have reported their hardware."""
    taken: Mapping[str, Taken]
    """Durations of finished launches, by kind."""
    left: Mapping[str, int]
    """Number of unsettled launches of each kind."""
    is_stopped: bool = False
    """Whether launching has stopped, because a case failed, or because the first launches all failed for the
    same reason."""
    failed_alike: tuple[str, ...] | None = ()
    """The failure reason shared by all launches so far; None if there is none."""

    @property
    def num_left(self) -> int:
        """Number of launches that are not settled."""
        return 0 if self.is_stopped else len(self.order) - self.position - len(self.ahead)

    @property
    def seconds_left(self) -> float | None:
        """Estimated time for the remaining launches; None before any has ended, or if a queue runs them."""
        num = sum(times.num for times in self.taken.values())
        if not num or self.on_queue:
            return None
        mean_s = sum(times.seconds for times in self.taken.values()) / num
        total_s = 0.0
        for kind, number in self.left.items():
            of_kind = self.taken.get(kind)
            total_s += number * (of_kind.seconds / of_kind.num if of_kind else mean_s)
        return total_s / self.at_once

    def settle(self, launch: CaseRecords) -> MatrixPlan:
        """Return the plan after a launch has ended; a launch that is not in the plan changes nothing."""
        key = launch_key(launch.case)
        if key[0] not in self.cases or key[1] >= self.config.run.repeats:
            return self
        ahead, position = {*self.ahead, key}, self.position
        while position < len(self.order) and self.order[position] in ahead:
            ahead.remove(self.order[position])
            position += 1
        kind = kind_of(self.cases[key[0]], self.config)
        cases, alike = self.config.cases, _failed_identically(self.failed_alike, launch)
        stops = (cases.stop_on_failure and launch.status != "done") or (
            not cases.keep_going and alike is not None and len(alike) == MOST_ALIKE
        )
        return replace(
            self,
            position=position,
            ahead=frozenset(ahead),
            hosts=self.hosts | described_hosts(launch),
            taken=_count_launch(self.taken, kind, seconds_taken(launch)),
            left={**self.left, kind: self.left[kind] - 1},
            is_stopped=self.is_stopped or stops,
            failed_alike=alike,
        )

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield the launches that may start now, each case built lazily."""
        room = self.at_once - len(running)
        for position in range(self.position, len(self.order)):
            if room <= 0 or self.is_stopped:
                return
            key = self.order[position]
            if key not in self.ahead and key not in running:
                room -= 1
                yield self.case(key)

    def case(self, key: LaunchKey) -> Case:
        """Build a launch.

        Raises:
            UsageError: the launch's recipe cannot run.
        """
        case_id, replicate = key
        point = point_of(self.config, case_id, self.cases[case_id])
        fields = {**self.config.cases.fields, **point.assignment, "replicate": replicate, "case": case_id}
        case = build_case(point.config, replicate, case_id=case_id, is_sweep=True, fields=fields)
        case = describing(replace(case, start="exec"), self.hosts)
        if not self._shares:
            return case
        return replace(case, placement=replace(case.placement, exclusive="nothing", share=self._share()))

    def described(self, key: LaunchKey) -> str:
        """Format what a launch would start: a command's arguments, or a workload and its fields."""
        work, fields = self.case(key).work, self.cases[key[0]]
        if isinstance(work, CommandWork):
            return shlex.join(work.command.argv)
        return f"{work.kind} with {' '.join(f'{name}={value}' for name, value in fields.items())}"

    @property
    def _shares(self) -> bool:
        cases = self.config.cases
        return (cases.parallel > 1 and not self.on_queue) or cases.wait_for_memory is not None

    def _share(self) -> DeviceShare:
        """Assign one case to each device before any device gets a second one."""
        cases = self.config.cases
        return DeviceShare(
            cases_at_once=cases.parallel,
            min_free_bytes=cases.wait_for_memory,
            wait_s=cases.memory_wait_timeout_s,
        )


def point_of(config: RunConfig, case_id: str, assignment: Assignment) -> Point:
    """Return a case's recipe; for a command, the recipe is the same for all cases."""
    recipe = config if config.kind == "command" else config_at(config, assignment)
    return Point(case_id=case_id, assignment=assignment, config=recipe)


def kind_of(assignment: Assignment, config: RunConfig) -> str:
    """Return the name of the configuration that a case repeats: all its fields except the seed."""
    seed = config.cases.seed
    fields = {key: value for key, value in assignment.items() if seed not in (key, key.rpartition(".")[2])}
    names = short_names(list(fields))
    return " ".join(f"{names[key]}={value_text(value)}" for key, value in fields.items()) or CASE_ID


def seconds_taken(launch: CaseRecords) -> float | None:
    """Return the duration of a launch in seconds, from first to last record; None if it failed."""
    if launch.status != "done":
        return None
    ended = [end.wall_s for end in launch.of(CommandEnded)]
    if ended:
        return ended[0]
    starts = [start.monotonic_s for start in launch.of(Start)]
    ends = [
        record.monotonic_s for record in launch.records if getattr(record, "monotonic_s", None) is not None
    ]
    return max(ends) - min(starts) if starts and ends else None


def failure_reason(launch: CaseRecords) -> str | None:
    """Return why a launch failed, worded the same for every case; None if it succeeded."""
    failure = launch.primary_failure
    if launch.status == "done" or failure is None:
        return None
    return f"{failure.cause}: {failure.message}".replace(launch.case.case_id, "CASE")


def _failed_identically(before: tuple[str, ...] | None, launch: CaseRecords) -> tuple[str, ...] | None:
    reason = failure_reason(launch)
    if before is None or reason is None or (before and before[0] != reason):
        return None
    return (*before, reason)


def _count_launch(taken: Mapping[str, Taken], kind: str, seconds: float | None) -> Mapping[str, Taken]:
    if seconds is None:
        return taken
    before = taken.get(kind, Taken())
    return {**taken, kind: Taken(num=before.num + 1, seconds=before.seconds + seconds)}


def plan(config: RunConfig, *, num_hosts: int = 1) -> MatrixPlan:
    """Plan all launches: all cases once, shuffled, before any is repeated. Queues have no host names.

    Raises:
        UsageError: there are too many launches.
    """
    chosen = chosen_cases(config)
    names = names_from_template(chosen, config) or [
        name or CASE_ID for name in point_names(chosen, short_names(list(matrix_keys(config.matrix))))
    ]
    cases = dict(zip(names, chosen, strict=True))
    order: list[LaunchKey] = []
    for replicate in range(config.run.repeats):
        names = list(cases)
        random.Random(f"{config.run.order_seed}:{replicate}").shuffle(names)  # noqa: S311  # no secret
        order += [(name, replicate) for name in names]
    if len(order) > MAX_CASES:
        raise UsageError(
            f"{len(order):,} launches (at most {MAX_CASES:,})",
            place="run.repeats",
            next_step="Repeat less often",
        )
    kinds = Counter(kind_of(cases[name], config) for name, _ in order)
    return MatrixPlan(
        config=config,
        cases=cases,
        order=tuple(order),
        at_once=_at_once(config, len(order), num_hosts),
        on_queue=num_hosts == 0,
        taken={},
        left=dict(kinds),
    )


def _at_once(config: RunConfig, num_launches: int, num_hosts: int) -> int:
    """Return how many launches may run at once: on a queue, all unless limited or `stop_on_failure`."""
    cases = config.cases
    if num_hosts or cases.parallel > 1 or cases.stop_on_failure:
        return cases.parallel * max(1, num_hosts)
    return num_launches


def begin(config: RunConfig, places: Sequence[HostPlace]) -> MatrixPlan:
    """Plan every case, and build the first one.

    Raises:
        UsageError: the first case cannot run.
    """
    first_plan = plan(config, num_hosts=len(places))
    first_plan.case(first_plan.order[0])
    return first_plan
