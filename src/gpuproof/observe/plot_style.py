"""How do all pictures look? One place for figures, colours, axes, time, and a day drawn in a thousand points.

matplotlib is loaded when the first picture is made, drawn in memory without a display, and never touches
its global state; where it is not installed, the error names the extra that brings it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from gpuproof.errors import EnvironmentUnfitError, UsageError
from gpuproof.observe.files import aside
from gpuproof.readings.recording import Floats, RecordingData
from gpuproof.readings.series import longest_step_s
from gpuproof.units import seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
INK: Final = "#1f2933"
FAINT: Final = "#7b8794"
GRID: Final = "#e4e7eb"
DPI: Final = 110
Dash = Literal["-"] | tuple[float, tuple[float, ...]]
PICTURE_FORMATS: Final = ("png", "svg", "pdf")

SERIES: Final = (
    "#2563eb",
    "#e8590c",
    "#0b9d6e",
    "#9c36b5",
    "#c29200",
    "#0c8599",
    "#d6336c",
    "#5c677d",
)
"""One colour a GPU, told apart by people with any colour vision by lightness as well as hue."""

DASHES: Final[tuple[Dash, ...]] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
"""From the ninth GPU on, colours come again with another dash."""

PHASE_FILLS: Final = ("#eef2f7", "#ffffff")

THROTTLE_FILLS: Final = {
    "thermal_hardware": "#a4161a",
    "thermal_software": "#e03131",
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


def new_figure(width_in: float, height_in: float) -> Figure:
    """Make an empty figure that needs no display.

    Raises:
        EnvironmentUnfitError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentUnfitError(
            "pictures need matplotlib, which is not installed",
            next_step="Install it with: pip install 'gpuproof[monitor]'",
        ) from error
    return Figure(figsize=(width_in, height_in), dpi=DPI, facecolor="white")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF by the path's suffix: aside first, then renamed.

    Raises:
        UsageError: the suffix names none of them.
        EnvironmentUnfitError: the file cannot be written.
    """
    picture_format = path.suffix.removeprefix(".").lower()
    if picture_format not in PICTURE_FORMATS:
        raise UsageError(
            "is no picture that can be drawn", place=str(path), next_step="End its name in .png, .svg or .pdf"
        )
    with aside(path) as place:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(place, format=picture_format)


def tidy(axes: Axes, *, title: str, unit: str) -> None:
    """Give a panel its title with the unit, a quiet grid, and no box."""
    axes.set_title(f"{title} ({unit})" if unit else title, loc="left", fontsize=10, color=INK, pad=5)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", colors=FAINT, labelsize=8.5, length=0)
    axes.margins(x=0)
    axes.yaxis.set_major_formatter("{x:,.6g}")


def headline(figure: Figure, title: str, subtitle: str) -> None:
    """Write the picture's two lines at its upper left, at the same distance whatever its height."""
    inch = 1 / figure.get_figheight()
    figure.text(0.06, 1 - 0.34 * inch, title, fontsize=13.5, weight="bold", color=INK, va="center")
    figure.text(0.06, 1 - 0.60 * inch, subtitle, fontsize=9.5, color=FAINT, va="center")


def legend(figure: Figure, labels: Sequence[str], *, top_in: float, columns: int) -> None:
    """Name the lines in their order, so far under the upper edge, in inches."""
    from matplotlib.lines import Line2D

    figure.legend(
        [Line2D([], [], color=colour(n), linestyle=dash(n), linewidth=2.2) for n in range(len(labels))],
        labels,
        loc="upper left",
        bbox_to_anchor=(0.052, 1 - top_in / figure.get_figheight()),
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handlelength=1.4,
        columnspacing=1.1,
    )


def describe(recording: RecordingData) -> str:
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


def time_unit(duration_s: float) -> tuple[float, str]:
    """Choose the unit of a time axis: its length in seconds, and its name."""
    for limit_s, length_s, name in ((180, 1.0, "s"), (10_800, 60.0, "min")):
        if duration_s <= limit_s:
            return length_s, name
    return 3600.0, "h"


def colour(place: int) -> str:
    """Give the colour of the n-th line."""
    return SERIES[place % len(SERIES)]


def dash(place: int) -> Dash:
    """Give the dash of the n-th line."""
    return DASHES[place // len(SERIES) % len(DASHES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A column as a picture shows it, in the column's unit."""

    time_s: Floats
    low: Floats
    high: Floats
    mean: Floats
    reduced: bool
    """Whether pieces hold more than one reading, so that `low` and `high` differ from `mean`."""


def envelope(time_s: Floats, column: Floats, *, pieces: int) -> Envelope:
    """Reduce a column to at most about `pieces` points, and break it where readings are missing."""
    given = ~np.isnan(column)
    times, values = time_s[given], column[given]
    if len(times) <= 2 * pieces:
        times, values = _with_breaks(times, values)
        return Envelope(time_s=times, low=values, high=values, mean=values, reduced=False)
    width = (times[-1] - times[0]) / pieces
    piece = np.minimum(((times - times[0]) / width).astype(np.int64), pieces - 1)
    starts = np.flatnonzero(np.diff(piece, prepend=-1))
    counts = np.diff(np.append(starts, len(piece)))
    filled = piece[starts]
    return Envelope(
        time_s=times[0] + (np.arange(pieces) + 0.5) * width,
        low=_scatter(filled, np.minimum.reduceat(values, starts), pieces),
        high=_scatter(filled, np.maximum.reduceat(values, starts), pieces),
        mean=_scatter(filled, np.add.reduceat(values, starts) / counts, pieces),
        reduced=True,
    )


def _scatter(places: np.ndarray[tuple[int], np.dtype[np.int64]], values: Floats, length: int) -> Floats:
    column = np.full(length, np.nan)
    column[places] = values
    return column


def _with_breaks(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Put a NaN into every hole."""
    holes = np.flatnonzero(np.diff(times) > longest_step_s(times)) + 1
    return np.insert(times, holes, times[holes]), np.insert(values, holes, np.nan)
