"""Side-by-side plots of recordings or GPUs: A against B, memory across recordings, GPU load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gpuproof.comparison.recordings import COMPARED_OF_HOST, RecordingComparison, signed
from gpuproof.comparison.winners import side_of
from gpuproof.observe.timeline import line_of, metric_axis
from gpuproof.readings.recording import Floats, RecordingData
from gpuproof.readings.series import mean_over_devices
from gpuproof.readings.summary import summarise
from gpuproof.readings.warnings import device_means, load_balance
from gpuproof.records.metrics import HOST_METRICS, METRICS
from gpuproof.records.page import Axis, Chart, Picture, Reference, Series
from gpuproof.records.result import Measure

_DRAWN: Final = {row.name for row in (*METRICS.values(), *HOST_METRICS.values()) if row.drawn}
_QUANTILES: Final = 101


def comparison_picture(
    first: RecordingData, second: RecordingData, comparison: RecordingComparison
) -> Picture:
    """Return A and B over time and as distributions; each metric has its verdict."""
    differences = [m for m in comparison.means if side_of(m) == "B minus A" and m.labels["metric"] in _DRAWN]
    warning = "" if comparison.comparable else "NOT COMPARABLE as they are (conditions differ)  ·  "
    return Picture(
        title="A against B",
        subtitle=f"{warning}verdicts over {comparison.basis}",
        charts=tuple(chart for m in differences for chart in _pair(m, first, second)),
        widths=(3.0, 1.2),
    )


def zoomable(picture: Picture) -> tuple[Picture, Picture]:
    """Return A and B over time, at full width for zooming, and the distribution of their readings."""
    pairs = list(zip(picture.charts[::2], picture.charts[1::2], strict=True))
    courses = tuple(replace(course, title=spread.title) for course, spread in pairs)
    spreads = tuple(replace(spread, y=replace(course.y, reach=())) for course, spread in pairs)
    title = "How the readings of A and B are distributed"
    distributions = Picture(title=title, subtitle="", charts=spreads, widths=(1.0, 1.0))
    return replace(picture, charts=courses, widths=(1.0,)), distributions


def _pair(difference: Measure, first: RecordingData, second: RecordingData) -> tuple[Chart, Chart]:
    """Return a metric over time and the distribution of its readings, below the verdict."""
    metric = difference.labels["metric"]
    recordings = {f"A  {first.source}": first, f"B  {second.source}": second}
    columns = {name: _over_gpus(recording, metric) for name, recording in recordings.items()}
    course = Chart(
        title="",
        kind="line",
        x=_since_each_began([first, second]),
        y=metric_axis(metric, list(columns.values())),
        series=tuple(s for name, r in recordings.items() for s in line_of(name, r.time_s, columns[name])),
    )
    spread = Chart(
        title=_verdict(difference),
        kind="line",
        x=Axis(label="readings at or below this value", unit="%"),
        y=replace(course.y, label="readings"),
        series=tuple(Series(name=n, points=_quantiles(column), form="line") for n, column in columns.items()),
    )
    return course, spread


def _since_each_began(recordings: Sequence[RecordingData]) -> Axis:
    longest_s = max((recording.duration_s for recording in recordings), default=0.0)
    return Axis(label="time since each started", unit="s", reach=(0.0, longest_s))


def _verdict(difference: Measure) -> str:
    if difference.value is None or difference.detail == "no difference shown":
        return difference.detail.partition(":")[0]
    return f"B is {difference.detail}: {signed(difference.labels['metric'], difference.value)}"


def _quantiles(column: Floats) -> tuple[tuple[float, float], ...]:
    """Return quantiles: the percentage of readings at or below each reading, and the reading itself."""
    values = column[~np.isnan(column)]
    shares = np.linspace(0, 1, _QUANTILES)
    readings = np.quantile(values, shares).tolist() if len(values) else []
    return tuple(zip((100 * shares).tolist(), readings, strict=False))


def _over_gpus(recording: RecordingData, metric: str) -> Floats:
    """Average a metric over the GPUs at each sample, NaN if none was read; the host has one value."""
    owners = (
        [recording.host] if metric in COMPARED_OF_HOST else [track.metrics for track in recording.devices]
    )
    columns = [owner[metric] for owner in owners if metric in owner]
    return mean_over_devices(columns, length=len(recording.time_s))


def memory_picture(recordings: Sequence[RecordingData]) -> Picture:
    """Return the device memory used across several recordings: over time, and as mean and peak.

    Memory is summed over the GPUs. A recording without memory readings still gets a row, without a bar.
    """
    counts = Counter(recording.source for recording in recordings)
    names = [f"{r.source} ({n + 1})" if counts[r.source] > 1 else r.source for n, r in enumerate(recordings)]
    columns = [_total_memory(recording) for recording in recordings]
    course = Chart(
        title="",
        kind="line",
        x=_since_each_began(recordings),
        y=Axis(label="Memory used", unit="B", reach=(0.0,)),
        series=tuple(
            series
            for name, recording, column in zip(names, recordings, columns, strict=True)
            for series in line_of(name, recording.time_s, column)
        ),
    )
    return Picture(
        title="Device memory",
        subtitle=f"{len(recordings)} recording(s), each summed over all its GPUs",
        charts=(course, _memory_rows(names, recordings, columns)),
    )


def _memory_rows(
    names: Sequence[str], recordings: Sequence[RecordingData], columns: Sequence[Floats]
) -> Chart:
    """Return mean and peak memory, one row per recording; both are omitted if a GPU was not read."""
    means, peaks = [], []
    for row, (recording, column) in enumerate(zip(recordings, columns, strict=True)):
        of_gpus = list(device_means(summarise(recording), "mem_used_bytes").values())
        values = column[~np.isnan(column)]
        if None not in of_gpus and len(values):
            means.append((float(sum(mean for mean in of_gpus if mean is not None)), float(row)))
            peaks.append((float(values.max()), float(row)))
    read = {int(row) for _, row in peaks}
    return Chart(
        title="",
        kind="bar",
        x=Axis(label="Memory used", unit="B"),
        y=Axis(label="", names=tuple(n if row in read else f"{n}, not read" for row, n in enumerate(names))),
        series=(
            Series(name="mean", points=tuple(means), colour="axis"),
            Series(name="peak", points=tuple(peaks), form="tick", colour="ink"),
        ),
    )


def _total_memory(recording: RecordingData) -> Floats:
    """Return memory summed over the GPUs, or NaN if one was not read, as a partial sum would mislead."""
    columns = [track.values("mem_used_bytes") for track in recording.devices]
    read = [column for column in columns if column is not None]
    if not read or len(read) < len(columns):
        return np.full(len(recording.time_s), np.nan)
    total: Floats = np.vstack(read).sum(axis=0)
    return total


def balance_picture(recording: RecordingData) -> Picture:
    """Return each GPU's mean utilisation, memory and power, relative to the mean over all GPUs."""
    measures = summarise(recording)
    balances = load_balance(measures)
    return Picture(
        title="Load balance",
        subtitle=f"{recording.source}  ·  {len(recording.devices)} GPUs",
        charts=tuple(_balance(b, device_means(measures, b.labels["metric"])) for b in balances),
        widths=(1.0,) * len(balances),
    )


def _balance(balance: Measure, means: Mapping[int, float | None]) -> Chart:
    values = {index: mean for index, mean in means.items() if mean is not None}
    centre = sum(values.values()) / len(values) if values else None
    return Chart(
        title=balance.missing or f"{balance.detail.partition(',')[0]}, {balance.text}",
        kind="bar",
        x=Axis(label="GPU", names=tuple(map(str, values))),
        y=metric_axis(balance.labels["metric"], []),
        series=(Series(name="mean", points=tuple((float(n), v) for n, v in enumerate(values.values()))),),
        references=() if centre is None else (Reference(label="mean", y=centre),),
    )
