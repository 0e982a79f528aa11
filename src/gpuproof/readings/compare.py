"""Do two recordings differ, by how much, and could it be chance?

In: two recordings, and which part of them counts: one named phase, or the time in which the GPU was busy.
Out: for each metric both means, the interval of the difference by moving-block bootstrap, and a verdict:
higher, lower, no difference shown, or cannot tell. Readings of one recording resemble their neighbours,
which the blocks allow for; what another launch would give is not in the interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

import numpy as np

from gpuproof.errors import UsageError
from gpuproof.readings.comparable import Condition, unlike_conditions
from gpuproof.readings.recording import Flags, Floats, RecordingData
from gpuproof.readings.series import durations
from gpuproof.readings.window import RecordingWindow, phase, whole
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.series import Series, interval_of_difference

Verdict = Literal["higher", "lower", "no difference shown", "cannot tell"]

BUSY_PERCENT: Final = 10.0
"""A GPU counts as busy from this utilisation on, unless the user says otherwise."""

COMPARED_METRICS: Final = (
    "util_gpu_percent",
    "sm_active_percent",
    "tensor_active_percent",
    "mem_used_bytes",
    "power_w",
    "clock_sm_mhz",
    "clock_mem_mhz",
    "temp_gpu_c",
    "temp_hotspot_c",
    "temp_mem_c",
    "fan_percent",
)

MAX_PIECES: Final = 2000
"""Longer series are averaged over neighbours to this length: a day of readings needs no more resolution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """One metric, averaged over the GPUs of each recording."""

    metric: str
    first_mean: float | None
    second_mean: float | None
    difference: Interval | None
    """Of second − first, in the metric's unit."""
    verdict: Verdict
    reason: str | None
    """Why the verdict is `cannot tell`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two recordings, and how much of it was used."""

    source: str
    duration_s: float
    used_s: float
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The second recording against the first."""

    first: Side
    second: Side
    basis: str
    """Which part of the recordings counts."""
    conditions: tuple[Condition, ...]
    metrics: tuple[MetricComparison, ...]

    @property
    def comparable(self) -> bool:
        """Whether no condition is known to differ."""
        return not any(condition.weight == "differs" for condition in self.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    """A recording with the readings that count."""

    recording: RecordingData
    inside: Flags
    busy_percent: float | None

    def series(self, metric: str) -> tuple[Floats, Floats]:
        """Average a metric over the GPUs that were busy at each sample; samples with none are left out."""
        columns = [np.full(len(self.inside), np.nan)]
        for track in self.recording.devices:
            column, util = track.values(metric), track.values("util_gpu_percent")
            if column is None:
                continue
            counted = self.inside
            if self.busy_percent is not None:
                counted = counted & (util >= self.busy_percent) if util is not None else counted & False
            columns.append(np.where(counted, column, np.nan))
        table = np.vstack(columns)
        given = np.count_nonzero(~np.isnan(table), axis=0)
        told = given > 0
        return self.recording.time_s[told], np.nansum(table, axis=0)[told] / given[told]


def compare(
    first: RecordingData,
    second: RecordingData,
    *,
    phase_name: str | None = None,
    busy_percent: float = BUSY_PERCENT,
) -> Comparison:
    """Compare the second recording with the first, over a named phase or over busy time.

    Raises:
        UsageError: a recording has no such phase, or has no samples.
    """
    busy: float | None = busy_percent
    basis = f"phase {phase_name}"
    if phase_name is not None:
        busy = None
    elif all(_tells_utilisation(recording) for recording in (first, second)):
        basis = f"busy time: GPU utilisation of {busy_percent:g} % or more"
    else:
        busy, basis = None, "all readings, as not both tell the utilisation that would show busy time"
    used = [_used(recording, phase_name, busy) for recording in (first, second)]
    metrics = (_compare_metric(metric, *used) for metric in COMPARED_METRICS)
    return Comparison(
        first=_side(used[0]),
        second=_side(used[1]),
        basis=basis,
        conditions=unlike_conditions(first, second),
        metrics=tuple(metric for metric in metrics if metric is not None),
    )


def _used(recording: RecordingData, phase_name: str | None, busy: float | None) -> _Used:
    if not len(recording.time_s):
        raise UsageError("holds no samples", place=recording.source, next_step="Record for longer")
    window: RecordingWindow = whole(recording) if phase_name is None else phase(recording, name=phase_name)
    return _Used(recording=recording, inside=window.holds(recording.time_s), busy_percent=busy)


def _tells_utilisation(recording: RecordingData) -> bool:
    return any(track.values("util_gpu_percent") is not None for track in recording.devices)


def _side(used: _Used) -> Side:
    recording = used.recording
    counted = used.inside
    if used.busy_percent is not None:
        times, _ = used.series("util_gpu_percent")
        counted = np.isin(recording.time_s, times)
    return Side(
        source=recording.source,
        duration_s=recording.duration_s,
        used_s=min(recording.duration_s, float(durations(recording.time_s)[counted].sum())),
        num_gpus=len(recording.devices),
    )


def _compare_metric(metric: str, first: _Used, second: _Used) -> MetricComparison | None:
    """Compare one metric; None where neither recording has it."""
    sides = [_pieces(*used.series(metric)) for used in (first, second)]
    means = [_mean(side) for side in sides]
    if means == [None, None]:
        return None
    difference: Interval | Unavailable
    if None in means:
        difference = Unavailable(reason=f"not read in the {'second' if means[0] is not None else 'first'}")
    else:
        difference = interval_of_difference(*sides)
    known = isinstance(difference, Interval)
    return MetricComparison(
        metric=metric,
        first_mean=means[0],
        second_mean=means[1],
        difference=difference if isinstance(difference, Interval) else None,
        verdict=_verdict(difference) if isinstance(difference, Interval) else "cannot tell",
        reason=None if known else difference.reason if isinstance(difference, Unavailable) else None,
    )


def _verdict(difference: Interval) -> Verdict:
    if difference.low > 0:
        return "higher"
    return "lower" if difference.high < 0 else "no difference shown"


def _pieces(times: Floats, values: Floats) -> Series:
    """Weigh readings by the time that they stood, and join neighbours where there are very many."""
    stood = durations(times)
    step = max(1, ceil(len(values) / MAX_PIECES))
    if step > 1:
        starts = np.arange(0, len(values), step)
        sums = np.add.reduceat(values * stood, starts)
        stood = np.add.reduceat(stood, starts)
        values = sums / stood
    lasting = stood > 0
    return Series(values=values[lasting], durations_s=stood[lasting])


def _mean(series: Series) -> float | None:
    values, stood = series.arrays()
    return float(np.average(values, weights=stood)) if len(values) else None
