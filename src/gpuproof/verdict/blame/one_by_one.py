"""The steps that try members with good partners, one by one, and a link by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuproof.verdict.blame.evidence import Group, Verdicts
from gpuproof.verdict.blame.step import Accusation, Step, StepOutcome, unclear

CONFIRMATIONS = 6
"""Of a link, each a slow pair and two fast tests of its ends: an end that is slow in half of its tests looks
so once in a quarter of cases by chance, six times in 1 of 4,096 (one that is slow in another share, less)."""
CONTROL = 2
"""Partners that are tested with each other, so that a pair can be compared in its own round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneByOne:
    """Everybody by himself, with a good partner of his own; who is slow, again with another one."""

    todo: tuple[str, ...]
    once: tuple[tuple[str, str], ...] = ()
    """Slow with this partner."""
    in_doubt: tuple[str, ...] = ()
    """To be tried, too, if anybody of these is slow."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """All of them."""
        return (*(member for member, _ in self.once), *self.todo)

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Ask for as many pairs as there are partners, and for one of two good ones."""
        if len(partners) < 1 + CONTROL:
            return None
        control, free = Group(tuple(partners[:CONTROL])), list(partners[CONTROL:])
        before = dict(self.once)
        groups = []
        for member in self.suspects:
            other = next((partner for partner in free if partner != before.get(member)), None)
            if other is not None:
                free.remove(other)
                groups.append(Group((member, other)))
        return (control, *groups) if groups else None

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Accuse who was slow with two partners; who was slow with one of them has a slow link to it."""
        _, *groups = verdicts
        before, again, outcomes = dict(self.once), [], []
        for group in groups:
            member, partner = group.members
            match verdicts[group]:
                case "slow" if member in before:
                    pairs = Group((member, before[member])), group
                    outcomes.append(StepOutcome(accused=(Accusation(members=(member,), groups=pairs),)))
                case "slow":
                    again.append((member, partner))
                case "fast":
                    links = (ConfirmLink(ends=(member, before[member])),) if member in before else ()
                    outcomes.append(StepOutcome(cleared=(member,), steps=links))
                case _:
                    outcomes.append(StepOutcome(undecided=(unclear((member,)),)))
        tried = {group.members[0] for group in groups}
        left = OneByOne(
            todo=tuple(member for member in self.todo if member not in tried),
            once=(*(pair for pair in self.once if pair[0] not in tried), *again),
            in_doubt=self.in_doubt,
        )
        return self._doubting(merged(outcomes, left))

    def _doubting(self, outcome: StepOutcome) -> StepOutcome:
        """Add the others, where somebody among these was found."""
        if not (self.in_doubt and outcome.accused):
            return outcome
        tried = {*self.suspects, *outcome.cleared}
        others = tuple(member for member in self.in_doubt if member not in tried)
        return replace(outcome, steps=(*outcome.steps, OneByOne(todo=others)), doubted=others)

    def instead(self) -> Step | None:
        """Nothing: without good partners nobody can be accused."""
        return None


def merged(outcomes: Sequence[StepOutcome], left: OneByOne) -> StepOutcome:
    """Return what several members' outcomes come to, with the step for those that are left."""
    return StepOutcome(
        steps=(*(step for part in outcomes for step in part.steps), *((left,) if left.suspects else ())),
        cleared=tuple(member for part in outcomes for member in part.cleared),
        accused=tuple(accusation for part in outcomes for accusation in part.accused),
        undecided=tuple(group for part in outcomes for group in part.undecided),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmLink:
    """A slow pair again, and both its ends with somebody else: slow, fast and fast, or it is not the link."""

    ends: tuple[str, str]
    confirmed: tuple[Group, ...] = ()
    in_doubt: tuple[str, ...] = ()
    """Cleared before by groups that cannot be believed if an end is slow itself."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """Both ends."""
        return self.ends

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Ask for the pair, and for both ends with partners; with the same one where there is no other."""
        if not partners:
            return None
        first, second = self.ends
        return Group(self.ends), Group((first, partners[0])), Group((second, partners[-1]))

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Accuse the link once it was confirmed often enough, by direction; look at a slow end alone."""
        results = list(verdicts.items())
        if [verdict for _, verdict in results] != ["slow", "fast", "fast"]:
            ends = [group.members for group, verdict in results[1:] if verdict == "slow"]
            if ends:
                once = tuple((end, partner) for end, partner in ends)
                return StepOutcome(steps=(OneByOne(todo=(), once=once, in_doubt=self.in_doubt),))
            results_text = ", ".join(f"{' and '.join(group.members)} {verdict}" for group, verdict in results)
            why = f"as a pair they were slow, and then not alike: {results_text}; it comes and goes"
            return StepOutcome(undecided=(unclear(self.ends, why),))
        again = replace(self, confirmed=(*self.confirmed, *verdicts))
        if len(again.confirmed) < CONFIRMATIONS * len(verdicts):
            return StepOutcome(steps=(again,))
        return StepOutcome(steps=(Directions(ends=self.ends, confirmed=again.confirmed),))

    def instead(self) -> Step | None:
        """Nothing: without another partner a pair says nothing."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """On which way is a slow link slow? One sends and the other receives, and the other way round."""

    ends: tuple[str, str]
    confirmed: tuple[Group, ...]
    is_tried: bool = True

    @property
    def suspects(self) -> tuple[str, ...]:
        """Both ends."""
        return self.ends

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Ask for both directions, and for one of good partners."""
        if not self.is_tried:
            return ()
        if len(partners) < 2:
            return None
        first, second = self.ends
        return (
            Group((first, second), one_way=True),
            Group((partners[0], partners[1]), one_way=True),
            Group((second, first), one_way=True),
        )

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Accuse the link, with the directions that are slow."""
        slow = [g for g, v in verdicts.items() if v == "slow" and set(g.members) == set(self.ends)]
        ways = tuple((group.members[0], group.members[1]) for group in slow)
        groups = (*dict.fromkeys(self.confirmed), *verdicts)
        return StepOutcome(accused=(Accusation(members=self.ends, groups=groups, directions=ways),))

    def instead(self) -> Step | None:
        """Accuse the link as it is: two partners are needed to compare a direction with."""
        return replace(self, is_tried=False) if self.is_tried else None
