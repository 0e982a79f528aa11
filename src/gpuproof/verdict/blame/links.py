"""The steps of a search for slow links, where every member by itself is good and some together are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuproof.verdict.blame.evidence import Group, Verdicts
from gpuproof.verdict.blame.one_by_one import ConfirmLink
from gpuproof.verdict.blame.step import Accusation, Step, StepOutcome, filled, halves, unclear

FEW = 6
"""Members among whom all pairs are tried; of more, where a test goes over every link, quarters."""


def search_links(members: Sequence[str], *, size: int, every_link: bool) -> Step:
    """Return how to find the link that makes these slow together."""
    if every_link and len(members) > FEW:
        return Quarters(members=tuple(members), size=size)
    return AllPairs(members=tuple(members), are_good=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarters:
    """Between which quarters is a link slow? Every two of them together, so that no link is left out."""

    members: tuple[str, ...]
    size: int

    @property
    def suspects(self) -> tuple[str, ...]:
        """All of them."""
        return self.members

    def _both(self) -> Iterator[tuple[str, ...]]:
        """Yield every two quarters, those first that have nothing in common."""
        quarters = [quarter for half in halves(self.members) for quarter in halves(half)]
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
        sets = [tuple(m for m in self.members if m in common)] if len(common) > 1 else slow
        steps = tuple(search_links(suspects, size=self.size, every_link=True) for suspects in sets)
        return StepOutcome(steps=steps) if steps else not_apart(self.members)

    def instead(self) -> Step:
        """Try all pairs."""
        return AllPairs(members=self.members, are_good=True)


def not_apart(members: Sequence[str]) -> StepOutcome:
    """Say that members are slow together and not in parts."""
    return StepOutcome(
        undecided=(unclear(members, "slow together, and not in parts: it comes and goes, or needs them all"),)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AllPairs:
    """Every pair of some members, each with each: N − 1 rounds of an even number, as in a tournament."""

    members: tuple[str, ...]
    are_good: bool
    """Whether every member is known to be good by itself."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """All of them."""
        return self.members

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...]:
        """Ask for all pairs, in the order of rounds."""
        return tuple(pairs_in_rounds(self.members))

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Clear who is in a fast pair; a slow pair of two such is a link, and the rest is slow itself."""
        fast = {
            member for group, verdict in verdicts.items() if verdict == "fast" for member in group.members
        }
        good = set(self.members) if self.are_good else fast
        slow = [group for group, verdict in verdicts.items() if verdict == "slow"]
        links = tuple(
            ConfirmLink(ends=(group.members[0], group.members[1]))
            for group in slow
            if good.issuperset(group.members)
        )
        outcomes = [self._judge(m, slow, good) for m in self.members if m not in good]
        nothing = self.are_good and not links
        return StepOutcome(
            steps=links,
            cleared=tuple(member for member in self.members if member in good),
            accused=tuple(accusation for outcome in outcomes for accusation in outcome.accused),
            undecided=(
                *(accusation for outcome in outcomes for accusation in outcome.undecided),
                *(not_apart(self.members).undecided if nothing else ()),
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
