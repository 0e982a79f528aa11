"""Is a group slow? Weighs each new value against groups of the same size.

A higher value is better, e.g. bandwidth or another rate. Only groups of the same size are compared, within a
round or with earlier rounds. The weight of a value is the log-likelihood ratio of two hypotheses: that the
group is slower by `slowdown` or more, and that it is at the level. Errors are modelled as Student's t with 4
degrees of freedom, so that a single outlier has little influence. A step of the search requests groups, and
determines what follows from their verdicts (`Step`, `StepOutcome`).

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
"""Weight above which a group is slow: it is then a thousand times more likely than not."""
FAST = -log(100.0)
"""Weight below which a group counts as fast. Mistaking a slow group for a fast one costs extra tests; the
opposite error blames a healthy member."""
FAILED = log(1000.0) / 3
"""Weight of a test without a value: three of them in a row, with no value in between, count as slow."""
MOST_TRIES = 9
"""Number of tests of one group after which it is left undecided."""
DEGREES = 4.0
LONGEST_MEMORY = 3
"""Maximum number of values that a level from earlier rounds counts as, so that the level can follow a
drift."""
CHANCE = 1.4
"""The fastest of eight groups is on average this many standard deviations above the mean."""
FOLLOWED = 1 / 3
"""Maximum difference from the level of earlier rounds, as a fraction of the slowdown, for a value to update
that level."""
LEAST_NOISE = 1e-4
"""Minimum relative noise; values that agree to the last digit were rounded."""

Verdict = Literal["slow", "fast", "undecided"]


@dataclass(frozen=True, slots=True)
class Group:
    """Subjects that are tested together; for a pair, the value is for the link between the two."""

    members: tuple[str, ...]
    one_way: bool = False
    """For pairs: the first member sends, the second receives, and nothing is sent back."""

    @property
    def kind(self) -> tuple[int, bool]:
        """The kind of group that its value may be compared with: same size, tested the same way."""
        return len(self.members), self.one_way


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The value that healthy groups of one kind reach."""

    value: float
    num_values: int
    """Number of values it is based on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupValues:
    """A group's values from one round, or from several rounds if earlier ones were inconclusive."""

    group: Group
    values: tuple[float, ...]
    is_trusted: bool
    """Whether all of its members are known to be good."""


def level_of(
    figures: Sequence[GroupValues], before: Level | None, *, noise: float, slowdown: float
) -> Level | None:
    """Return the level of one kind of group; None if no two values agree on it.

    Values of groups with only good members take precedence; then values that agree with the previous level.
    Otherwise the fastest groups determine the level, if they have at least two values, and either most groups
    are as fast or the fastest one was fast twice: a slow group is never fast, and a group that is fast by
    chance is not fast again.
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
    # Which of several groups is fastest is partly chance: a group that is only this far below the fastest
    # one's median is not slower.
    fastest = max(figures, key=lambda group: median_low(group.values))
    slowest = median_low(fastest.values) * (1 - slowdown / 2 - CHANCE * noise)
    close = [group for group in figures if median_low(group.values) >= slowest]
    alike = [value for group in close for value in group.values]
    is_stray = len(close) <= len(figures) // 2 and len(fastest.values) < 2
    return None if is_stray or len(alike) < 2 else Level(value=median(alike), num_values=len(alike))


def weigh(value: float, level: Level, *, noise: float, slowdown: float) -> float:
    """Return the log-likelihood ratio of a value: a slow group versus a group at the normal level.

    `noise` is the relative standard deviation of one value.
    """
    scale = max(noise, LEAST_NOISE) * sqrt((1 - 2 / DEGREES) * (1 + 1 / level.num_values))
    below = 1 - value / level.value
    return _log_density(max(0.0, slowdown - below) / scale) - _log_density(max(0.0, below) / scale)


def _log_density(deviation: float) -> float:
    """Log density of Student's t, up to a constant."""
    return -(DEGREES + 1) / 2 * log(1 + deviation * deviation / DEGREES)


def judge(weight: float, *, tries: int) -> Verdict | None:
    """Return what a group's tests show together; None if another test is needed."""
    if weight >= SLOW:
        return "slow"
    if weight <= FAST:
        return "fast"
    return "undecided" if tries >= MOST_TRIES else None


Verdicts = Mapping[Group, Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """A member, or a link between two, that repeated tests show to be slow."""

    members: tuple[str, ...]
    """The member; both ends for a link, which is not attributed to either end."""
    groups: tuple[Group, ...]
    """The tests that confirmed it."""
    directions: tuple[tuple[str, str], ...] = ()
    """For a link: the directions in which it is slow, sender first; empty if it is slow only in both
    directions at once, or if no direction could be tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """Members left undecided: they, or a link between them, may be slow."""

    members: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The result of a step."""

    steps: tuple[Step, ...] = ()
    cleared: tuple[str, ...] = ()
    doubted: tuple[str, ...] = ()
    """Members that were cleared before, but no longer are."""
    accused: tuple[Accusation, ...] = ()
    undecided: tuple[Undecided, ...] = ()


class Step(Protocol):
    """One question of the search, with all available information about its suspects."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """The members that it concerns; until it is settled, they are not used as partners."""

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Return the groups to test, padded with `partners`; None if there are too few.

        Groups that have a member in common are tested in different rounds.
        """

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Return the outcome, given the verdicts of all groups that it requested."""

    def instead(self) -> Step | None:
        """Return the step to take with fewer partners; None if there is no such step."""


def filled(members: Sequence[str], partners: Sequence[str], size: int) -> Group | None:
    """Return a group of `size` that includes these members; None if there are too few partners.

    >>> filled(["a"], ["x", "y", "z"], 3)
    Group(members=('a', 'x', 'y'), one_way=False)
    """
    missing = max(0, size - len(members))
    return Group((*members, *partners[:missing])) if missing <= len(partners) else None


def halves(members: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split in two; the first part is not larger than the second.

    >>> halves("abc")
    (('a',), ('b', 'c'))
    """
    middle = len(members) // 2
    return tuple(members[:middle]), tuple(members[middle:])


def unclear(members: Sequence[str], why: str = "") -> Undecided:
    """Report that the members' tests are inconclusive."""
    return Undecided(
        members=tuple(members),
        why=why or "their tests are between slow and not slow, or scatter too much: noise is too large",
    )
