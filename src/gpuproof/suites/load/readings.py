"""Summarise readings of the host and GPUs that were taken while a load-suite test was measured.

The inputs are the launches of a test and the sampler's recordings made during them. The output is a block of
statistics for each metric, or the reason why there is none. Readings before and after the measured window do
not count; fewer than three are not enough for a peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuproof.base.groups import grouped
from gpuproof.base.units import seconds
from gpuproof.launches.explanations import used_devices
from gpuproof.launches.launch import Launch
from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.recording import DeviceTrack, Flags, RecordingData
from gpuproof.readings.series import SeriesSummary, summarise_series
from gpuproof.readings.window import between
from gpuproof.records.readings import DeviceIdentity
from gpuproof.records.run import Window

MIN_READINGS = 3
METRICS = ("cpu_percent", "util_gpu_percent", "mem_used_bytes")
"""Metrics that are read from the host and from each GPU."""
MIB_BYTES = 2**20
LATE = 1.5
"""Ratio of the interval between readings to the planned one above which it counts as another interval."""
NO_GPU = "the test ran on the CPU"
NOT_READ = "no readings were taken during the test (monitoring.enabled is false)"
NOT_MEASURED = "the test measured nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Statistics of the readings of one metric; the mean is weighted by time."""

    min_value: float
    max_value: float
    avg_value: float
    sample_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """The statistics of one metric, or the reason why there are none."""

    stats: Stats | None
    missing: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """One GPU used by the test."""

    physical_index: int
    name: str
    uuid: str | None
    utilization_percent: Quantity
    memory_mib: Quantity
    """Memory in use on the whole device, by all processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReadings:
    """All readings taken during a test, within its measured windows."""

    cpu_percent: Quantity
    """Utilization of all CPUs of the host, by all processes."""
    memory_mib: Quantity
    """Host memory in use, by all processes."""
    gpu_utilization_percent: Quantity
    """Combined utilization of all GPUs used by the test."""
    gpu_memory_mib: Quantity
    gpus: tuple[GpuReadings, ...]
    interval_s: float | None
    """Time between two readings; None if nothing was read."""
    num_readings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """One metric of a GPU or of the host, within one launch's window."""

    metric: str
    uuid: str | None
    """UUID of the GPU, which identifies it within a launch; None for the host."""
    series: SeriesSummary | None
    reason: str | None
    """Reason for a missing reading, if the device reports a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The part of one recording within a launch's window."""

    interval_s: float
    duration_s: float
    num_readings: int
    gpus: tuple[DeviceIdentity, ...]
    """The GPUs that the launch used."""
    read: tuple[_Read, ...]
    """Contains only metrics for which there is a series or a reason."""


def read_during(launches: Sequence[Launch], evidence: Evidence) -> LoadReadings:
    """Extract the windows of a test's launches from the recordings."""
    cuts: list[_Cut] = []
    lost: list[str] = []
    for launch in launches:
        if launch.case.monitor is None:
            lost.append(NOT_READ)
            continue
        for host, windows in grouped((window.host, window) for window in launch.windows).items():
            recording = evidence.recording(launch.case, host)
            if isinstance(recording, MissingReadings):
                lost.append(f"no readings of {host}: {recording.reason}")
            else:
                cuts.append(_cut(launch, recording, windows))
    return _join(
        cuts,
        missing=next(iter(lost), NOT_MEASURED),
        on_cpu=bool(launches) and launches[0].setup.device.kind == "cpu",
    )


def _cut(launch: Launch, recording: RecordingData, windows: Sequence[Window]) -> _Cut:
    window = between(
        recording,
        begin_monotonic_s=min(window.begin_monotonic_s for window in windows),
        end_monotonic_s=max(window.end_monotonic_s for window in windows),
    )
    inside, used = window.holds(recording.time_s), used_devices(launch, recording)
    tracks = [track for track in recording.devices if track.identity.physical_index in used]
    return _Cut(
        interval_s=_interval_taken(recording, inside),
        duration_s=window.duration_s,
        num_readings=int(inside.sum()),
        gpus=tuple(track.identity for track in tracks),
        read=(*_read(recording, inside), *(x for track in tracks for x in _read(recording, inside, track))),
    )


def _interval_taken(recording: RecordingData, inside: Flags) -> float:
    """Return the interval between readings in the window: the planned one, unless many were missed."""
    planned_s, times = recording.recording.fast_interval_s, recording.time_s[inside]
    taken_s = float(np.median(np.diff(times))) if times.size > 1 else planned_s
    return taken_s if taken_s > LATE * planned_s else planned_s


def _read(recording: RecordingData, inside: Flags, track: DeviceTrack | None = None) -> Iterator[_Read]:
    """Yield the series of a GPU, or of the host if no GPU is given, and the reasons for missing ones."""
    columns = recording.host if track is None else track.metrics
    reasons = {} if track is None else recording.reasons_missing(track)
    uuid = None if track is None else track.identity.uuid
    times, dithered = recording.time_s[inside], recording.recording.is_dithered
    for metric in METRICS:
        if metric in columns or metric in reasons:
            column = columns.get(metric)
            series = None if column is None else summarise_series(times, column[inside], dithered=dithered)
            yield _Read(metric=metric, uuid=uuid, series=series, reason=reasons.get(metric))


def _join(cuts: Sequence[_Cut], *, missing: str, on_cpu: bool) -> LoadReadings:
    window_s = sum(cut.duration_s for cut in cuts)
    readings = [reading for cut in cuts for reading in cut.read]
    gpus: dict[str | None, DeviceIdentity] = {}
    for identity in (identity for cut in cuts for identity in cut.gpus):
        gpus.setdefault(identity.uuid, identity)
    no_gpu = NO_GPU if on_cpu else (missing if not cuts else "none of the recorded GPUs was used by the test")

    def host(metric: str) -> Quantity:
        reads = [one for one in readings if one.metric == metric and one.uuid is None]
        return _quantity(reads, window_s=window_s, missing=missing)

    def gpu(metric: str, *uuids: str | None) -> Quantity:
        reads = [one for one in readings if one.metric == metric and one.uuid in uuids]
        return _quantity(reads, window_s=window_s, missing=no_gpu)

    return LoadReadings(
        cpu_percent=host("cpu_percent"),
        memory_mib=_to_mib(host("mem_used_bytes")),
        gpu_utilization_percent=gpu("util_gpu_percent", *gpus),
        gpu_memory_mib=_to_mib(gpu("mem_used_bytes", *gpus)),
        gpus=tuple(
            GpuReadings(
                physical_index=identity.physical_index,
                name=identity.name,
                uuid=uuid,
                utilization_percent=gpu("util_gpu_percent", uuid),
                memory_mib=_to_mib(gpu("mem_used_bytes", uuid)),
            )
            for uuid, identity in gpus.items()
        ),
        interval_s=max((cut.interval_s for cut in cuts), default=None),
        num_readings=sum(cut.num_readings for cut in cuts),
    )


def _quantity(reads: Sequence[_Read], *, window_s: float, missing: str) -> Quantity:
    series_read = [read.series for read in reads if read.series is not None]
    count = sum(series.samples for series in series_read)
    if count < MIN_READINGS:
        reasons = [read.reason for read in reads if read.series is None and read.reason is not None]
        reason = missing if not reads else next(iter(reasons), None)
        few = (
            f"{count} readings in {seconds(window_s)}, but a peak needs {MIN_READINGS}: run more "
            "batches, or sample more often (load.metrics_sample_rate_s)"
        )
        return Quantity(stats=None, missing=reason or few)
    return Quantity(
        stats=Stats(
            min_value=min(series.minimum for series in series_read),
            max_value=max(series.maximum for series in series_read),
            avg_value=sum(series.mean * series.samples for series in series_read) / count,
            sample_count=count,
        ),
        missing=None,
    )


def _to_mib(quantity: Quantity) -> Quantity:
    stats = quantity.stats
    if stats is None:
        return quantity
    return replace(
        quantity,
        stats=Stats(
            min_value=stats.min_value / MIB_BYTES,
            max_value=stats.max_value / MIB_BYTES,
            avg_value=stats.avg_value / MIB_BYTES,
            sample_count=stats.sample_count,
        ),
    )
