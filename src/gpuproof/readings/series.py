"""How is a column summarised over time, and how much did a running total grow?

The input is times in seconds and a column with NaN where there was no reading, or a counter's name. The
output is durations, a time-weighted mean, extremes and a percentile; for a counter, its increase and the time
covered. A reading is valid until the next one; before a gap (a lost device, a hanging driver) it is valid for
one typical interval only, so that the gap is not filled with the last value. In a dithered recording
(`monitor/sampler.py`), a reading instead represents half of the time to either neighbour: otherwise, an early
reading in a tick would weigh more than a late one, and a signal in step with the ticks would be measured
incorrectly. If a counter decreased (the driver was reloaded), only the increases before and after are summed.
For a plot, a day's column is reduced to an envelope.

>>> durations(np.array([0.0, 1.0, 2.0, 3.0, 60.0]))
array([1., 1., 1., 1., 1.])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.window import RecordingWindow, Span
from gpuproof.records.sample import as_stored
from gpuproof.statistics.estimate import median
from gpuproof.statistics.percentiles import percentile

FEW_SPANS: Final = 4
"""Up to this many spans, a window's spans are processed one at a time."""
HOLE_FACTOR: Final = 4.0
"""Two readings further apart than this many typical intervals have a gap between them. Dithered ticks are up
to two intervals apart, and the typical interval estimated from a few of them may be wrong by half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSummary:
    """The summary of one metric's readings, in that metric's unit."""

    mean: float
    """Mean, weighted by the time for which each reading was valid."""
    minimum: float
    maximum: float
    p95: float | None
    p95_missing: str | None
    """Why `p95` is None: there are too few readings."""
    samples: int


def longest_step_s(times: Floats) -> float:
    """Return the longest time between readings that is not a gap, based on their typical interval."""
    gaps = times[1:] - times[:-1]
    gaps = gaps[gaps > 0]  # other tools may write whole seconds, so that several readings have the same time
    return median(gaps) * HOLE_FACTOR if len(gaps) else 0.0


def durations(times: Floats, *, dithered: bool = False) -> Floats:
    """Return how long each reading was valid; for the last, or before a gap, a typical interval.

    For dithered readings, this is half of their own interval plus half of the previous one.
    """
    if len(times) < 2:
        return np.ones(len(times))
    gaps = times[1:] - times[:-1]
    usual_s = median(gaps)
    gaps[gaps > usual_s * HOLE_FACTOR] = usual_s
    until_next = np.append(gaps, usual_s)
    return (until_next + np.append(usual_s, gaps)) / 2 if dithered else until_next


def mean_over_time(times: Floats, values: Floats, *, dithered: bool, weights: Floats | None = None) -> float:
    """Average values, weighted by how long each was valid. There must be at least one value.

    The mean of equal values is exactly that value, to the last digit, so a constant limit is returned as
    read. `weights` are the durations, if already known.
    """
    if weights is None:
        weights = durations(times, dithered=dithered)
    total = float(weights.sum())
    mean = (values * weights).sum() / total if total > 0 else values.mean()
    return float(np.clip(mean, values.min(), values.max()))


def mean_over_devices(columns: Sequence[Floats], *, length: int) -> Floats:
    """Return the mean of several devices' columns at each of `length` samples; NaN if none was read."""
    if not columns:
        return np.full(length, np.nan)
    table = np.vstack(columns)
    num_read = np.count_nonzero(~np.isnan(table), axis=0)
    means = np.nansum(table, axis=0) / np.maximum(num_read, 1)
    within = np.clip(means, np.fmin.reduce(table), np.fmax.reduce(table))  # keeps equal values exact
    return np.where(num_read > 0, within, np.nan)


def summarise_series(
    times: Floats, column: Floats, *, dithered: bool, weights: Floats | None = None
) -> SeriesSummary | None:
    """Return the summary of a column's readings; None if it has no readings.

    `weights` are the durations for which readings are valid, used if there is one for each of `times`.
    """
    if len(column) and is_steady(column):
        return _steady(float(column[0]), len(column))
    is_read = ~np.isnan(column)
    if is_read.all() and len(is_read):
        values = column
    else:
        times, values, weights = times[is_read], column[is_read], None
    if not len(values):
        return None
    missing = _p95_missing(len(values))
    return SeriesSummary(
        mean=mean_over_time(times, values, dithered=dithered, weights=weights),
        minimum=float(values.min()),
        maximum=float(values.max()),
        p95=float(np.percentile(values, 95)) if missing is None else None,
        p95_missing=missing,
        samples=len(values),
    )


def is_steady(column: Floats) -> bool:
    """Return whether a column is stored as one value because it never changes (`sample_columns`)."""
    return column.strides == (0,) and not np.isnan(column[:1]).any()


def _steady(value: float, samples: int) -> SeriesSummary:
    missing = _p95_missing(samples)
    return SeriesSummary(
        mean=value,
        minimum=value,
        maximum=value,
        p95=value if missing is None else None,
        p95_missing=missing,
        samples=samples,
    )


@lru_cache(maxsize=256)
def _p95_missing(samples: int) -> str | None:
    """Return why a 95th percentile needs more samples; cached, as most columns are equally long."""
    return percentile(range(samples), 95).reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterChange:
    """The increase in a counter, and the time it covers."""

    increase: float
    """Increase, in the unit that the metric's name ends with."""
    covered_s: float
    """Time from the first reading to the last, excluding periods in which the counter decreased."""
    resets: int
    last_total: float
    """The counter's value at the end; 0 means that it has not counted since the driver was loaded."""
    highest_total: float
    since_resets: float
    """The sum of the counter's values after each decrease: the counter has counted at least that much
    since."""

    @property
    def at_least(self) -> float:
        """The increase, with what the counter has counted since each decrease."""
        return self.increase + self.since_resets


def counter_change(
    recording: RecordingData, *, track: DeviceTrack, metric: str, window: RecordingWindow
) -> CounterChange | None:
    """Sum a device counter's increase over a window; None if any span has fewer than two readings."""
    column = track.values(metric)
    if column is None and not recording.counters:
        return None  # true for most counters of most devices
    return total_change(*readings_of(recording, track, metric), window=window)


def total_change(times: Floats, totals: Floats, *, window: RecordingWindow) -> CounterChange | None:
    """Sum the increases of running totals, read at `times`, over the spans of a window."""
    if len(window.spans) > FEW_SPANS:
        return _within_many(times, totals, window.spans)
    parts = [part for span in window.spans if (part := _within(times, totals, span)) is not None]
    if not parts:
        return None
    return CounterChange(
        increase=sum(part.increase for part in parts),
        covered_s=sum(part.covered_s for part in parts),
        resets=sum(part.resets for part in parts),
        last_total=parts[-1].last_total,
        highest_total=max(part.highest_total for part in parts),
        since_resets=sum(part.since_resets for part in parts),
    )


def _within(times: Floats, totals: Floats, span: Span) -> CounterChange | None:
    if len(times) < 2:
        return None
    inside = slice(np.searchsorted(times, span.begin_s), np.searchsorted(times, span.end_s, side="right"))
    if inside.stop - inside.start < 2:
        return None
    readings, moments = totals[inside], times[inside]
    steps, gaps = readings[1:] - readings[:-1], moments[1:] - moments[:-1]
    forward = steps >= 0
    return CounterChange(
        increase=float(steps[forward].sum()),
        covered_s=float(gaps[forward].sum()),
        resets=int(np.count_nonzero(~forward)),
        last_total=float(readings[-1]),
        highest_total=float(readings.max()),
        since_resets=float(readings[1:][~forward].sum()),
    )


def _within_many(times: Floats, totals: Floats, spans: Sequence[Span]) -> CounterChange | None:
    """Do what `_within` does, for many spans at once: a day may contain a phase hundreds of times."""
    first = np.searchsorted(times, [span.begin_s for span in spans])
    after = np.searchsorted(times, [span.end_s for span in spans], side="right")
    first, last = first[after - first >= 2], after[after - first >= 2] - 1
    if not len(first):
        return None
    steps = np.diff(totals)
    forward = steps >= 0
    if forward.all():
        return CounterChange(
            increase=float((totals[last] - totals[first]).sum()),
            covered_s=float((times[last] - times[first]).sum()),
            resets=0,
            last_total=float(totals[last[-1]]),
            highest_total=float(totals[last[-1]]),
            since_resets=0.0,
        )

    def gained(values: Floats) -> float:
        summed = np.append(0.0, np.cumsum(values))
        return float((summed[last] - summed[first]).sum())

    return CounterChange(
        increase=gained(np.where(forward, steps, 0.0)),
        covered_s=gained(np.where(forward, np.diff(times), 0.0)),
        resets=round(gained(np.where(forward, 0.0, 1.0))),
        last_total=float(totals[last[-1]]),
        highest_total=float(totals[first[0] : last[-1] + 1].max()),
        since_resets=gained(np.where(forward, 0.0, totals[1:])),
    )


def readings_of(recording: RecordingData, track: DeviceTrack, metric: str) -> tuple[Floats, Floats]:
    """Merge values from samples with those read at the start, at the end and at marks, in time order."""
    key = str(track.identity.physical_index)
    extra = [
        # samples are rounded, and the same total must not seem to move
        (recording.seconds_in(counters.monotonic_s), as_stored(metric, counters.devices[key][metric]))
        for counters in recording.counters
        if metric in counters.devices.get(key, {})
    ]
    column = track.values(metric)
    if not extra and column is None:
        return np.empty(0), np.empty(0)
    extra.sort(key=lambda reading: reading[0])
    times = np.array([time for time, _ in extra], dtype=np.float64)
    totals = np.array([total for _, total in extra], dtype=np.float64)
    if column is None:
        return times, totals
    is_read = ~np.isnan(column)
    at_samples, readings = recording.time_s[is_read], column[is_read]
    if (at_samples[1:] < at_samples[:-1]).any():  # possible in a damaged file
        order = np.argsort(at_samples, kind="stable")
        at_samples, readings = at_samples[order], readings[order]
    places = np.searchsorted(at_samples, times)
    return np.insert(at_samples, places, times), np.insert(readings, places, totals)


MIDDLE: Final = (0.05, 0.25, 0.75, 0.95)
"""The quantiles that bound the middle 90 % and the middle 50 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """Quantiles over time."""

    time_s: Floats
    """The midpoint of each stretch."""
    levels: Floats
    """One row per requested quantile, one column per stretch."""


def bands(
    time_s: Floats, columns: Sequence[Floats], *, pieces: int, shares: Sequence[float] = MIDDLE
) -> Bands:
    """Divide the time into equal segments, and return quantiles of all columns' readings in each.

    At least two times are required. A stretch without readings is NaN. Extremes are left to `envelope`: over
    a day, noise would make them fill a plot.

    >>> bands(np.arange(4.0), [np.array([1.0, 2.0, 3.0, 4.0])], pieces=2, shares=(0.0, 1.0)).levels.tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    edges = np.linspace(time_s[0], time_s[-1], pieces + 1)
    starts = np.searchsorted(time_s, edges)
    starts[-1] = len(time_s)
    levels = np.full((len(shares), pieces), np.nan)
    for piece, (first, after) in enumerate(pairwise(starts)):
        values = np.concatenate([column[first:after] for column in columns])
        values = values[~np.isnan(values)]
        if len(values):
            levels[:, piece] = np.quantile(values, shares)
    return Bands(time_s=(edges[1:] + edges[:-1]) / 2, levels=levels)


def envelope(time_s: Floats, column: Floats, *, pieces: int) -> Bands:
    """Return the lowest, median and highest reading in each piece of a column.

    Each value is an actual reading: for an even number of readings, the median is the lower of the middle
    two. A column with few readings contains each reading three times, and NaN in every gap.
    """
    is_read = ~np.isnan(column)
    times, values = time_s[is_read], column[is_read]
    if len(times) > 2 * pieces:
        order = np.argsort(times, kind="stable")  # launches may overlap, or a file may be damaged
        return _extremes(times[order], values[order], pieces)
    times, values = _with_breaks(times, values)
    return Bands(time_s=times, levels=np.vstack([values] * 3))


def _extremes(times: Floats, values: Floats, pieces: int) -> Bands:
    edges = np.linspace(times[0], times[-1], pieces + 1)
    starts = np.searchsorted(times, edges)
    starts[-1] = len(times)
    first, after = starts[:-1], starts[1:]
    piece = np.repeat(np.arange(pieces), after - first)
    ordered, is_read = values[np.lexsort((values, piece))], after > first
    levels = np.full((3, pieces), np.nan)
    for row, places in enumerate((first, (first + after - 1) // 2, after - 1)):
        levels[row, is_read] = ordered[places[is_read]]
    return Bands(time_s=(edges[1:] + edges[:-1]) / 2, levels=levels)


def _with_breaks(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Insert a NaN into every gap."""
    holes = np.flatnonzero(np.diff(times) > longest_step_s(times)) + 1
    return np.insert(times, holes, times[holes]), np.insert(values, holes, np.nan)


def runs(flags: Flags, time_s: Floats, gap_s: float) -> list[tuple[int, int]]:
    """Return the first and last position of each run of consecutive flags without a gap in time."""
    places = np.flatnonzero(flags)
    if not len(places):
        return []
    breaks = np.flatnonzero((np.diff(places) > 1) | (np.diff(time_s[places]) > gap_s)) + 1
    return [(int(run[0]), int(run[-1])) for run in np.split(places, breaks)]
