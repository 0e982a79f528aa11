"""Digests of all devices of all hosts, compared: measures, outcomes and doubts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuproof.launches.probes import FINGERPRINT, WRONG_VALUES, ProbeLaunch, ProbeValue
from gpuproof.records.outcome import Judged, pass_or_fail, skipped
from gpuproof.records.result import WHOLE, Doubt, Measure
from gpuproof.suites.probe.fingerprint_values import (
    WRONG,
    DeviceFingerprints,
    Fingerprint,
    FingerprintsCompared,
    compare_fingerprints,
)
from gpuproof.verdict.doubts.base import WRONG as WRONG_RESULTS
from gpuproof.verdict.doubts.base import invalid

MORE_ROUNDS = "Run it again, with at least two rounds (probe.fingerprint.rounds)"
SOURCE = "same seed, same work, same model of device and software: the same bits"


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintFindings:
    """What the digests of a run come to; nothing where none were taken."""

    measures: tuple[Measure, ...] = ()
    outcomes: tuple[Judged, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    headline: str = ""


def conclude_fingerprints(launches: Sequence[ProbeLaunch]) -> FingerprintFindings:
    """Compare the digests of all launches; replicates count as further rounds."""
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
    """Return the width of the matrices, which records of earlier releases do not tell."""
    return f", {labels['edge']} wide" if "edge" in labels else ""


ROUNDS_OF_A_LAUNCH = 10**5
"""More rounds than a launch may have, so that rounds of several launches are told apart."""


def _device_measures(compared: FingerprintsCompared) -> Iterator[Measure]:
    """Yield of each device how many of its digests differ from the majority's."""
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
    """Judge a device; of one alone its products have to be compared with the host's, too (`is_checked`)."""
    is_alone = device.verdict == "repeats itself"
    if device.verdict == "cannot tell" or (is_alone and not is_checked):
        reason = f"{device.reason}, and none of its products was compared with the host's"
        outcome = skipped(reason if is_alone else device.reason, MORE_ROUNDS, device.subject)
    else:
        outcome = pass_or_fail(
            device.subject,
            device.verdict not in WRONG,
            f"{device.verdict}: {device.reason}",
            expected="the same bits in every round" if is_alone else "the bits that most devices give",
            source=SOURCE,
            next_step="Take the device out of service and send these records to its vendor",
            responsible="vendor",
        )
    return Judged(name=FINGERPRINT, outcome=outcome)


def _undecided(compared: FingerprintsCompared) -> Iterator[Judged]:
    """Say that devices differ of which nobody knows who is wrong: that is a failure of them together."""
    for kind in compared.differing:
        outcome = pass_or_fail(
            WHOLE,
            False,
            f"devices differ, and none of their results has a majority ({kind})",
            expected="the same bits from all of them",
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
            f"{len(wrong)} of {len(compared.devices)} devices give wrong results: {named}",
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
        return "one device gives the same bits in every round"
    return f"{devices} devices give the same bits"
