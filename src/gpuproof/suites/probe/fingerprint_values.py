"""Which device gives other bits than the rest? Digests of the same work, compared by majority.

Devices are compared where model and software are the same: others may add up in another order and both be
right. Of a kind of work, what more than half of the devices give in more than half of their rounds is taken
as right. Where there is no such digest (two devices that differ, one alone) nobody can say who is wrong, but
a device that gives different bits from round to round contradicts itself, and one that is wrong in other work
is not asked. One alone that gives the same bits in every round repeats itself: whether they are right says a
product that was compared with the host's.

>>> one, two = (Fingerprint(subject=s, kind="A", work="gemm", round_number=0, digest=d)
...             for s, d in (("host/a/gpu/0", "x"), ("host/a/gpu/1", "y")))
>>> [found.verdict for found in compare_fingerprints([one, two]).devices]
['cannot tell', 'cannot tell']
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuproof.base.groups import grouped, majority

DeviceVerdict = Literal[
    "agrees", "always wrong", "sometimes wrong", "contradicts itself", "cannot tell", "repeats itself"
]
GRAVEST: tuple[DeviceVerdict, ...] = (
    "always wrong",
    "sometimes wrong",
    "contradicts itself",
    "cannot tell",
    "repeats itself",
    "agrees",
)
WRONG: tuple[DeviceVerdict, ...] = GRAVEST[:3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """One digest of one device."""

    subject: str
    kind: str
    """Model of the device and software: only alike ones are compared."""
    work: str
    """What was done: the same work gives the same bits in every round."""
    round_number: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFingerprints:
    """What all digests of one device come to."""

    subject: str
    kind: str
    verdict: DeviceVerdict
    num_compared: int
    """Digests that stood against a majority."""
    num_wrong: int | None
    """Of them those that differ; None where there was no majority."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintsCompared:
    """All devices, and how many disagree in each round of each kind of work."""

    devices: tuple[DeviceFingerprints, ...]
    disagreeing: Mapping[tuple[str, str, int], int | None]
    """By kind, work and round; None where there is no majority."""
    differing: tuple[str, ...]
    """Kinds of device within which results differ and nobody can say whose are wrong."""


def compare_fingerprints(prints: Iterable[Fingerprint]) -> FingerprintsCompared:
    """Compare the digests of all devices of all hosts."""
    groups = grouped(((record.kind, record.work), record) for record in prints)
    right = {key: _majority(group) for key, group in groups.items()}
    trusted = _without_wrong(groups, right)
    right |= {key: _majority(group) for key, group in trusted.items() if right[key] is None}
    disagreeing: dict[tuple[str, str, int], int | None] = {}
    for (kind, work), group in groups.items():
        for number in sorted({record.round_number for record in group}):
            digests = [record.digest for record in group if record.round_number == number]
            reference = right[kind, work]
            wrong = None if reference is None else sum(digest != reference for digest in digests)
            disagreeing[kind, work, number] = wrong
    by_device: dict[tuple[str, str], list[Fingerprint]] = {}
    for group in groups.values():
        for record in group:
            by_device.setdefault((record.kind, record.subject), []).append(record)
    shared: dict[str, set[str]] = {kind: set() for kind, _ in by_device}
    for (kind, work), group in trusted.items():
        if len(_by_subject(group)) > 1:
            shared[kind].add(work)
    devices = tuple(
        _judge(of_device, right, shared=shared[kind], num_alike=len({s for k, s in by_device if k == kind}))
        for (kind, _), of_device in sorted(by_device.items())
    )
    undecided = [key for key, group in trusted.items() if right[key] is None and _differ(group)]
    return FingerprintsCompared(
        devices=devices,
        disagreeing=disagreeing,
        differing=tuple(dict.fromkeys(kind for kind, _ in undecided)),
    )


def _without_wrong(
    groups: Mapping[tuple[str, str], Sequence[Fingerprint]], right: Mapping[tuple[str, str], str | None]
) -> dict[tuple[str, str], list[Fingerprint]]:
    """Leave devices out that are wrong in one kind of work where another has no majority."""
    wrong = {
        (record.kind, record.subject)
        for key, group in groups.items()
        for record in group
        if right[key] not in (None, record.digest)
    }
    return {
        key: [
            record for record in group if right[key] is not None or (record.kind, record.subject) not in wrong
        ]
        for key, group in groups.items()
    }


def _by_subject(group: Iterable[Fingerprint]) -> dict[str, list[str]]:
    return grouped((one.subject, one.digest) for one in group)


def _majority(group: Sequence[Fingerprint]) -> str | None:
    """Return what more than half of at least two devices give in more than half of their rounds."""
    devices = _by_subject(group)
    return None if len(devices) < 2 else majority([majority(digests) for digests in devices.values()])


def _differ(group: Iterable[Fingerprint]) -> bool:
    return len(_by_subject(group)) > 1 and len({record.digest for record in group}) > 1


def _judge(
    prints: Sequence[Fingerprint],
    right: Mapping[tuple[str, str], str | None],
    *,
    shared: Collection[str],
    num_alike: int,
) -> DeviceFingerprints:
    judged = [
        (record, reference) for record in prints if (reference := right[record.kind, record.work]) is not None
    ]
    num_wrong = sum(record.digest != reference for record, reference in judged)
    works = grouped((record.work, record) for record in prints)
    verdict = min(_verdicts(works.values(), right, shared), key=GRAVEST.index)
    if verdict == "cannot tell" and num_alike == 1 and all(len(rounds) > 1 for rounds in works.values()):
        verdict = "repeats itself"
    return DeviceFingerprints(
        subject=prints[0].subject,
        kind=prints[0].kind,
        verdict=verdict,
        num_compared=len(judged),
        num_wrong=num_wrong if judged else None,
        reason=_reason(verdict, num_wrong, len(judged), num_alike),
    )


def _verdicts(
    works: Iterable[Sequence[Fingerprint]],
    right: Mapping[tuple[str, str], str | None],
    shared: Collection[str],
) -> list[DeviceVerdict]:
    """Judge each work; one that no other device did says nothing beside those that others did, too."""
    of_works = {prints[0].work: _of_work(prints, right[prints[0].kind, prints[0].work]) for prints in works}
    decisive = [
        verdict for work, verdict in of_works.items() if work in shared or verdict == "contradicts itself"
    ]
    return decisive or list(of_works.values())


def _of_work(prints: Sequence[Fingerprint], reference: str | None) -> DeviceVerdict:
    digests = {record.digest for record in prints}
    if reference is None:
        return "contradicts itself" if len(digests) > 1 else "cannot tell"
    if reference not in digests:
        return "always wrong"
    return "agrees" if len(digests) == 1 else "sometimes wrong"


def _reason(verdict: DeviceVerdict, num_wrong: int, num_compared: int, num_alike: int) -> str:
    if verdict == "repeats itself":
        return "the same work gave it the same bits in every round"
    if verdict == "contradicts itself":
        return "the same work gave it different bits from round to round"
    if verdict == "cannot tell" and num_alike == 1:
        return (
            "no other device of this model and software took part, so there is nothing to compare its "
            "results with"
        )
    if verdict == "cannot tell":
        return f"no digest has a majority among {num_alike} devices of this model and software"
    return f"{num_wrong} of {num_compared} results differ from those of most of {num_alike} devices"
