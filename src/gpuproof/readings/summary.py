"""How is a recording summarised? As measures of its devices and its host.

The input is a `RecordingData`. The output consists of `Measure`s for the whole recording, with each device
and the host as a subject, and, for each phase and device, the measures in the table of phases. Means are
weighted by time, `labels.metric` is the name in the catalogue, and a statistic is the mean, an extreme, a
percentile, a total or a fraction of the time. Whatever was not read has a reason instead of a value; missing
values are never turned into 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from gpuproof.base.units import memory, share
from gpuproof.readings import window as windows
from gpuproof.readings.energy import WHOLE_ENOUGH, Energy, energy_used, power_over_time
from gpuproof.readings.metric_text import STATE_REASONS, quantity, throttle_title, title, unit
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.series import SeriesSummary, durations, is_steady, summarise_series
from gpuproof.readings.totals import (
    HOST_TOTALS,
    ThrottleShare,
    Throttling,
    Total,
    device_totals,
    host_totals,
    throttling,
)
from gpuproof.readings.window import RecordingWindow
from gpuproof.records.metrics import HOST_METRICS, METRICS, Metric, names
from gpuproof.records.readings import DriverEvent, RecordingEnd
from gpuproof.records.result import WHOLE, Measure

NO_REASON: Final = "no reason was recorded"
SPREAD: Final = ("mean", "minimum", "maximum", "p95")
"""The statistics of a metric's readings."""
THROTTLED: Final = "throttled"
THROTTLED_METRIC: Final = "held_back"
"""Names used in the labels of measures since the first version."""
STATE: Final = "clock state"
"""Metric names for the fraction of time throttled, and for the fraction spent in a requested clock state."""
PHASE_METRICS: Final = ("util_gpu_percent", "mem_used_bytes", "power_w", "clock_sm_mhz")
_TOLD_THROUGHOUT: Final = 0.9
"""If at least this fraction of the readings contains throttle reasons, a device is assumed to have reported
them throughout."""
_METHODS: Final = {"counter": "from the energy counter", "integrated_power": "power integrated over time"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventAt:
    """An event that a driver reported; its time is in seconds since the recording started."""

    at_s: float
    event: DriverEvent


@dataclass(frozen=True, slots=True)
class _Owner:
    """The owner of the values."""

    subject: str
    labels: Mapping[str, Any] = field(default_factory=dict)

    def figure(self, metric: str, statistic: str, value: float | None, **more: Any) -> Measure:
        """Return a metric's value, with its title and unit unless `more` overrides them."""
        labels = {"metric": metric, **self.labels, **more.pop("labels", {})}
        text = {"name": title(metric), "unit": unit(metric), "text": quantity(metric, value)} | more
        return Measure(subject=self.subject, statistic=statistic, value=value, labels=labels, **text)


def summarise(recording: RecordingData) -> tuple[Measure, ...]:
    """Return a recording's values: for its devices and host, and for each phase."""
    phases = [windows.phase(recording, name=name) for name in windows.phase_names(recording)]
    return (
        *_of_recording(recording),
        *summarise_window(recording, window=windows.whole(recording)),
        *(measure for phase in phases for measure in _of_phase(recording, phase)),
    )


def _of_recording(recording: RecordingData) -> Iterator[Measure]:
    owner, samples = _Owner(WHOLE), len(recording.time_s)
    yield owner.figure("duration_s", "total", recording.duration_s, name="recorded", num_samples=samples)
    yield owner.figure("samples", "count", float(samples))
    end: RecordingEnd | None = recording.end
    if end is not None:
        yield owner.figure("missed_ticks", "count", float(end.missed_ticks), name="ticks missed by sampler")
        yield owner.figure("max_jitter_s", "maximum", end.max_jitter_s, name="latest tick of sampler")
        yield owner.figure("own_cpu_s", "total", end.own_cpu_s, name="processor time of sampler")


def summarise_window(recording: RecordingData, *, window: RecordingWindow) -> tuple[Measure, ...]:
    """Return the values of the devices and the host in one window."""
    at = _At(recording, window)
    devices = [measure for track in recording.devices for measure in _of_device(track, at)]
    return (*devices, *_of_host(at))


@dataclass(frozen=True)
class _At:
    """A window with its samples, which are looked up once for all metrics."""

    recording: RecordingData
    window: RecordingWindow

    @cached_property
    def inside(self) -> Flags:
        return self.window.holds(self.recording.time_s)

    @cached_property
    def samples(self) -> int:
        return int(self.inside.sum())

    @cached_property
    def times(self) -> Floats:
        """The times of these samples."""
        return self.recording.time_s[self.inside]

    @cached_property
    def lasting_s(self) -> Floats:
        """How long each sample is valid, if a metric was read in all of them."""
        return durations(self.times, dithered=self.recording.recording.is_dithered)

    @property
    def host(self) -> str:
        """The host as a subject; other tools' files do not contain its name."""
        return f"host/{self.recording.recording.host or 'unknown'}"

    def owner(self, track: DeviceTrack, **labels: Any) -> _Owner:
        """Return a device as the owner of values."""
        index = track.identity.physical_index
        return _Owner(f"{self.host}/gpu/{track.identity.uuid or index}", {"gpu": index, **labels})


def _of_device(track: DeviceTrack, at: _At) -> Iterator[Measure]:
    owner, explained = at.owner(track), at.recording.reasons_missing(track)
    for metric in _gauges(track, explained):
        reason = explained.get(metric, NO_REASON)
        yield from _spread(owner, at, metric, _series(at, metric, track.values(metric), track), reason)
    yield _energy(owner, energy_used(at.recording, track=track, window=at.window))
    yield from _shares(owner, throttling(at.recording, track=track, window=at.window))
    totals = device_totals(at.recording, track=track, window=at.window)
    yield from (_total(owner, total) for total in totals)


def _of_host(at: _At) -> Iterator[Measure]:
    owner = _Owner(at.host)
    for metric, column in at.recording.host.items():
        if metric not in HOST_TOTALS:
            yield from _spread(owner, at, metric, _series(at, metric, column), NO_REASON)
    yield from (_total(owner, total) for total in host_totals(at.recording, at.window))


def _of_phase(recording: RecordingData, phase: RecordingWindow) -> Iterator[Measure]:
    at = _At(recording, phase)
    owners = [(at.owner(track, phase=phase.name), track) for track in recording.devices]
    for owner in [owner for owner, _ in owners] or [_Owner(WHOLE, {"phase": phase.name})]:
        yield owner.figure("duration_s", "total", phase.duration_s, name="time", num_samples=at.samples)
    for owner, track in owners:
        explained = recording.reasons_missing(track)
        for metric in PHASE_METRICS:
            series = _series(at, metric, track.values(metric), track)
            yield next(_spread(owner, at, metric, series, explained.get(metric, NO_REASON)))
        used = energy_used(recording, track=track, window=phase)
        told = _energy(owner, used)
        is_part = used.coverage is not None and used.coverage < WHOLE_ENOUGH
        part = f" in {share(used.coverage)} of it" if is_part else ""
        yield replace(told, text=told.text.partition(" (")[0] + part)
        yield _longest_share(owner, throttling(recording, track=track, window=phase))


def _gauges(track: DeviceTrack, explained: Mapping[str, str]) -> Iterator[str]:
    """Yield the metrics that were read or have a reason for being absent, in catalogue order."""
    for metric in names(kind="gauge"):
        if metric in track.metrics or metric in explained:
            yield metric
    yield from (metric for metric in track.metrics if metric not in METRICS)


def _spread(
    owner: _Owner, at: _At, metric: str, series: SeriesSummary | None, reason: str
) -> Iterator[Measure]:
    """Yield a metric's mean, extremes and percentile, or only the reason if it was not read."""
    if series is None:
        yield owner.figure(metric, "mean", None, num_samples=0, missing=reason)
        return
    catalogue = METRICS if "gpu" in owner.labels else HOST_METRICS
    due = _readings_due(at, catalogue.get(metric))
    lost = max(0.0, 1 - series.samples / due) if due else 0.0
    rounding = 0.001 * max(abs(series.minimum), abs(series.maximum))
    is_outside = not series.minimum - rounding <= series.mean <= series.maximum + rounding  # only for power
    name = f"{title(metric)}{' (mean: energy counter)' if is_outside else ''}"
    detail = f"{reason} ({share(lost)} of the readings)" if lost > 0 else ""
    values = (series.mean, series.minimum, series.maximum, series.p95)
    for statistic, value in zip(SPREAD, values, strict=True):
        missing = series.p95_missing if value is None else None
        beside = {"detail": detail if statistic == "mean" else "", "missing": missing}
        yield owner.figure(metric, statistic, value, name=name, num_samples=series.samples, **beside)


def _series(
    at: _At, metric: str, column: Floats | None, track: DeviceTrack | None = None
) -> SeriesSummary | None:
    """Summarise a column in a window; mean power comes from the energy counter if that is advancing."""
    if column is None:
        return None
    series = summarise_series(
        at.times,
        np.broadcast_to(column[:1], (at.samples,)) if is_steady(column) else column[at.inside],
        dithered=at.recording.recording.is_dithered,
        weights=at.lasting_s,
    )
    if series is None or track is None or metric != "power_w":
        return series
    power = power_over_time(at.recording, track=track, inside=at.inside)
    return series if power is None or power.mean_w is None else replace(series, mean=power.mean_w)


def _readings_due(at: _At, metric: Metric | None) -> int:
    """Count the readings a window should have: one per sample, or one per interval of the slow lane."""
    slow_s = at.recording.recording.slow_interval_s
    if metric is None or metric.lane != "slow" or slow_s <= at.recording.recording.fast_interval_s:
        return at.samples
    return min(at.samples, max(1, int(at.window.duration_s / slow_s)))


def _energy(owner: _Owner, used: Energy) -> Measure:
    """Return an energy with its method and coverage, or the reason why there is none."""
    if used.energy_j is None or used.method is None:
        return owner.figure("energy_j", "total", None, missing=used.note)
    detail = f"{_METHODS[used.method]}, {share(used.coverage)} of the time"
    beside = "; ".join(filter(None, (detail, used.note)))
    return owner.figure("energy_j", "total", used.energy_j, detail=beside)


def _shares(owner: _Owner, throttled: Throttling) -> Iterator[Measure]:
    """Yield each reason's fraction of the time, or a note that throttling was absent or not reported."""
    faults = [item for item in throttled.shares if item.reason not in STATE_REASONS]
    if not faults:
        yield _not_held(owner, throttled)
    for item in throttled.shares:
        yield _share(owner, item, THROTTLED if item in faults else STATE)


def _share(owner: _Owner, item: ThrottleShare, name: str) -> Measure:
    return owner.figure(
        THROTTLED_METRIC if name == THROTTLED else name.replace(" ", "_"),
        "share of the time",
        item.share,
        name=f"{name}: {throttle_title(item.reason)}",
        unit="1",
        text=f"{share(item.share)} of the time",
        detail="; ".join(filter(None, (f"by {item.method}", item.note))),
        labels={"reason": item.reason},
    )


def _not_held(owner: _Owner, throttled: Throttling) -> Measure:
    """Return the measure of a device that, as far as reported, was never throttled or did not report."""
    about: dict[str, Any] = {"name": THROTTLED, "unit": "1"}
    if not throttled.has_answers:
        return owner.figure(THROTTLED_METRIC, "share of the time", None, missing=throttled.missing, **about)
    if throttled.answered_share >= _TOLD_THROUGHOUT:
        detail = "as far as the device reported"
    elif throttled.answered_share > 0:
        detail = f"in {share(throttled.answered_share)} of the readings; not reported in the others"
    else:
        reasons = ", ".join(throttle_title(reason) for reason in throttled.counted)
        detail = f"by counter ({reasons}); other reasons are not reported"
    return owner.figure(THROTTLED_METRIC, "share of the time", 0.0, text="never", detail=detail, **about)


def _longest_share(owner: _Owner, throttled: Throttling) -> Measure:
    """Return what throttled a device the longest in a phase."""
    longest = next((item for item in throttled.shares if item.reason not in STATE_REASONS), None)
    if longest is not None:
        text = f"{throttle_title(longest.reason)} {share(longest.share)}"
        return replace(_share(owner, longest, THROTTLED), text=text)
    never = _not_held(owner, throttled)
    is_partly = throttled.has_answers and throttled.answered_share < _TOLD_THROUGHOUT
    return replace(never, text="never, when reported") if is_partly else never


def _total(owner: _Owner, total: Total) -> Measure:
    """Return a counter's increase and, for a byte counter, its rate if plausible."""
    text, rate = quantity(total.metric, total.increase), None
    if total.is_least:
        text = f"at least {text}"
    elif total.metric.endswith("_bytes") and total.covered_s > 0:
        rate = f"{memory(total.increase / total.covered_s)}/s"
    detail = "; ".join(filter(None, (rate, total.note)))
    return owner.figure(total.metric, "total", total.increase, text=text, detail=detail)


def events_within(
    recording: RecordingData, *, track: DeviceTrack | None, window: RecordingWindow
) -> Iterator[EventAt]:
    """List what drivers reported about a device in a window, or about the host if it is None."""
    place = None if track is None else track.identity.physical_index
    for event in recording.events:
        at_s = recording.seconds_in(event.monotonic_s)
        is_inside = any(span.begin_s <= at_s <= span.end_s for span in window.spans)
        # an event is recorded after the sample of its tick: the last line of a recording that was cut off
        if event.physical_index == place and (window.name is None or is_inside):
            yield EventAt(at_s=at_s, event=event)
