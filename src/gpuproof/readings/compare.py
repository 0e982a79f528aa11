"""Do two recordings differ, by how much, could it be chance, and were they made under the same conditions?

In: two recordings, and which part of them counts: one named phase, or the time in which the GPU was busy.
Out: every condition in which they differ, or in which nobody can tell because one of them did not record it;
and for each metric both means, the interval of the difference by the low end of both spectra, a verdict
(higher, lower, no difference shown, or cannot tell), and the smallest difference that would have been shown;
and what energy each took and for how long each was held back (`spent`). All metrics share one error rate:
equal recordings get "higher" or "lower" anywhere in at most 5 % of comparisons. A difference means something
only where the conditions are the same, or where the one that differs is under test. Power is that of the
energy counter where it moves. Readings of one recording resemble their neighbours, which that allows for, and
a recording that is too short for what changes slowly in it says so; what another launch would give is not in
the interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

import numpy as np

from gpuproof.errors import UsageError
from gpuproof.readings.conditions import Condition, unlike_conditions
from gpuproof.readings.energy import power_over_time
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.series import durations, mean_over_devices
from gpuproof.readings.spent import Spent, spent
from gpuproof.readings.window import RecordingWindow, phase, whole
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.low_end import LowEnd, difference_of_means, low_end
from gpuproof.statistics.series import TimeSeries, smallest_shown

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

HOST_METRICS: Final = (
    *("cpu_percent", "cpu_max_core_percent", "cpu_iowait_percent", "load_1min"),
    *("mem_available_bytes", "swap_used_bytes"),
)
"""What is compared where neither recording has a GPU: beside a GPU's it would widen all intervals. None has
the name of a GPU's."""

READ_METRICS: Final = (*COMPARED_METRICS, "energy_j", "power_limit_w")
"""All that a comparison reads of devices."""

CONFIDENCE: Final = 0.95
"""Of all metrics of a comparison together (Bonferroni's correction: metrics of one GPU move together to a
degree that nobody knows)."""
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
    smallest_shown: float | None = None
    """The difference that these readings would show 4 times in 5, in the metric's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two recordings, and how much of it was used."""

    source: str
    duration_s: float
    used_s: float
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingComparison:
    """The second recording against the first."""

    first: Side
    second: Side
    basis: str
    """Which part of the recordings counts."""
    conditions: tuple[Condition, ...]
    metrics: tuple[MetricComparison, ...]
    spent: Spent
    """Energy, and time held back, of the whole window."""

    @property
    def has_gpus(self) -> bool:
        """Whether there is a GPU on either side; without any the host is compared."""
        return self.first.num_gpus + self.second.num_gpus > 0

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
        """Average a metric over the GPUs that were busy at each sample; samples with none are left out.

        Returns the values, and the seconds that each stands for.
        """
        columns = [column for track in self.recording.devices for column in self._columns(track, metric)]
        if metric in HOST_METRICS and metric in self.recording.host:
            columns = [(np.where(self.inside, self.recording.host[metric], np.nan), None)]
        mean = mean_over_devices([values for values, _ in columns], length=len(self.inside))
        given = ~np.isnan(mean)
        if columns and columns[0][1] is not None:
            return mean[given], columns[0][1][given]
        times, dithered = self.recording.time_s[given], self.recording.recording.is_dithered
        return mean[given], durations(times, dithered=dithered)

    def _columns(self, track: DeviceTrack, metric: str) -> Iterator[tuple[Floats, Floats | None]]:
        """Yield the readings of a GPU that count, and the seconds of each where these are its own."""
        counted = self.counted(track)
        if metric == "power_w":
            power = power_over_time(self.recording, track=track, inside=counted)
            if power is not None:
                yield power.power_w, power.lasting_s if power.method == "counter" else None
        elif (column := track.values(metric)) is not None:
            yield np.where(counted, column, np.nan), None

    def counted(self, track: DeviceTrack) -> Flags:
        """Tell which samples count of a GPU."""
        if self.busy_percent is None:
            return self.inside
        util = track.values("util_gpu_percent")
        return self.inside & (util >= self.busy_percent) if util is not None else self.inside & False


def compare(
    first: RecordingData,
    second: RecordingData,
    *,
    phase_name: str | None = None,
    busy_percent: float = BUSY_PERCENT,
) -> RecordingComparison:
    """Compare the second recording with the first, over a named phase or over busy time.

    Raises:
        UsageError: a recording has no such phase, or has no samples.
    """
    busy: float | None = busy_percent
    basis = f"phase {phase_name}"
    if phase_name is not None:
        busy = None
    elif all(_has_utilisation(recording) for recording in (first, second)):
        basis = f"busy time: GPU utilisation of {busy_percent:g} % or more"
    elif first.devices or second.devices:
        busy, basis = None, "all readings, as not both tell the utilisation that would show busy time"
    else:
        busy, basis = None, "all readings of the host, as neither recording has a GPU"
    used = [_used(recording, phase_name, busy) for recording in (first, second)]
    metrics = COMPARED_METRICS if first.devices or second.devices else HOST_METRICS
    sides = {metric: (_series(used[0], metric), _series(used[1], metric)) for metric in metrics}
    read = {metric: pair for metric, pair in sides.items() if any(len(side.values) for side in pair)}
    return RecordingComparison(
        first=_side(used[0]),
        second=_side(used[1]),
        basis=basis,
        conditions=unlike_conditions(first, second),
        metrics=tuple(_compare_metrics(read)),
        spent=spent(first, second, phase_name=phase_name),
    )


def _used(recording: RecordingData, phase_name: str | None, busy: float | None) -> _Used:
    if not len(recording.time_s):
        raise UsageError("holds no samples", place=recording.source, next_step="Record for longer")
    window: RecordingWindow = whole(recording) if phase_name is None else phase(recording, name=phase_name)
    return _Used(recording=recording, inside=window.holds(recording.time_s), busy_percent=busy)


def _has_utilisation(recording: RecordingData) -> bool:
    return any(track.values("util_gpu_percent") is not None for track in recording.devices)


def _side(used: _Used) -> Side:
    recording = used.recording
    counted = used.inside
    if used.busy_percent is not None:
        counted = np.logical_or.reduce([used.counted(track) for track in recording.devices])
    return Side(
        source=recording.source,
        duration_s=recording.duration_s,
        used_s=min(recording.duration_s, float(durations(recording.time_s)[counted].sum())),
        num_gpus=len(recording.devices),
    )


def _compare_metrics(read: Mapping[str, tuple[TimeSeries, TimeSeries]]) -> Iterator[MetricComparison]:
    """Compare metrics that one of the recordings has at least."""
    num_both = sum(all(len(side.values) for side in pair) for pair in read.values())
    shared = 1 - (1 - CONFIDENCE) / max(1, num_both)
    for metric, pair in read.items():
        yield _compared(metric, *pair, _difference(*pair, confidence=shared))


def _difference(first: TimeSeries, second: TimeSeries, *, confidence: float) -> Interval | Unavailable:
    for name, side in (("first", first), ("second", second)):
        if not len(side.values):
            return Unavailable(reason=f"not read in the {name}")
    ends = low_end(first), low_end(second)
    if isinstance(ends[0], LowEnd) and isinstance(ends[1], LowEnd):
        return difference_of_means(ends[0], ends[1], confidence=confidence)
    named = zip(("first", "second"), ends, strict=True)
    return Unavailable(
        reason="; ".join(f"{name}: {end.reason}" for name, end in named if isinstance(end, Unavailable))
    )


def _compared(
    metric: str, first: TimeSeries, second: TimeSeries, found: Interval | Unavailable
) -> MetricComparison:
    difference = found if isinstance(found, Interval) else None
    return MetricComparison(
        metric=metric,
        first_mean=_mean(first),
        second_mean=_mean(second),
        difference=difference,
        verdict="cannot tell" if difference is None else _verdict(difference),
        reason=found.reason if isinstance(found, Unavailable) else None,
        smallest_shown=None if difference is None else smallest_shown(difference),
    )


def _verdict(difference: Interval) -> Verdict:
    if difference.low > 0:
        return "higher"
    return "lower" if difference.high < 0 else "no difference shown"


def _series(used: _Used, metric: str) -> TimeSeries:
    """Weigh readings by the time that they stand for, and join neighbours where there are very many."""
    values, lasting_s = used.series(metric)
    step = max(1, ceil(len(values) / MAX_PIECES))
    if step > 1:
        starts = np.arange(0, len(values), step)
        sums = np.add.reduceat(values * lasting_s, starts)
        lasting_s = np.add.reduceat(lasting_s, starts)
        values = sums / np.where(lasting_s > 0, lasting_s, 1)
    lasting = lasting_s > 0
    return TimeSeries(values=values[lasting], durations_s=lasting_s[lasting])


def _mean(series: TimeSeries) -> float | None:
    values, stood = series.arrays()
    return float(np.average(values, weights=stood)) if len(values) else None
