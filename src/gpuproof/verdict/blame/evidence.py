"""Is a group slow? What one more figure of it says, against figures of groups of the same size.

A group's figure is higher where it is better: bandwidth, or a rate. Only groups of the same size are
compared, in the same round or with rounds before. A figure weighs as the logarithm of a likelihood ratio:
slower by `slowdown` or more, against as fast as the level. Errors are taken as Student's t with 4 degrees of
freedom, so that a single stray figure decides little. A step of the search asks for groups, and says what
their verdicts come to (`Step`, `StepOutcome`).

>>> level = Level(value=100.0, num_values=8)
>>> weigh(90.0, level, noise=0.01, slowdown=0.1) > SLOW, weigh(99.5, level, noise=0.01, slowdown=0.1) < FAST
(True, True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import median, median_low
from typing import Literal, Protocol

SLOW = log(1000.0)
"""From here on a group is slow: a thousand times likelier than not."""
FAST = -log(100.0)
"""Under this it is not. A slow group that is taken for a fast one costs tests; the other way round a name."""
FAILED = log(1000.0) / 3
"""What a test without a figure weighs: three of them in a row, and none with one, are as bad as slow."""
MOST_TRIES = 9
"""Tests of one group until it is left undecided."""
DEGREES = 4.0
LONGEST_MEMORY = 3
"""Figures that a level of earlier rounds counts for, at most: it follows where the level drifts."""
CHANCE = 1.4
"""By so many standard deviations the fastest of eight is above the middle."""
FOLLOWED = 1 / 3
"""A figure moves the level of earlier rounds where it is off by so much of the slowdown at most."""
LEAST_NOISE = 1e-4
"""Relative; figures that are equal to the last digit were rounded."""

Verdict = Literal["slow", "fast", "undecided"]


@dataclass(frozen=True, slots=True)
class Group:
    """Subjects that are tested together; two are a pair, and its figure is of the link between them."""

    members: tuple[str, ...]
    one_way: bool = False
    """Of a pair: the first sends, the second receives, and nothing goes back."""

    @property
    def kind(self) -> tuple[int, bool]:
        """What its figure may be compared with: groups as large, tested in the same way."""
        return len(self.members), self.one_way


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What healthy groups of one kind reach."""

    value: float
    num_values: int
    """Figures behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupValues:
    """A group's figures of a round, or of several where none could be judged before."""

    group: Group
    values: tuple[float, ...]
    is_trusted: bool
    """Whether all of its members are known to be good."""


def level_of(
    figures: Sequence[GroupValues], before: Level | None, *, noise: float, slowdown: float
) -> Level | None:
    """Return the level of one kind of group; None where no two figures agree on it.

    Figures of groups of good members alone come first; then those that agree with the level before; else the
    fastest, if there are two of them, and most groups are so, or the fastest was so twice: what is slow is
    never fast, and what is fast by chance is not so again.
    """
    trusted = [value for group in figures if group.is_trusted for value in group.values]
    if trusted:
        return Level(value=median(trusted), num_values=len(trusted))
    if before is not None:
        near = slowdown * FOLLOWED
        alike = [v for group in figures for v in group.values if abs(v / before.value - 1) <= near]
        weight = min(before.num_values, LONGEST_MEMORY)
        value = (before.value * weight + sum(alike)) / (weight + len(alike))
        return Level(value=value, num_values=weight + len(alike))
    if not figures:
        return None
    # The fastest of several is so by chance, too: what is as far below the middle is no slower.
    fastest = max(figures, key=lambda group: median_low(group.values))
    slowest = median_low(fastest.values) * (1 - slowdown / 2 - CHANCE * noise)
    close = [group for group in figures if median_low(group.values) >= slowest]
    alike = [value for group in close for value in group.values]
    is_stray = len(close) <= len(figures) // 2 and len(fastest.values) < 2
    return None if is_stray or len(alike) < 2 else Level(value=median(alike), num_values=len(alike))


def weigh(value: float, level: Level, *, noise: float, slowdown: float) -> float:
    """Return how much likelier a figure is of a slow group than of one at the level, as a logarithm.

    `noise` is the relative standard deviation of one figure.
    """
    scale = max(noise, LEAST_NOISE) * sqrt((1 - 2 / DEGREES) * (1 + 1 / level.num_values))
    below = 1 - value / level.value
    return _log_density(max(0.0, slowdown - below) / scale) - _log_density(max(0.0, below) / scale)


def _log_density(deviation: float) -> float:
    """Student's t, less its constant."""
    return -(DEGREES + 1) / 2 * log(1 + deviation * deviation / DEGREES)


def judge(weight: float, *, tries: int) -> Verdict | None:
    """Return what the tests of a group together say; None where another one is needed."""
    if weight >= SLOW:
        return "slow"
    if weight <= FAST:
        return "fast"
    return "undecided" if tries >= MOST_TRIES else None


Verdicts = Mapping[Group, Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """A member, or a link between two, of which repeated tests say that it is slow."""

    members: tuple[str, ...]
    """One; two of a link, which is not split between its ends."""
    groups: tuple[Group, ...]
    """The tests that confirmed it."""
    directions: tuple[tuple[str, str], ...] = ()
    """Of a link: the ways on which it is slow, sender first; none where it is slow only both ways at once, or
    where no direction could be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """Members of which it could not be said whether they, or a link between them, are slow."""

    members: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step came to."""

    steps: tuple[Step, ...] = ()
    cleared: tuple[str, ...] = ()
    doubted: tuple[str, ...] = ()
    """Cleared before, and not any more."""
    accused: tuple[Accusation, ...] = ()
    undecided: tuple[Undecided, ...] = ()


class Step(Protocol):
    """One question of the search, with all that is known of its suspects."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """Whom it is about: partners of nobody else meanwhile."""

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Return the groups to test, filled up with `partners`; None where these are too few.

        Groups that have a member in common are tested in different rounds.
        """

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Return what follows from the verdicts of all groups that it asked for."""

    def instead(self) -> Step | None:
        """Return what to do with fewer partners; None where there is nothing."""


def filled(members: Sequence[str], partners: Sequence[str], size: int) -> Group | None:
    """Return a group of `size` with these members in it; None where partners are too few.

    >>> filled(["a"], ["x", "y", "z"], 3)
    Group(members=('a', 'x', 'y'), one_way=False)
    """
    missing = max(0, size - len(members))
    return Group((*members, *partners[:missing])) if missing <= len(partners) else None


def halves(members: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Cut in two, the first not the larger one.

    >>> halves("abc")
    (('a',), ('b', 'c'))
    """
    middle = len(members) // 2
    return tuple(members[:middle]), tuple(members[middle:])


def unclear(members: Sequence[str], why: str = "") -> Undecided:
    """Say of members that their tests agree with neither answer."""
    return Undecided(
        members=tuple(members),
        why=why or "their tests lie between slow and not slow, or scatter too much: noise is too large",
    )
