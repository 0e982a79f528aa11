"""Digests of all devices on all hosts, compared by majority vote: measures, outcomes, warnings.

Devices are compared only if their model and software are the same: other devices may sum in a different
order, and both results may be right. For each workload, the digest that more than half of the devices produce
in more than half of their rounds is taken as correct. If there is no such digest (two devices that differ, or
only one device), it is impossible to say which device is wrong. However, a device with bits that change from
round to round contradicts itself, and a device that is wrong in another workload is excluded. A single device
with the same bits in every round is consistent with itself; comparing a matmul with the host's result
determines whether they are correct.

>>> one, two = (Fingerprint(subject=s, kind="A", work="gemm", round_number=0, digest=d)
...             for s, d in (("host/a/gpu/0", "x"), ("host/a/gpu/1", "y")))
>>> [found.verdict for found in compare_fingerprints([one, two]).devices]
['cannot tell', 'cannot tell']
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuproof.base.groups import grouped, majority
from gpuproof.launches.probes import FINGERPRINT, WRONG_VALUES, ProbeLaunch, ProbeValue
from gpuproof.records.outcome import Judged, pass_or_fail, skipped
from gpuproof.records.result import WHOLE, Doubt, Measure
from gpuproof.verdict.doubts.base import WRONG as WRONG_RESULTS
from gpuproof.verdict.doubts.base import invalid

MORE_ROUNDS = "Run it again, with at least two rounds (probe.fingerprint.rounds)"
SOURCE = "same seed, same work, same device model and software: the same bits"
ROUNDS_OF_A_LAUNCH = 10**5
"""Upper bound on the number of rounds per launch, so that rounds of several launches have distinct
numbers."""
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
class FingerprintFindings:
    """Results based on a run's digests; empty if no digests were computed."""

    measures: tuple[Measure, ...] = ()
    outcomes: tuple[Judged, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    headline: str = ""


def conclude_fingerprints(launches: Sequence[ProbeLaunch]) -> FingerprintFindings:
    """Compare the digests of all launches; replicates count as additional rounds."""
    taken = [
        (launch, value)
        for launch in launches
        for value in launch.values
        if value.quantity == FINGERPRINT and value.missing is None
    ]
    if not taken:
        return FingerprintFindings()
    prints = [_print(launch, value) for launch, value in taken]
    compared = compare_fingerprints(prints)
    checked = {
        value.subject
        for launch in launches
        for value in launch.values
        if value.quantity == WRONG_VALUES and value.value is not None
    }
    wrong = [device for device in compared.devices if device.verdict in WRONG]
    values = [value for _, value in taken]
    return FingerprintFindings(
        measures=(*_device_measures(compared), *_round_measures(values, prints, compared)),
        outcomes=(
            *_undecided(compared),
            *(_outcome(device, is_checked=device.subject in checked) for device in compared.devices),
        ),
        doubts=tuple(_doubts(compared, wrong)),
        headline=_headline(compared, wrong),
    )


def _print(launch: ProbeLaunch, value: ProbeValue) -> Fingerprint:
    labels = value.labels
    return Fingerprint(
        subject=value.subject,
        kind=f"{value.device_name}, {labels['stack']}",
        work=f"{labels['workload']} in {labels['dtype']}" + _width(labels),
        round_number=launch.records.case.replicate * ROUNDS_OF_A_LAUNCH + labels["round"],
        digest=labels["digest"],
    )


def _width(labels: Mapping[str, Any]) -> str:
    """Return the matrix width as text; it is missing in records from earlier releases."""
    return f", {labels['edge']} wide" if "edge" in labels else ""


def _device_measures(compared: FingerprintsCompared) -> Iterator[Measure]:
    """For each device, yield how many of its digests differ from the majority."""
    for device in compared.devices:
        yield Measure(
            name=WRONG_VALUES,
            value=None if device.num_wrong is None else float(device.num_wrong),
            unit="1",
            text=_counted(device),
            detail=f"{device.verdict}: {device.reason}",
            subject=device.subject,
            statistic="sum",
            labels={"pattern": FINGERPRINT, "digests": device.num_compared},
            better="lower",
            num_samples=device.num_compared,
            missing=device.reason if device.num_wrong is None else None,
        )


def _counted(device: DeviceFingerprints) -> str:
    if device.num_wrong is not None:
        return f"{device.num_wrong} wrong digests"
    return "the same in every round" if device.verdict == "repeats itself" else "cannot be compared"


def _round_measures(
    values: Sequence[ProbeValue], prints: Sequence[Fingerprint], compared: FingerprintsCompared
) -> Iterator[Measure]:
    """Yield each digest, with the number of devices that disagree with the majority in its round."""
    for value, fingerprint in zip(values, prints, strict=True):
        disagree = compared.disagreeing[fingerprint.kind, fingerprint.work, fingerprint.round_number]
        labels = {key: label for key, label in value.labels.items() if key != "stack"}
        yield Measure(
            name=FINGERPRINT,
            value=None if disagree is None else float(disagree),
            unit="1",
            text=fingerprint.digest,
            subject=fingerprint.subject,
            labels=labels,
            better="lower",
            missing="no digest has a majority" if disagree is None else None,
        )


def _outcome(device: DeviceFingerprints, *, is_checked: bool) -> Judged:
    """Check a device; a single device's matmuls must also be compared with the host's (`is_checked`)."""
    is_alone = device.verdict == "repeats itself"
    if device.verdict == "cannot tell" or (is_alone and not is_checked):
        reason = f"{device.reason}, and none of its products was compared with the host's"
        outcome = skipped(reason if is_alone else device.reason, MORE_ROUNDS, device.subject)
    else:
        outcome = pass_or_fail(
            device.subject,
            device.verdict not in WRONG,
            f"{device.verdict}: {device.reason}",
            expected="the same bits in every round" if is_alone else "the bits produced by most devices",
            source=SOURCE,
            next_step="Take the device out of service and send these records to its vendor",
            responsible="vendor",
        )
    return Judged(name=FINGERPRINT, outcome=outcome)


def _undecided(compared: FingerprintsCompared) -> Iterator[Judged]:
    """Report devices that differ if it is unclear which of them is wrong: they fail together."""
    for kind in compared.differing:
        outcome = pass_or_fail(
            WHOLE,
            False,
            f"devices differ, and no result has a majority ({kind})",
            expected="the same bits from all devices",
            source=SOURCE,
            next_step="Run it with a third device of the same model and software",
            responsible="user",
        )
        yield Judged(name=FINGERPRINT, outcome=outcome)


def _doubts(compared: FingerprintsCompared, wrong: Sequence[DeviceFingerprints]) -> Iterator[Doubt]:
    if wrong:
        named = ", ".join(f"{device.subject} ({device.verdict})" for device in wrong)
        yield invalid(
            WRONG_RESULTS,
            f"{len(wrong)} of {len(compared.devices)} devices produce wrong results: {named}",
            "Take them out of service and send these records to their vendor",
        )
    elif compared.differing:
        yield invalid(
            WRONG_RESULTS,
            "devices of the same model and software differ, and which of them is wrong cannot be determined",
            "Run it with a third device of the same model and software",
        )


def _headline(compared: FingerprintsCompared, wrong: Sequence[DeviceFingerprints]) -> str:
    devices = len(compared.devices)
    if wrong:
        return f"{len(wrong)} of {devices} devices wrong"
    unknown = sum(device.verdict == "cannot tell" for device in compared.devices)
    if unknown:
        return f"{unknown} of {devices} devices could not be compared"
    if devices == 1:
        return "one device produces the same bits in every round"
    return f"{devices} devices produce the same bits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """One digest of one device."""

    subject: str
    kind: str
    """Device model and software; only devices of the same kind are compared."""
    work: str
    """The workload, which should produce the same bits in every round."""
    round_number: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFingerprints:
    """Summary of one device's digests."""

    subject: str
    kind: str
    verdict: DeviceVerdict
    num_compared: int
    """Number of digests that could be compared with a majority."""
    num_wrong: int | None
    """Number of these digests that differ; None if there was no majority."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintsCompared:
    """Results for all devices, and how many of them disagree in each round of each workload."""

    devices: tuple[DeviceFingerprints, ...]
    disagreeing: Mapping[tuple[str, str, int], int | None]
    """Number of devices that disagree, by kind, workload and round; None if there is no majority."""
    differing: tuple[str, ...]
    """Device kinds with differing results for which it is unclear which devices are wrong."""


def compare_fingerprints(prints: Iterable[Fingerprint]) -> FingerprintsCompared:
    """Compare the digests of all devices on all hosts."""
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
    """Exclude devices that are wrong in another workload from workloads without a majority."""
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
    """Return the digest that most devices (of at least two) produce in most of their rounds."""
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
    """Evaluate each kind of work; work that only this device did is ignored if it also did shared work."""
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
        return "the same work produced the same bits in every round"
    if verdict == "contradicts itself":
        return "the same work produced different bits from round to round"
    if verdict == "cannot tell" and num_alike == 1:
        return (
            "no other device of this model and software took part, so there is nothing to compare "
            "the results with"
        )
    if verdict == "cannot tell":
        return f"no digest has a majority among {num_alike} devices of this model and software"
    return f"{num_wrong} of {num_compared} results differ from those of most of the {num_alike} devices"
