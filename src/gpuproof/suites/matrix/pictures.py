"""Pictures of a matrix: memory over time and in bars, and what is compared with its intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuproof import plotting as style
from gpuproof.errors import EnvironmentUnfitError
from gpuproof.records.result import Better
from gpuproof.suites.matrix.compare import configurations
from gpuproof.suites.matrix.figures import CaseFigures, shown_memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 11.0
MOST = 24
"""Lines or rows of one picture."""
GIB, MIB = 2.0**30, 2.0**20


def _firsts(cases: Sequence[CaseFigures]) -> list[CaseFigures]:
    """Return the first launch of each configuration that has memory over time."""
    memory, first = shown_memory(cases), dict[str, CaseFigures]()
    for case in cases:
        if memory(case).course:
            first.setdefault(case.configuration, case)
    return list(first.values())


def _unit(highest_bytes: float) -> tuple[float, str]:
    return (GIB, "GiB") if highest_bytes >= GIB else (MIB, "MiB")


def _refuse_without(items: Sequence[object]) -> None:
    if not items:
        raise EnvironmentUnfitError("no case has memory over time")


def draw_memory_timeline(cases: Sequence[CaseFigures], path: Path) -> None:
    """Draw the memory of each configuration's first launch since it began.

    Raises:
        EnvironmentUnfitError: matplotlib is not installed, no case has any, or the picture cannot be written.
    """
    shown, memory = _firsts(cases), shown_memory(cases)
    _refuse_without(shown)
    left_out = len(shown) - MOST
    shown = shown[:MOST]
    rows = -(-len(shown) // 2)
    top_in = 0.8 + 0.22 * rows
    height_in = top_in + 4.4
    figure = style.new_figure(WIDTH_IN, height_in)
    bases = ", ".join(dict.fromkeys(memory(case).basis for case in shown))
    more = f"; {left_out} more are not drawn" if left_out > 0 else ""
    style.headline(
        figure, "Memory over time", f"{bases}; first launch of each of {len(shown)} configurations{more}"
    )
    axes = figure.add_axes((0.06, 0.6 / height_in, 0.9, (height_in - top_in - 1.0) / height_in))
    highest = max(value for case in shown for _, value in memory(case).course)
    scale, unit = _unit(highest)
    longest_s = max(time_s for case in shown for time_s, _ in memory(case).course)
    length_s, time_unit = style.time_unit(longest_s)
    style.tidy(axes, title="Memory", unit=unit)
    _draw_courses(axes, shown, length_s=length_s, scale=scale)
    axes.set_xlim(0, 1.02 * longest_s / length_s or 1.0)
    axes.set_ylim(0, 1.08 * highest / scale or 1.0)
    axes.set_xlabel(f"time since each began ({time_unit})", fontsize=9, color=style.FAINT)
    style.legend(figure, [case.configuration[:70] for case in shown], top_in=0.74, columns=2)
    style.save(figure, path)


def _draw_courses(axes: Axes, shown: Sequence[CaseFigures], *, length_s: float, scale: float) -> None:
    memory = shown_memory(shown)
    for place, case in enumerate(shown):
        course = memory(case).course
        axes.step(
            [time_s / length_s for time_s, _ in course],
            [value / scale for _, value in course],
            where="post",
            color=style.colour(place),
            linestyle=style.dash(place),
            linewidth=1.5,
            marker="." if len(course) < 3 else None,
        )


def draw_memory_bars(cases: Sequence[CaseFigures], path: Path) -> None:
    """Draw mean and peak memory of each configuration's first launch.

    Raises:
        EnvironmentUnfitError: as `draw_memory_timeline`.
    """
    memory = shown_memory(cases)
    shown = [case for case in _first_launches(cases) if memory(case).peak_bytes is not None]
    _refuse_without(shown)
    shown = shown[:MOST]
    figure, axes = _rows("Memory of the cases", _bases(shown), len(shown))
    peaks = [memory(case).peak_bytes or 0.0 for case in shown]
    scale, unit = _unit(max(peaks))
    style.tidy(axes, title="Mean (bar) and peak (line)", unit=unit)
    for row, (case, peak) in enumerate(zip(shown, peaks, strict=True)):
        mean = memory(case).mean_bytes
        if mean is not None:
            axes.barh([row], [mean / scale], height=0.55, color=style.colour(row), alpha=0.85)
        axes.plot([peak / scale] * 2, [row - 0.36, row + 0.36], color=style.INK, linewidth=1.6)
        text = f"peak {peak / scale:.4g}" if mean is None else f"{mean / scale:.4g}, peak {peak / scale:.4g}"
        style.note(axes, text, (peak / scale, row), (6, 0), va="center")
    _name_rows(axes, [case.configuration for case in shown])
    axes.set_xlim(0, 1.25 * max(peaks) / scale or 1.0)
    style.save(figure, path)


def draw_comparison(
    cases: Sequence[CaseFigures], path: Path, *, metric: str, better: Better, seed: str
) -> None:
    """Draw what is compared: each configuration's launches, their mean and its interval.

    Raises:
        EnvironmentUnfitError: as `draw_memory_timeline`.
    """
    shown = [one for one in configurations(cases, metric, seed=seed) if one.mean is not None][:MOST]
    _refuse_without(shown)
    way = "higher is better" if better == "higher" else "lower is better"
    subtitle = f"each launch (points), mean (line), 95 % interval of it (bar); {way}"
    figure, axes = _rows(metric, subtitle, len(shown))
    style.tidy(axes, title="", unit="")
    for row, one in enumerate(shown):
        if one.interval is not None:
            low, high = one.interval
            axes.barh([row], [high - low], left=low, height=0.5, color=style.colour(row), alpha=0.35)
        axes.plot(one.values, [row] * len(one.values), ".", color=style.colour(row), markersize=6)
        mean = one.mean or 0.0
        axes.plot([mean, mean], [row - 0.3, row + 0.3], color=style.INK, linewidth=1.6)
    _name_rows(axes, [one.name for one in shown])
    ends = [value for one in shown for value in (*one.values, *(one.interval or ()))]
    margin = 0.05 * (max(ends) - min(ends)) or 0.05 * abs(max(ends)) or 1.0
    axes.set_xlim(min(ends) - margin, max(ends) + margin)
    style.save(figure, path)


def _first_launches(cases: Sequence[CaseFigures]) -> list[CaseFigures]:
    first: dict[str, CaseFigures] = {}
    for case in cases:
        first.setdefault(case.configuration, case)
    return list(first.values())


def _bases(shown: Sequence[CaseFigures]) -> str:
    return ", ".join(dict.fromkeys(shown_memory(shown)(case).basis for case in shown))


def _rows(title: str, subtitle: str, num_rows: int) -> tuple[Figure, Axes]:
    """Make a figure of rows, their names to the left."""
    height_in = 1.75 + 0.34 * num_rows
    figure = style.new_figure(WIDTH_IN, height_in)
    style.headline(figure, title, subtitle)
    axes = figure.add_axes((0.38, 0.45 / height_in, 0.57, (height_in - 1.6) / height_in))
    return figure, axes


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=style.GRID, linewidth=0.8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), [name[:58] for name in names], color=style.INK)
