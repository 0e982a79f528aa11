"""What does a recording warn of: of a device's link or memory, and of load spread unevenly over the GPUs?

In: a recording, a device and a window. Out: sentences, none where nothing is wrong or nothing was read. The
link is judged while the device is busy: to save power it runs slower when idle, and a first reading may still
find it so. Of lanes two readings or all have to say so, of the generation no reading may have said better.

Balance, from the figures of a recording: for utilisation, memory and power the coefficient of variation over
the GPUs' means as a measure, with the usual word for it (under 5 % excellent, 10 good, 20 fair, else poor)
and the GPU furthest off. With one GPU, or a metric that a GPU did not give, there is no value but the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

import numpy as np

from gpuproof.base.units import MISSING, count, share
from gpuproof.readings.metric_text import quantity, title
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.window import RecordingWindow
from gpuproof.records.result import Measure
from gpuproof.statistics.dispersion import coefficient_of_variation

LOADED_PERCENT: Final = 10.0
"""Utilisation from which a link is taken to be under load."""
FEWEST_OF_GENERATION: Final = 3
"""Readings under load from which the generation is judged."""

_FLAGS: Final = {
    "remapped_rows_pending": "memory rows wait for a reset of the GPU to be remapped",
    "remapped_rows_failed": "a memory row could not be remapped: see the maker's rules for its exchange",
    "retired_pages_pending": "memory pages wait for a reset of the GPU to be retired",
}
_RETIRED: Final = {
    "retired_pages_corrected_count": "after corrected errors",
    "retired_pages_uncorrected_count": "after uncorrected errors",
}


def device_warnings(
    recording: RecordingData, *, track: DeviceTrack, window: RecordingWindow
) -> tuple[str, ...]:
    """Say what is wrong with a device's link and memory, the memory as it was last read in the window."""
    inside = window.holds(recording.time_s)
    return (*_link(track, inside), *_memory(track, inside))


def _link(track: DeviceTrack, inside: Flags) -> Iterator[str]:
    util = track.values("util_gpu_percent")
    loaded = inside & (util >= LOADED_PERCENT) if util is not None else inside & False
    yield from _lanes(track, inside, loaded)
    most, generations = track.identity.number("pcie_gen_max"), _at(track.values("pcie_gen"), loaded)
    if most is not None and len(generations) >= FEWEST_OF_GENERATION and generations.max() < most:
        yield f"PCIe generation {generations.max():.0f} under load, of {most:.0f} that are possible"


def _lanes(track: DeviceTrack, inside: Flags, loaded: Flags) -> Iterator[str]:
    most, column = track.identity.number("pcie_width_max"), track.values("pcie_width")
    lanes, when = _at(column, loaded), "under load"
    if not len(lanes):
        lanes, when = _at(column, inside), "without load"
    if most is None or not len(lanes):
        return
    below = lanes[lanes < most]
    if len(below) >= min(2, len(lanes)):
        part = "" if len(below) == len(lanes) else f" in {share(len(below) / len(lanes))} of the readings"
        yield f"{below.min():.0f} of {most:.0f} PCIe lanes {when}{part}: look at the slot, riser and seat"


def _memory(track: DeviceTrack, inside: Flags) -> Iterator[str]:
    for metric, text in _FLAGS.items():
        if _last(track, metric, inside) > 0:
            yield text
    retired = {text: _last(track, metric, inside) for metric, text in _RETIRED.items()}
    parts = [f"{count(int(pages))} {text}" for text, pages in retired.items() if pages > 0]
    if parts:
        yield f"memory pages are retired: {', '.join(parts)}"


def _last(track: DeviceTrack, metric: str, inside: Flags) -> float:
    values = _at(track.values(metric), inside)
    return float(values[-1]) if len(values) else 0.0


def _at(column: Floats | None, where: Flags) -> Floats:
    return np.empty(0) if column is None else column[where & ~np.isnan(column)]


Band = Literal["excellent", "good", "fair", "poor"]

BALANCE_METRICS: Final = ("util_gpu_percent", "mem_used_bytes", "power_w")
VARIATION: Final = "coefficient of variation over GPUs"
_LIMITS: Final[tuple[tuple[float, Band], ...]] = ((0.05, "excellent"), (0.10, "good"), (0.20, "fair"))


def describe_variation(variation: float) -> Band:
    """Put a coefficient of variation into words.

    >>> [describe_variation(v) for v in (0.0499, 0.05, 0.10, 0.20)]
    ['excellent', 'good', 'fair', 'poor']
    """
    return next((band for limit, band in _LIMITS if variation < limit), "poor")


def device_means(measures: Iterable[Measure], metric: str) -> dict[int, float | None]:
    """Return the mean of a metric over the whole recording by physical index; None where it was not read."""
    means: dict[int, float | None] = {}
    for measure in measures:
        labels = measure.labels
        if "gpu" in labels and "phase" not in labels:
            means.setdefault(labels["gpu"], None)
            if labels["metric"] == metric and measure.statistic == "mean":
                means[labels["gpu"]] = measure.value
    return means


def load_balance(measures: Iterable[Measure]) -> tuple[Measure, ...]:
    """Judge how evenly utilisation, memory and power are spread over the GPUs of a recording."""
    listed = tuple(measures)
    return tuple(_balance(metric, device_means(listed, metric)) for metric in BALANCE_METRICS)


def _balance(metric: str, means: Mapping[int, float | None]) -> Measure:
    values = {index: mean for index, mean in means.items() if mean is not None}
    silent = [index for index in means if index not in values]
    variation = coefficient_of_variation(list(values.values())) if not silent else None
    detail = ""
    if variation is not None:
        centre = sum(values.values()) / len(values)
        furthest = max(values, key=lambda index: abs(values[index] - centre))
        detail = (
            f"{describe_variation(variation)}, over {len(values)} GPUs; "
            f"furthest off: GPU {furthest} with {quantity(metric, values[furthest])}"
        )
    return Measure(
        name=title(metric),
        value=variation,
        unit="1",
        text=MISSING if variation is None else f"varies by {variation * 100:.1f} %",
        detail=detail,
        statistic=VARIATION,
        labels={"metric": metric},
        missing=_reason_against(means, silent) if variation is None else None,
    )


def _reason_against(means: Mapping[int, float | None], silent: list[int]) -> str:
    if len(means) < 2:
        return f"{len(means)} GPU: nothing to balance"
    if silent:
        return f"not read on GPU {', '.join(map(str, silent))}"
    return "0 on every GPU"
