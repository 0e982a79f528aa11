"""How do all pictures look? One place for figures, colours, axes and time.

matplotlib is loaded when the first picture is made, drawn in memory without a display, and never touches
its global state; where it is not installed, the error names the extra that brings it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from gpuproof.errors import EnvironmentUnfitError, UsageError
from gpuproof.files import aside

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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnfitError(error.strerror or str(error), place=str(path.parent)) from error
    with aside(path) as place:
        figure.savefig(place, format=picture_format)


def quieten(
    axes: Axes, *, grid: Literal["both", "y"] = "both", which: Literal["major", "both"] = "both"
) -> None:
    """Give axes a quiet grid, ticks (`which` of them) without marks, and no box."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which=which, colors=FAINT, labelsize=8.5, length=0)


def tidy(axes: Axes, *, title: str, unit: str) -> None:
    """Give a panel its title with the unit, a quiet grid, and no box."""
    axes.set_title(f"{title} ({unit})" if unit else title, loc="left", fontsize=10, color=INK, pad=5)
    quieten(axes, grid="y", which="major")
    axes.margins(x=0)
    axes.yaxis.set_major_formatter("{x:,.6g}")


def note(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    *,
    colour: str = INK,
    size: float = 8.5,
    **how: Any,
) -> None:
    """Write a text so many points off a place of the axes; `how` is what matplotlib's annotate takes."""
    axes.annotate(text, xy=at, xytext=offset, textcoords="offset points", color=colour, fontsize=size, **how)


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
