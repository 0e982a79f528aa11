"""Do two recordings differ? By how much, could it be chance, and were the conditions the same?

In: two recordings, and which part of them to compare: one named phase, or the time when the GPU was busy.
Out: measures, and every condition that differs between the recordings or is unknown because one of them did
not record it. For each metric there are both means, B minus A with its interval (from the low end of both
spectra), a verdict (higher, lower, no difference shown, or cannot tell), and the smallest difference that
would have been detected. All metrics share one error rate: at most 5 % of comparisons of equal recordings
report "higher" or "lower" for any metric. A difference is only meaningful if the conditions are the same, or
if only the one under test differs. Power is computed from the energy counter if the counter advances.
Successive readings are correlated, which is accounted for, and a recording that is too short for its slow
changes is reported as such. The interval does not cover differences between launches. Time, energy of all
GPUs and throttled time (of the phase, or else of the whole recording) have one value per recording, so they
have no interval; if one GPU does not report a value, it is missing for the recording, since a partial sum is
not a total.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

import numpy as np

from gpuproof.base.errors import UsageError
from gpuproof.base.units import MISSING, seconds, share, significant
from gpuproof.comparison.conditions import DifferingKey, differing_conditions
from gpuproof.comparison.measures import CONFIDENCE
from gpuproof.comparison.winners import side_measure
from gpuproof.readings.energy import WHOLE_ENOUGH, energy_used, power_over_time
from gpuproof.readings.metric_text import STATE_REASONS, energy, quantity, throttle_title, title, unit
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.series import durations, mean_over_devices, mean_over_time
from gpuproof.readings.totals import throttling
from gpuproof.readings.window import RecordingWindow, phase, whole
from gpuproof.records.metrics import HOST_METRICS, METRICS
from gpuproof.records.result import Measure
from gpuproof.statistics.estimate import Interval, Unavailable, as_record
from gpuproof.statistics.low_end import LowEnd, difference_of_means, error_in_step, low_end
from gpuproof.statistics.series import TimeSeries, smallest_shown

BUSY_PERCENT: Final = 10.0
"""Utilisation at or above which a GPU counts as busy, unless the user sets another value."""

COMPARED_METRICS: Final = tuple(name for name, metric in METRICS.items() if metric.compared)
COMPARED_OF_HOST: Final = tuple(name for name, metric in HOST_METRICS.items() if metric.compared)
"""Metrics to compare if neither recording has a GPU; comparing them alongside GPU metrics would widen all
intervals. No GPU metric has the same name."""

READ_METRICS: Final = (*COMPARED_METRICS, "energy_j", "power_limit_w")
"""Every device metric that a comparison reads."""

SPENT: Final = 0.6
"""Fraction of the allowed error rate that is allotted to intervals. The rest of the 5 % is reserved for slow
noise, whose variance is sometimes underestimated, so that no noise shape in
`benchmarks/compare_false_alarms.py` exceeds the total."""
MAX_PIECES: Final = 2000
"""Maximum length of a series; longer ones are averaged down to it, since a day of readings does not need more
resolution."""
Held = tuple[dict[str, float] | None, str | None]
"""Reason → fraction of the time, 0 to 1, over all GPUs, without states such as idle; or why the fractions are
unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingComparison:
    """Recording B, compared with recording A."""

    a: str
    b: str
    """The files of both recordings."""
    basis: str
    """The part of the recordings that the means cover."""
    spent_basis: str
    """The part of the recordings that energy and throttled time cover."""
    unlike: tuple[DifferingKey, ...]
    sides: tuple[Measure, ...]
    """For each recording: its length, how much of it is compared, and for how many GPUs."""
    means: tuple[Measure, ...]
    """For each metric, the means of A and B, B minus A, and the smallest difference that would have been
    detected."""
    spent: tuple[Measure, ...]
    """Energy and throttled time over the whole window; empty if neither recording has a GPU."""

    @property
    def has_gpus(self) -> bool:
        """Whether either side has a GPU; if neither has one, the hosts are compared."""
        return bool(self.spent)

    @property
    def comparable(self) -> bool:
        """Whether all known conditions are the same."""
        return not any(unlike.weight == "differs" for unlike in self.unlike)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    """A recording with the readings that are compared."""

    recording: RecordingData
    inside: Flags
    busy_percent: float | None

    def series(self, metric: str) -> tuple[Floats, Floats]:
        """Return a metric's mean over the GPUs busy at each sample; omit samples with no busy GPU.

        Returns the values, and the number of seconds that each represents.
        """
        columns = [column for track in self.recording.devices for column in self._columns(track, metric)]
        if metric in COMPARED_OF_HOST and metric in self.recording.host:
            columns = [(np.where(self.inside, self.recording.host[metric], np.nan), None)]
        mean = mean_over_devices([values for values, _ in columns], length=len(self.inside))
        is_read = ~np.isnan(mean)
        if columns and columns[0][1] is not None:
            return mean[is_read], columns[0][1][is_read]
        times, dithered = self.recording.time_s[is_read], self.recording.recording.is_dithered
        return mean[is_read], durations(times, dithered=dithered)

    def _columns(self, track: DeviceTrack, metric: str) -> Iterator[tuple[Floats, Floats | None]]:
        """Yield a GPU's compared readings, and the seconds that each represents if known for this GPU."""
        counted = self.counted(track)
        if metric == "power_w":
            power = power_over_time(self.recording, track=track, inside=counted)
            if power is not None:
                yield power.power_w, power.lasting_s if power.method == "counter" else None
        elif (column := track.values(metric)) is not None:
            yield np.where(counted, column, np.nan), None

    def counted(self, track: DeviceTrack) -> Flags:
        """Return which samples of a GPU are compared."""
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
    """Compare the second recording with the first, in a named phase or while GPUs are busy.

    Raises:
        UsageError: a recording has no such phase, or has no samples.
    """
    busy: float | None = busy_percent
    basis = f"phase {phase_name}"
    if phase_name is not None:
        busy = None
    elif all(
        any(track.values("util_gpu_percent") is not None for track in recording.devices)
        for recording in (first, second)
    ):
        basis = f"busy time: GPU utilisation of at least {busy_percent:g} %"
    elif first.devices or second.devices:
        busy, basis = None, "all readings: a recording lacks the utilisation that shows busy time"
    else:
        busy, basis = None, "all readings of the host, as neither recording has a GPU"
    used = [_used(recording, phase_name, busy) for recording in (first, second)]
    has_gpus = bool(first.devices or second.devices)
    metrics = COMPARED_METRICS if has_gpus else COMPARED_OF_HOST
    sides = {metric: (_series(used[0], metric), _series(used[1], metric)) for metric in metrics}
    read = {metric: pair for metric, pair in sides.items() if any(len(side.values) for side in pair)}
    return RecordingComparison(
        a=first.source,
        b=second.source,
        basis=basis,
        spent_basis="the whole of each recording" if phase_name is None else f"phase {phase_name}",
        unlike=differing_conditions(first, second),
        sides=tuple(measure for side, one in zip("AB", used, strict=True) for measure in _side(side, one)),
        means=tuple(_compare_metrics(read)),
        spent=tuple(spent_measures(first, second, phase_name=phase_name)) if has_gpus else (),
    )


def _used(recording: RecordingData, phase_name: str | None, busy: float | None) -> _Used:
    if not len(recording.time_s):
        raise UsageError("has no samples", place=recording.source, next_step="Record for longer")
    window: RecordingWindow = whole(recording) if phase_name is None else phase(recording, name=phase_name)
    return _Used(recording=recording, inside=window.holds(recording.time_s), busy_percent=busy)


def _side(side: str, used: _Used) -> Iterator[Measure]:
    recording = used.recording
    counted = used.inside
    if used.busy_percent is not None:
        counted = np.logical_or.reduce([used.counted(track) for track in recording.devices])
    used_s = min(recording.duration_s, float(durations(recording.time_s)[counted].sum()))
    yield _of_side("num_gpus", side, "count", float(len(recording.devices)), name="GPUs")
    yield _of_side("duration_s", side, "total", recording.duration_s, name="recorded")
    yield _of_side("used_s", side, "total", used_s, name="compared")


def _of_side(metric: str, side: str, statistic: str, value: float | None, **more: Any) -> Measure:
    about = {"name": title(metric), "unit": unit(metric), "text": quantity(metric, value)} | more
    return side_measure(side=side, statistic=statistic, value=value, labels={"metric": metric}, **about)


def _compare_metrics(read: Mapping[str, tuple[TimeSeries, TimeSeries]]) -> Iterator[Measure]:
    """Yield the values of metrics that at least one recording has."""
    num_both = sum(all(len(side.values) for side in pair) for pair in read.values())
    shared = 1 - SPENT * (1 - CONFIDENCE) / max(1, num_both)
    for metric, pair in read.items():
        means = [_mean(side) for side in pair]
        for side, mean, series in zip("AB", means, pair, strict=True):
            missing = None if mean is not None else "not read"
            yield _of_side(metric, side, "mean", mean, num_samples=len(series.values), missing=missing)
        yield from _differing(metric, means[0], _difference(*pair, confidence=shared))


def _difference(first: TimeSeries, second: TimeSeries, *, confidence: float) -> Interval | Unavailable:
    for name, side in (("first", first), ("second", second)):
        if not len(side.values):
            return Unavailable(reason=f"not read in the {name} recording")
    ends = low_end(first), low_end(second)
    if isinstance(ends[0], LowEnd) and isinstance(ends[1], LowEnd):
        interval = difference_of_means(ends[0], ends[1], confidence=confidence)
        error = error_in_step(first.arrays()[0]) + error_in_step(second.arrays()[0])
        return replace(interval, low=interval.low - error, high=interval.high + error)
    named = zip(("first", "second"), ends, strict=True)
    return Unavailable(
        reason="; ".join(f"{name}: {end.reason}" for name, end in named if isinstance(end, Unavailable))
    )


def _differing(metric: str, mean_a: float | None, difference: Interval | Unavailable) -> Iterator[Measure]:
    """Yield B minus A, its verdict, and the difference that would be detected with 80 % probability."""
    interval = difference if isinstance(difference, Interval) else None
    centre, shown = (None, None) if interval is None else (interval.centre, smallest_shown(interval))
    missing = difference.reason if isinstance(difference, Unavailable) else None
    yield _of_side(
        metric,
        "B minus A",
        "difference of means",
        centre,
        text=f"{signed(metric, centre)}{_relative(metric, centre, mean_a)}",
        detail="cannot tell" if interval is None else _verdict(interval),
        missing=missing,
        interval=None if interval is None else as_record(interval),
        num_samples=None if interval is None else interval.num_samples,
    )
    text = signed(metric, shown).removeprefix("+")
    yield _of_side(metric, "shown from", "smallest difference shown", shown, text=text, missing=missing)


def _verdict(difference: Interval) -> str:
    if difference.low > 0:
        return "higher"
    return "lower" if difference.high < 0 else "no difference shown"


def signed(metric: str, value: float | None) -> str:
    """Write a difference with its sign; °C and MHz get decimals so that small values are not 0.

    >>> signed("power_w", -12.5), signed("temp_gpu_c", 0.4)
    ('−12.5 W', '+0.400 °C')
    """
    if value is None:
        return MISSING
    name = unit(metric)
    size = f"{significant(abs(value))} {name}" if name in ("°C", "MHz") else quantity(metric, abs(value))
    return size if value == 0 else f"{'+' if value > 0 else '−'}{size}"


def _relative(metric: str, difference: float | None, mean_a: float | None) -> str:
    """Write a difference in percent, unless a ratio is meaningless (°C) or misleading (percentages)."""
    if difference is None or unit(metric) in ("°C", "%") or not mean_a:
        return ""
    percent = difference / mean_a * 100
    return f" ({'+' if percent >= 0 else '−'}{significant(abs(percent), 2)} %)"


def _series(used: _Used, metric: str) -> TimeSeries:
    """Weight readings by the time they represent, and merge adjacent ones if there are too many."""
    values, lasting_s = used.series(metric)
    step = max(1, ceil(len(values) / MAX_PIECES))
    if step > 1:
        starts = np.arange(0, len(values), step)
        sums = np.add.reduceat(values * lasting_s, starts)
        lasting_s = np.add.reduceat(lasting_s, starts)
        means = sums / np.where(lasting_s > 0, lasting_s, 1)
        values = np.clip(means, np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts))
    lasting = lasting_s > 0
    return TimeSeries(values=values[lasting], durations_s=lasting_s[lasting])


def _mean(series: TimeSeries) -> float | None:
    values, stood = series.arrays()
    return mean_over_time(values, values, dithered=False, weights=stood) if len(values) else None


def spent_measures(
    first: RecordingData, second: RecordingData, *, phase_name: str | None
) -> Iterator[Measure]:
    """Yield the run time, energy and throttled time of both sides.

    Raises:
        UsageError: a recording has no such phase.
    """
    sides = [(r, whole(r) if phase_name is None else phase(r, name=phase_name)) for r in (first, second)]
    for side, (_, window) in zip("AB", sides, strict=True):
        yield _value("time", side, "s", window.duration_s, seconds(window.duration_s))
    joules = [_energy(*one) for one in sides]
    for side, (value, missing) in zip("AB", joules, strict=True):
        yield _value("energy", side, "J", value, energy(value), missing=missing)
    yield _ratio(*(value for value, _ in joules))
    yield from _held(*(_shares(*one) for one in sides))


def _value(name: str, side: str, unit: str, value: float | None, text: str, **more: Any) -> Measure:
    about = {"statistic": "total", "labels": {}, "unit": unit, "text": text} | more
    return side_measure(name=name, side=side, value=value, **about)


def _energy(recording: RecordingData, window: RecordingWindow) -> tuple[float | None, str | None]:
    """Return the energy of all GPUs in joules, or why it is unknown."""
    used = [energy_used(recording, track=track, window=window) for track in recording.devices]
    joules = [use.energy_j for use in used if use.energy_j is not None]
    least = min((use.coverage for use in used if use.coverage is not None), default=1.0)
    if joules and len(joules) == len(used):
        if least < WHOLE_ENOUGH:
            return None, f"it was read over only {share(least)} of the time"
        return sum(joules), None
    return None, next((use.note for use in used if use.energy_j is None), None)


def _ratio(first_j: float | None, second_j: float | None) -> Measure:
    ratio = None if first_j is None or second_j is None or first_j <= 0 else second_j / first_j
    text = MISSING
    if ratio is not None:
        text = f"{'+' if ratio >= 1 else '−'}{significant(abs(ratio - 1) * 100, 2)} %"
    return side_measure(
        name="energy", side="B over A", statistic="ratio", value=ratio, unit="1", text=text, labels={}
    )


def _shares(recording: RecordingData, window: RecordingWindow) -> Held:
    held = [throttling(recording, track=track, window=window) for track in recording.devices]
    if not held or not all(throttle.has_answers for throttle in held):
        return None, next((throttle.missing for throttle in held if not throttle.has_answers), None)
    shares: dict[str, float] = {}
    for item in (item for throttle in held for item in throttle.shares if item.reason not in STATE_REASONS):
        shares[item.reason] = shares.get(item.reason, 0.0) + item.share / len(held)
    return shares, None


def _held(*sides: Held) -> Iterator[Measure]:
    """Yield each reason's fraction of throttled time on both sides, largest first; "never" if none."""
    longest: dict[str, float] = {}
    for shares, _ in sides:
        for reason, length in (shares or {}).items():
            longest[reason] = max(length, longest.get(reason, 0.0))
    for reason in sorted(longest, key=lambda reason: (-longest[reason], reason)) or [""]:
        name = f"throttled: {throttle_title(reason)}" if reason else "throttled"
        for side, (shares, missing) in zip("AB", sides, strict=True):
            part = None if shares is None else shares.get(reason, 0.0)
            text = f"{share(part)} of the time" if reason or part is None else "never"
            shown = MISSING if part is None else text
            about = {"statistic": "share of the time", "labels": {"reason": reason}, "missing": missing}
            yield _value(name, side, "1", part, shown, **about)
