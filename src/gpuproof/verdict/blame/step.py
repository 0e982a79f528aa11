"""What a step of the search is: groups that it asks for, and what their verdicts come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuproof.verdict.blame.evidence import Group, Verdicts


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
