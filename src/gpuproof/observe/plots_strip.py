"""When was which GPU held back, and what did its driver announce? The strip under a recording's panels.

In: a `RecordingData`. Out: a row a GPU with a colour a throttle reason and a mark an event, named above; each
event is a thin line through the other panels too. Without either there is no strip.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuproof import plotting as style
from gpuproof.readings.metric_text import throttle_title
from gpuproof.readings.recording import Flags, Floats, RecordingData

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.container import Container

THROTTLE_FILLS: Final = {
    "thermal_hardware": "#a4161a",
    "thermal_software": "#e03131",
    "thermal": "#ff6b6b",
    "thermal_memory": "#e8590c",
    "hardware_slowdown": "#7b2d8b",
    "power_brake": "#b5179e",
    "current_limit": "#c2255c",
    "voltage_regulator": "#d6336c",
    "power_cap": "#f5a524",
    "sync_boost": "#74b3ce",
    "board_limit": "#8d6e63",
    "reliability": "#6c757d",
    "other": "#495057",
}
"""Throttle reasons in the order in which they hide one another; states such as idle are not drawn."""

_MARKS: Final = "vDsP^X*o"
"""One a kind of event; then they come again."""
VISIBLE: Final = 1400
"""Stretches of the time that a picture tells apart."""
_ROW_IN: Final = 0.17
_LEGEND_COLUMNS: Final = 6


def strip_height(recording: RecordingData) -> float:
    """Give the height in inches, 0 where there is nothing to draw."""
    named = len(_reasons(recording)) + len(_kinds(recording))
    return 0.25 + _ROW_IN * (len(recording.devices) + _legend_rows(named)) if named else 0.0


def draw_strip(axes: Axes, recording: RecordingData, length_s: float) -> None:
    """Draw when which GPU was held back, the gravest on top, and what its driver announced."""
    reasons, kinds = _reasons(recording), _kinds(recording)
    title = ", and ".join([*(["held back by"] if reasons else []), *(["driver events"] if kinds else [])])
    style.tidy(axes, title=title[0].upper() + title[1:], unit="")
    axes.grid(visible=False)
    handles: dict[str, Artist | Container] = {}
    for row, track in enumerate(recording.devices):
        for reason in reversed(reasons):
            flags = track.throttle.get(reason)
            stretches = [] if flags is None else held(recording.time_s, flags)
            drawn = [(begin / length_s, (end - begin) / length_s) for begin, end in stretches]
            axes.broken_barh(drawn, (row - 0.4, 0.8), facecolor=THROTTLE_FILLS[reason], linewidth=0)
    for reason in reasons:
        handles[throttle_title(reason)] = axes.barh([0], [0], color=THROTTLE_FILLS[reason])
    handles |= _draw_events(axes, recording, kinds, length_s)
    rows, named = len(recording.devices), _legend_rows(len(handles))
    axes.set_ylim(rows - 0.5, -0.5 - named)
    axes.set_yticks(range(rows), [f"GPU {t.identity.physical_index}" for t in recording.devices])
    axes.legend(
        handles.values(),
        handles.keys(),
        loc="upper left",
        bbox_to_anchor=(-0.008, 1.04),
        ncols=_LEGEND_COLUMNS,
        frameon=False,
        fontsize=8.5,
        handlelength=1.0,
        columnspacing=1.2,
        labelspacing=0.2,
        borderaxespad=0.0,
        labelcolor=style.INK,
    )


def draw_event_lines(panels: list[Axes], recording: RecordingData, length_s: float) -> None:
    """Draw a thin line through the panels where a driver announced something."""
    for at_s in _apart([at_s for times in _kinds(recording).values() for _, at_s in times], recording):
        for panel in panels:
            panel.axvline(at_s / length_s, color=style.INK, linewidth=0.7, alpha=0.35, zorder=0.5)


def _draw_events(
    axes: Axes, recording: RecordingData, kinds: dict[str, list[tuple[int, float]]], length_s: float
) -> dict[str, Artist | Container]:
    handles: dict[str, Artist | Container] = {}
    for number, (kind, events) in enumerate(kinds.items()):
        points = {row: _apart([at_s for r, at_s in events if r == row], recording) for row, _ in events}
        (handles[kind if len(events) == 1 else f"{kind} ({len(events)}×)"],) = axes.plot(
            [at_s / length_s for times in points.values() for at_s in times],
            [row for row, times in points.items() for _ in times],
            linestyle="",
            marker=_MARKS[number % len(_MARKS)],
            markersize=6,
            markerfacecolor=style.INK,
            markeredgecolor="white",
            markeredgewidth=0.7,
            clip_on=False,
            zorder=5,
        )
    return handles


def _kinds(recording: RecordingData) -> dict[str, list[tuple[int, float]]]:
    """List the events of the drawn devices by their title: row and seconds."""
    rows = {track.identity.physical_index: row for row, track in enumerate(recording.devices)}
    begin_s, end_s = (recording.time_s[0], recording.time_s[-1]) if len(recording.time_s) else (0.0, 0.0)
    kinds: dict[str, list[tuple[int, float]]] = {}
    for event in recording.events:
        if event.physical_index in rows:
            at_s = min(max(recording.seconds_in(event.monotonic_s), float(begin_s)), float(end_s))
            kinds.setdefault(event.title.replace("_", " "), []).append((rows[event.physical_index], at_s))
    return kinds


def _apart(times: list[float], recording: RecordingData) -> list[float]:
    """Leave of times that fall on one another in the picture the first."""
    pixel_s = recording.duration_s / VISIBLE
    visible: list[float] = []
    for at_s in sorted(times):
        if not visible or at_s - visible[-1] > pixel_s:
            visible.append(at_s)
    return visible


def _reasons(recording: RecordingData) -> list[str]:
    """Name the reasons that held any device back, the gravest first."""
    reasons = {reason for track in recording.devices for reason, on in track.throttle.items() if on.any()}
    return [reason for reason in THROTTLE_FILLS if reason in reasons]


def _legend_rows(named: int) -> int:
    return ceil(named / _LEGEND_COLUMNS)


def held(time_s: Floats, flags: Flags) -> Iterator[tuple[float, float]]:
    """Give the stretches, begin and end in seconds, over which flags were set; joined to what is visible."""
    if not flags.any():
        return
    edges = np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8))
    begins = np.flatnonzero(edges == 1)
    ends = np.flatnonzero(edges == -1)
    last = len(time_s) - 1
    pixel_s = (time_s[-1] - time_s[0]) / VISIBLE
    begin_s, end_s = float(time_s[begins[0]]), float(time_s[min(ends[0], last)])
    for begin, end in zip(begins[1:], ends[1:], strict=True):
        if time_s[begin] - end_s > pixel_s:
            yield begin_s, max(end_s, begin_s + pixel_s)
            begin_s = float(time_s[begin])
        end_s = float(time_s[min(end, last)])
    yield begin_s, max(end_s, begin_s + pixel_s)
