"""Totals of a device's counters in a window: errors, bytes, and throttled time.

The input is a recording, a device and a window. The output, for errors and bytes: a `Total` per counter. If a
counter decreased (it wrapped, or the driver was reloaded), this is reported. A byte counter that never
exceeds 32 bits and decreases may have wrapped unseen between any two readings: its value is a lower bound,
and no rate is computed. Nor is a rate computed for a counter that exceeds the capacity of its PCIe link.

The output for throttling: a fraction of time per reason. The device's own counters of throttled time are
exact at any polling rate, so they are preferred; the reasons in samples are used if there is no counter. A
counter that did not move while samples showed its reason is not trusted; if it differs from the samples by
more than sampling can explain, both are reported. A reason that covers several others (`thermal`: by software
or hardware) is only reported while none of the others applies. For a device that reports neither, the result
is None, which does not mean "never throttled"; the same applies to a counter that has never increased.

>>> link_bytes_per_s(3, 16) / 1e9
15.76
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np

from gpuproof.base.units import share as share_text
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.series import CounterChange, counter_change, durations, mean_over_time, total_change
from gpuproof.readings.window import RecordingWindow, whole
from gpuproof.records.metrics import HOST_METRICS, THROTTLE_COUNTERS, names
from gpuproof.records.readings import DeviceIdentity

_NOT_TOTALS: Final = ("energy_j", "throttle_time_")
"""Counters that have a section of their own in the summary."""

HOST_TOTALS: Final = tuple(name for name, metric in HOST_METRICS.items() if metric.kind == "counter")
"""Host columns that are running totals since boot."""

SHORT_COUNTER_BYTES: Final = 2.0**32
"""Where a 32-bit counter wraps: at the full rate of sixteen lanes, it does so about fifteen times a
second."""

_LANE_BYTES_PER_S: Final = {1: 250e6, 2: 500e6, 3: 985e6, 4: 1969e6, 5: 3938e6, 6: 7563e6}
"""Rate of one PCIe lane in one direction, by generation, after line coding."""
ThrottleMethod = Literal["counter", "samples"]
HEAT: Final = {"thermal": ("thermal_software", "thermal_hardware")}
"""Counters that cover several reasons, each with its reasons (`NVML_PERF_POLICY_THERMAL` of nvml.h)."""
GIVEN_WITH: Final = HEAT | {"hardware_slowdown": ("thermal_hardware", "power_brake")}
"""Reasons that samples report along with certain other reasons (`nvmlClocksEventReasonHwSlowdown`)."""
SMALLEST_REST: Final = 0.01
"""If a counter that covers several reasons and those reasons' own counters differ by less than this fraction
of the window, the difference is attributed to rounding."""
SMALLEST_DOUBT: Final = 0.05
"""If a counter and the samples differ by less than this fraction of the window's time, the difference is not
reported, whatever the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The increase of an error or byte counter in a window."""

    metric: str
    increase: float
    covered_s: float
    is_least: bool = False
    """Whether the counter may have counted more than `increase`; if so, there is no rate."""
    note: str | None = None
    """Why the value is doubtful."""


def link_bytes_per_s(generation: float | None, lanes: float | None) -> float | None:
    """Return the maximum rate of a PCIe link in one direction; None if it is unknown."""
    lane = _LANE_BYTES_PER_S.get(int(generation)) if generation is not None else None
    return None if lane is None or lanes is None else lane * lanes


def device_totals(
    recording: RecordingData, *, track: DeviceTrack, window: RecordingWindow
) -> Iterator[Total]:
    """Return how much each of a device's counters increased in a window."""
    for metric in names(kind="counter"):
        if metric.startswith(_NOT_TOTALS):
            continue
        change = counter_change(recording, track=track, metric=metric, window=window)
        if change is not None:
            is_short = metric.endswith("_bytes") and _is_short(recording, track, metric, change, window)
            yield _total(metric, change, track.identity, is_short=is_short)


def host_totals(recording: RecordingData, window: RecordingWindow) -> Iterator[Total]:
    """Return the increase in the host's counters during a window."""
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
    """Return whether a counter wraps at 32 bits; looks at the whole recording, not just one phase."""
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
            note=f"its counter went backwards {times}, never above 32 bits: it wraps or was reset",
        )
    limit = link_bytes_per_s(identity.number("pcie_gen_max"), identity.number("pcie_width_max"))
    is_absurd = (
        metric.startswith("pcie_")
        and metric.endswith("_bytes")
        and limit is not None
        and change.increase > limit * change.covered_s > 0
    )
    note = f"its counter went backwards {times}" if change.resets else None
    if is_absurd:
        note = "not trusted: more than the link can carry"
    return Total(
        metric=metric, increase=change.increase, covered_s=0.0 if is_absurd else change.covered_s, note=note
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleShare:
    """The fraction of time during which one reason applied."""

    reason: str
    share: float
    """A fraction from 0 to 1 of the time covered by the method."""
    method: ThrottleMethod
    note: str | None = None
    """Why the value is doubtful: the counter is not trusted, or differs from the samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """All throttle reasons of one device in one window, longest first."""

    shares: tuple[ThrottleShare, ...]
    has_answers: bool
    """Whether the device reported reasons at all: only then does an empty list mean that it was not
    throttled."""
    missing: str | None
    answered_share: float = 1.0
    """Fraction of the window's samples for which reasons were reported, 0 to 1."""
    counted: tuple[str, ...] = ()
    """Reasons with a trusted counter; if no sample reported reasons, only these have data."""


def throttling(recording: RecordingData, *, track: DeviceTrack, window: RecordingWindow) -> Throttling:
    """Compute each reason's fraction from its counter, or else from the samples; count no time twice."""
    inside = window.holds(recording.time_s)
    samples = _Samples(recording, track, answered=track.throttle_answered & inside, samples=int(inside.sum()))
    changes = _changes(recording, track, window)
    counters, disbelieved = _counters(changes, samples, recording, window)
    shares = _without_overlap(samples.shares() | counters)
    shares = {reason: _with_doubt(item, disbelieved) for reason, item in shares.items()}
    held = sorted((s for s in shares.values() if s.share > 0), key=lambda s: (-s.share, s.reason))
    has_answers = samples.share > 0 or bool(held) or any(change.last_total > 0 for change in changes.values())
    return Throttling(
        shares=tuple(held),
        has_answers=has_answers,
        missing=None if has_answers else _missing(recording, track, changes),
        answered_share=samples.share,
        counted=tuple(counters),
    )


class _Samples:
    """The throttle reasons reported in a window's samples."""

    def __init__(
        self, recording: RecordingData, track: DeviceTrack, *, answered: Flags, samples: int
    ) -> None:
        self.share = float(answered.sum()) / samples if samples else 0.0
        self._times: Floats = recording.time_s[answered]
        self._dithered = recording.recording.is_dithered
        answers = {reason: flags[answered] for reason, flags in track.throttle.items()}
        self._flags = {reason: flags for reason, flags in answers.items() if flags.any()}

    def flags(self, reason: str) -> Flags:
        """Return, for each answered sample, whether a reason applied, or a reason that it covers."""
        named = [self._flags[name] for name in (reason, *HEAT.get(reason, ())) if name in self._flags]
        return np.logical_or.reduce(named) if named else np.zeros(len(self._times), dtype=bool)

    def weight(self, flags: Flags) -> float:
        """Weight each sample by how long it was valid."""
        if not flags.any():
            return 0.0
        return mean_over_time(
            self._times, flags.astype(np.float64), dithered=self._dithered, weights=self._lasting_s
        )

    @cached_property
    def _lasting_s(self) -> Floats:
        return durations(self._times, dithered=self._dithered)

    def shares(self) -> dict[str, ThrottleShare]:
        """Return each reason's fraction; one that covers others gets only the time without any of them."""
        shares = {}
        for reason, flags in self._flags.items():
            alone = flags
            for part in GIVEN_WITH.get(reason, ()):
                alone = alone & ~self._flags.get(part, np.zeros_like(flags))
            shares[reason] = ThrottleShare(reason=reason, share=self.weight(alone), method="samples")
        return shares

    def error(self, reason: str) -> float:
        """Return the maximum error of a reason's fraction: one sample per change, and one at each end.

        With one sample at a random time in each interval, the error is at most that of the same number of
        independent samples (stratified sampling). Five standard deviations of the latter are therefore also a
        bound.
        """
        flags = self.flags(reason)
        num, mean = max(1, len(flags)), float(flags.mean()) if len(flags) else 0.0
        changes = int(np.count_nonzero(flags[1:] != flags[:-1])) / num
        if self._dithered:
            changes = min(changes, 5 * float(np.sqrt(mean * (1 - mean) / num)))
        return changes + 2 / num + 1 - self.share


def _changes(
    recording: RecordingData, track: DeviceTrack, window: RecordingWindow
) -> dict[str, CounterChange]:
    changes = (
        (reason, counter_change(recording, track=track, metric=metric, window=window))
        for metric, reason in THROTTLE_COUNTERS.items()
    )
    return {reason: change for reason, change in changes if change is not None and change.covered_s > 0}


def _counters(
    changes: Mapping[str, CounterChange], samples: _Samples, recording: RecordingData, window: RecordingWindow
) -> tuple[dict[str, ThrottleShare], dict[str, str]]:
    """Return the fraction of time for each trusted counter, and a note on each untrusted one.

    A counter is not trusted if it did not move while a sample showed its reason, or if it is below the
    samples by more than sampling explains. A counter above the samples may have counted what happened between
    them, and samples that were not dithered may be in step with the signal. A counter is read in the slow
    lane and may itself lag by that interval: its error is this much at either end.
    """
    believed: dict[str, ThrottleShare] = {}
    disbelieved: dict[str, str] = {}
    for reason, change in changes.items():
        share = min(1.0, change.increase / change.covered_s)
        sampled = samples.weight(samples.flags(reason)) if samples.share > 0 else share
        unread_s = max(0.0, window.duration_s - change.covered_s) + 2 * recording.recording.slow_interval_s
        error = samples.error(reason) + unread_s / window.duration_s
        differs = abs(share - sampled) > max(error, SMALLEST_DOUBT)
        note = f"the samples show {share_text(sampled)}" if differs else None
        if change.increase == 0 and sampled > 0:
            disbelieved[reason] = "its counter did not move"
        elif note is not None and share < sampled and recording.recording.is_dithered:
            disbelieved[reason] = f"its counter shows {share_text(share)}"
        else:
            believed[reason] = ThrottleShare(reason=reason, share=share, method="counter", note=note)
    return believed, disbelieved


def _without_overlap(shares: dict[str, ThrottleShare]) -> dict[str, ThrottleShare]:
    """Reduce the time of a counter that covers several reasons to what their own fractions leave.

    If the counter is exact, and samples show only one of these reasons, that reason gets the counter's time.
    """
    for counter, parts in HEAT.items():
        item = shares.get(counter)
        named = [shares[part] for part in parts if part in shares and shares[part].share > 0]
        if item is None or item.method != "counter" or item.share == 0 or not named:
            continue
        sampled = [part for part in named if part.method == "samples"]
        del shares[counter]
        if len(named) == len(sampled) == 1:
            shares[named[0].reason] = replace(item, reason=named[0].reason)
        elif not sampled and item.share - sum(part.share for part in named) > SMALLEST_REST:
            shares[counter] = replace(item, share=item.share - sum(part.share for part in named))
    return shares


def _with_doubt(item: ThrottleShare, disbelieved: Mapping[str, str]) -> ThrottleShare:
    """Return the fraction with a note if the counter that should have reported it is not trusted."""
    names = (item.reason, *(whole for whole, parts in HEAT.items() if item.reason in parts))
    note = next((disbelieved[name] for name in names if name in disbelieved), None)
    return item if item.method == "counter" or note is None else replace(item, note=note)


def _missing(recording: RecordingData, track: DeviceTrack, changes: Mapping[str, CounterChange]) -> str:
    why = recording.reasons_missing(track).get("throttle_reasons", "this device reported no throttle reasons")
    return f"{why}; its counters of throttled time have never counted" if changes else why
