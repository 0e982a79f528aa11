"""Findings of a search for slow members, what it missed, and what is to blame, with the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gpuproof.base import units
from gpuproof.verdict.blame.evidence import Accusation, Group, Undecided

NOTICED = 0.5
"""A confirming test counts as slow if it is slower by more than this fraction of the slowdown."""
NOTHING = 0.99
"""If a test is slower by more than this, nothing got through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """The culprit, as a subject of the result, with a description of the evidence."""

    subject: str
    part: Literal["gpu", "link", "nic", "host"]
    evidence: str
    next_step: str


def blamed(findings: Findings, inside: Mapping[str, Findings] | None = None) -> tuple[Blamed, ...]:
    """Report which host is to blame; `inside` is the search among the devices of a blamed host.

    Without that search, a host and its NIC cannot be distinguished. If the devices all perform the same, the
    only suspect left is the path out of the host.
    """
    named: list[Blamed] = []
    for accusation in findings.accused:
        (host,) = accusation.members
        named += blamed_inside(host, describe(accusation), None if inside is None else inside.get(host))
    for accusation in findings.links:
        named += [
            Blamed(
                subject=f"link/{one}>{other}",
                part="link",
                evidence=describe(accusation),
                next_step=f"Check the cable, ports and route from {one} to {other}",
            )
            for one, other in accusation.directions or (accusation.members,)
        ]
    return tuple(named)


def blamed_inside(host: str, evidence: str, inside: Findings | None) -> Iterator[Blamed]:
    """Identify the faulty part of a host, as far as tests among its devices allow."""
    if inside is not None and (inside.accused or inside.links):
        for accusation in inside.accused:
            yield Blamed(
                subject=f"host/{host}/gpu/{accusation.members[0]}",
                part="gpu",
                evidence=f"{evidence}; among its devices: {describe(accusation)}",
                next_step="Have the device and its slot inspected",
            )
        for accusation in inside.links:
            one, other = (f"{host}/gpu/{member}" for member in accusation.members)
            yield Blamed(
                subject=f"link/{one}>{other}",
                part="link",
                evidence=f"{evidence}; among its devices: {describe(accusation)}",
                next_step="Check the links between these devices (nvidia-smi topo -m, nvlink -s)",
            )
        return
    if inside is not None and not inside.undecided:
        alike = f"its {len(inside.cleared)} devices perform the same"
        step = f"Check the NIC of {host}, its cable and its port; then what its CPUs are doing"
        yield Blamed(subject=f"host/{host}", part="nic", evidence=f"{evidence}; {alike}", next_step=step)
        return
    yield Blamed(
        subject=f"host/{host}",
        part="host",
        evidence=f"{evidence}; this does not distinguish the host from its NIC",
        next_step=f"Check the NIC of {host} and its port, its clocks, and what else the host is doing",
    )


def describe(accusation: Finding) -> str:
    """Describe in which tests a member or link was slow, and by how much.

    >>> from gpuproof.verdict.blame.evidence import Group
    >>> from gpuproof.verdict.blame.findings import GroupTest
    >>> test = GroupTest(round=0, group=Group(("a", "b")), value=80.0, level=100.0)
    >>> describe(Finding(members=("a",), slower_by=0.2, directions=(), tests=(test,)))
    'a: 20 % slower than good ones; all 1 of 1 test with it were slow, in pairs with b'
    """
    who = " and ".join(accusation.members)
    least = NOTICED * (accusation.slower_by or 1)
    slow = [test for test in accusation.tests if test.slower_by is None or test.slower_by > least]
    how = "nothing got through" if accusation.slower_by is None or accusation.slower_by > NOTHING else None
    how = how or f"{units.share(accusation.slower_by)} slower than good ones"
    partners = dict.fromkeys(
        member
        for test in accusation.tests
        if len(test.group.members) == 2
        for member in test.group.members
        if member not in accusation.members
    )
    pairs = f", in pairs with {', '.join(partners)}" if partners else ""
    count = len(accusation.tests)
    share = f"all {count}" if len(slow) == count else f"{len(slow)}"
    return f"{who}: {how}; {share} of {count} test{'s' * (count > 1)} with it were slow{pairs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTest:
    """One test of a group."""

    round: int
    """Round number, starting from 0."""
    group: Group
    value: float | None
    """The result; None if the test produced no value."""
    level: float | None
    """Level that good groups of this size reached; None if it was never determined."""

    @property
    def slower_by(self) -> float | None:
        """Fraction by which it was below the level; 1 means that nothing got through."""
        if self.value == 0:
            return 1.0
        return None if self.value is None or not self.level else 1 - self.value / self.level


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A slow member or link."""

    members: tuple[str, ...]
    slower_by: float | None
    """Mean slowdown over the tests that confirmed it; None if those tests returned no value because they
    failed."""
    directions: tuple[tuple[str, str], ...]
    tests: tuple[GroupTest, ...]
    """The evidence: every test that included it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksTried:
    """Which links between members were used by at least one test."""

    num_tried: int
    num_not_tried: int
    not_tried: tuple[tuple[str, ...], ...]
    """Sets of members with no tested link between the sets; links within a set may be untested, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of a search."""

    accused: tuple[Finding, ...]
    links: tuple[Finding, ...]
    cleared: tuple[str, ...]
    undecided: tuple[Undecided, ...]
    links_tried: LinksTried
    tests: tuple[GroupTest, ...]
    num_rounds: int

    @property
    def num_tests(self) -> int:
        """Number of group tests; concurrent tests are counted individually."""
        return len(self.tests)


def conclude(
    members: Sequence[str],
    *,
    accused: Sequence[Accusation],
    good: Sequence[str],
    undecided: Sequence[Undecided],
    tests: tuple[GroupTest, ...],
    num_rounds: int,
    every_link: bool,
) -> Findings:
    """Return the findings so far, with the evidence for each blamed part."""
    accusations = [_finding(accusation, tests) for accusation in accused]
    named = {
        member for accusation in accusations if len(accusation.members) == 1 for member in accusation.members
    }
    return Findings(
        accused=tuple(accusation for accusation in accusations if len(accusation.members) == 1),
        links=tuple(accusation for accusation in accusations if len(accusation.members) == 2),
        cleared=tuple(member for member in good if member not in named),
        undecided=tuple(undecided),
        links_tried=links_tried(members, tests, every_link=every_link),
        tests=tests,
        num_rounds=num_rounds,
    )


def _finding(accusation: Accusation, tests: Sequence[GroupTest]) -> Finding:
    ends = set(accusation.members)
    evidence = tuple(test for test in tests if ends.issubset(test.group.members))
    confirming = [t.slower_by for t in evidence if t.group in accusation.groups and t.slower_by is not None]
    return Finding(
        members=accusation.members,
        slower_by=float(np.mean(confirming)) if confirming else None,
        directions=accusation.directions,
        tests=evidence,
    )


def links_tried(members: Sequence[str], tests: Sequence[GroupTest], *, every_link: bool) -> LinksTried:
    """Return which links a test used: a pair's link; in larger groups, all if a test uses every link.

    >>> test = GroupTest(round=0, group=Group(("a", "b")), value=1.0, level=None)
    >>> links_tried("abc", [test], every_link=False)
    LinksTried(num_tried=1, num_not_tried=2, not_tried=(('a', 'b'), ('c',)))
    """
    tried = _tried(members, tests, every_link=every_link)
    num_links = len(members) * (len(members) - 1) // 2
    num_tried = (int(tried.sum()) - len(members)) // 2
    return LinksTried(
        num_tried=num_tried,
        num_not_tried=num_links - num_tried,
        not_tried=_separate_sets(members, tests, every_link=every_link) if num_tried < num_links else (),
    )


def links_not_tried(
    members: Sequence[str], tests: Sequence[GroupTest], *, every_link: bool
) -> Iterator[tuple[str, str]]:
    """Yield every link that no test used; with thousands of members, there are millions of links.

    >>> list(links_not_tried("abc", [GroupTest(round=0, group=Group(("a", "b")), value=1.0, level=None)],
    ...                      every_link=False))
    [('a', 'c'), ('b', 'c')]
    """
    tried = _tried(members, tests, every_link=every_link)
    for row, member in enumerate(members):
        for column in np.flatnonzero(~tried[row, row:]):
            yield member, members[row + int(column)]


def _covers_links(test: GroupTest, *, every_link: bool) -> bool:
    return test.value is not None and (every_link or len(test.group.members) == 2)


def _tried(members: Sequence[str], tests: Sequence[GroupTest], *, every_link: bool) -> np.ndarray[Any, Any]:
    """Return, for each pair of members, whether a test used their link; True on the diagonal."""
    position = {member: number for number, member in enumerate(members)}
    tried = np.eye(len(members), dtype=bool)
    for test in tests:
        if _covers_links(test, every_link=every_link):
            rows = np.array([position[member] for member in test.group.members])
            tried[np.ix_(rows, rows)] = True
    return tried


def _separate_sets(
    members: Sequence[str], tests: Sequence[GroupTest], *, every_link: bool
) -> tuple[tuple[str, ...], ...]:
    """Repeatedly merge members that were in a test together."""
    of_member = {member: number for number, member in enumerate(members)}
    joined = {number: [member] for member, number in of_member.items()}
    for test in tests:
        if _covers_links(test, every_link=every_link):
            into, *others = sorted({of_member[member] for member in test.group.members})
            for other in others:
                for member in joined.pop(other):
                    of_member[member] = into
                    joined[into].append(member)
    order = {member: number for number, member in enumerate(members)}
    return tuple(tuple(sorted(joined[number], key=lambda member: order[member])) for number in sorted(joined))
