"""Steps of a search for slow links, and steps that test members one by one with good partners."""

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
"""Maximum number of members among which all pairs are tested; with more, quarters are tested if a test uses
every link."""
CONFIRMATIONS = 6
"""Confirmations per link, each consisting of a slow pair and two fast tests of its ends. By chance, an end
that is slow in half of its tests produces this pattern in a quarter of cases, and six times in a row in 1 of
4,096 (less often for an end that is slow in any other fraction of tests)."""
CONTROL = 2
"""Number of partners that are tested with each other, so that a pair can be compared within its own round."""


def search_links(members: Sequence[str], *, size: int, every_link: bool) -> Step:
    """Return how to find the link that makes these members slow together."""
    if every_link and len(members) > FEW:
        return Quarters(suspects=tuple(members), size=size)
    return AllPairs(suspects=tuple(members), are_good=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarters:
    """Between which quarters is a link slow? Tests all pairs of quarters, so that no link is missed."""

    suspects: tuple[str, ...]
    size: int

    def _both(self) -> Iterator[tuple[str, ...]]:
        """Yield all pairs of quarters, ordered so that disjoint pairs are adjacent."""
        quarters = [quarter for half in halves(self.suspects) for quarter in halves(half)]
        for one, other in ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)):
            yield (*quarters[one], *quarters[other])

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Request all pairs of quarters, padded so that two such groups fit into a round."""
        groups = []
        for number, both in enumerate(self._both()):
            half = partners[: len(partners) // 2] if number % 2 else partners[len(partners) // 2 :]
            group = filled(both, half, self.size)
            if group is None:
                return None
            groups.append(group)
        return tuple(groups)

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Continue with pairs that are slow; if three are, both ends are in the quarter that they share."""
        slow = [
            both for both, verdict in zip(self._both(), verdicts.values(), strict=True) if verdict == "slow"
        ]
        common = set(slow[0]).intersection(*slow) if len(slow) == 3 else set()
        sets = [tuple(m for m in self.suspects if m in common)] if len(common) > 1 else slow
        steps = tuple(search_links(both, size=self.size, every_link=True) for both in sets)
        return StepOutcome(steps=steps) if steps else slow_together(self.suspects)

    def instead(self) -> Step:
        """Test all pairs."""
        return AllPairs(suspects=self.suspects, are_good=True)


def slow_together(members: Sequence[str]) -> StepOutcome:
    """Report that members are slow together but not in smaller groups."""
    return StepOutcome(
        undecided=(
            unclear(members, "slow together, but not in parts: it is intermittent, or needs all of them"),
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AllPairs:
    """Tests every pair in a set of members: N − 1 rounds if N is even, as in a tournament."""

    suspects: tuple[str, ...]
    are_good: bool
    """Whether every member is known to be good on its own."""

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...]:
        """Request all pairs, ordered by round."""
        return tuple(pairs_in_rounds(self.suspects))

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Clear members of fast pairs, flag slow pairs of cleared members as slow links, test the rest."""
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
        """Blame a member without a fast pair if it was slow with two good partners."""
        with_good = tuple(
            g for g in slow if member in g.members and any(other in good for other in g.members)
        )
        if len(with_good) >= 2:
            return StepOutcome(accused=(Accusation(members=(member,), groups=with_good),))
        return StepOutcome(undecided=(unclear((member,), "it was tested with fewer than two good partners"),))

    def instead(self) -> Step | None:
        """Return None: this step does not need partners."""
        return None


def pairs_in_rounds(members: Sequence[str]) -> Iterator[Group]:
    """Yield all pairs, in rounds of disjoint pairs (the circle method).

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
    """Tests each member with its own good partner, and slow ones again with a different partner."""

    todo: tuple[str, ...]
    once: tuple[tuple[str, str], ...] = ()
    """Members that were slow once, each with the partner it was slow with."""
    in_doubt: tuple[str, ...] = ()
    """Members that must also be tested if any of the suspects is slow."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """All members of the step."""
        return (*(member for member, _ in self.once), *self.todo)

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Request as many pairs as the partners allow, plus one pair of two good members."""
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
        """Blame members slow with two partners; slowness with only one may be due to the link to it."""
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
        """Also test the doubtful members if one of the tested members was found to be slow."""
        if not (self.in_doubt and outcome.accused):
            return outcome
        tried = {*self.suspects, *outcome.cleared}
        others = tuple(member for member in self.in_doubt if member not in tried)
        return replace(outcome, steps=(*outcome.steps, OneByOne(todo=others)), doubted=others)

    def instead(self) -> Step | None:
        """Return None: without good partners, nothing can be blamed."""
        return None


def merged(outcomes: Sequence[StepOutcome], left: OneByOne) -> StepOutcome:
    """Return the combined outcome of several members, with the next step for the remaining ones."""
    return StepOutcome(
        steps=(*(step for part in outcomes for step in part.steps), *((left,) if left.suspects else ())),
        cleared=tuple(member for part in outcomes for member in part.cleared),
        accused=tuple(accusation for part in outcomes for accusation in part.accused),
        undecided=tuple(group for part in outcomes for group in part.undecided),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmLink:
    """Retests a slow pair, and each end with other members: only slow, fast, fast confirms the link."""

    ends: tuple[str, str]
    confirmed: tuple[Group, ...] = ()
    in_doubt: tuple[str, ...] = ()
    """Members cleared earlier by group tests that are unreliable if one of the ends is slow itself."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """Both ends of the link."""
        return self.ends

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Request the pair, and each end with a partner; with the same partner if there is only one."""
        if not partners:
            return None
        first, second = self.ends
        return Group(self.ends), Group((first, partners[0])), Group((second, partners[-1]))

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Test both directions once the link is confirmed often enough; examine a slow end separately."""
        results = list(verdicts.items())
        if [verdict for _, verdict in results] != ["slow", "fast", "fast"]:
            ends = [group.members for group, verdict in results[1:] if verdict == "slow"]
            if ends:
                once = tuple((end, partner) for end, partner in ends)
                return StepOutcome(steps=(OneByOne(todo=(), once=once, in_doubt=self.in_doubt),))
            results_text = ", ".join(f"{' and '.join(group.members)} {verdict}" for group, verdict in results)
            why = f"as a pair they were slow, and then inconsistent: {results_text}; it is intermittent"
            return StepOutcome(undecided=(unclear(self.ends, why),))
        again = replace(self, confirmed=(*self.confirmed, *verdicts))
        if len(again.confirmed) < CONFIRMATIONS * len(verdicts):
            return StepOutcome(steps=(again,))
        return StepOutcome(steps=(Directions(ends=self.ends, confirmed=again.confirmed),))

    def instead(self) -> Step | None:
        """Return None: without another partner, a pair proves nothing."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """In which direction is a link slow? One end sends and the other receives, then vice versa."""

    ends: tuple[str, str]
    confirmed: tuple[Group, ...]
    is_tried: bool = True

    @property
    def suspects(self) -> tuple[str, ...]:
        """Both ends of the link."""
        return self.ends

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Request both directions, and one direction between good partners."""
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
        """Blame the link, with the directions in which it is slow."""
        slow = [g for g, v in verdicts.items() if v == "slow" and set(g.members) == set(self.ends)]
        ways = tuple((group.members[0], group.members[1]) for group in slow)
        groups = (*dict.fromkeys(self.confirmed), *verdicts)
        return StepOutcome(accused=(Accusation(members=self.ends, groups=groups, directions=ways),))

    def instead(self) -> Step | None:
        """Blame the link but not a direction: comparing directions requires two partners."""
        return replace(self, is_tried=False) if self.is_tried else None
