"""Steps of a search for slow members: groups, halves of a slow group, a suspect with a good partner."""

from __future__ import annotations

from collections.abc import Sequence
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
from gpuproof.verdict.blame.links import CONTROL, ConfirmLink, OneByOne, search_links

HALVED_FOR = 2
"""Number of members to find in a group by halving; testing the rest one by one then costs less."""
SPOT_PAIRS = 8
MANY_PAIRS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """State shared by the steps for one group."""

    origin: tuple[str, ...]
    """The group that was slow as a whole."""
    size: int
    """Size to which test groups are padded."""
    every_link: bool
    num_accused: int = 0
    """Number of members blamed so far."""
    is_careful: bool = False
    """Whether this is a repeated search, with a group of good members next to each test, since the level may
    have moved in the meantime."""

    def fill(self, *parts: Sequence[str], partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Return a group for each part, padded; None if there are too few partners.

        Partners from outside the group come first: a member that was cleared in this group may be slow
        occasionally. A careful search also adds a group that consists only of partners, if there are enough.
        """
        members = set(self.origin)
        free = sorted(partners, key=members.__contains__)
        groups = []
        for part in parts:
            group = filled(part, free, self.size)
            if group is None:
                return None
            groups.append(group)
            free = free[len(group.members) - len(part) :]
        if self.is_careful and len(free) >= self.size:
            groups.append(Group(tuple(free[: self.size])))
        return tuple(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Tests all members in groups of one size; the remainder follows, padded to that size."""

    suspects: tuple[str, ...]
    size: int
    every_link: bool

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...]:
        """Request the groups."""
        whole = len(self.suspects) - len(self.suspects) % self.size
        return tuple(Group(self.suspects[at : at + self.size]) for at in range(0, whole, self.size))

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Clear the fast groups and halve the slow ones; if all perform the same, examine some pairs."""
        over = self.suspects[len(verdicts) * self.size :]
        steps: list[Step] = []
        for group, verdict in verdicts.items():
            if verdict == "slow":
                steps.append(Halve(about=self._about(group.members)))
        if not steps:
            steps.append(SpotCheck(members=self.suspects[: len(verdicts) * self.size]))
        if over:
            steps.append(Whole(about=self._about(over)))
        return StepOutcome(
            steps=tuple(steps),
            cleared=tuple(
                m for group, verdict in verdicts.items() if verdict == "fast" for m in group.members
            ),
            undecided=tuple(unclear(g.members) for g, v in verdicts.items() if v == "undecided"),
        )

    def _about(self, members: tuple[str, ...]) -> Suspicion:
        return Suspicion(origin=members, size=self.size, every_link=self.every_link)

    def instead(self) -> Step | None:
        """Return None: this step does not need partners."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCheck:
    """Groups that perform the same may each contain a slow member; pairs across groups then differ."""

    members: tuple[str, ...]

    @property
    def suspects(self) -> tuple[str, ...]:
        """The members of the pairs."""
        return tuple(member for group in self.ask(()) for member in group.members)

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...]:
        """Request pairs of members that are evenly spaced."""
        count = min(2 * SPOT_PAIRS, len(self.members) // 2 * 2)
        chosen = [self.members[i * len(self.members) // count] for i in range(count)]
        return tuple(Group((chosen[i], chosen[i + count // 2])) for i in range(count // 2))

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Accept the groups, unless one end of a slow pair turns out to be slow: then test all others.

        If several pairs are slow, many members must be slow, and only the fast pairs are reliable.
        """
        slow = [group.members for group, verdict in verdicts.items() if verdict == "slow"]
        if len(slow) >= MANY_PAIRS:
            good = {m for group, verdict in verdicts.items() if verdict == "fast" for m in group.members}
            others = tuple(member for member in self.members if member not in good)
            return StepOutcome(steps=(OneByOne(todo=others),), doubted=others)
        steps = (ConfirmLink(ends=(one, other), in_doubt=self.members) for one, other in slow)
        return StepOutcome(steps=tuple(steps))

    def instead(self) -> Step | None:
        """Return None: this step does not need partners."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Is any of these members slow? Tests all of them at once."""

    about: Suspicion
    is_repeat: bool = False
    """Whether the group is tested again, because it was slow before but none of its members was."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """All members of the group."""
        return self.about.origin

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Request all of them, padded."""
        about = replace(self.about, is_careful=self.is_repeat or self.about.is_careful)
        return about.fill(about.origin, partners=partners)

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Clear the members, or look for the slow member, or for a link between good members."""
        about = self.about
        match next(iter(verdicts.values())):
            case "undecided":
                return StepOutcome(undecided=(unclear(about.origin),))
            case "fast" if self.is_repeat:
                why = "slow together once, but neither again nor in parts: it is intermittent, or was chance"
                return StepOutcome(undecided=(unclear(about.origin, why),))
            case "fast":
                return StepOutcome(cleared=about.origin)
            case _ if self.is_repeat and not about.is_careful:
                return StepOutcome(steps=(Halve(about=replace(about, is_careful=True)),))
            case _ if self.is_repeat:
                return StepOutcome(
                    steps=(search_links(about.origin, size=about.size, every_link=about.every_link),)
                )
        return StepOutcome(steps=(narrowed(about, about.origin, ()),))

    def instead(self) -> Step | None:
        """Test each of them separately."""
        return OneByOne(todo=self.about.origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halve:
    """Which half of a slow group contains the slow member? Both halves are tested."""

    about: Suspicion

    @property
    def suspects(self) -> tuple[str, ...]:
        """All members of the group."""
        return self.about.origin

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Request both halves, each padded with its own partners."""
        return self.about.fill(*halves(self.about.origin), partners=partners)

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Continue with the slow half; if neither is slow, check whether the whole group is still slow."""
        both = list(zip(halves(self.about.origin), verdicts.values(), strict=False))
        steps: list[Step] = [narrowed(self.about, half, ()) for half, verdict in both if verdict == "slow"]
        if all(verdict == "fast" for _, verdict in both):
            steps = [Whole(about=self.about, is_repeat=True)]
        return StepOutcome(
            steps=tuple(steps),
            cleared=tuple(member for half, verdict in both if verdict == "fast" for member in half),
            undecided=tuple(unclear(half) for half, verdict in both if verdict == "undecided"),
        )

    def instead(self) -> Step | None:
        """Test each of them separately."""
        return OneByOne(todo=self.about.origin)


def narrowed(about: Suspicion, candidates: tuple[str, ...], skipped: tuple[str, ...]) -> Step:
    """Return the step that narrows down candidates, one of which must be slow."""
    if len(candidates) == 1:
        return Confirm(about=about, member=candidates[0], rest=skipped)
    return Narrow(about=about, candidates=candidates, skipped=skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow:
    """Is the slow member in the first half of the candidates? If not, it is in the second."""

    about: Suspicion
    candidates: tuple[str, ...]
    skipped: tuple[str, ...]
    """Members whose state is unknown because the other half was slow; they are tested again at the end."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """The candidates, and the skipped members."""
        return (*self.candidates, *self.skipped)

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Request the first half, padded with partners."""
        return self.about.fill(halves(self.candidates)[0], partners=partners)

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Keep the half that contains the slow member."""
        first, second = halves(self.candidates)
        match next(iter(verdicts.values())):
            case "slow":
                return StepOutcome(steps=(narrowed(self.about, first, (*self.skipped, *second)),))
            case "fast":
                return StepOutcome(steps=(narrowed(self.about, second, self.skipped),), cleared=first)
        return StepOutcome(undecided=(unclear(self.suspects),))

    def instead(self) -> Step | None:
        """Test each of them separately."""
        return OneByOne(todo=self.suspects)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """Is a member also slow with a single good partner? And is the rest of its group fast without it?"""

    about: Suspicion
    member: str
    rest: tuple[str, ...]

    @property
    def suspects(self) -> tuple[str, ...]:
        """The member, and the part of its group that has not been cleared."""
        return (self.member, *self.rest)

    def ask(self, partners: Sequence[str]) -> tuple[Group, ...] | None:
        """Request the pair, a control pair of good partners, and the rest padded with partners."""
        members = set(self.about.origin)
        free = sorted(partners, key=members.__contains__)
        if len(free) < 1 + CONTROL:
            return None
        pairs = Group((self.member, free[0])), Group((free[1], free[2]))
        if not self.rest:
            return pairs
        rest = filled(self.rest, free[1 + CONTROL :], self.about.size)
        rest = rest or filled(self.rest, free, self.about.size)
        return None if rest is None else (*pairs, rest)

    def settle(self, verdicts: Verdicts) -> StepOutcome:
        """Blame the member or clear it, and continue with the rest as long as the rest is slow."""
        pair, *others = verdicts
        of_rest = verdicts[others[1]] if self.rest else "fast"
        alone = self._of_member(verdicts, pair)
        about = replace(self.about, num_accused=self.about.num_accused + len(alone.accused))
        steps: tuple[Step, ...] = ()
        if of_rest == "slow":
            by_one = about.num_accused >= HALVED_FOR
            again = replace(about, origin=self.rest, is_careful=True)
            steps = (OneByOne(todo=self.rest) if by_one else Whole(about=again),)
        elif of_rest == "fast" and not about.num_accused and verdicts[pair] == "fast":
            steps = (Whole(about=about, is_repeat=True),)
        return replace(
            alone,
            steps=steps,
            cleared=(*alone.cleared, *(self.rest if of_rest == "fast" else ())),
            undecided=(*alone.undecided, *((unclear(self.rest),) if of_rest == "undecided" else ())),
        )

    def _of_member(self, verdicts: Verdicts, pair: Group) -> StepOutcome:
        match verdicts[pair]:
            case "slow":
                return StepOutcome(accused=(Accusation(members=(self.member,), groups=(pair,)),))
            case "fast":
                return StepOutcome(cleared=(self.member,))
        return StepOutcome(undecided=(unclear((self.member,)),))

    def instead(self) -> Step | None:
        """Test each of them separately."""
        return OneByOne(todo=self.suspects)
