"""What held a device back, and for how much of a window?

In: a recording, a device and a window. Out: a share of time per reason. The device's own counters of
throttled time are exact however seldom one looks, so they come first; the samples' reasons fill in
where no counter is given. A device that tells neither has None, which is not "never throttled".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.series import counter_change, mean_over_time
from gpuproof.readings.window import RecordingWindow
from gpuproof.records.metrics import THROTTLE_COUNTERS

ThrottleMethod = Literal["counter", "samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleShare:
    """How much of the time one reason held."""

    reason: str
    share: float
    """0 to 1, of the time that the method covers."""
    method: ThrottleMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """All reasons of one device in one window, the longest first."""

    shares: tuple[ThrottleShare, ...]
    known: bool
    """Whether the device told at all; only then do no shares mean that nothing held it back."""
    missing: str | None


def throttling(recording: RecordingData, *, track: DeviceTrack, window: RecordingWindow) -> Throttling:
    """Take each reason's share from its counter, or else from the samples."""
    answered = track.throttle_known & window.holds(recording.time_s)
    shares = _from_samples(recording, track, answered) | _from_counters(recording, track, window)
    known = bool(answered.any()) or bool(shares)
    held = sorted((s for s in shares.values() if s.share > 0), key=lambda s: (-s.share, s.reason))
    reason = recording.reasons_missing(track).get("throttle_reasons", "this device gave no throttle reasons")
    return Throttling(shares=tuple(held), known=known, missing=None if known else reason)


def _from_counters(
    recording: RecordingData, track: DeviceTrack, window: RecordingWindow
) -> dict[str, ThrottleShare]:
    shares = {}
    for metric, reason in THROTTLE_COUNTERS.items():
        change = counter_change(recording, track=track, metric=metric, window=window)
        if change is not None and change.covered_s > 0:
            share = min(1.0, change.increase / change.covered_s)
            shares[reason] = ThrottleShare(reason=reason, share=share, method="counter")
    return shares


def _from_samples(recording: RecordingData, track: DeviceTrack, answered: Flags) -> dict[str, ThrottleShare]:
    """Weigh each sample that gave its reasons by the time for which it stood."""
    if not track.throttle or not answered.any():
        return {}
    times: Floats = recording.time_s[answered]
    dithered = recording.recording.is_dithered
    return {
        reason: ThrottleShare(
            reason=reason,
            share=mean_over_time(times, flags[answered].astype(np.float64), dithered=dithered),
            method="samples",
        )
        for reason, flags in track.throttle.items()
    }
