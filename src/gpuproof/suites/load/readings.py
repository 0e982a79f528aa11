"""What did host and GPUs do while a test of the load suite was measured, and of how many readings is that?

In: the launches of a test and the sampler's recordings beside them. Out: a block of statistics for each
quantity, or the reason why there is none. Readings before and after the measured window do not count; fewer
than three say nothing of a peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuproof.analysis.explanations import used_devices, windows_by_host
from gpuproof.analysis.launch import Launch
from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.recording import Flags, Floats, RecordingData
from gpuproof.readings.series import mean_over_time
from gpuproof.readings.window import between
from gpuproof.records.readings import DeviceIdentity
from gpuproof.records.run import Window
from gpuproof.units import seconds

MIN_READINGS = 3
MIB_BYTES = 2**20
NO_GPU = "the test ran on the CPU"
NOT_READ = "nothing was read beside the test (monitoring.enabled is false)"
NOT_MEASURED = "the test measured nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The readings of one quantity; the mean is over time."""

    min_value: float
    max_value: float
    avg_value: float
    sample_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Statistics, or why there are none."""

    stats: Stats | None
    missing: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """One GPU that the test ran on."""

    physical_index: int
    name: str
    uuid: str | None
    utilization_percent: Quantity
    memory_mib: Quantity
    """In use on the whole device, by all processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReadings:
    """Everything that was read beside a test, in its measured windows."""

    cpu_percent: Quantity
    """Of all processors of the host, by all processes."""
    memory_mib: Quantity
    """Of the host, in use by all processes."""
    gpu_utilization_percent: Quantity
    """Of all GPUs that the test ran on, taken together."""
    gpu_memory_mib: Quantity
    gpus: tuple[GpuReadings, ...]
    interval_s: float | None
    """Time between two readings; None where nothing was read."""
    num_readings: int


_Found = tuple[Stats | None, str | None]
"""One metric in one launch's window, or why the device does not give it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfGpu:
    """What was read of one GPU in a launch's window; a metric that nothing is known of is not there."""

    identity: DeviceIdentity
    found: Mapping[str, _Found]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The part of one recording that lies in a launch's window."""

    interval_s: float
    duration_s: float
    num_readings: int
    host: Mapping[str, _Found]
    gpus: tuple[_OfGpu, ...]
    """Those that the launch used."""


def read_beside(launches: Sequence[Launch], evidence: Evidence) -> LoadReadings:
    """Cut the windows of a test's launches out of the recordings."""
    cuts: list[_Cut] = []
    lost: list[str] = []
    for launch in launches:
        if launch.case.monitor is None:
            lost.append(NOT_READ)
            continue
        for host, windows in windows_by_host(launch.windows).items():
            recording = evidence.recording(launch.case, host)
            if isinstance(recording, MissingReadings):
                lost.append(f"no readings of {host}: {recording.reason}")
            else:
                cuts.append(_cut(launch, recording, windows))
    return _joined(cuts, missing=next(iter(lost), NOT_MEASURED), on_cpu=_is_on_cpu(launches))


def _is_on_cpu(launches: Sequence[Launch]) -> bool:
    return bool(launches) and launches[0].setup.device.kind == "cpu"


def _cut(launch: Launch, recording: RecordingData, windows: Sequence[Window]) -> _Cut:
    window = between(
        recording,
        begin_monotonic_s=min(window.begin_monotonic_s for window in windows),
        end_monotonic_s=max(window.end_monotonic_s for window in windows),
    )
    inside, used = window.holds(recording.time_s), used_devices(launch, recording)
    return _Cut(
        interval_s=recording.recording.fast_interval_s,
        duration_s=window.duration_s,
        num_readings=int(inside.sum()),
        host=_found(recording, inside, recording.host, {}, ("cpu_percent", "mem_used_bytes")),
        gpus=tuple(
            _OfGpu(
                identity=track.identity,
                found=_found(
                    recording,
                    inside,
                    track.metrics,
                    recording.reasons_missing(track),
                    ("util_gpu_percent", "mem_used_bytes"),
                ),
            )
            for track in recording.devices
            if track.identity.physical_index in used
        ),
    )


def _found(
    recording: RecordingData,
    inside: Flags,
    columns: Mapping[str, Floats],
    reasons: Mapping[str, str],
    metrics: Iterable[str],
) -> dict[str, _Found]:
    return {
        metric: (_stats(recording.time_s, columns.get(metric), inside), reasons.get(metric))
        for metric in metrics
        if metric in columns or metric in reasons
    }


def _stats(time_s: Floats, column: Floats | None, inside: Flags) -> Stats | None:
    if column is None:
        return None
    given = inside & ~np.isnan(column)
    values = column[given]
    if not len(values):
        return None
    return Stats(
        min_value=float(values.min()),
        max_value=float(values.max()),
        avg_value=mean_over_time(time_s[given], values),
        sample_count=len(values),
    )


def _joined(cuts: Sequence[_Cut], *, missing: str, on_cpu: bool) -> LoadReadings:
    window_s = sum(cut.duration_s for cut in cuts)
    gpus = [gpu for cut in cuts for gpu in cut.gpus]
    no_gpu = NO_GPU if on_cpu else (missing if not cuts else "none of the GPUs that were read is the test's")

    def host(metric: str) -> Quantity:
        found = [cut.host[metric] for cut in cuts if metric in cut.host]
        return _quantity(found, window_s=window_s, missing=missing)

    def gpu(metric: str, of: Iterable[_OfGpu]) -> Quantity:
        found = [gpu.found[metric] for gpu in of if metric in gpu.found]
        return _quantity(found, window_s=window_s, missing=no_gpu)

    return LoadReadings(
        cpu_percent=host("cpu_percent"),
        memory_mib=_in_mib(host("mem_used_bytes")),
        gpu_utilization_percent=gpu("util_gpu_percent", gpus),
        gpu_memory_mib=_in_mib(gpu("mem_used_bytes", gpus)),
        gpus=tuple(
            GpuReadings(
                physical_index=same[0].identity.physical_index,
                name=same[0].identity.name,
                uuid=same[0].identity.uuid,
                utilization_percent=gpu("util_gpu_percent", same),
                memory_mib=_in_mib(gpu("mem_used_bytes", same)),
            )
            for same in _by_identity(gpus)
        ),
        interval_s=max((cut.interval_s for cut in cuts), default=None),
        num_readings=sum(cut.num_readings for cut in cuts),
    )


def _by_identity(gpus: Iterable[_OfGpu]) -> Iterator[list[_OfGpu]]:
    """Bring the windows of one GPU together, launch after launch."""
    found: dict[str | None, list[_OfGpu]] = {}
    for gpu in gpus:
        found.setdefault(gpu.identity.uuid, []).append(gpu)
    yield from found.values()


def _quantity(found: Sequence[_Found], *, window_s: float, missing: str) -> Quantity:
    known = [stats for stats, _ in found if stats is not None]
    count = sum(stats.sample_count for stats in known)
    if count < MIN_READINGS:
        told = [reason for stats, reason in found if stats is None and reason is not None]
        reason = missing if not found else next(iter(told), None)
        few = (
            f"{count} readings in {seconds(window_s)}, and a peak needs {MIN_READINGS}: run more batches, or "
            "read more often (load.metrics_sample_rate_s)"
        )
        return Quantity(stats=None, missing=reason or few)
    return Quantity(
        stats=Stats(
            min_value=min(stats.min_value for stats in known),
            max_value=max(stats.max_value for stats in known),
            avg_value=sum(stats.avg_value * stats.sample_count for stats in known) / count,
            sample_count=count,
        ),
        missing=None,
    )


def _in_mib(quantity: Quantity) -> Quantity:
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
