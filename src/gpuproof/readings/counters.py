"""How much did a running total grow in a window? Energy, throttle time, errors, bytes.

In: a recording, a device, a counter's name and a window. Out: the increase and the time that it
covers. A counter that went back (the driver was loaded again) is summed up around the step back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuproof.readings.recording import DeviceTrack, Floats, RecordingData
from gpuproof.readings.window import Span, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterChange:
    """What a counter gained, over which time."""

    increase: float
    """In the unit that ends the metric's name."""
    covered_s: float
    """From the first reading to the last, without the stretches in which it went back."""
    resets: int


def counter_change(
    recording: RecordingData, *, track: DeviceTrack, metric: str, window: Window
) -> CounterChange | None:
    """Sum a device counter's increase over a window; None with under two readings in each span."""
    times, totals = _readings(recording, track, metric)
    return change_of(times, totals, window=window)


def change_of(times: Floats, totals: Floats, *, window: Window) -> CounterChange | None:
    """Sum the increase of running totals, read at `times`, over the spans of a window."""
    parts = [part for span in window.spans if (part := _within(times, totals, span)) is not None]
    if not parts:
        return None
    return CounterChange(
        increase=sum(part.increase for part in parts),
        covered_s=sum(part.covered_s for part in parts),
        resets=sum(part.resets for part in parts),
    )


def _within(times: Floats, totals: Floats, span: Span) -> CounterChange | None:
    inside = (times >= span.begin_s) & (times <= span.end_s)
    if np.count_nonzero(inside) < 2:
        return None
    steps, gaps = np.diff(totals[inside]), np.diff(times[inside])
    forward = steps >= 0
    return CounterChange(
        increase=float(steps[forward].sum()),
        covered_s=float(gaps[forward].sum()),
        resets=int(np.count_nonzero(~forward)),
    )


def _readings(recording: RecordingData, track: DeviceTrack, metric: str) -> tuple[Floats, Floats]:
    """Join what the samples carry with what was read at the ends and at marks, in order of time."""
    key = str(track.identity.physical_index)
    extra = [
        (recording.seconds_in(counters.monotonic_s), counters.devices[key][metric])
        for counters in recording.counters
        if metric in counters.devices.get(key, {})
    ]
    times = np.array([time for time, _ in extra], dtype=np.float64)
    totals = np.array([total for _, total in extra], dtype=np.float64)
    column = track.values(metric)
    if column is not None:
        given = ~np.isnan(column)
        times = np.concatenate([times, recording.time_s[given]])
        totals = np.concatenate([totals, column[given]])
    order = np.argsort(times, kind="stable")
    return times[order], totals[order]
