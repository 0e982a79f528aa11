"""A recording over time: a chart per metric, a line per GPU, a strip of throttling and events.

Utilisation, memory, power with its limit, temperature with its slowdown threshold, and clocks are drawn over
the phases; below them, throttle reasons and driver events have one row per GPU. Many GPUs over a long time
are drawn as quantile bands, with each GPU's median on top. Metrics without readings are omitted. Without a
GPU, the host's readings are plotted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

import numpy as np

from gpuproof.base.units import seconds
from gpuproof.readings.metric_text import quantity, throttle_title, title, unit
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.series import bands, durations, envelope, longest_step_s, runs
from gpuproof.records.metrics import METRICS
from gpuproof.records.page import Axis, Chart, Picture, Reference, Series, Shade

PIECES: Final = 700
"""Number of points per line: about one per column of pixels."""
MANY: Final = 4
"""Number of GPUs at or above which a long recording is drawn as bands, because the GPUs' extremes would hide
one another."""
BAND_PIECES: Final = 240
"""Number of time slices in a band: each wide enough for stable quantiles of a day's readings."""
VISIBLE: Final = 1400
"""Time resolution of a plot, as a number of slices."""
FAR: Final = 4.0
"""A limit above this many times the highest reading is not drawn, because it would flatten the lines."""
INSTEAD: Final = {"power_w": "power_instant_w", "temp_gpu_c": "temp_hotspot_c"}
"""The substitute to plot if the metric itself was not read."""
OF_HOST: Final = ("cpu_percent", "mem_used_bytes")
LIMITS: Final = {
    "mem_total_bytes": "installed",
    "power_limit_w": "limit",
    "temp_slowdown_c": "slowdown",
    "clock_sm_max_mhz": "maximum",
}
THROTTLE_FILLS: Final = {
    "thermal_hardware": "#c1121f",
    "thermal_software": "#e03131",
    "thermal": "#ff6b6b",
    "thermal_memory": "#e8590c",
    "hardware_slowdown": "#9d4edd",
    "power_brake": "#b5179e",
    "current_limit": "#c2255c",
    "voltage_regulator": "#d6336c",
    "power_cap": "#f5a524",
    "sync_boost": "#4d9fc0",
    "board_limit": "#8d6e63",
    "reliability": "#868e96",
    "other": "#6b7280",
}
"""Throttle reasons, in the order in which they hide one another; states such as idle are not drawn."""


def recording_picture(recording: RecordingData, *, pieces: int = PIECES) -> Picture:
    """Draw a recording over time, limiting the points per line; without readings, only a note."""
    drawn = [row.name for row in METRICS.values() if row.drawn]
    charts = [chart for metric in drawn if (chart := _device_chart(recording, metric, pieces)) is not None]
    if not charts:
        charts = [_host_chart(recording, metric, pieces) for metric in OF_HOST if metric in recording.host]
    charts += strip_of(recording)
    about = description(recording) if charts else "This recording has no readings to draw"
    is_banded = charts and _is_banded(recording)
    return Picture(
        title=recording.source,
        subtitle=f"{about}  ·  each line is a GPU's median" if is_banded else about,
        charts=tuple(charts),
    )


def description(recording: RecordingData) -> str:
    """Describe a recording in one line: devices, host, date, duration."""
    kinds = Counter(track.identity.name for track in recording.devices)
    devices = ", ".join(f"{number} × {name}" if number > 1 else name for name, number in kinds.items())
    parts = [devices or "no GPU", recording.recording.host]
    if recording.began_unix_s is not None:
        parts.append(f"{datetime.fromtimestamp(recording.began_unix_s, timezone.utc):%Y-%m-%d %H:%M} UTC")
    return "  ·  ".join([*parts, seconds(recording.duration_s)])


def line_of(name: str, time_s: Floats, column: Floats, *, pieces: int = PIECES) -> Iterator[Series]:
    """Yield one column as a line, over the band between its extremes if the line is a median."""
    shape = envelope(time_s, column, pieces=pieces)
    low, middle, high = shape.levels
    points = _points(shape.time_s, middle)
    if not np.array_equal(low, high, equal_nan=True):
        yield Series(name=name, points=points, ranges=_points(low, high), form="band")
    yield Series(name=name, points=points, form="line")


def metric_axis(metric: str, columns: Sequence[Floats]) -> Axis:
    """Return a metric's y axis: at least 0–100 % for percentages; from zero, except temperature."""
    words = title(metric)
    values = [value for column in columns for value in column[~np.isnan(column)]]
    lowest = min(values, default=0.0) if metric.startswith("temp_") else 0.0
    highest = 100.0 if unit(metric) == "%" else max(values, default=0.0)
    return Axis(label=words[0].upper() + words[1:], unit=unit(metric), reach=(lowest, highest))


def _chart(
    recording: RecordingData, y: Axis, series: Sequence[Series], references: Sequence[Reference] = ()
) -> Chart:
    phases = [Shade(name=span.name, begin=span.start_s, end=span.end_s) for span in recording.phases()]
    announced = [at_s for times in _events(recording).values() for _, at_s in times]
    events = [Reference(label="", x=at_s) for at_s in _visible(announced, recording)]
    times = recording.time_s
    ends = (float(times[0]), float(times[-1])) if len(times) > 1 else ()
    return Chart(
        title="",
        kind="line",
        x=Axis(label="time since the recording started", unit="s", reach=ends),
        y=y,
        series=tuple(series),
        references=(*references, *(() if y.names else events)),
        shades=tuple(phases),
    )


def _device_chart(recording: RecordingData, metric: str, pieces: int) -> Chart | None:
    """Return a metric for all GPUs; None if no GPU has readings of it."""
    columns = {_name(track): c for track in recording.devices if (c := _column(track, metric)) is not None}
    if not columns:
        return None
    if _is_banded(recording):
        series = _band_series(recording.time_s, columns)
    else:
        lines = (line_of(name, recording.time_s, c, pieces=pieces) for name, c in columns.items())
        series = [one for line in lines for one in line]
    heights = [y for one in series for _, y in one.points if not np.isnan(y)]
    y = metric_axis(metric, [np.array(heights)])
    return _chart(recording, y, series, _limits(recording, metric, highest=max(heights, default=0.0)))


def _host_chart(recording: RecordingData, metric: str, pieces: int) -> Chart:
    column = recording.host[metric]
    axis = metric_axis(metric, [column])
    name = f"host's {title(metric)}"
    return _chart(recording, axis, list(line_of(name, recording.time_s, column, pieces=pieces)))


def _name(track: DeviceTrack) -> str:
    return f"GPU {track.identity.physical_index}"


def _column(track: DeviceTrack, metric: str) -> Floats | None:
    """Return a metric's readings, or the readings of its substitute."""
    for name in (metric, INSTEAD.get(metric, metric)):
        column = track.values(name)
        if column is not None and not np.isnan(column).all():
            return column
    return None


def _points(xs: Floats, ys: Floats) -> tuple[tuple[float, float], ...]:
    return tuple(zip(xs.tolist(), ys.tolist(), strict=True))


def _is_banded(recording: RecordingData) -> bool:
    return len(recording.devices) >= MANY and len(recording.time_s) > 2 * PIECES


def _band_series(time_s: Floats, columns: Mapping[str, Floats]) -> list[Series]:
    """Return the range of readings over all GPUs, and each GPU's median."""
    lie = bands(time_s, list(columns.values()), pieces=BAND_PIECES)
    series = [
        Series(
            name=f"the middle {share} of all GPUs' readings",
            points=_points(lie.time_s, lie.levels[low]),
            ranges=_points(lie.levels[low], lie.levels[high]),
            form="band",
            colour="axis",
        )
        for low, high, share in ((0, 3, "90 %"), (1, 2, "half"))
    ]
    for name, column in columns.items():
        shape = envelope(time_s, column, pieces=BAND_PIECES)
        series.append(Series(name=name, points=_points(shape.time_s, shape.levels[1]), form="line"))
    return series


def _limits(recording: RecordingData, metric: str, *, highest: float) -> list[Reference]:
    """Return each distinct limit once, as the GPUs of a machine usually share it."""
    top = METRICS[metric].top
    if top not in LIMITS:
        return []
    levels = {_level(track, top) for track in recording.devices} - {None}
    return [
        Reference(label=f"{LIMITS[top]} {quantity(top, level)}", y=level)
        for level in sorted(value for value in levels if value is not None)
        if level <= FAR * highest
    ]


def _level(track: DeviceTrack, metric: str) -> float | None:
    """Return a device fact, or its median if sampled: the summary shows whether it changed."""
    column = track.values(metric)
    values = None if column is None else column[~np.isnan(column)]
    return track.identity.number(metric) if values is None or not len(values) else float(np.median(values))


def strip_of(recording: RecordingData) -> list[Chart]:
    """Return when each GPU was throttled and had driver events; nothing if there are neither."""
    held = {reason for track in recording.devices for reason, on in track.throttle.items() if on.any()}
    # the most severe is drawn last, on top
    reasons = [reason for reason in reversed(THROTTLE_FILLS) if reason in held]
    events = _events(recording)
    words = [*(["throttled"] if reasons else []), *(["driver events"] if events else [])]
    if not words:
        return []
    names = tuple(_name(track) for track in recording.devices)
    series = [_throttled(recording, reason) for reason in reasons]
    for name, times in events.items():
        rows = {row: _visible([at_s for of, at_s in times if of == row], recording) for row, _ in times}
        points = tuple((at_s, float(row)) for row, seen in rows.items() for at_s in seen)
        label = name if len(times) == 1 else f"{name} ({len(times)}×)"
        series.append(Series(name=label, points=points, form="points", colour="ink"))
    label = " and ".join(words)
    return [_chart(recording, Axis(label=label[0].upper() + label[1:], names=names), series)]


def _throttled(recording: RecordingData, reason: str) -> Series:
    stretches = [
        (row, stretch)
        for row, track in enumerate(recording.devices)
        if reason in track.throttle
        for stretch in flagged(recording.time_s, track.throttle[reason])
    ]
    return Series(
        name=throttle_title(reason),
        points=tuple((begin_s, float(row)) for row, (begin_s, _) in stretches),
        ranges=tuple(stretch for _, stretch in stretches),
        form="range",
        colour=THROTTLE_FILLS[reason],
    )


def _events(recording: RecordingData) -> dict[str, list[tuple[int, float]]]:
    """List the events of the plotted devices by title, each with its row and time in seconds."""
    rows = {track.identity.physical_index: row for row, track in enumerate(recording.devices)}
    begin_s, end_s = (recording.time_s[0], recording.time_s[-1]) if len(recording.time_s) else (0.0, 0.0)
    events: dict[str, list[tuple[int, float]]] = {}
    for event in recording.events:
        if event.physical_index in rows:
            at_s = min(max(recording.seconds_in(event.monotonic_s), float(begin_s)), float(end_s))
            events.setdefault(event.title.replace("_", " "), []).append((rows[event.physical_index], at_s))
    return events


def _visible(times: Sequence[float], recording: RecordingData) -> list[float]:
    """Of times that coincide in the plot, keep only the first."""
    pixel_s = recording.duration_s / VISIBLE
    visible: list[float] = []
    for at_s in sorted(times):
        if not visible or at_s - visible[-1] > pixel_s:
            visible.append(at_s)
    return visible


def flagged(time_s: Floats, flags: Flags) -> list[tuple[float, float]]:
    """Return the start and end (in seconds) of stretches with flags set; adjacent ones are merged."""
    pixel_s = float(time_s[-1] - time_s[0]) / VISIBLE
    ends_s = np.minimum(time_s + durations(time_s), time_s[-1])
    stretches: list[tuple[float, float]] = []
    for first, last in runs(flags, time_s, longest_step_s(time_s)):
        begin_s, end_s = float(time_s[first]), float(ends_s[last])
        if stretches and begin_s - stretches[-1][1] <= pixel_s:
            begin_s = stretches.pop()[0]
        stretches.append((begin_s, max(end_s, begin_s + pixel_s)))
    return stretches
