"""Who is to blame, in words: a host, its NIC, one of its devices, or a link, with the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gpuproof.base import units
from gpuproof.verdict.blame.findings import Finding, Findings

NOTICED = 0.5
"""Of what the confirming tests showed: a test that was slower by so much of it counts as slow."""
NOTHING = 0.99
"""Slower by more: the job did not come to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """Who is to blame, as a subject of the result, with the evidence in words."""

    subject: str
    part: Literal["gpu", "link", "nic", "host"]
    evidence: str
    next_step: str


def blamed(findings: Findings, inside: Mapping[str, Findings] | None = None) -> tuple[Blamed, ...]:
    """Say who is to blame among hosts; `inside` holds the search among the devices of an accused host.

    Without it a host and its NIC are not told apart. Devices that are alike leave the way out of the host.
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
                next_step=f"Look at the cable, ports and route from {one} to {other}",
            )
            for one, other in accusation.directions or (accusation.members,)
        ]
    return tuple(named)


def blamed_inside(host: str, evidence: str, inside: Findings | None) -> Iterator[Blamed]:
    """Name the part of a host: what its own devices showed among themselves, or nothing more."""
    if inside is not None and (inside.accused or inside.links):
        for accusation in inside.accused:
            yield Blamed(
                subject=f"host/{host}/gpu/{accusation.members[0]}",
                part="gpu",
                evidence=f"{evidence}; among its devices: {describe(accusation)}",
                next_step="Have the device and its slot looked at",
            )
        for accusation in inside.links:
            one, other = (f"{host}/gpu/{member}" for member in accusation.members)
            yield Blamed(
                subject=f"link/{one}>{other}",
                part="link",
                evidence=f"{evidence}; among its devices: {describe(accusation)}",
                next_step="Look at the links between these devices (nvidia-smi topo -m, nvlink -s)",
            )
        return
    if inside is not None and not inside.undecided:
        alike = f"its {len(inside.cleared)} devices are alike among themselves"
        step = f"Look at the NIC of {host}, its cable and its port; then at what its processors do"
        yield Blamed(subject=f"host/{host}", part="nic", evidence=f"{evidence}; {alike}", next_step=step)
        return
    yield Blamed(
        subject=f"host/{host}",
        part="host",
        evidence=f"{evidence}; this does not separate the host from its NIC",
        next_step=f"Look at the NIC of {host} and its port, at its clocks, and at what else it does",
    )


def describe(accusation: Finding) -> str:
    """Say in which tests somebody was slow, and by how much.

    >>> from gpuproof.verdict.blame.evidence import Group
    >>> from gpuproof.verdict.blame.findings import GroupTest
    >>> test = GroupTest(round=0, group=Group(("a", "b")), value=80.0, level=100.0)
    >>> describe(Finding(members=("a",), slower_by=0.2, directions=(), tests=(test,)))
    'a: 20 % slower than good ones; of 1 test with it all 1 were slow, in pairs with b'
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
    return f"{who}: {how}; of {count} test{'s' * (count > 1)} with it {share} were slow{pairs}"
