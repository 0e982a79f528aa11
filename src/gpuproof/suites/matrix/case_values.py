"""Collect a launch's results as numbers: time, memory, energy, and its own output.

The input is the records of a launch and the recording made during it. The output is `CaseValues`. Memory and
energy are for the case alone, or are missing with a reason. If several cases share a device, memory comes
from the driver's process list and the case's own process tree, and energy cannot be attributed to a single
case.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from gpuproof.config.matrix import Assignment
from gpuproof.config.models import RunConfig
from gpuproof.hardware.boards import find_memory_peak, find_peak
from gpuproof.launches.launch import Launch, summarize_launch
from gpuproof.launches.limits import limits_of
from gpuproof.launches.point_measures import STEPS, THROUGHPUT
from gpuproof.processes.start import exit_status
from gpuproof.readings.evidence import Evidence, MissingReadings, WindowReadings
from gpuproof.readings.limits import LaunchLimits, limits_of_readings
from gpuproof.readings.recording import RecordingData
from gpuproof.readings.series import mean_over_time
from gpuproof.records.case import DeviceTaken
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Start
from gpuproof.records.work.command import CommandEnded, CommandMetrics, CommandStarted, ProcessTree
from gpuproof.suites.matrix.plan import kind_of, seconds_taken

SCHEDULES = ("sparsity", "learning_rate")
"""Time series that are compared between configurations."""
NO_DEVICE = "no GPU was recorded during the case"
SHARED = "other cases ran on the case's GPU, and the energy covers all of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Memory in bytes during a launch, and what it includes; or the reason why it is unknown."""

    basis: str = ""
    peak_bytes: float | None = None
    mean_bytes: float | None = None
    missing: str | None = None
    course: tuple[tuple[float, float], ...] = ()
    """Pairs of a time in seconds since the start of the launch, and the number of bytes from that time on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseValues:
    """One launch of one case."""

    case_id: str
    replicate: int
    configuration: str
    """Name of the case's configuration, which does not include its seed."""
    assignment: Assignment
    status: str
    failure: str | None
    exit_status: int | None
    """Exit status of the command; None if there was no command, or if it did not start."""
    wall_s: float | None
    metrics: Mapping[str, float]
    metrics_missing: str | None
    schedules: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    memory: Amount
    """Memory in use on the case's device."""
    resident: Amount
    """Host memory of the case's processes."""
    energy_j: float | None
    energy_missing: str | None
    devices: tuple[str, ...]
    host: str | None
    began_unix_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The host on which a launch ran, with its start and end on that host's monotonic clock."""

    host: str
    begin_s: float
    end_s: float
    pids: frozenset[int]


def shown_memory(cases: Iterable[CaseValues]) -> Callable[[CaseValues], Amount]:
    """Return the memory to plot or rank by: device memory if any case reports it, else resident."""
    has_device = any(case.memory.peak_bytes is not None for case in cases)
    return attrgetter("memory" if has_device else "resident")


def case_values(records: CaseRecords, evidence: Evidence, assignment: Assignment) -> CaseValues:
    """Collect all known values of one launch."""
    config: RunConfig = evidence.config
    case, failure = records.case, records.primary_failure
    launch, span = summarize_launch(records), _span(records)
    recording = None if span is None else evidence.recording(case, span.host)
    metrics, missing = _metrics(records, launch)
    energy_j, energy_missing = _energy(records, evidence, span, recording)
    ended = next(iter(records.of(CommandEnded)), None)
    started = next(iter(records.of(Start)), None)
    return CaseValues(
        case_id=case.case_id,
        replicate=case.replicate,
        configuration=kind_of(assignment, config),
        assignment=assignment,
        status=records.status,
        failure=None
        if records.status == "done" or failure is None
        else f"{failure.cause}: {failure.message}",
        exit_status=None if ended is None else exit_status(ended.returncode),
        wall_s=ended.wall_s if ended is not None else seconds_taken(records),
        metrics=metrics,
        metrics_missing=missing,
        schedules={
            name: metrics.series[name]
            for metrics in records.of(CommandMetrics)
            for name in SCHEDULES
            if name in metrics.series
        },
        memory=_memory(records, launch, span, recording),
        resident=_resident(records, span),
        energy_j=energy_j,
        energy_missing=energy_missing,
        devices=_devices(records, launch),
        host=None if span is None else span.host,
        began_unix_s=None if started is None else started.unix_s,
    )


def case_limits(records: CaseRecords, evidence: Evidence) -> LaunchLimits:
    """Report what limited a launch; for a command, this is based only on the readings during it."""
    launch, span = summarize_launch(records), _span(records)
    read = (
        MissingReadings(reason="the launch did not start") if span is None else _read(records, evidence, span)
    )
    if launch is not None:
        name, precision = launch.setup.device.name, launch.case.model_work.training.precision
        return limits_of(
            launch,
            readings=[] if isinstance(read, MissingReadings) else [read],
            peak=find_peak(name, precision),
            memory_peak=find_memory_peak(name),
        )
    if isinstance(read, MissingReadings):
        return LaunchLimits(found=(), unknown=read.reason)
    if len(read.devices) > 1 and not _uuids(records):
        return LaunchLimits(found=(), unknown=f"it is not known which of {len(read.devices)} GPUs it used")
    return limits_of_readings(read)


def _uuids(records: CaseRecords) -> list[str]:
    """Return the devices that a case used, as far as its records show."""
    in_use = [s.device.uuid for s in records.setups] or [taken.uuid for taken in records.of(DeviceTaken)]
    return [uuid for uuid in in_use if uuid is not None]


def _read(records: CaseRecords, evidence: Evidence, span: _Span) -> WindowReadings | MissingReadings:
    return evidence.readings(
        records.case,
        span.host,
        begin_monotonic_s=span.begin_s,
        end_monotonic_s=span.end_s,
        uuids=_uuids(records) or None,
    )


def _span(records: CaseRecords) -> _Span | None:
    """Return when the command ran, or else when the model was measured; None if neither started."""
    pids = frozenset(pid for tree in records.of(ProcessTree) for pid in tree.pids)
    starts = {start.pid for start in records.of(Start)}
    for command in records.of(CommandStarted):
        ends = [ended.end_monotonic_s for ended in records.of(CommandEnded)]
        ends += [tree.monotonic_s for tree in records.of(ProcessTree)]
        last_s = max(ends, default=command.monotonic_s)
        return _Span(host=command.host, begin_s=command.monotonic_s, end_s=last_s, pids=pids | {command.pid})
    for window in records.windows:
        begin_s, end_s = window.begin_monotonic_s, window.end_monotonic_s
        return _Span(host=window.host, begin_s=begin_s, end_s=end_s, pids=frozenset(starts))
    return None


def _metrics(records: CaseRecords, launch: Launch | None) -> tuple[dict[str, float], str | None]:
    for metrics in records.of(CommandMetrics):
        return dict(metrics.values), metrics.missing
    if launch is None:
        return {}, None
    values = {name: float(launch.figures[name]) for name in (THROUGHPUT, STEPS)}
    for evaluation in reversed(launch.evaluations):  # if there are several ranks, the first is reported
        prefix = "test_" if evaluation.is_held_out else ""
        named = {f"{prefix}accuracy": evaluation.accuracy, f"{prefix}loss": evaluation.mean_loss}
        values |= {name: value for name, value in named.items() if value is not None}
    return values, None


def _devices(records: CaseRecords, launch: Launch | None) -> tuple[str, ...]:
    taken = [f"GPU {device.physical_index} {device.name}" for device in records.of(DeviceTaken)]
    return tuple(taken or ([] if launch is None else [setup.device.name for setup in launch.setups]))


def _memory(
    records: CaseRecords,
    launch: Launch | None,
    span: _Span | None,
    recording: RecordingData | MissingReadings | None,
) -> Amount:
    """Return the case's device memory: from the allocator, else per process, else the whole device."""
    peaks = [w.peak_allocated_bytes for w in (launch.windows if launch else ()) if w.peak_allocated_bytes]
    if peaks:
        return Amount(basis="allocator", peak_bytes=float(max(peaks)))
    if isinstance(recording, MissingReadings):
        return Amount(missing=recording.reason)
    if recording is None or span is None or not recording.devices:
        return Amount(missing=NO_DEVICE)
    if course := _process_memory(recording, span):
        return _over(course, span.end_s - span.begin_s, basis="process tree")
    if _shares_its_device(records):
        return Amount(missing="the driver listed none of the case's processes, but others were on the device")
    return _whole_device(recording, records, span)


def _shares_its_device(records: CaseRecords) -> bool:
    """Report whether other cases may have run on the case's device at the same time."""
    return any(taken.cases_per_device > 1 for taken in records.of(DeviceTaken))


def _process_memory(recording: RecordingData, span: _Span) -> list[tuple[float, float]]:
    """Return the memory held by the case's processes on all devices, at each change."""
    course = []
    was_seen = False
    for listed in recording.processes:
        if not span.begin_s <= listed.monotonic_s <= span.end_s:
            continue
        users = [user for device in listed.devices.values() for user in device.get("processes", ())]
        held_bytes = [user["mem_used_bytes"] for user in users if user["pid"] in span.pids]
        if any(held is None for held in held_bytes):
            return []
        was_seen = was_seen or bool(held_bytes)
        course.append((listed.monotonic_s - span.begin_s, float(sum(held_bytes))))
    return [(0.0, 0.0), *course] if was_seen else []


def _whole_device(recording: RecordingData, records: CaseRecords, span: _Span) -> Amount:
    """Return the memory held by all processes, on the case's exclusive device or else on all devices."""
    taken = {device.physical_index for device in records.of(DeviceTaken)}
    begin_s = span.begin_s - recording.recording.monotonic_s
    end_s = span.end_s - recording.recording.monotonic_s
    return device_memory(recording, physical_indices=taken or None, begin_s=begin_s, end_s=end_s)


def device_memory(
    recording: RecordingData,
    *,
    physical_indices: Collection[int] | None = None,
    begin_s: float = 0.0,
    end_s: float | None = None,
) -> Amount:
    """Return whole-device memory use between two times of a recording; by default, over all of it."""
    tracks = [
        track
        for track in recording.devices
        if physical_indices is None or track.identity.physical_index in physical_indices
    ]
    columns = [column for track in tracks if (column := track.values("mem_used_bytes")) is not None]
    if not columns or len(columns) < len(tracks):
        return Amount(missing="the device does not report how much memory is in use" if tracks else NO_DEVICE)
    last_s = float(recording.time_s[-1]) if end_s is None and len(recording.time_s) else end_s or 0.0
    total = np.vstack(columns).sum(axis=0)
    inside = (recording.time_s >= begin_s) & (recording.time_s <= last_s) & ~np.isnan(total)
    times = (recording.time_s[inside] - begin_s).tolist()
    course = list(zip(times, total[inside].tolist(), strict=True))
    if not course:
        return Amount(missing="the launch ended before the device was read")
    of = "whole device" if len(tracks) == 1 else f"all {len(tracks)} devices"
    return _over(course, last_s - begin_s, basis=of)


def _over(course: Sequence[tuple[float, float]], length_s: float, *, basis: str) -> Amount:
    """Return the peak and the time-weighted mean of a step function of time."""
    times = [*(time_s for time_s, _ in course), max(length_s, course[-1][0])]
    held = np.array([value for _, value in course])
    lasting = np.diff(times)
    mean = mean_over_time(held, held, dithered=False, weights=lasting)
    return Amount(basis=basis, peak_bytes=float(held.max()), mean_bytes=mean, course=tuple(course))


def _resident(records: CaseRecords, span: _Span | None) -> Amount:
    """Return the host memory held by a command's process tree."""
    trees = records.of(ProcessTree)
    if not trees or span is None:
        return Amount(missing="no process tree was recorded")
    course = [(tree.monotonic_s - span.begin_s, float(tree.resident_bytes)) for tree in trees]
    peak = max(tree.peak_resident_bytes for tree in trees)
    held = _over(course, span.end_s - span.begin_s, basis="resident, process tree")
    return Amount(basis=held.basis, peak_bytes=float(peak), mean_bytes=held.mean_bytes, course=held.course)


def _energy(
    records: CaseRecords,
    evidence: Evidence,
    span: _Span | None,
    recording: RecordingData | MissingReadings | None,
) -> tuple[float | None, str | None]:
    """Return the energy that the case's devices used while it ran, or None with the reason."""
    if span is None or recording is None:
        return None, "the launch did not start"
    reason = _reason_no_energy(records, recording)
    if reason is not None:
        return None, reason
    read = _read(records, evidence, span)
    if isinstance(read, MissingReadings):
        return None, read.reason
    lacking = [device.energy_missing for device in read.devices if device.energy_j is None]
    if lacking or not read.devices:
        return None, lacking[0] if lacking else NO_DEVICE
    return sum(device.energy_j or 0.0 for device in read.devices), None


def _no_device(recording: RecordingData) -> str:
    """Report that no GPU was recorded, with a reason per vendor."""
    absent = recording.recording.host_facts.get("vendors_absent", {})
    reasons = "; ".join(f"{vendor}: {reason}" for vendor, reason in absent.items())
    return f"{NO_DEVICE} ({reasons})" if reasons else NO_DEVICE


def _reason_no_energy(records: CaseRecords, recording: RecordingData | MissingReadings) -> str | None:
    if isinstance(recording, MissingReadings):
        return recording.reason
    if not recording.devices:
        return _no_device(recording)
    return SHARED if _shares_its_device(records) else None


def as_row(figures: CaseValues) -> dict[str, Any]:
    """Return a launch as a row of all_results.json: memory in MiB, as readers of the file expect."""
    memory = figures.memory
    mean, peak = (None if b is None else b / 2**20 for b in (memory.mean_bytes, memory.peak_bytes))
    return {
        **figures.metrics,
        "test_id": figures.case_id,
        **figures.assignment,
        "elapsed_time": figures.wall_s,
        "success": figures.status == "done",
        "error": figures.failure,
        "gpu_memory_mean": mean,
        "gpu_memory_max": peak,
        "memory_basis": memory.basis or None,
        "energy_j": figures.energy_j,
    }
