"""The steps of a search for slow links, and those that try members with good partners, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuproof.verdict.blame.evidence import (
    Accusation,
    Group,
    Step,
    StepOutcome,
    Verdicts,
    filled,
    halves,
    unclear,
)

FEW = 6
"""Members among whom all pairs are tried; of more, where a test goes over every link, quarters."""
CONFIRMATIONS = 6
"""Of a link, each a slow pair and two fast tests of its ends: an end that is slow in half of its tests looks
so once in a quarter of cases by chance, six times in 1 of 4,096 (one that is slow in another share, less)."""
CONTROL = 2
"""Partners that are tested with each other, so that a pair can be compared in its own round."""


def search_links(members: Sequence[str], *, size: int, every_link: bool) -> Step:
    """Return how to find the link that makes these slow together."""
    if every_link and len(members) > FEW:
        return Quarters(suspects=tuple(members), size=size)
    return AllPairs(suspects=tuple(members), are_good=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarters:
    """Between which quarters is a link slow? Every two of them together, so that no link is left out."""

    suspects: tuple[str, ...]
    size: int

    def _both(self) -> Iterator[tuple[str, ...]]:
        """Yield every two quarters, those first that have nothing in common."""
        quarters = [quarter for half in halves(self.suspects) for quarter in halves(half)]
        for one, other in ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)):
            yield (*quarters[one], *quarters[other])

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Ask for every two quarters, filled up so that two such groups fit into a round."""
        groups = []
        for number, both in enumerate(self._both()):
            half = partners[: len(partners) // 2] if number % 2 else partners[len(partners) // 2 :]
            group = filled(both, half, self.size)
            if group is None:
                return None
            groups.append(group)
        return tuple(groups)

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Go on with what is slow together; three slow ones have the quarter in common with both ends."""
        slow = [
            both for both, verdict in zip(self._both(), verdicts.values(), strict=True) if verdict == "slow"
        ]
        common = set(slow[0]).intersection(*slow) if len(slow) == 3 else set()
        sets = [tuple(m for m in self.suspects if m in common)] if len(common) > 1 else slow
        steps = tuple(search_links(both, size=self.size, every_link=True) for both in sets)
        return StepOutcome(steps=steps) if steps else slow_together(self.suspects)

    def instead(self) -> Step:
        """Try all pairs."""
        return AllPairs(suspects=self.suspects, are_good=True)


def slow_together(members: Sequence[str]) -> StepOutcome:
    """Say that members are slow together and not in parts."""
    return StepOutcome(
        undecided=(unclear(members, "slow together, and not in parts: it comes and goes, or needs them all"),)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AllPairs:
    """Every pair of some members, each with each: N − 1 rounds of an even number, as in a tournament."""

    suspects: tuple[str, ...]
    are_good: bool
    """Whether every member is known to be good by itself."""

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...]:
        """Ask for all pairs, in the order of rounds."""
        return tuple(pairs_in_rounds(self.suspects))

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Clear who is in a fast pair; a slow pair of two such is a link, and the rest is slow itself."""
        fast = {
            member for group, verdict in verdicts.items() if verdict == "fast" for member in group.members
        }
        good = set(self.suspects) if self.are_good else fast
        slow = [group for group, verdict in verdicts.items() if verdict == "slow"]
        links = tuple(
            ConfirmLink(ends=(group.members[0], group.members[1]))
            for group in slow
            if good.issuperset(group.members)
        )
        outcomes = [self._judge(m, slow, good) for m in self.suspects if m not in good]
        nothing = self.are_good and not links
        return StepOutcome(
            steps=links,
            cleared=tuple(member for member in self.suspects if member in good),
            accused=tuple(accusation for outcome in outcomes for accusation in outcome.accused),
            undecided=(
                *(accusation for outcome in outcomes for accusation in outcome.undecided),
                *(slow_together(self.suspects).undecided if nothing else ()),
                *(unclear(g.members) for g, v in verdicts.items() if v == "undecided" and nothing),
            ),
        )

    @staticmethod
    def _judge(member: str, slow: Sequence[Group], good: set[str]) -> StepOutcome:
        """Accuse a member that is in no fast pair, where two good partners were slow with it."""
        with_good = tuple(
            g for g in slow if member in g.members and any(other in good for other in g.members)
        )
        if len(with_good) >= 2:
            return StepOutcome(accused=(Accusation(members=(member,), groups=with_good),))
        return StepOutcome(
            undecided=(unclear((member,), "fewer than two good partners were tested with it"),)
        )

    def instead(self) -> Step | None:
        """Nothing: it needs no partners."""
        return None


def pairs_in_rounds(members: Sequence[str]) -> Iterator[Group]:
    """Yield all pairs, those of a round one after another (the circle method).

    >>> [group.members for group in pairs_in_rounds("abcd")]
    [('a', 'd'), ('b', 'c'), ('a', 'c'), ('d', 'b'), ('a', 'b'), ('c', 'd')]
    """
    around: list[str | None] = [*members, *([None] if len(members) % 2 else [])]
    for _ in range(len(around) - 1):
        for number in range(len(around) // 2):
            one, other = around[number], around[-1 - number]
            if one is not None and other is not None:
                yield Group((one, other))
        around.insert(1, around.pop())


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
