"""Find what makes a group slow, using group tests. The search is immutable and starts nothing.

Call `begin` with the members, get disjoint groups from `next_round`, test them (one collective or job on
each, concurrently or not), pass the values to `settle`, and repeat until a round is empty. `findings` then
reports what is slow. Higher values are better; None means that a test had no value, and 0 that nothing got
through. A problem shared by all groups cannot be detected, since groups are compared with each other.

>>> search = begin([f"n{i}" for i in range(8)], noise=0.01, slowdown=0.1)
>>> while groups := search.next_round():
...     search = search.settle({g: 90.0 if "n5" in g.members else 100.0 for g in groups})
>>> [found.members for found in search.findings().accused], len(search.tests)
([('n5',)], 8)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isfinite, sqrt

from gpuproof.base import units
from gpuproof.verdict.blame.evidence import (
    FAILED,
    SLOW,
    Accusation,
    Group,
    GroupValues,
    Level,
    Step,
    StepOutcome,
    Undecided,
    Verdict,
    judge,
    level_of,
    weigh,
)
from gpuproof.verdict.blame.findings import Findings, GroupTest, conclude
from gpuproof.verdict.blame.links import AllPairs
from gpuproof.verdict.blame.members import Screen

FEW_MEMBERS = 7
"""Maximum number of members among which all pairs are tested; with more, groups are tested."""
LEAST_GROUPS = 4
LEAST_OVER_NOISE = 2.5
"""Minimum slowdown to search for, in standard deviations of a test: a smaller one needs so many tests that
some member would be blamed by chance."""
Kind = tuple[int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """A group that a step requested, and its test results so far."""

    group: Group
    is_due: bool = True
    """Whether to test it in the next round that has room for it."""
    waiting: tuple[float, ...] = ()
    """Values still waiting for a level to compare them with."""
    weight: float = 0.0
    tries: int = 0
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """An unsettled step; it has no requests while it waits for partners."""

    step: Step
    requests: tuple[GroupRequest, ...] = ()

    @property
    def is_judged(self) -> bool:
        """Whether all its groups have a verdict."""
        return bool(self.requests) and all(request.verdict is not None for request in self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameSearch:
    """The progress of a search."""

    members: tuple[str, ...]
    noise: float
    slowdown: float
    every_link: bool
    most_tests: int | None
    open: tuple[Open, ...]
    good: tuple[str, ...] = ()
    """Members known to be good, in member order."""
    levels: Mapping[Kind, Level] = field(default_factory=dict)
    tests: tuple[GroupTest, ...] = ()
    num_rounds: int = 0
    accused: tuple[Accusation, ...] = ()
    undecided: tuple[Undecided, ...] = ()

    def next_round(self) -> tuple[Group, ...]:
        """Return disjoint groups to test next; none if the search is over."""
        return tuple(request.group for request in self._planned()._round())

    def settle(self, results: Mapping[Group, float | None]) -> BlameSearch:
        """Return the updated search after a round; a group without a result is requested again.

        Raises:
            ValueError: a value is negative or not finite.
        """
        wrong = [v for v in results.values() if v is not None and not (v >= 0 and isfinite(v))]
        if wrong:
            raise ValueError(f"{wrong[0]} is not a valid test value; a test without a value is None")
        planned = self._planned()
        due = {request.group for request in planned._round()}
        heard = {group: value for group, value in results.items() if group in due}
        return planned._heard(heard)._weighed(heard)._stepped()

    def findings(self) -> Findings:
        """Return the findings so far; anything not yet decided by a running search is undecided."""
        planned = self._planned()
        left = tuple(
            Undecided(members=entry.step.suspects, why="the search did not finish") for entry in planned.open
        )
        return conclude(
            planned.members,
            accused=planned.accused,
            good=planned.good,
            undecided=(*planned.undecided, *left),
            tests=planned.tests,
            num_rounds=planned.num_rounds,
            every_link=planned.every_link,
        )

    # Planning.

    def _planned(self) -> BlameSearch:
        """Return the search after its steps requested groups, oldest first, dropping those that cannot."""
        if self.most_tests is not None and len(self.tests) >= self.most_tests:
            return self._abandoned(f"the limit of {self.most_tests} tests is used up")
        search = self
        while True:
            planned = search._with_requests()
            if not planned.open or any(entry.requests for entry in planned.open):
                return planned
            search = planned._with_instead()

    def _with_requests(self) -> BlameSearch:
        """Return the search with groups for all steps, using partners that no other step needs."""
        taken = {m for entry in self.open for a in entry.requests for m in a.group.members}
        suspects = {m for entry in self.open for m in entry.step.suspects}
        now: list[Open] = []
        for entry in self.open:
            if not entry.requests and taken.isdisjoint(entry.step.suspects):
                free = [m for m in self._partners() if m not in taken and m not in suspects]
                groups = entry.step.ask(free)
                if groups == ():
                    return self._settled(entry, entry.step.settle({}))._with_requests()
                taken |= {m for group in groups or () for m in group.members}
                now.append(
                    replace(entry, requests=tuple(GroupRequest(group=group) for group in groups or ()))
                )
            else:
                now.append(entry)
        return replace(self, open=tuple(now))

    def _partners(self) -> tuple[str, ...]:
        """Return good members, rotated each round, so that one that turns out slow is used only once."""
        offset = self.num_rounds * 7 % len(self.good) if self.good else 0
        return (*self.good[offset:], *self.good[:offset])

    def _with_instead(self) -> BlameSearch:
        """Replace the first step that cannot request groups by its fallback, or drop it."""
        first, *others = self.open
        instead = first.step.instead()
        if instead is not None:
            return replace(self, open=(Open(step=instead), *others))
        few = f"too few healthy partners to compare with: only {len(self.good)} are known"
        undecided = (*self.undecided, Undecided(members=first.step.suspects, why=few))
        return replace(self, open=tuple(others), undecided=undecided)

    def _abandoned(self, why: str) -> BlameSearch:
        left = tuple(Undecided(members=entry.step.suspects, why=why) for entry in self.open)
        return replace(self, open=(), undecided=(*self.undecided, *left))

    def _round(self) -> Iterator[GroupRequest]:
        """Yield the groups that are due and disjoint."""
        taken: set[str] = set()
        for entry in self.open:
            for request in entry.requests:
                if request.is_due and taken.isdisjoint(request.group.members):
                    taken.update(request.group.members)
                    yield request

    # Settling.

    def _heard(self, results: Mapping[Group, float | None]) -> BlameSearch:
        """Record the values of a round."""

        def with_result(request: GroupRequest) -> GroupRequest:
            if request.group not in results:
                return request
            value = results[request.group]
            request = replace(request, is_due=False, tries=request.tries + 1)
            if not value:  # there is no value, or nothing got through
                weight = request.weight + (FAILED if value is None else SLOW)
                verdict = judge(weight, tries=request.tries)
                return replace(request, weight=weight, verdict=verdict, is_due=verdict is None)
            return replace(request, waiting=(*request.waiting, value))

        tests = (
            GroupTest(round=self.num_rounds, group=group, value=value, level=None)
            for group, value in results.items()
        )
        return replace(
            self,
            open=tuple(
                replace(entry, requests=tuple(map(with_result, entry.requests))) for entry in self.open
            ),
            tests=(*self.tests, *tests),
            num_rounds=self.num_rounds + 1,
        )

    def _weighed(self, results: Mapping[Group, float | None]) -> BlameSearch:
        """Weigh the pending values, if there is a level to compare them with."""
        search = self
        for kind in {group.kind for group in results}:
            search = search._weighed_kind(kind, results)
        return search

    def _weighed_kind(self, kind: Kind, results: Mapping[Group, float | None]) -> BlameSearch:
        before = self.levels.get(kind)
        alike = [r for entry in self.open for r in entry.requests if r.group.kind == kind]
        untested = any(r.verdict is None and not r.tries for r in alike)
        figures = list(self._values(kind))
        level = (
            None
            if before is None and untested
            else level_of(figures, before, noise=self.noise, slowdown=self.slowdown)
        )
        if level is None:
            return self if untested else self._asking_again(figures)
        tests = tuple(
            replace(t, level=level.value)
            if t.level is None and t.group.kind == kind and t.value is not None
            else t
            for t in self.tests
        )

        def weighed(request: GroupRequest) -> GroupRequest:
            if request.group.kind != kind or request.verdict is not None or not request.waiting:
                return request
            weights = (weigh(v, level, noise=self.noise, slowdown=self.slowdown) for v in request.waiting)
            weight = request.weight + sum(weights)
            verdict = judge(weight, tries=request.tries)
            return replace(request, weight=weight, waiting=(), verdict=verdict, is_due=verdict is None)

        return replace(
            self,
            levels={**self.levels, kind: level},
            open=tuple(replace(s, requests=tuple(map(weighed, s.requests))) for s in self.open),
            tests=tests,
        )

    def _values(self, kind: Kind) -> Iterator[GroupValues]:
        good = set(self.good)
        for entry in self.open:
            for request in entry.requests:
                if request.group.kind == kind and request.waiting:
                    is_good = good.difference(entry.step.suspects).issuperset(request.group.members)
                    yield GroupValues(group=request.group, values=request.waiting, is_trusted=is_good)

    def _asking_again(self, figures: Sequence[GroupValues]) -> BlameSearch:
        """Request the fastest group once more: a single value does not establish a level."""
        if not figures:
            return self
        fastest = max(figures, key=lambda figure: sum(figure.values) / len(figure.values)).group

        def again(request: GroupRequest) -> GroupRequest:
            return replace(request, is_due=True) if request.group == fastest else request

        opened = (replace(figure, requests=tuple(map(again, figure.requests))) for figure in self.open)
        return replace(self, open=tuple(opened))

    def _stepped(self) -> BlameSearch:
        """Return the search after settling every step for which all groups have a verdict."""
        search = self
        for entry in self.open:
            if entry.is_judged:
                verdicts = {a.group: a.verdict for a in entry.requests if a.verdict is not None}
                search = search._settled(entry, entry.step.settle(verdicts))
        return search

    def _settled(self, settled: Open, outcome: StepOutcome) -> BlameSearch:
        accused = {
            m
            for accusation in (*self.accused, *outcome.accused)
            if len(accusation.members) == 1
            for m in accusation.members
        }
        good = ({*self.good, *outcome.cleared} - {*outcome.doubted}) - accused
        return replace(
            self,
            open=(
                *(entry for entry in self.open if entry is not settled),
                *(Open(step=step) for step in outcome.steps),
            ),
            good=tuple(member for member in self.members if member in good),
            accused=(*self.accused, *outcome.accused),
            undecided=(*self.undecided, *outcome.undecided),
        )


def begin(
    members: Sequence[str],
    *,
    noise: float,
    slowdown: float = 0.1,
    every_link: bool = False,
    most_tests: int | None = None,
) -> BlameSearch:
    """Start a search among members for those that are slower by at least `slowdown` (relative).

    `noise` is the relative standard deviation of one test's value. `every_link` means that a test uses every
    link between its members, as all_to_all does but a ring does not.

    Raises:
        ValueError: a member is listed twice, noise is negative, or the slowdown is not a fraction.
    """
    if len(set(members)) != len(members):
        raise ValueError("a member is listed twice")
    if not (0 <= noise < 1 and 0 < slowdown <= 1):
        raise ValueError(
            f"noise {noise} must be at least 0 and below 1, and slowdown {slowdown} must be above 0 and "
            "at most 1"
        )
    names = tuple(members)
    why = reason_hopeless(names, noise=noise, slowdown=slowdown)
    return BlameSearch(
        members=names,
        noise=noise,
        slowdown=slowdown,
        every_link=every_link,
        most_tests=most_tests,
        open=(Open(step=first_step(names, every_link=every_link)),) if why is None else (),
        undecided=() if why is None else (Undecided(members=names, why=why),),
    )


def reason_hopeless(members: Sequence[str], *, noise: float, slowdown: float) -> str | None:
    """Explain why nothing could be identified; None if a search may find something."""
    if len(members) < 3:
        return (
            "with fewer than three members, the slow one cannot be identified: a pair's value is "
            "that of the link between its ends"
        )
    if noise * LEAST_OVER_NOISE > slowdown:
        least = noise * LEAST_OVER_NOISE
        return (
            f"noise is too large: tests scatter by {units.share(noise)}, so only a slowdown of "
            f"{units.share(least)} or more could be found, but the target was {units.share(slowdown)}"
        )
    return None


def first_step(members: tuple[str, ...], *, every_link: bool) -> Step:
    """Return the first step of a search: pairs if there are few members, groups if there are many."""
    if len(members) <= FEW_MEMBERS:
        return AllPairs(suspects=members, are_good=False)
    groups = max(LEAST_GROUPS, ceil(sqrt(len(members)) / 2))
    return Screen(suspects=members, size=len(members) // groups, every_link=every_link)
