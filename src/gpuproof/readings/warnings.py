"""What is wrong with a device's link or its memory, as the driver tells it beside the readings?

In: a recording, a device and a window. Out: sentences, none where nothing is wrong or nothing was read. The
link is judged while the device is busy: to save power it runs slower when idle, and a first reading may still
find it so. Of lanes two readings or all have to say so, of the generation no reading may have said better.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from gpuproof.base.units import count, share
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.window import RecordingWindow

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
