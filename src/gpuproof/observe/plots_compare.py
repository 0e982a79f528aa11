"""What do several recordings, or several GPUs, look like side by side?

In: two recordings and their comparison; or any number of recordings; or one window's summary. Out: a
picture of A against B (course and distribution), the memory of many recordings over time and in bars,
or the load of each GPU against the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuproof import plotting as style
from gpuproof.analysis.comparing.recordings import COMPARED_OF_HOST, RecordingComparison, signed
from gpuproof.analysis.comparing.sides import side_of
from gpuproof.observe.plots import draw_line
from gpuproof.readings.balance import device_means, load_balance
from gpuproof.readings.metric_text import title, unit
from gpuproof.readings.recording import Floats, RecordingData
from gpuproof.readings.series import mean_over_devices
from gpuproof.readings.summary import summarise
from gpuproof.records.metrics import HOST_METRICS, METRICS
from gpuproof.records.result import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GIB: Final = 2.0**30
_WIDTH_IN: Final = 11.0
_DRAWN: Final = {row.name for row in (*METRICS.values(), *HOST_METRICS.values()) if row.drawn}


def _scale(metric: str) -> tuple[str, str, float]:
    """Return the title of a metric's panel, its unit, and what a reading is divided by."""
    words = title(metric)
    symbol = unit(metric)
    return words[0].upper() + words[1:], *(("GiB", _GIB) if symbol == "B" else (symbol, 1.0))


def plot_comparison(
    first: RecordingData, second: RecordingData, comparison: RecordingComparison, path: Path
) -> None:
    """Draw A and B over time and as distributions, each panel with its verdict.

    Raises:
        EnvironmentUnfitError: matplotlib is not installed, or the picture cannot be written.
        UsageError: the suffix names no picture.
    """
    differences = [m for m in comparison.means if side_of(m) == "B minus A"]
    metrics = [m for m in differences if m.labels["metric"] in _DRAWN]
    figure = style.new_figure(_WIDTH_IN, 1.95 + 1.75 * max(1, len(metrics)))
    total_in = figure.get_figheight()
    warning = "" if comparison.comparable else "NOT COMPARABLE as they stand (conditions differ)  ·  "
    style.headline(figure, "A against B", f"{warning}verdicts over {comparison.basis}")
    axes = figure.subplots(
        max(1, len(metrics)),
        2,
        squeeze=False,
        gridspec_kw={
            "width_ratios": (3.2, 1),
            "hspace": 0.42,
            "wspace": 0.1,
            "left": 0.06,
            "right": 0.97,
            "top": 1 - 1.4 / total_in,
            "bottom": 0.55 / total_in,
        },
    )
    length_s, unit = style.time_unit(max(first.duration_s, second.duration_s))
    for metric, (course, spread) in zip(metrics, axes, strict=False):
        _draw_pair(course, spread, metric, (first, second), length_s)
    for course in axes[: len(metrics) - 1, 0]:
        course.set_xticklabels([])
    axes[-1][0].set_xlabel(f"time since each began ({unit})", fontsize=9, color=style.FAINT)
    axes[-1][1].set_xlabel("share of readings", fontsize=9, color=style.FAINT)
    style.legend(figure, [f"A  {first.source}", f"B  {second.source}"], top_in=0.74, columns=2)
    style.save(figure, path)


def _draw_pair(
    course: Axes,
    spread: Axes,
    difference: Measure,
    recordings: tuple[RecordingData, RecordingData],
    length_s: float,
) -> None:
    metric = difference.labels["metric"]
    name, unit, scale = _scale(metric)
    style.tidy(course, title=name, unit=unit)
    style.tidy(spread, title=_verdict(difference), unit="")
    columns = [_over_gpus(recording, metric) for recording in recordings]
    for place, (recording, column) in enumerate(zip(recordings, columns, strict=True)):
        draw_line(course, recording.time_s, column, place=place, scale=scale, length_s=length_s)
    edges = _edges(columns, scale).tolist()
    for place, column in enumerate(columns):
        values = column[~np.isnan(column)] / scale
        if len(values):
            spread.hist(
                values,
                bins=edges,
                weights=np.full(len(values), 100 / len(values)),
                orientation="horizontal",
                histtype="stepfilled",
                color=style.colour(place),
                alpha=0.55,
            )
    lowest = 0.0 if metric != "temp_gpu_c" else course.get_ylim()[0]
    highest = 104.0 if unit == "%" else course.get_ylim()[1]
    course.set_ylim(lowest, highest)
    spread.set_ylim(lowest, highest)
    spread.set_yticklabels([])
    spread.locator_params(axis="x", nbins=4)  # each has its own scale, so each is labelled
    spread.xaxis.set_major_formatter("{x:.0f} %")


def _verdict(difference: Measure) -> str:
    if difference.value is None or difference.detail == "no difference shown":
        return difference.detail.partition(":")[0]
    return f"B is {difference.detail}: {signed(difference.labels['metric'], difference.value)}"


def _edges(columns: Sequence[Floats], scale: float) -> Floats:
    joined = np.concatenate([column[~np.isnan(column)] for column in columns]) / scale
    if not len(joined):
        return np.linspace(0.0, 1.0, 31)
    low, high = float(joined.min()), float(joined.max())
    thin = 0.01 * max(abs(high), 1.0)
    return np.linspace(low, high, 25) if high - low > thin else np.array([low - thin, high + thin])


def _over_gpus(recording: RecordingData, metric: str) -> Floats:
    """Average a metric over the GPUs at each sample, NaN where none was read; the host has it once."""
    owners = (
        [recording.host] if metric in COMPARED_OF_HOST else [track.metrics for track in recording.devices]
    )
    columns = [owner[metric] for owner in owners if metric in owner]
    return mean_over_devices(columns, length=len(recording.time_s))


def plot_memory(recordings: Sequence[RecordingData], path: Path) -> None:
    """Draw the device memory in use of many recordings: over time, and as mean and peak.

    Memory is the sum over the GPUs. A recording without memory readings keeps its row, without a bar.

    Raises:
        EnvironmentUnfitError: matplotlib is not installed, or the picture cannot be written.
        UsageError: the suffix names no picture.
    """
    bars_in = 0.5 + 0.32 * len(recordings)
    figure = style.new_figure(_WIDTH_IN, 5.55 + bars_in)
    total_in = figure.get_figheight()
    style.headline(figure, "Device memory", f"{len(recordings)} recording(s), all GPUs of each together")
    course = figure.add_axes((0.06, 1 - 4.1 / total_in, 0.9, 3.0 / total_in))
    length_s, unit = style.time_unit(max((r.duration_s for r in recordings), default=0.0))
    style.tidy(course, title="Memory used", unit="GiB")
    for place, recording in enumerate(recordings):
        draw_line(
            course, recording.time_s, _total_memory(recording), place=place, scale=_GIB, length_s=length_s
        )
    course.set_ylim(0, course.get_ylim()[1])
    course.set_xlabel(f"time since each began ({unit})", fontsize=9, color=style.FAINT)
    bars = figure.add_axes((0.36, 0.5 / total_in, 0.5, bars_in / total_in))
    _draw_memory_bars(bars, recordings)
    style.save(figure, path)


def _draw_memory_bars(axes: Axes, recordings: Sequence[RecordingData]) -> None:
    style.tidy(axes, title="Mean (bar) and peak (line)", unit="GiB")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=style.GRID, linewidth=0.8)
    highest = 0.0
    for row, recording in enumerate(recordings):
        means = list(device_means(summarise(recording), "mem_used_bytes").values())
        column = _total_memory(recording)
        values = column[~np.isnan(column)]
        if None in means or not len(values):
            axes.text(0, row, " not read", fontsize=8.5, color=style.FAINT, va="center")
            continue
        mean, peak = sum(m for m in means if m is not None) / _GIB, float(values.max()) / _GIB
        highest = max(highest, peak)
        axes.barh([row], [mean], height=0.55, color=style.colour(row), alpha=0.85)
        axes.plot([peak, peak], [row - 0.36, row + 0.36], color=style.INK, linewidth=1.6)
        style.note(axes, f"{mean:.2f}, peak {peak:.2f}", (peak, row), (6, 0), va="center")
    axes.set_ylim(len(recordings) - 0.4, -0.6)
    axes.set_xlim(0, highest * 1.05 or 1.0)
    names = [recording.source for recording in recordings]
    axes.set_yticks(range(len(names)), names, color=style.INK)


def _total_memory(recording: RecordingData) -> Floats:
    """Return memory summed over the GPUs; NaN where one of them was not read, for a part is not the whole."""
    columns = [track.values("mem_used_bytes") for track in recording.devices]
    read = [column for column in columns if column is not None]
    if not read or len(read) < len(columns):
        return np.full(len(recording.time_s), np.nan)
    total: Floats = np.vstack(read).sum(axis=0)
    return total


def plot_balance(recording: RecordingData, path: Path) -> None:
    """Draw each GPU's mean utilisation, memory and power against the mean of all.

    Raises:
        EnvironmentUnfitError: matplotlib is not installed, or the picture cannot be written.
        UsageError: the suffix names no picture.
    """
    figure = style.new_figure(_WIDTH_IN, 4.2)
    style.headline(figure, "Load balance", f"{recording.source}  ·  {len(recording.devices)} GPUs")
    axes = figure.subplots(
        1, 3, gridspec_kw={"left": 0.06, "right": 0.97, "top": 0.68, "bottom": 0.09, "wspace": 0.18}
    )
    measures = summarise(recording)
    for place, balance in zip(axes, load_balance(measures), strict=True):
        _draw_balance(place, balance, device_means(measures, balance.labels["metric"]))
    style.save(figure, path)


def _draw_balance(axes: Axes, balance: Measure, means: Mapping[int, float | None]) -> None:
    name, unit, scale = _scale(balance.labels["metric"])
    judged = balance.missing or f"{balance.detail.partition(',')[0]}, {balance.text}"
    style.tidy(axes, title=name, unit=unit)
    axes.set_title(f"{name} ({unit})\n{judged}", loc="left", fontsize=10, color=style.INK, pad=5)
    values = {index: mean / scale for index, mean in means.items() if mean is not None}
    places = range(len(values))
    for place, value in zip(places, values.values(), strict=True):
        axes.bar([place], [value], color=style.colour(place), width=0.7)
    if values:
        centre = sum(values.values()) / len(values)
        axes.axhline(centre, color=style.INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xticks(places, [f"GPU {index}" if len(places) <= 4 else str(index) for index in values])
    axes.margins(x=0.03)
