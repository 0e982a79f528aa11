"""What does a recording look like? Its course over time, one panel a quantity and one line a GPU.

In: a `RecordingData`. Out: a picture of utilisation, memory, power with its limit, temperature with its
slowdown threshold and clocks, over bands of phases, with a strip of when which GPU was held back and what its
driver announced. Many GPUs over a long time are bands of quantiles under each one's median.
Panels that nothing was read for are left out; without a GPU the host's readings are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuproof import plotting as style
from gpuproof.observe.plots_strip import draw_event_lines, draw_strip, strip_height
from gpuproof.readings.recording import DeviceTrack, Floats, RecordingData
from gpuproof.readings.series import bands, envelope
from gpuproof.units import seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PIECES: Final = 700
"""Points of a line: about one a pixel column."""

MANY: Final = 4
"""GPUs from which a long time is drawn as bands: the extremes of each would hide the others."""
BAND_PIECES: Final = 240
"""Stretches of a band: wide enough for a quantile of a day's readings to be calm."""
_BANDS_SAY: Final = "bands: the middle half and the middle 90 % of all GPUs' readings; lines: medians"

_GIB: Final = 2.0**30
_HEAD_IN: Final = 1.2
_LEGEND_IN: Final = 0.22
_LEGEND_COLUMNS: Final = 8
_FOOT_IN: Final = 0.55
_PANEL_IN: Final = 1.55
_GAP_IN: Final = 0.42
_WIDTH_IN: Final = 11.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One quantity: which columns are tried in order, and how the axis is labelled."""

    title: str
    unit: str
    metrics: tuple[str, ...]
    scale: float = 1.0
    from_zero: bool = True
    ceiling: float | None = None
    limit: Callable[[DeviceTrack], float | Floats | None] | None = None
    limit_name: str = ""


def _static(key: str) -> Callable[[DeviceTrack], float | Floats | None]:
    return lambda track: track.identity.number(key)


def _power_limit(track: DeviceTrack) -> float | Floats | None:
    column = track.values("power_limit_w")
    return column if column is not None else track.identity.number("power_limit_w")


PANELS: Final = (
    Panel(title="GPU utilisation", unit="%", metrics=("util_gpu_percent",), ceiling=100.0),
    Panel(
        title="Memory used",
        unit="GiB",
        metrics=("mem_used_bytes",),
        scale=_GIB,
        limit=_static("mem_total_bytes"),
        limit_name="installed",
    ),
    Panel(
        title="Power",
        unit="W",
        metrics=("power_w", "power_instant_w"),
        limit=_power_limit,
        limit_name="limit",
    ),
    Panel(
        title="Temperature",
        unit="°C",
        metrics=("temp_gpu_c", "temp_hotspot_c"),
        from_zero=False,
        limit=_static("temp_slowdown_c"),
        limit_name="slowdown",
    ),
    Panel(
        title="SM clock",
        unit="MHz",
        metrics=("clock_sm_mhz",),
        limit=_static("clock_sm_max_mhz"),
        limit_name="maximum",
    ),
)
HOST_PANELS: Final = (
    Panel(title="Host CPU", unit="%", metrics=("cpu_percent",), ceiling=100.0),
    Panel(title="Host memory used", unit="GiB", metrics=("mem_used_bytes",), scale=_GIB),
)


def plot_recording(recording: RecordingData, path: Path) -> None:
    """Draw a recording to `path` (PNG, SVG or PDF by its suffix).

    Raises:
        EnvironmentUnfitError: matplotlib is not installed, or the picture cannot be written.
        UsageError: the suffix names no picture.
    """
    style.save(_draw(recording), path)


def _draw(recording: RecordingData) -> Figure:
    panels = [p for p in PANELS if any(_column(t, p) is not None for t in recording.devices)]
    host = [] if panels else [p for p in HOST_PANELS if recording.host.get(p.metrics[0]) is not None]
    strip_in = strip_height(recording)
    heights = [_PANEL_IN] * (len(panels) + len(host)) + ([strip_in] if strip_in else [])
    if not heights:
        return _nothing(recording)
    figure, axes = _layout(recording, heights)
    length_s, unit = style.time_unit(recording.duration_s)
    for panel, place in zip(panels, axes, strict=False):
        _draw_panel(place, panel, recording, length_s)
    for panel, place in zip(host, axes, strict=False):
        _draw_host(place, panel, recording, length_s)
    if strip_in:
        draw_strip(axes[-1], recording, length_s)
        draw_event_lines(axes[:-1], recording, length_s)
    _finish(figure, axes, recording, length_s, unit)
    return figure


def _describe(recording: RecordingData) -> str:
    """Write what a recording is of in one line: devices, host, date, length."""
    kinds: dict[str, int] = {}
    for track in recording.devices:
        kinds[track.identity.name] = kinds.get(track.identity.name, 0) + 1
    devices = ", ".join(f"{number} × {name}" if number > 1 else name for name, number in kinds.items())
    parts = [devices or "no GPU", recording.recording.host]
    if recording.began_unix_s is not None:
        parts.append(f"{datetime.fromtimestamp(recording.began_unix_s, timezone.utc):%Y-%m-%d %H:%M} UTC")
    parts.append(seconds(recording.duration_s))
    return "  ·  ".join(parts)


def _layout(recording: RecordingData, heights: list[float]) -> tuple[Figure, list[Axes]]:
    """Stack panels of the given heights in inches under the headline and the legend."""
    legend_rows = ceil(len(recording.devices) / _LEGEND_COLUMNS) if len(recording.devices) > 1 else 0
    head_in = _HEAD_IN + _LEGEND_IN * legend_rows
    body_in = sum(heights) + _GAP_IN * (len(heights) - 1)
    figure = style.new_figure(_WIDTH_IN, head_in + body_in + _FOOT_IN)
    total_in = figure.get_figheight()
    axes = figure.subplots(
        len(heights),
        1,
        sharex=True,
        squeeze=False,
        gridspec_kw={
            "height_ratios": heights,
            "hspace": _GAP_IN / (sum(heights) / len(heights)),
            "left": 0.06,
            "right": 0.925,
            "top": 1 - head_in / total_in,
            "bottom": _FOOT_IN / total_in,
        },
    )
    return figure, list(axes[:, 0])


def _finish(figure: Figure, axes: list[Axes], recording: RecordingData, length_s: float, unit: str) -> None:
    style.headline(figure, recording.source, _describe(recording))
    if len(recording.time_s) > 1:
        axes[-1].set_xlim(recording.time_s[0] / length_s, recording.time_s[-1] / length_s)
    axes[-1].set_xlabel(f"time since the recording began ({unit})", fontsize=9, color=style.FAINT)
    draw_phases(axes, recording, length_s)
    if _is_banded(recording):
        axes[0].set_title(_BANDS_SAY, loc="right", fontsize=8.5, color=style.FAINT, pad=5)
    if len(recording.devices) > 1:
        labels = [f"GPU {track.identity.physical_index}" for track in recording.devices]
        style.legend(figure, labels, top_in=0.72, columns=_LEGEND_COLUMNS)


def _nothing(recording: RecordingData) -> Figure:
    figure = style.new_figure(_WIDTH_IN, 2.2)
    style.headline(figure, recording.source, _describe(recording))
    figure.text(0.06, 0.4, "This recording holds no readings to draw.", fontsize=11, color=style.INK)
    return figure


def _column(track: DeviceTrack, panel: Panel) -> Floats | None:
    """Take the first of a panel's columns that holds a reading."""
    for metric in panel.metrics:
        column = track.values(metric)
        if column is not None and not np.isnan(column).all():
            return column
    return None


def _draw_panel(axes: Axes, panel: Panel, recording: RecordingData, length_s: float) -> None:
    style.tidy(axes, title=panel.title, unit=panel.unit)
    columns = {n: c for n, t in enumerate(recording.devices) if (c := _column(t, panel)) is not None}
    if _is_banded(recording):
        _draw_bands(axes, recording.time_s / length_s, {n: c / panel.scale for n, c in columns.items()})
    else:
        for place, column in columns.items():
            draw_line(axes, recording.time_s, column, place=place, scale=panel.scale, length_s=length_s)
    _draw_limits(axes, panel, recording, length_s)
    _bound(axes, panel)


def _is_banded(recording: RecordingData) -> bool:
    return len(recording.devices) >= MANY and len(recording.time_s) > 2 * PIECES


def _draw_bands(axes: Axes, x: Floats, columns: dict[int, Floats]) -> None:
    """Draw where the readings of all GPUs lie, and the median of each."""
    lie = bands(x, list(columns.values()), pieces=BAND_PIECES)
    for low, high, strength in ((0, 3, 0.16), (1, 2, 0.26)):
        axes.fill_between(
            lie.time_s, lie.levels[low], lie.levels[high], color=style.FAINT, alpha=strength, linewidth=0
        )
    for place, column in columns.items():
        median = bands(x, [column], pieces=BAND_PIECES, shares=(0.5,))
        axes.plot(
            median.time_s,
            median.levels[0],
            color=style.colour(place),
            linestyle=style.dash(place),
            linewidth=1.1,
        )


def _draw_host(axes: Axes, panel: Panel, recording: RecordingData, length_s: float) -> None:
    style.tidy(axes, title=panel.title, unit=panel.unit)
    column = recording.host[panel.metrics[0]]
    draw_line(axes, recording.time_s, column, place=0, scale=panel.scale, length_s=length_s)
    _bound(axes, panel)


def _bound(axes: Axes, panel: Panel) -> None:
    if panel.ceiling is not None:
        axes.set_ylim(0, panel.ceiling * 1.04)
    elif panel.from_zero:
        axes.set_ylim(0, axes.get_ylim()[1])


def draw_line(
    axes: Axes,
    time_s: Floats,
    column: Floats,
    *,
    place: int,
    scale: float,
    length_s: float,
    label: str | None = None,
) -> None:
    """Draw one column as a line, over the band between its extremes where points were joined."""
    shape = envelope(time_s, column, pieces=PIECES)
    x = shape.time_s / length_s
    if shape.reduced:
        axes.fill_between(
            x, shape.low / scale, shape.high / scale, color=style.colour(place), alpha=0.18, linewidth=0
        )
    marker = "o" if np.count_nonzero(~np.isnan(shape.mean)) == 1 else None
    axes.plot(
        x,
        shape.mean / scale,
        color=style.colour(place),
        linestyle=style.dash(place),
        linewidth=1.3,
        marker=marker,
        label=label,
    )


def _draw_limits(axes: Axes, panel: Panel, recording: RecordingData, length_s: float) -> None:
    """Draw each limit once, as the GPUs of a machine mostly share it; one far off would flatten the lines."""
    if panel.limit is None:
        return
    limits = {_level(panel.limit(track)) for track in recording.devices} - {None}
    for level in sorted(value / panel.scale for value in limits if value is not None):
        highest = max((float(np.nanmax(line.get_ydata())) for line in axes.get_lines()), default=0.0)
        if highest < level * 0.25:
            continue
        axes.axhline(level, color=style.INK, linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.7)
        axes.annotate(
            f"{panel.limit_name}\n{level:,.0f}",
            xy=(1.006, level),
            xycoords=("axes fraction", "data"),
            fontsize=8,
            color=style.INK,
            va="center",
            linespacing=0.95,
        )


def _level(limit: float | Floats | None) -> float | None:
    """Return a sampled limit's median: a cap that was changed during it stands in the summary."""
    if isinstance(limit, np.ndarray):
        values = limit[~np.isnan(limit)]
        return float(np.median(values)) if len(values) else None
    return limit


def draw_phases(axes: list[Axes], recording: RecordingData, length_s: float) -> None:
    """Shade the phases behind all panels, and name them over the first where there is room."""
    spans = recording.phases()
    names = list(dict.fromkeys(span.name for span in spans))
    for span in spans:
        name, begin_s, end_s = span.name, span.start_s, span.end_s
        fill = style.PHASE_FILLS[names.index(name) % len(style.PHASE_FILLS)]
        for panel in axes:
            panel.axvspan(begin_s / length_s, end_s / length_s, color=fill, zorder=-5, linewidth=0)
        if end_s - begin_s > recording.duration_s * 0.011 * len(name):
            middle, at_top = (begin_s + end_s) / 2 / length_s, ("data", "axes fraction")
            at, above, faint = (middle, 1.0), (0, 21), style.FAINT
            style.note(axes[0], name, at, above, colour=faint, style="italic", ha="center", xycoords=at_top)
