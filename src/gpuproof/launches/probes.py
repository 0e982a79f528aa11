"""The results of a probe launch: the subject, the value, and what it was measured from.

A rate is the total amount processed in all repeats divided by their total time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gpuproof.launches.launch import Launch, summarize_launch, throughput
from gpuproof.launches.subjects import RankSubjects, device_subject, link_subject, subjects_of_ranks
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Device
from gpuproof.records.work.probe import ProbeReading

WRONG_VALUES = "wrong values"
FINGERPRINT = "fingerprint"
EXPOSED = "exposed communication"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeValue:
    """A single result of a single launch."""

    quantity: str
    subject: str
    unit: str
    labels: Mapping[str, Any]
    value: float | None
    durations_s: tuple[float, ...] = ()
    missing: str | None = None
    is_inapplicable: bool = False
    evidence: tuple[str, ...] = ()
    device_name: str = ""
    """Name of the device that the result describes; empty for the rank's own device."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Key that distinguishes the result from all others of its launch; the same in every launch."""
        return self.quantity, self.subject, tuple(sorted(self.labels.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLaunch:
    """A probe launch that finished normally."""

    records: CaseRecords
    launch: Launch | None
    """None if nothing was done because the probe does not apply there."""
    values: tuple[ProbeValue, ...]


def summarize_probe(records: CaseRecords) -> ProbeLaunch | None:
    """Return a launch's results; None if it did not finish normally, or has no window."""
    if records.status != "done" or not records.windows:
        return None
    windows = sorted(records.windows, key=lambda window: window.rank)
    setups = sorted(records.setups, key=lambda setup: setup.rank)
    ranks = subjects_of_ranks(records.case, windows, setups)
    values = [
        _value(figure, ranks[figure.rank], setups[figure.rank].device) for figure in records.of(ProbeReading)
    ]
    return ProbeLaunch(records=records, launch=summarize_launch(records), values=(*values, *_exposed(values)))


def _value(figure: ProbeReading, rank: RankSubjects, device: Device) -> ProbeValue:
    return ProbeValue(
        quantity=figure.quantity,
        subject=_subject(figure, rank),
        unit=figure.unit,
        labels=figure.labels,
        value=value_of(figure),
        durations_s=figure.durations_s,
        missing=figure.missing,
        is_inapplicable=figure.is_inapplicable,
        evidence=figure.evidence,
        device_name=(figure.device or device).name,
    )


def value_of(figure: ProbeReading) -> float | None:
    """Return the given value, or else the rate or mean time of the repeats; None if there is neither."""
    if figure.value is not None or not figure.durations_s:
        return figure.value
    if figure.amount is None:
        return fmean(figure.durations_s)
    return throughput(figure.amount * len(figure.durations_s), sum(figure.durations_s))


def _subject(figure: ProbeReading, rank: RankSubjects) -> str:
    def end(device: Device | None) -> str:
        return rank.host if device is None else device_subject(rank.host, device, local_rank=0)

    if figure.source is not None or figure.target is not None:
        return link_subject(end(figure.source), end(figure.target))
    if figure.is_of_host:
        return rank.host
    return rank.device if figure.device is None else end(figure.device)


def _exposed(values: list[ProbeValue]) -> Iterator[ProbeValue]:
    """Yield per device: time that communication adds to compute, and hidden fraction of communication."""
    times: dict[str, dict[str, ProbeValue]] = {}
    for value in values:
        if value.quantity == "time" and "of" in value.labels:
            times.setdefault(value.subject, {})[value.labels["of"]] = value
    for subject, times_of_subject in times.items():
        alone, compute, both = (times_of_subject.get(of) for of in ("communication", "compute", "both"))
        if alone is None or compute is None or both is None or not alone.value:
            continue
        exposed_s = (both.value or 0.0) - (compute.value or 0.0)
        labels = {key: value for key, value in both.labels.items() if key != "of"}
        evidence = "time for both together minus compute alone; with a fast link it can be below 0 by chance"
        for quantity, unit, amount in (
            (EXPOSED, "s", exposed_s),
            ("hidden communication", "share", 1 - exposed_s / alone.value),
        ):
            yield ProbeValue(
                quantity=quantity,
                subject=subject,
                unit=unit,
                labels=labels,
                value=amount,
                evidence=(evidence,),
                device_name=both.device_name,
            )
