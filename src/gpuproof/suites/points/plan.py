"""Define points, which are named recipes that differ in some keys, and launch plans for them."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import ValidationError

from gpuproof.base.errors import UsageError
from gpuproof.config.entries import cause_of
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import AfterFailure, Conclusion, HostPlace, LaunchKey, Remaining, launch_key
from gpuproof.suites.cases import CASE_ID, build_case, described_hosts, describing

if TYPE_CHECKING:
    from gpuproof.config.matrix import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of values of the swept keys, and the resulting recipe."""

    case_id: str
    assignment: Assignment
    config: RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan in which all launches are known from the start, in order, with the progress so far."""

    points: Mapping[str, Point]
    order: tuple[LaunchKey, ...]
    is_sweep: bool = True
    position: int = 0
    """Position in the order before which all launches are settled."""
    ahead: frozenset[LaunchKey] = frozenset()
    """Settled launches at or after that position."""
    hosts: frozenset[str] = frozenset()
    """Hosts that have reported their hardware."""

    @property
    def num_left(self) -> int:
        """Number of launches that are not settled."""
        return len(self.order) - self.position - len(self.ahead)

    def settle(self, launch: CaseRecords) -> Plan:
        """Return the plan after a launch ended; a launch that is not in the plan changes nothing."""
        key = launch_key(launch.case)
        if key[0] not in self.points or key[1] >= len(self.order) // len(self.points):
            return self
        ahead, position = {*self.ahead, key}, self.position
        while position < len(self.order) and self.order[position] in ahead:
            ahead.remove(self.order[position])
            position += 1
        hosts = self.hosts | described_hosts(launch)
        return replace(self, position=position, ahead=frozenset(ahead), hosts=hosts)

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield launches that are neither settled nor running, each case built lazily."""
        for position in range(self.position, len(self.order)):
            key = self.order[position]
            if key not in self.ahead and key not in running:
                yield self.case(key)

    def case(self, key: LaunchKey) -> Case:
        """Build a launch.

        Raises:
            UsageError: the point of the launch is not a runnable recipe.
        """
        point = self.points[key[0]]
        try:
            case = build_case(point.config, key[1], case_id=point.case_id, is_sweep=self.is_sweep)
        except UsageError as error:
            if not self.is_sweep:
                raise
            raise UsageError(
                f"{error.cause} (at the point {point.case_id})", place=error.place, next_step=error.next_step
            ) from error
        return describing(case, self.hosts) if self.is_sweep else case


def plan_repeats(config: RunConfig) -> Plan:
    """Plan `run.repeats` identical launches of one recipe.

    Raises:
        UsageError: the recipe cannot run.
    """
    return check_points(
        Plan(
            points={CASE_ID: Point(case_id=CASE_ID, assignment={}, config=config)},
            order=tuple((CASE_ID, replicate) for replicate in range(config.run.repeats)),
            is_sweep=False,
        )
    )


def check_points(plan: Plan) -> Plan:
    """Return a plan after checking that every point can run.

    Raises:
        UsageError: a point cannot run.
    """
    for case_id in plan.points:
        plan.case((case_id, 0))
    return plan


class PlannedState(Protocol):
    """The state of a suite, which knows how a launch changes it, and which launches come next."""

    @property
    def num_left(self) -> int:
        """Number of launches known to be pending."""

    def settle(self, launch: CaseRecords) -> Any:
        """Return the state after a launch ended."""

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield the launches that may start now."""


def shuffled_order(config: RunConfig, points: Mapping[str, Point]) -> tuple[LaunchKey, ...]:
    """Return every launch of the points: replicate by replicate, reshuffling the points each time."""
    order: list[LaunchKey] = []
    for replicate in range(config.run.repeats):
        names = list(points)
        random.Random(f"{config.run.order_seed}:{replicate}").shuffle(names)  # noqa: S311  # no secret
        order += [(name, replicate) for name in names]
    return tuple(order)


def settle_all(state: Any, launches: Iterable[CaseRecords]) -> Any:
    """Return the `PlannedState` after these launches ended, in any order."""
    for launch in launches:
        state = state.settle(launch)
    return state


class PlannedSuite:
    """Base class of suites with a `PlannedState`; their packages have `plan`, `conclude` and `page`.

    Each of these modules contains the function that the corresponding method calls, and is imported on first
    use.
    """

    command = "run"
    scope: Literal["each_host", "whole"] = "each_host"
    options: type | None = None
    is_sweep = True
    """Whether launches differ, so that one launch may work even if another lacks something that it needs."""

    def answers(self, config: RunConfig) -> bool:
        """Accept only recipes that name this suite."""
        return False

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Any:
        """Return the state before the first launch, by calling `begin` in the suite's `plan`.

        Raises:
            UsageError: the recipe cannot run.
        """
        return self._module("plan").begin(config, places)

    def settle(self, state: PlannedState, launch: CaseRecords) -> Any:
        """Return the state after a launch ended."""
        return state.settle(launch)

    def next(
        self, state: PlannedState, running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        """Yield the launches that may start now."""
        return state.next(running)

    def planned(self, state: PlannedState) -> Iterator[Case]:
        """Yield the launches that are known now."""
        return state.next(())

    def remaining(self, state: PlannedState) -> Remaining:
        """Count the launches known to remain, and report the condition at which no more are added."""
        return Remaining(num_launches=state.num_left, until=self.until(state))

    def until(self, state: Any) -> str | None:
        """Return the condition under which no more unplanned launches are added; None if there are none."""
        del state
        return None

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Stop on a full disk, or if launches are identical and the machine lacks what they all need."""
        return after_failure(launch, is_sweep=self.is_sweep)

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Evaluate the run with `conclude` from the suite's `conclude` module."""
        conclusion: Conclusion = self._module("conclude").conclude(evidence)
        return conclusion

    def page(self, result: Result) -> Page:
        """Lay out the result, using `page` from the suite's `page` module."""
        page: Page = self._module("page").page(result)
        return page

    def _module(self, name: str) -> Any:
        return import_module(f"{type(self).__module__}.{name}")


def after_failure(launch: CaseRecords, *, is_sweep: bool) -> AfterFailure:
    """Report whether other launches may succeed: not if the disk is full or if none can run here."""
    failure = launch.primary_failure
    hopeless = ("disk_full",) if is_sweep else ("disk_full", "environment")
    return "stop" if failure is not None and failure.cause in hopeless else "skip"


def refuse_keys(suite: str, *keys: tuple[str, bool, str]) -> None:
    """Reject keys that a suite cannot use, each passed with an is-wrong flag and the next step.

    Raises:
        UsageError: one of the keys is wrong.
    """
    for key, is_wrong, next_step in keys:
        if is_wrong:
            raise UsageError(f"the suite {suite} does not support this", place=key, next_step=next_step)


def config_at(config: RunConfig, assignment: Mapping[str, Any]) -> RunConfig:
    """Return the recipe of one point, without the sweep.

    Raises:
        UsageError: the point is not a runnable recipe.
    """
    values = config.model_dump(exclude={"matrix", "search", "load"})
    values["run"]["order_seed"] = 0
    values["cases"]["only"] = ()
    for key, value in assignment.items():
        node, (*above, last) = values, key.split(".")
        for part in above:
            node = node.setdefault(part, {})
        node[last] = value
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        for refusal in first.get("ctx", {}).get("refusals", ()):
            cause = f"{refusal.cause} (at the point {dict(assignment)})"
            raise UsageError(cause, place=refusal.keys[0], next_step=refusal.next_step) from error
        raise UsageError(
            f"{cause_of(first)} (at the point {dict(assignment)})",
            place=".".join(map(str, first["loc"])) or "matrix",
        ) from error
