"""How much energy did a device use in a window, and how accurate is that value?

If the device's own energy counter works, it is used: the difference between two readings is exact at any
polling rate, while many power sensors only sample part of the time. Power is integrated over the samples if
there is no counter, if the counter did not move while power was drawn, or if it stopped before the end of the
window. `coverage` is the fraction of the window that the value covers; the value is never extrapolated to the
rest. Mean power comes from the same counter: if a signal is in step with the readings, no number of samples
reveals what happens between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from gpuproof.base.units import share
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.series import counter_change, durations, longest_step_s, readings_of
from gpuproof.readings.window import RecordingWindow
from gpuproof.statistics.estimate import median

EnergyMethod = Literal["counter", "integrated_power"]

DOUBT_FACTOR: Final = 1.25
"""If the counter and the power sensor differ by more than this, both are shown."""


FEWEST_MOVES: Final = 10
"""A counter may only update periodically, on its own schedule (every 0.1 s on an H200): its increase over k
updates may then be too high or too low by 1/k."""
WHOLE_ENOUGH: Final = 0.9
"""Fraction of a window that an energy value has to cover to represent all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """The energy of one device in one window."""

    energy_j: float | None
    method: EnergyMethod | None
    coverage: float | None
    """Fraction of the window's time that the value covers, 0 to 1."""
    covered_s: float
    note: str | None
    """Why there is no value, or why it is doubtful."""


def energy_used(recording: RecordingData, *, track: DeviceTrack, window: RecordingWindow) -> Energy:
    """Use the change in the counter if possible; otherwise, integrate power."""
    integrated = _integrated(recording, track, window)
    change = counter_change(recording, track=track, metric="energy_j", window=window)
    if change is None or change.covered_s == 0:
        reason = recording.reasons_missing(track).get("energy_j", "fewer than two readings of it")
        return _from_power(integrated, window, f"no energy counter: {reason}")
    times, totals = readings_of(recording, track, "energy_j")
    stopped_s = _stopped_s(times, totals)
    if stopped_s is not None and stopped_s < window.spans[-1].end_s and (integrated is None or integrated[0]):
        return _instead(integrated, window, f"the energy counter does not move after {stopped_s:.3g} s")
    moved, inside = totals[1:] != totals[:-1], np.zeros(len(totals) - 1, dtype=bool)
    for span in window.spans:
        inside |= (times[:-1] >= span.begin_s) & (times[1:] <= span.end_s)
    num_moves = int(moved[inside].sum())
    if moved.any() and not moved[inside].all() and num_moves < FEWEST_MOVES:
        seldom = f"the energy counter moved {num_moves} times in {change.covered_s:.2g} s"
        return _unknown(f"{seldom}, but {FEWEST_MOVES} are needed")
    if change.increase == 0 and integrated is not None and integrated[0] > 0:
        return _from_power(integrated, window, "the energy counter did not move while power was drawn")
    coverage = _coverage(change.covered_s, window)
    if coverage < WHOLE_ENOUGH and integrated and _coverage(integrated[1], window) >= WHOLE_ENOUGH:
        return _instead(integrated, window, f"the energy counter covers {share(coverage)} of the window")
    return Energy(
        energy_j=change.increase,
        method="counter",
        coverage=coverage,
        covered_s=change.covered_s,
        note=_doubt(change.increase / change.covered_s, integrated, change.resets),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerOverTime:
    """The power of one device: one value per sample of the recording, NaN if missing."""

    power_w: Floats
    lasting_s: Floats
    """How many seconds each value represents."""
    method: EnergyMethod

    @property
    def mean_w(self) -> float | None:
        """Return the time-weighted mean power; None if there is no value."""
        is_read = ~np.isnan(self.power_w)
        lasting_s = self.lasting_s[is_read]
        return float(np.average(self.power_w[is_read], weights=lasting_s)) if lasting_s.any() else None


def power_over_time(recording: RecordingData, *, track: DeviceTrack, inside: Flags) -> PowerOverTime | None:
    """Return the power at the samples `inside`, from the energy counter if it advances there.

    If the counter moves, the power at a sample is the counter's increase up to the next sample that has a
    value, divided by the time in between; across a gap it is unknown. Otherwise, it is the reading of the
    power sensor. Without either, return None.
    """
    counted = _power_by_counter(recording, track, inside)
    if counted is not None:
        return counted
    column = track.values("power_w")
    if column is None:
        return None
    is_read = inside & ~np.isnan(column)
    lasting_s = np.zeros(len(column))
    lasting_s[is_read] = durations(recording.time_s[is_read], dithered=recording.recording.is_dithered)
    return PowerOverTime(
        power_w=np.where(is_read, column, np.nan), lasting_s=lasting_s, method="integrated_power"
    )


def _power_by_counter(recording: RecordingData, track: DeviceTrack, inside: Flags) -> PowerOverTime | None:
    totals = track.values("energy_j")
    if totals is None:
        return None
    places = np.flatnonzero(~np.isnan(totals))
    if len(places) < 2:
        return None
    times = recording.time_s[places]
    end_s = _stopped_s(times, totals[places])
    if end_s is None and track.values("power_w") is not None:
        end_s = times[-1] + longest_step_s(times)  # the device was lost there, and the sensor may continue
    if end_s is not None and (recording.time_s[inside] > end_s).any():
        return None
    gaps_s, steps_j = times[1:] - times[:-1], totals[places][1:] - totals[places][:-1]
    is_step = (steps_j >= 0) & (gaps_s <= longest_step_s(times)) & (gaps_s > 0)
    watts = np.full(len(totals), np.nan)
    watts[places[:-1][is_step]] = steps_j[is_step] / gaps_s[is_step]
    between = np.arange(places[0], places[-1])
    last_read = np.searchsorted(places, between, side="right") - 1
    watts[between] = watts[places[last_read]]
    watts[~inside] = np.nan
    if not np.nansum(watts):
        return None
    lasting_s = np.append(recording.time_s[1:] - recording.time_s[:-1], 0.0)
    return PowerOverTime(power_w=watts, lasting_s=lasting_s, method="counter")


def _unknown(note: str) -> Energy:
    return Energy(energy_j=None, method=None, coverage=None, covered_s=0.0, note=note)


def _stopped_s(times: Floats, totals: Floats) -> float | None:
    """Return when a counter that had been moving stopped for good; None if it may still be moving."""
    moved_s = times[1:][totals[1:] != totals[:-1]]
    if len(moved_s) < FEWEST_MOVES:
        return None
    usual_s = median(moved_s[1:] - moved_s[:-1])
    is_over = times[-1] - moved_s[-1] > FEWEST_MOVES * usual_s
    return float(moved_s[-1] + usual_s) if is_over else None


def _instead(integrated: tuple[float, float] | None, window: RecordingWindow, note: str) -> Energy:
    """Return energy computed from power, not the counter, if power was read over the whole window."""
    if integrated is None or (covered := _coverage(integrated[1], window)) >= WHOLE_ENOUGH:
        return _from_power(integrated, window, note)
    return _unknown(f"{note}, and power was read only over {share(covered)} of the window")


def _from_power(integrated: tuple[float, float] | None, window: RecordingWindow, note: str) -> Energy:
    if integrated is None:
        return _unknown(f"{note}; fewer than two power readings")
    energy_j, covered_s = integrated
    return Energy(
        energy_j=energy_j,
        method="integrated_power",
        coverage=_coverage(covered_s, window),
        covered_s=covered_s,
        note=note,
    )


def _doubt(counter_w: float, integrated: tuple[float, float] | None, resets: int) -> str | None:
    parts = []
    if resets:
        parts.append(f"the counter went backwards {resets} time(s), probably because the driver was reloaded")
    if integrated is not None:
        sensor_w = integrated[0] / integrated[1]
        low, high = sorted((counter_w, sensor_w))
        if high > low * DOUBT_FACTOR:
            parts.append(f"the counter shows {counter_w:.0f} W on average, the power sensor {sensor_w:.0f} W")
    return "; ".join(parts) or None


def _integrated(
    recording: RecordingData, track: DeviceTrack, window: RecordingWindow
) -> tuple[float, float] | None:
    """Return joules by the trapezoidal rule, and the seconds covered; None below two readings."""
    column = track.values("power_w")
    if column is None:
        return None
    is_read = ~np.isnan(column)
    times, power = recording.time_s[is_read], column[is_read]
    longest_s = longest_step_s(times)
    energy_j = covered_s = 0.0
    for span in window.spans:
        inside = (times >= span.begin_s) & (times <= span.end_s)
        moments, values = times[inside], power[inside]
        gaps = moments[1:] - moments[:-1]
        joined = gaps <= longest_s
        energy_j += float((gaps * (values[1:] + values[:-1]) / 2)[joined].sum())
        covered_s += float(gaps[joined].sum())
    return (energy_j, covered_s) if covered_s > 0 else None


def _coverage(covered_s: float, window: RecordingWindow) -> float:
    return min(1.0, covered_s / window.duration_s)
