"""What did counters of errors and bytes gain in a window, and is that all that they counted?

In: a recording, a device and a window. Out: a `Total` a counter. One that went back (it ran over, or the
driver was loaded again) is named. A counter of bytes that never passes 32 bits and goes back may have run
over between any two readings, unseen: what it shows is the least that it counted, and gives no rate. Nor
does one that says more than its PCIe link can carry.

>>> link_bytes_per_s(3, 16) / 1e9
15.76
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuproof.readings.recording import DeviceTrack, RecordingData
from gpuproof.readings.series import CounterChange, counter_change, total_change
from gpuproof.readings.window import RecordingWindow, whole
from gpuproof.records.metrics import HOST_METRICS, names
from gpuproof.records.readings import DeviceIdentity

_NOT_TOTALS: Final = ("energy_j", "throttle_time_")
"""Counters that have a place of their own in the summary."""

HOST_TOTALS: Final = tuple(name for name, metric in HOST_METRICS.items() if metric.kind == "counter")
"""Columns of the host that are running totals since boot."""

SHORT_COUNTER_BYTES: Final = 2.0**32
"""Where a counter of 32 bits starts again: at the full rate of sixteen lanes some fifteen times a second."""

_LANE_BYTES_PER_S: Final = {1: 250e6, 2: 500e6, 3: 985e6, 4: 1969e6, 5: 3938e6, 6: 7563e6}
"""Of a PCIe lane in one direction, by generation, after its line code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """What a counter of errors or bytes gained in a window."""

    metric: str
    increase: float
    covered_s: float
    is_least: bool = False
    """Whether it may have counted more than `increase`; then there is no rate."""
    note: str | None = None
    """What is doubtful about it."""


def link_bytes_per_s(generation: float | None, lanes: float | None) -> float | None:
    """Give what a PCIe link carries at most in one direction; None where that is not known."""
    lane = _LANE_BYTES_PER_S.get(int(generation)) if generation is not None else None
    return None if lane is None or lanes is None else lane * lanes


def device_totals(
    recording: RecordingData, *, track: DeviceTrack, window: RecordingWindow
) -> Iterator[Total]:
    """Give what each counter of a device gained in a window."""
    for metric in names(kind="counter"):
        if metric.startswith(_NOT_TOTALS):
            continue
        change = counter_change(recording, track=track, metric=metric, window=window)
        if change is not None:
            is_short = metric.endswith("_bytes") and _is_short(recording, track, metric, change, window)
            yield _total(metric, change, track.identity, is_short=is_short)


def host_totals(recording: RecordingData, window: RecordingWindow) -> Iterator[Total]:
    """Return what the host's counters gained in a window."""
    for metric in HOST_TOTALS:
        column = recording.host.get(metric)
        if column is None:
            continue
        is_read = ~np.isnan(column)
        change = total_change(recording.time_s[is_read], column[is_read], window=window)
        if change is not None:
            yield Total(metric=metric, increase=change.increase, covered_s=change.covered_s)


def _is_short(
    recording: RecordingData,
    track: DeviceTrack,
    metric: str,
    change: CounterChange,
    window: RecordingWindow,
) -> bool:
    """Tell by the whole recording whether a counter runs over at 32 bits: a short phase may not show it."""
    seen: CounterChange | None = change
    if window.name is not None:
        seen = counter_change(recording, track=track, metric=metric, window=whole(recording))
    return seen is not None and seen.resets > 0 and seen.highest_total < SHORT_COUNTER_BYTES


def _total(metric: str, change: CounterChange, identity: DeviceIdentity, *, is_short: bool) -> Total:
    times = f"{change.resets} time{'' if change.resets == 1 else 's'}"
    if is_short:
        return Total(
            metric=metric,
            increase=change.increase + change.since_resets,
            covered_s=change.covered_s,
            is_least=True,
            note=f"its counter went back {times}, never above 32 bits: it runs over, or began again",
        )
    limit = link_bytes_per_s(identity.number("pcie_gen_max"), identity.number("pcie_width_max"))
    is_absurd = (
        metric.startswith("pcie_")
        and metric.endswith("_bytes")
        and limit is not None
        and change.increase > limit * change.covered_s > 0
    )
    note = f"its counter went back {times}" if change.resets else None
    if is_absurd:
        note = "not believed: more than the link carries"
    return Total(
        metric=metric, increase=change.increase, covered_s=0.0 if is_absurd else change.covered_s, note=note
    )
