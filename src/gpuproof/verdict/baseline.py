"""A fleet's own results: recorded from runs, stored with their software stack, used for comparison.

Input: results of runs and what their hosts reported about themselves. Output: a `Baseline` (JSON with a
schema version), with separate values for every subject and day: both a subject's own history and the fleet's.
A baseline that was recorded with another driver, torch, NCCL, GPU model or clocks does not match: it is
rejected, and the keys that differ are listed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from gpuproof.base.errors import UsageError
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import SubjectKind, kind_of
from gpuproof.records.result import Measure, Validity
from gpuproof.records.run import Setup
from gpuproof.statistics.prediction import (
    DAY_EFFECT,
    HealthySpread,
    Repeatability,
    repeatability_of,
    spread_of,
)

BASELINE_SCHEMA_VERSION = 2
"""1 (2026-11): first version. 2 (2026-11): added the day of each value, and which runs were SUSPECT."""
STACK = ("gpu", "driver", "torch", "cuda", "nccl", "clocks", "power_limit_w", "mig", "ecc")
"""The conditions that a baseline's values apply to."""
WEIGHTS, WHOLE_WEIGHTS = "weights", "float32"
"""Data type assumed for the weights of inference models if a stack does not record it, as in older
versions."""
PCIE = "pcie"
"""Additional conditions for links to the host: their generation and width."""
SEVERAL = " and "
UNKNOWN = "unknown"
"""Placeholder for a key that another host reports and this one does not."""
EntryKey = tuple[str, tuple[tuple[str, str], ...], SubjectKind]
"""Name, labels and kind of subject of a measure."""
INFERS = ("inference", "serving")
UNCOMPARED = frozenset(("digest", "round", "device", "host"))
"""Labels that say which instance was measured, not what was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineValue:
    """Measurements from one run for one subject."""

    run_id: str
    subject: str
    value: float
    day: str | None = None
    """The UTC day on which the run started. Runs on the same day are one session, and so are all runs of
    unknown date."""
    low: float | None = None
    """The ends of its interval; None if it has no interval."""
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEntry:
    """All values of one measure."""

    name: str
    labels: Mapping[str, Any]
    kind: SubjectKind
    """Kind of its subjects."""
    unit: str
    figures: tuple[BaselineValue, ...]

    def __post_init__(self) -> None:
        if not self.figures:
            raise ValueError(f"{self.name} has no values")

    def sessions(self) -> dict[str, dict[str, list[float]]]:
        """Return the values by subject (a GPU by its UUID, on whichever host it is) and by day."""
        sessions: dict[str, dict[str, list[float]]] = {}
        for figure in self.figures:
            of_subject = sessions.setdefault(identity_of(figure.subject), {})
            of_subject.setdefault(figure.day or "", []).append(figure.value)
        return sessions

    def spread(self) -> HealthySpread | None:
        """Return the centre and spread across subjects; None if there are too few."""
        return spread_of([[*chain(*days.values())] for days in self.sessions().values()])

    def repeatability(self, *, day: float) -> Repeatability | None:
        """Return how repeatable its values are, or None without repeated runs; `day` is its day effect."""
        return repeatability_of(list(self.sessions().values()), day=day)

    @property
    def centre(self) -> float:
        """Mean of all values."""
        return sum(figure.value for figure in self.figures) / len(self.figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A fleet's own results, together with their software stack."""

    schema_version: int = BASELINE_SCHEMA_VERSION
    name: str
    recorded: str
    """The day it was recorded, in UTC."""
    gpuproof_version: str
    runs: tuple[str, ...]
    suspect: tuple[str, ...] = ()
    """Runs of this baseline that are SUSPECT."""
    day_effect: float = DAY_EFFECT
    """How much sessions differ, as a fraction; used to the extent that the recorded days do not show it."""
    stack: Mapping[str, str | None]
    entries: tuple[BaselineEntry, ...] = field(default_factory=tuple)

    def by_key(self) -> dict[EntryKey, BaselineEntry]:
        """Return the entries by their key."""
        return {entry_key(entry.name, entry.labels, entry.kind): entry for entry in self.entries}


def identity_of(subject: str) -> str:
    """Return what identifies a subject: for a GPU, its UUID if it has one, on whichever host it is.

    >>> identity_of("host/a/gpu/GPU-7f"), identity_of("host/a/gpu/0"), identity_of("host/a")
    ('gpu/GPU-7f', 'host/a/gpu/0', 'host/a')
    """
    _, separator, gpu = subject.partition("/gpu/")
    by_uuid = kind_of(subject) == "gpu" and not gpu.removeprefix("cpu-").isdigit()
    return f"gpu/{gpu}" if separator and by_uuid else subject


def entry_key(name: str, labels: Mapping[str, Any], kind: SubjectKind) -> EntryKey:
    """Return what identifies an entry; the same measure has the same key on two devices."""
    compared = sorted((key, str(value)) for key, value in labels.items() if key not in UNCOMPARED)
    return name, tuple(compared), kind


def key_of(measure: Measure) -> EntryKey:
    """Return the key of the baseline entry that corresponds to a measure."""
    return entry_key(measure.name, measure.labels, kind_of(measure.subject))


def stack_of(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the stack of these hosts; an unreported key is None, and multiple values are joined."""
    stacks = [_stack_of_host(facts) for facts in hosts.values()]
    return {key: _common_value({host[key] for host in stacks}) for key in (*STACK, PCIE)}


def stack_of_run(
    hosts: Mapping[str, Mapping[str, Any]], launches: Sequence[CaseRecords]
) -> dict[str, str | None]:
    """Return the stack of a run's values: its hosts' stack, plus the weights' type unless it is fp32."""
    setups = [s for launch in launches if launch.case.kind in INFERS for s in launch.of(Setup)]
    types = {setup.options.weights for setup in setups if setup.options and setup.options.weights}
    return {**stack_of(hosts), **({} if types <= {WHOLE_WEIGHTS} else {WEIGHTS: ", ".join(sorted(types))})}


def _common_value(values: Collection[str | None]) -> str | None:
    if not any(values):
        return None
    return SEVERAL.join(sorted(str(value or UNKNOWN) for value in values))


def _stack_of_host(facts: Mapping[str, Any]) -> dict[str, str | None]:
    devices = facts.get("devices") or []
    listed = (facts.get("accelerators") or {}).get("devices") or []
    static = [device.get("static") or {} for device in listed]
    drivers = (facts.get("accelerators") or {}).get("drivers") or {}
    versions = {
        f"{vendor} {driver['version']}" for vendor, driver in drivers.items() if driver.get("version")
    }
    return {
        "gpu": _joined(device.get("name") for device in devices),
        "driver": _joined(versions) or facts.get("driver"),
        "torch": facts.get("torch"),
        "cuda": facts.get("torch_cuda") or facts.get("torch_hip"),
        "nccl": facts.get("nccl"),
        "clocks": _joined(_text(fields, "clock_sm_application_mhz") for fields in static),
        "power_limit_w": _joined(_text(fields, "power_limit_w") for fields in static),
        "mig": _joined(_text(fields, "mig_mode") for fields in static),
        "ecc": _joined(_text(fields, "ecc_mode") for fields in static),
        PCIE: _joined(_pcie(device) for device in listed),
    }


def _pcie(device: Mapping[str, Any]) -> str | None:
    """Return the maximum PCIe generation (the current one drops at idle) and the lanes in use."""
    generation = (device.get("static") or {}).get("pcie_gen_max")
    width = (device.get("state") or {}).get("pcie_width")
    return None if None in (generation, width) else f"gen {generation:g} x{width:g}"


def _text(static: Mapping[str, Any], fact: str) -> str | None:
    value = static.get(fact)
    return f"{value:g}" if isinstance(value, (int, float)) else value


def _joined(values: Any) -> str | None:
    return SEVERAL.join(sorted({str(value) for value in values if value is not None})) or None


def differing_keys(one: Mapping[str, str | None], other: Mapping[str, str | None]) -> list[str]:
    """List each stack key that differs, with both values; a key missing on one side differs, too."""
    absent = {**dict.fromkeys(STACK, UNKNOWN), WEIGHTS: WHOLE_WEIGHTS}
    pairs = ((key, one.get(key) or nothing, other.get(key) or nothing) for key, nothing in absent.items())
    return [f"{key}: {value} against {beside}" for key, value, beside in pairs if value != beside]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunValues:
    """The data that a baseline uses from one run."""

    run_id: str
    measures: Sequence[Measure]
    stack: Mapping[str, str | None]
    day: str | None = None
    """The day on which it started, in UTC."""
    validity: Validity | None = None


def record_baseline(
    name: str,
    runs: Sequence[RunValues],
    *,
    recorded: str,
    gpuproof_version: str,
    day_effect: float = DAY_EFFECT,
) -> Baseline:
    """Return the values that runs measured, by subject.

    Raises:
        UsageError: runs, or hosts in one run, had different stacks, a run is INVALID, or nothing was
            measured.
    """
    for run in runs:
        _refuse_different(runs[0], run)
        if run.validity == "INVALID":
            raise UsageError("it is INVALID: no value can be trusted", place=run.run_id, next_step="Omit it")
    entries: dict[EntryKey, list[tuple[Measure, BaselineValue]]] = {}
    for run in runs:
        for measure in run.measures:
            if measure.value is not None and measure.validity != "INVALID":
                entries.setdefault(key_of(measure), []).append((measure, _as_value(run, measure)))
    if not entries:
        raise UsageError("the runs measured nothing", place=", ".join(run.run_id for run in runs))
    return Baseline(
        name=name,
        recorded=recorded,
        gpuproof_version=gpuproof_version,
        runs=tuple(run.run_id for run in runs),
        suspect=tuple(run.run_id for run in runs if run.validity == "SUSPECT"),
        day_effect=day_effect,
        stack=dict(runs[0].stack),
        entries=tuple(_entry(key, measured) for key, measured in entries.items()),
    )


def _refuse_different(first: RunValues, run: RunValues) -> None:
    mixed = [key for key, value in run.stack.items() if value and SEVERAL in value]
    if mixed:
        differences = ", ".join(f"{key} ({run.stack[key]})" for key in mixed)
        raise UsageError(
            f"its hosts or GPUs differ in {differences}",
            place=run.run_id,
            next_step="Record a separate baseline for each kind, using only runs on that kind",
        )
    unlike = differing_keys(run.stack, first.stack)
    if unlike:
        raise UsageError(
            f"unlike {first.run_id}: {'; '.join(unlike)}",
            place=run.run_id,
            next_step="Record a separate baseline for it",
        )


def _as_value(run: RunValues, measure: Measure) -> BaselineValue:
    assert measure.value is not None
    interval = measure.interval
    return BaselineValue(
        run_id=run.run_id,
        subject=measure.subject,
        value=measure.value,
        day=run.day,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
    )


def _entry(key: EntryKey, measured: Sequence[tuple[Measure, BaselineValue]]) -> BaselineEntry:
    first = measured[0][0]
    return BaselineEntry(
        name=first.name,
        labels={name: value for name, value in first.labels.items() if name not in UNCOMPARED},
        kind=key[2],
        unit=first.unit,
        figures=tuple(figure for _, figure in measured),
    )
