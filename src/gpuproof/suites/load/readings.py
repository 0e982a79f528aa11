"""What did host and GPUs do while a test of the load suite was measured, and of how many readings is that?

In: the launches of a test and the sampler's recordings beside them. Out: a block of statistics for each
quantity, or the reason why there is none. Readings before and after the measured window do not count; fewer
than three say nothing of a peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuproof.analysis.explanations import used_devices, windows_by_host
from gpuproof.analysis.launch import Launch
from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.recording import RecordingData
from gpuproof.readings.summary import NO_REASON, DeviceSummary, MetricSummary, WindowSummary, summarise_window
from gpuproof.readings.window import between
from gpuproof.records.run import Window
from gpuproof.units import seconds

MIN_READINGS = 3
METRICS = ("cpu_percent", "util_gpu_percent", "mem_used_bytes")
"""What is summarised, of the host and of each GPU."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The part of one recording that lies in a launch's window."""

    recording: RecordingData
    summary: WindowSummary
    """Of the devices that the launch used."""


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
    used = used_devices(launch, recording)
    return _Cut(
        recording=recording, summary=summarise_window(recording, window=window, devices=used, metrics=METRICS)
    )


def _joined(cuts: Sequence[_Cut], *, missing: str, on_cpu: bool) -> LoadReadings:
    window_s = sum(cut.summary.duration_s for cut in cuts)
    devices = [device for cut in cuts for device in cut.summary.devices]
    no_gpu = NO_GPU if on_cpu else (missing if not cuts else "none of the GPUs that were read is the test's")

    def host(metric: str) -> Quantity:
        found = [m for cut in cuts for m in cut.summary.host if m.metric == metric]
        return _quantity(found, window_s=window_s, missing=missing)

    def gpu(metric: str, of: Iterable[DeviceSummary]) -> Quantity:
        found = [m for device in of if (m := device.metric(metric)) is not None]
        return _quantity(found, window_s=window_s, missing=no_gpu)

    return LoadReadings(
        cpu_percent=host("cpu_percent"),
        memory_mib=_in_mib(host("mem_used_bytes")),
        gpu_utilization_percent=gpu("util_gpu_percent", devices),
        gpu_memory_mib=_in_mib(gpu("mem_used_bytes", devices)),
        gpus=tuple(
            GpuReadings(
                physical_index=same[0].identity.physical_index,
                name=same[0].identity.name,
                uuid=same[0].identity.uuid,
                utilization_percent=gpu("util_gpu_percent", same),
                memory_mib=_in_mib(gpu("mem_used_bytes", same)),
            )
            for same in _by_identity(devices)
        ),
        interval_s=max((cut.recording.recording.fast_interval_s for cut in cuts), default=None),
        num_readings=sum(cut.summary.samples for cut in cuts),
    )


def _by_identity(devices: Iterable[DeviceSummary]) -> Iterator[list[DeviceSummary]]:
    """Bring the windows of one GPU together, launch after launch."""
    found: dict[str | None, list[DeviceSummary]] = {}
    for device in devices:
        found.setdefault(device.identity.uuid, []).append(device)
    yield from found.values()


def _quantity(found: Sequence[MetricSummary], *, window_s: float, missing: str) -> Quantity:
    series = [each.series for each in found if each.series is not None]
    count = sum(each.samples for each in series)
    if count < MIN_READINGS:
        told = {each.reason for each in found if each.series is None} - {None, NO_REASON}
        reason = missing if not found else next(iter(told), None)
        few = (
            f"{count} readings in {seconds(window_s)}, and a peak needs {MIN_READINGS}: run more batches, or "
            "read more often (load.metrics_sample_rate_s)"
        )
        return Quantity(stats=None, missing=reason or few)
    return Quantity(
        stats=Stats(
            min_value=min(each.minimum for each in series),
            max_value=max(each.maximum for each in series),
            avg_value=sum(each.mean * each.samples for each in series) / count,
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
