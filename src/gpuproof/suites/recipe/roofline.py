"""The roofline of a run as a picture: what the device could do, and where the run lies below it.

Solid lines are ceilings measured on the spot, dashed ones those of the data sheet. A run whose bytes are not
known has no place along the axis of intensity: it is drawn as a level line, not as a point.
"""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import TYPE_CHECKING

from gpuproof import units
from gpuproof.plotting import FAINT, SERIES, headline, new_figure, note, quieten, save
from gpuproof.verdict.summary import RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADES_BELOW, DECADES_ABOVE = 2.5, 3.0
"""Of intensity, around the ridge."""
ROOF, SHEET, RUN = SERIES[0], FAINT, SERIES[1]


def draw_roofline(summary: RunSummary, path: Path) -> bool:
    """Write the picture; says whether there was one to draw: it takes both measured ceilings.

    Raises:
        EnvironmentUnfitError: matplotlib is not installed, or the file cannot be written.
    """
    roofline = summary.roofline
    if roofline is None or roofline.compute is None or roofline.memory is None:
        return False
    figure = new_figure(8.2, 5.2)
    axes = figure.add_axes((0.11, 0.12, 0.85, 0.70))
    setup = summary.launches[0].setup
    headline(figure, f"Roofline of {setup.device.name}, {setup.precision}", _subtitle(summary))
    flops, traffic = roofline.compute.value_per_s, roofline.memory.value_per_s
    intensities = _intensities(summary, flops / traffic)
    _roof(axes, intensities, flops, traffic, colour=ROOF, dash="-")
    _label_roof(axes, intensities, flops, traffic, avoid=summary.flops_per_s_per_device)
    if summary.peak is not None and summary.memory_peak is not None:
        peak, memory_peak = summary.peak.flops_per_s, summary.memory_peak.bytes_per_s
        _roof(axes, intensities, peak, memory_peak, colour=SHEET, dash=(0, (5, 2)))
        _note(axes, intensities[1], peak, f"data sheet: {units.flops(peak, digits=4)}", SHEET)
    _place_of_the_run(axes, summary, intensities)
    _finish(axes, intensities, lowest=min(summary.flops_per_s_per_device or flops, flops))
    save(figure, path)
    return True


def _subtitle(summary: RunSummary) -> str:
    case = summary.launches[0].case
    return f"{case.model_work.model.name} {case.kind}, per device; ceilings measured after the window"


def _intensities(summary: RunSummary, ridge: float) -> tuple[float, float]:
    """Choose the ends of the axis, such that the ridge and the run lie between them."""
    low, high = ridge / 10**DECADES_BELOW, ridge * 10**DECADES_ABOVE
    flops, traffic = summary.flops_per_s_per_device, summary.bytes_per_s_per_device
    if flops and traffic:
        low, high = min(low, flops / traffic / 10), max(high, flops / traffic * 10)
    return low, high


def _roof(
    axes: Axes,
    intensities: tuple[float, float],
    flops_per_s: float,
    bytes_per_s: float,
    *,
    colour: str,
    dash: str | tuple[int, tuple[int, int]],
) -> None:
    low, high = intensities
    ridge = flops_per_s / bytes_per_s
    axes.plot(
        [low, ridge, high],
        [low * bytes_per_s, flops_per_s, flops_per_s],
        color=colour,
        linestyle=dash,
        linewidth=2,
    )


def _label_roof(
    axes: Axes, intensities: tuple[float, float], flops: float, traffic: float, *, avoid: float | None
) -> None:
    """Name both parts of the measured roof, that of memory away from the run's own rate."""
    low, high = intensities
    _note(axes, high, flops, f"products: {units.flops(flops)}", ROOF, below=True)
    ridge = flops / traffic
    places = [low ** (1 - part) * ridge**part for part in (0.5, 0.25, 0.75)]
    free = max(places, key=lambda place: abs(log(place * traffic / avoid))) if avoid else places[0]
    memory = f"memory: {units.bandwidth(traffic)}"
    note(axes, memory, (free, free * traffic), (10, -8), colour=ROOF, size=9, va="top")
    note(axes, f"they meet at {units.significant(ridge)} FLOP/byte", (ridge, flops), (12, -9), va="top")


def _note(axes: Axes, x: float, y: float, text: str, colour: str, *, below: bool = False) -> None:
    above, va = (-6, "top") if below else (5, "bottom")
    note(axes, text, (x, y), (-4, above), colour=colour, size=9, ha="right", va=va)


def _place_of_the_run(axes: Axes, summary: RunSummary, intensities: tuple[float, float]) -> None:
    flops, traffic = summary.flops_per_s_per_device, summary.bytes_per_s_per_device
    if not flops:
        return
    if traffic:
        axes.plot([flops / traffic], [flops], marker="o", markersize=9, color=RUN)
        this = f"this run: {units.flops(flops)}"
        note(axes, this, (flops / traffic, flops), (10, -10), colour=RUN, size=9.5)
        return
    axes.axhline(flops, color=RUN, linewidth=2)
    _note(axes, intensities[1], flops, f"this run: {units.flops(flops)}, its intensity is not known", RUN)


def _finish(axes: Axes, intensities: tuple[float, float], *, lowest: float) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*intensities)
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(bottom, lowest / 3), top * 1.6)
    axes.set_xlabel("arithmetic intensity (FLOP/byte)", color=FAINT, fontsize=9)
    axes.yaxis.set_major_formatter(lambda value, _: units.flops(value, digits=1))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    quieten(axes)
