"""What did devices and host do while a case was measured? Cuts a window out of a recording.

In: a recording and the begin and end of a worker's window on the host's monotonic clock. Out: the
`WindowReadings` that `analysis.explain` turns into sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gpuproof.readings.recording import RecordingData
from gpuproof.readings.summary import DeviceSummary, MetricSummary, WindowSummary, summarise_window
from gpuproof.readings.window import Window, between


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWindow:
    """What one device did in the window. Means are over time; None is unknown."""

    physical_index: int
    throttle_shares: Mapping[str, float] | None
    """Reason → share of the window, 0 to 1. None: the device does not tell."""
    clock_sm_mhz: float | None = None
    clock_sm_max_mhz: float | None = None
    util_gpu_percent: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temp_gpu_max_c: float | None = None
    energy_j: float | None = None
    energy_method: Literal["counter", "integrated_power"] | None = None
    energy_coverage: float | None = None
    energy_missing: str | None = None
    events: Sequence[str] = ()
    """What the driver announced, such as `xid 63: …`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWindow:
    """What the host did in the window; None is unknown."""

    cpu_percent: float | None = None
    cpu_max_core_percent: float | None = None
    cpu_iowait_percent: float | None = None
    swap_growth_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReadings:
    """A measured window of one host, between two readings of its monotonic clock."""

    begin_monotonic_s: float
    end_monotonic_s: float
    devices: tuple[DeviceWindow, ...]
    host: HostWindow = field(default_factory=HostWindow)


def case_window(
    recording: RecordingData, *, begin_monotonic_s: float, end_monotonic_s: float
) -> WindowReadings:
    """Summarise the recording between two readings of its host's monotonic clock."""
    window = between(recording, begin_monotonic_s=begin_monotonic_s, end_monotonic_s=end_monotonic_s)
    summary = summarise_window(recording, window=window)
    return WindowReadings(
        begin_monotonic_s=begin_monotonic_s,
        end_monotonic_s=end_monotonic_s,
        devices=tuple(_device(device) for device in summary.devices),
        host=_host(recording, summary, window),
    )


def _device(device: DeviceSummary) -> DeviceWindow:
    temperature = device.metric("temp_gpu_c")
    known = device.throttling.known
    shares = {item.reason: item.share for item in device.throttling.shares}
    return DeviceWindow(
        physical_index=device.identity.physical_index,
        throttle_shares=shares if known else None,
        clock_sm_mhz=device.mean("clock_sm_mhz"),
        clock_sm_max_mhz=_number(device.identity.static.get("clock_sm_max_mhz")),
        util_gpu_percent=device.mean("util_gpu_percent"),
        power_limit_w=device.mean("power_limit_w"),
        power_limit_default_w=_number(device.identity.static.get("power_limit_default_w")),
        temp_gpu_max_c=_maximum(temperature),
        energy_j=device.energy.energy_j,
        energy_method=device.energy.method,
        energy_coverage=device.energy.coverage,
        energy_missing=device.energy.note if device.energy.energy_j is None else None,
        events=tuple(_event(happened.event) for happened in device.events),
    )


def _event(event: Any) -> str:
    code = "" if event.code is None else f" {event.code}"
    return f"{event.event}{code}: {event.message}"


def _host(recording: RecordingData, summary: WindowSummary, window: Window) -> HostWindow:
    means = {m.metric: m.series.mean for m in summary.host if m.series is not None}
    return HostWindow(
        cpu_percent=means.get("cpu_percent"),
        cpu_max_core_percent=means.get("cpu_max_core_percent"),
        cpu_iowait_percent=means.get("cpu_iowait_percent"),
        swap_growth_bytes=_swap_growth(recording, window),
    )


def _swap_growth(recording: RecordingData, window: Window) -> float | None:
    column = recording.host.get("swap_used_bytes")
    if column is None:
        return None
    inside = column[window.holds(recording.time_s)]
    given = inside[~np.isnan(inside)]
    return float(given[-1] - given[0]) if len(given) > 1 else None


def _maximum(metric: MetricSummary | None) -> float | None:
    return None if metric is None or metric.series is None else metric.series.maximum


def _number(fact: Any) -> float | None:
    return float(fact) if isinstance(fact, (int, float)) else None
