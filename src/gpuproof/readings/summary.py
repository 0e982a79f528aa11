"""What happened during a recording? One table a device, for the whole of it and for each phase.

In: a `RecordingData`. Out: a `RecordingSummary` of time-weighted means, extremes, energy, throttling and
errors, each with what it rests on. Whatever was not read has None and the reason; nothing missing
becomes 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from gpuproof.readings import window as windows
from gpuproof.readings.energy import Energy, energy_used, power_over_time
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.series import (
    SeriesSummary,
    durations,
    is_steady,
    summarise_series,
)
from gpuproof.readings.throttling import Throttling, throttling
from gpuproof.readings.totals import HOST_TOTALS, Total, device_totals, host_totals
from gpuproof.readings.warnings import device_warnings
from gpuproof.readings.window import RecordingWindow
from gpuproof.records.metrics import METRICS, names
from gpuproof.records.readings import DeviceIdentity, DriverEvent, RecordingEnd

NO_REASON: Final = "no reason was recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """One metric of one device, or of the host, in one window."""

    metric: str
    series: SeriesSummary | None
    """None: not one reading in this window."""
    missing_share: float
    """Share of the readings due in the window that are not there, 0 to 1."""
    reason: str | None
    """Why readings are missing, as the device or driver put it; None where nothing is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventAt:
    """Something that a driver announced, in seconds since the recording began."""

    at_s: float
    event: DriverEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary:
    """One device in one window."""

    identity: DeviceIdentity
    metrics: tuple[MetricSummary, ...]
    energy: Energy
    throttling: Throttling
    totals: tuple[Total, ...]
    events: tuple[EventAt, ...]
    warnings: tuple[str, ...]
    """What is wrong with its link or its memory."""

    def mean(self, metric: str) -> float | None:
        """Return the time-weighted mean of a metric; None where it was not read."""
        found = self.metric(metric)
        return None if found is None or found.series is None else found.series.mean

    def metric(self, metric: str) -> MetricSummary | None:
        """Return the summary of a metric by its name."""
        return next((m for m in self.metrics if m.metric == metric), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSummary:
    """All devices and the host in one window."""

    name: str | None
    """The phase; None for the whole recording."""
    duration_s: float
    samples: int
    devices: tuple[DeviceSummary, ...]
    host: tuple[MetricSummary, ...]
    host_totals: tuple[Total, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSummary:
    """The whole recording, its phases, and how far the recording itself can be trusted."""

    source: str
    format: str
    host: str
    began_unix_s: float | None
    """From the first sample; None without samples."""
    command: tuple[str, ...] | None
    whole: WindowSummary
    phases: tuple[WindowSummary, ...]
    end: RecordingEnd | None
    notes: tuple[str, ...]


def summarise(recording: RecordingData) -> RecordingSummary:
    """Summarise a recording, and each of its phases, over time."""
    phases = [windows.phase(recording, name=name) for name in windows.phase_names(recording)]
    return RecordingSummary(
        source=recording.source,
        format=recording.format,
        host=recording.recording.host,
        began_unix_s=recording.began_unix_s,
        command=recording.recording.command,
        whole=summarise_window(recording, window=windows.whole(recording)),
        phases=tuple(summarise_window(recording, window=phase) for phase in phases),
        end=recording.end,
        notes=recording.notes,
    )


def summarise_window(recording: RecordingData, *, window: RecordingWindow) -> WindowSummary:
    """Summarise one window of a recording: a phase, or the measured time of a case."""
    at = _At(window=window, inside=window.holds(recording.time_s))
    return WindowSummary(
        name=window.name,
        duration_s=window.duration_s,
        samples=at.samples,
        devices=tuple(_device(recording, track, at) for track in recording.devices),
        host=tuple(
            _metric(recording, metric, column, at, {})
            for metric, column in recording.host.items()
            if metric not in HOST_TOTALS
        ),
        host_totals=tuple(host_totals(recording, window)),
    )


@dataclass(frozen=True, kw_only=True)
class _At:
    """A window with the samples that lie in it, which are looked up once for all metrics."""

    window: RecordingWindow
    inside: Flags
    _kept: dict[str, Floats] = field(default_factory=dict)

    @cached_property
    def samples(self) -> int:
        return int(self.inside.sum())

    def times(self, recording: RecordingData) -> Floats:
        """Give the times of these samples."""
        if "times" not in self._kept:
            self._kept["times"] = recording.time_s[self.inside]
        return self._kept["times"]

    def lasting_s(self, recording: RecordingData) -> Floats:
        """Give the time for which each stands, where a metric was read at all of them."""
        if "lasting" not in self._kept:
            times = self.times(recording)
            self._kept["lasting"] = durations(times, dithered=recording.recording.is_dithered)
        return self._kept["lasting"]


def _device(recording: RecordingData, track: DeviceTrack, at: _At) -> DeviceSummary:
    explained = recording.reasons_missing(track)
    metrics = (
        _metric(recording, metric, track.values(metric), at, explained)
        for metric in _gauges(track, explained)
    )
    return DeviceSummary(
        identity=track.identity,
        metrics=tuple(
            _with_mean_power(found, recording, track, at) if found.metric == "power_w" else found
            for found in metrics
        ),
        energy=energy_used(recording, track=track, window=at.window),
        throttling=throttling(recording, track=track, window=at.window),
        totals=tuple(device_totals(recording, track=track, window=at.window)),
        warnings=device_warnings(recording, track=track, window=at.window),
        events=tuple(events_within(recording, track=track, window=at.window)),
    )


def _with_mean_power(
    found: MetricSummary, recording: RecordingData, track: DeviceTrack, at: _At
) -> MetricSummary:
    """Put the mean power over time in, which is the energy counter's where that moves."""
    power = power_over_time(recording, track=track, inside=at.inside)
    if found.series is None or power is None or power.mean_w is None:
        return found
    return replace(found, series=replace(found.series, mean=power.mean_w))


def _gauges(track: DeviceTrack, explained: Mapping[str, str]) -> Iterator[str]:
    """Name the metrics that were read, and those that any explanation exists for, in catalogue order."""
    for metric in names(kind="gauge"):
        if metric in track.metrics or metric in explained:
            yield metric
    yield from (metric for metric in track.metrics if metric not in METRICS)


def _metric(
    recording: RecordingData, metric: str, column: Floats | None, at: _At, explained: Mapping[str, str]
) -> MetricSummary:
    inside = at.inside
    series = None
    if column is not None:
        dithered = recording.recording.is_dithered
        within = np.broadcast_to(column[:1], (at.samples,)) if is_steady(column) else column[inside]
        series = summarise_series(
            at.times(recording), within, dithered=dithered, weights=at.lasting_s(recording)
        )
    due = _readings_due(recording, metric, at)
    given = series.samples if series is not None else 0
    missing_share = max(0.0, 1 - given / due) if due else 0.0
    reason = None
    if missing_share > 0 or series is None:
        reason = explained.get(metric, NO_REASON)
    return MetricSummary(metric=metric, series=series, missing_share=missing_share, reason=reason)


def _readings_due(recording: RecordingData, metric: str, at: _At) -> int:
    """Count the readings that a window should hold: each sample's, or the slow lane's share of them."""
    known = METRICS.get(metric)
    slow_s = recording.recording.slow_interval_s
    if known is None or known.lane != "slow" or slow_s <= recording.recording.fast_interval_s:
        return at.samples
    return min(at.samples, max(1, int(at.window.duration_s / slow_s)))


def events_within(
    recording: RecordingData, *, track: DeviceTrack, window: RecordingWindow
) -> Iterator[EventAt]:
    """List what the driver announced of a device in a window."""
    for event in recording.events:
        at_s = recording.seconds_in(event.monotonic_s)
        mine = event.physical_index == track.identity.physical_index
        if mine and any(span.begin_s <= at_s <= span.end_s for span in window.spans):
            yield EventAt(at_s=at_s, event=event)
