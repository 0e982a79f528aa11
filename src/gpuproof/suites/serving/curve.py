"""The throughput–latency curve of a search as a picture: p50 and p99 of the latency at every rate offered.

A percentile that a window had too few requests for is not drawn. The bound is a level line, the highest rate
that met it and the knee of the median are upright ones. The scale of the latency is logarithmic: over the
highest rate the queue grows for as long as the window is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from gpuproof import units
from gpuproof.analysis.requests.served import Served
from gpuproof.groups import grouped
from gpuproof.plotting import FAINT, INK, SERIES, headline, new_figure, note, quieten, save
from gpuproof.statistics.percentiles import percentile
from gpuproof.suites.serving.run import ServingRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIN_RATES = 2
DRAWN = (50.0, 99.0)
HIGHEST, KNEE, BOUND = INK, SERIES[3], INK
DASHED = (0, (5, 2))
Points = list[tuple[float, float]]
"""Rate and latency, by rate."""


def draw_serving_curve(run: ServingRun, path: Path) -> bool:
    """Write the picture; says whether there was one to draw: a search with two rates or more.

    Raises:
        EnvironmentUnfitError: matplotlib is not installed, or the file cannot be written.
    """
    curves = {q: curve_points(run.launches, q) for q in _quantiles(run)}
    if run.search is None or not run.config.serving.curve or len(curves[50.0]) < MIN_RATES:
        return False
    figure = new_figure(8.2, 5.2)
    axes = figure.add_axes((0.11, 0.12, 0.85, 0.70))
    headline(figure, "Latency against the rate offered", _subtitle(run))
    for colour, (q, points) in zip(SERIES, curves.items(), strict=False):
        if points:
            _draw(axes, points, name=f"p{q:g}", colour=colour)
    _finish(axes, curves, bound_s=run.config.serving.latency_bound_s)
    _mark(axes, run)
    save(figure, path)
    return True


def _quantiles(run: ServingRun) -> tuple[float, ...]:
    """Return the percentiles to draw, the one that the bound is for among them."""
    return tuple(sorted({*DRAWN, run.config.serving.latency_percentile}))


def curve_points(launches: Sequence[Served], q: float) -> Points:
    """Return rate and percentile of every schedule with enough requests for it, repeats side by side."""
    points = ((served.window.offered_per_s, percentile(served.latencies_s, q).value) for served in launches)
    return sorted((rate, value) for rate, value in points if rate is not None and value is not None)


def _subtitle(run: ServingRun) -> str:
    serving, setup = run.config.serving, run.launches[0].setup
    served = {"endpoint": f"{serving.endpoint.model}, an endpoint", "noop": "a no-op server"}
    device = f" on {setup.device.name}, {setup.precision}" if setup else ""
    target = served.get(serving.target, f"{run.config.model.name}{device}")
    return f"{target}; {serving.arrivals} arrivals, each latency from the scheduled one"


def _draw(axes: Axes, points: Points, *, name: str, colour: str) -> None:
    """Mark every launch, and join the medians of each rate."""
    axes.plot(*zip(*points, strict=True), marker="o", markersize=5, linestyle="none", color=colour)
    by_rate = grouped((rate, latency_s) for rate, latency_s in points)
    joined = [(rate, median(latencies_s)) for rate, latencies_s in by_rate.items()]
    axes.plot(*zip(*joined, strict=True), linewidth=2, color=colour)
    note(axes, name, joined[-1], (7, 0), colour=colour, size=9.5, va="center")


def _mark(axes: Axes, run: ServingRun) -> None:
    """Name the bound, the highest rate and the knee."""
    serving, highest = run.config.serving, run.search.met_per_s if run.search else None
    if serving.latency_bound_s is not None:
        axes.axhline(serving.latency_bound_s, color=BOUND, linewidth=1.2, linestyle=DASHED)
        text = f"bound: p{serving.latency_percentile:g} under {units.seconds(serving.latency_bound_s)}"
        at, left = (0.01, serving.latency_bound_s), ("axes fraction", "data")
        note(axes, text, at, (0, 4), colour=BOUND, size=9, xycoords=left)
    if highest is not None:
        _upright(axes, highest, f"highest rate: {units.rate(highest, 'requests')}", HIGHEST, row=0)
    if run.knee_per_s is not None:
        _upright(axes, run.knee_per_s, f"knee: {units.rate(run.knee_per_s, 'requests')}", KNEE, row=1)


def _upright(axes: Axes, rate_per_s: float, text: str, colour: str, *, row: int) -> None:
    """Draw a line at a rate, its name at the top in a row of its own, where there is more room."""
    axes.axvline(rate_per_s, color=colour, linewidth=1.2, linestyle=DASHED)
    is_right = rate_per_s > sum(axes.get_xlim()) / 2
    ha, offset = ("right", -5) if is_right else ("left", 5)
    how = {"va": "top", "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
    at, top = (rate_per_s, 1.0), ("data", "axes fraction")
    note(axes, text, at, (offset, -4 - 13 * row), colour=colour, size=9, xycoords=top, ha=ha, **how)


def _finish(axes: Axes, curves: dict[float, Points], *, bound_s: float | None) -> None:
    points = [point for curve in curves.values() for point in curve]
    heights = [latency_s for _, latency_s in points] + ([] if bound_s is None else [bound_s])
    axes.set_yscale("log", subs=[2, 5])
    axes.set_xlim(0, max(rate for rate, _ in points) * 1.08)
    axes.set_ylim(min(heights) / 1.6, max(heights) * 2.5)  # room for the names at the top
    axes.set_xlabel("requests offered a second", color=FAINT, fontsize=9)
    axes.yaxis.set_major_formatter(lambda value, _: units.seconds(value))
    axes.yaxis.set_minor_formatter(lambda value, _: units.seconds(value))
    axes.xaxis.set_major_formatter("{x:,.6g}")
    quieten(axes)
