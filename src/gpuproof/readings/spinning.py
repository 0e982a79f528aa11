"""Is a GPU busy without working, as one is whose collective hangs?

A kernel that waits in a loop keeps utilisation at 100 %, draws little power and reads and writes no memory.
In: readings of one device, one by one or as a recording. Out: stretches of over ten seconds that look so,
with the evidence. It proves no hang: ranks that wait for a slow one look the same for as long as they wait.
Where utilisation, power, its limit or memory traffic is not told, nothing is said; of AMD's cards nothing
either, since on some (RDNA 4) utilisation stands at 100 % while a context is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuproof.base.units import seconds, share
from gpuproof.readings.metric_text import quantity
from gpuproof.readings.recording import DeviceTrack, Floats, RecordingData
from gpuproof.readings.series import HOLE_FACTOR, runs
from gpuproof.records.readings import DeviceIdentity

UTILISATION_PERCENT: Final = 99.0
POWER_SHARE: Final = 0.4
"""Of the limit in force."""
TRAFFIC_PERCENT: Final = 1.0
"""The driver gives whole per cents."""
LEAST_S: Final = 10.0
LEAST_READINGS: Final = 6
METRICS: Final = ("util_gpu_percent", "power_w", "util_mem_ctrl_percent")
SPIN_MEANING: Final = "a collective that hangs or waits for a slow rank looks like this"
_LIMIT: Final = "power_limit_w"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spin:
    """A stretch in which a device was busy and did next to nothing; means over its readings."""

    begin_s: float
    end_s: float
    power_w: float
    limit_w: float
    traffic_percent: float

    @property
    def duration_s(self) -> float:
        """Seconds from its first reading to its last."""
        return self.end_s - self.begin_s

    @property
    def evidence(self) -> str:
        """Say what was seen."""
        of_limit = share(self.power_w / self.limit_w)
        return (
            f"busy without work for {seconds(self.duration_s)}: utilisation 100 % "
            f"at {of_limit} of the power limit ({quantity('power_w', self.power_w)}), "
            f"memory traffic {self.traffic_percent:.0f} %"
        )


class SpinWatch:
    """Follows one device reading by reading."""

    def __init__(self, *, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._begin_s = 0.0
        self._last_s = 0.0
        self._num = 0
        self._sums = (0.0, 0.0)
        self._limit_w = 0.0
        self.can_tell = False
        """Whether the last reading had all that it takes."""

    def take(self, at_s: float, values: Mapping[str, float], *, limit_w: float | None) -> None:
        """Take one reading; one that lacks what it takes ends a stretch."""
        self.can_tell = bool(limit_w) and all(metric in values for metric in METRICS)
        if not self.can_tell or limit_w is None or not _is_spinning(values, limit_w):
            self._num = 0
            return
        if self._num == 0 or at_s - self._last_s > self._longest_gap_s:
            self._begin_s, self._num, self._sums = at_s, 0, (0.0, 0.0)
        self._num, self._last_s = self._num + 1, at_s
        power, traffic = self._sums
        self._sums, self._limit_w = (power + values[METRICS[1]], traffic + values[METRICS[2]]), limit_w

    @property
    def now(self) -> Spin | None:
        """Return the stretch that lasts until now; None where there is none that is long enough."""
        if self._num < LEAST_READINGS or self._last_s - self._begin_s <= LEAST_S:
            return None
        power, traffic = (total / self._num for total in self._sums)
        return Spin(
            begin_s=self._begin_s,
            end_s=self._last_s,
            power_w=power,
            limit_w=self._limit_w,
            traffic_percent=traffic,
        )


def _is_spinning(values: Mapping[str, float], limit_w: float) -> bool:
    util_percent, power_w, traffic_percent = (values[metric] for metric in METRICS)
    is_busy = util_percent >= UTILISATION_PERCENT
    return is_busy and traffic_percent <= TRAFFIC_PERCENT and power_w <= POWER_SHARE * limit_w


def is_judged(identity: DeviceIdentity) -> bool:
    """Say whether utilisation of such a device means that something ran on it."""
    return identity.static.get("recorded_vendor", identity.vendor) not in ("amd", "intel")


def limit_of(identity: DeviceIdentity, values: Mapping[str, float]) -> float | None:
    """Return the power cap in force in watts, else the one that the device was shipped with."""
    return values.get(_LIMIT) or identity.number(_LIMIT) or identity.number("power_limit_default_w")


def spins(recording: RecordingData, track: DeviceTrack) -> tuple[Spin, ...]:
    """Return every stretch of a recording in which a device was busy without working."""
    columns = [track.values(metric) for metric in METRICS]
    if not is_judged(track.identity) or any(column is None for column in columns):
        return ()
    util, power, traffic = (column for column in columns if column is not None)
    limit = _limits(track, len(util))
    with np.errstate(invalid="ignore"):  # a reading that is not there compares as false
        flags = (util >= UTILISATION_PERCENT) & (traffic <= TRAFFIC_PERCENT) & (power <= POWER_SHARE * limit)
    gap_s = longest_gap_s(recording.recording.fast_interval_s)
    return tuple(
        Spin(
            begin_s=float(recording.time_s[first]),
            end_s=float(recording.time_s[last]),
            power_w=float(power[first : last + 1].mean()),
            limit_w=float(limit[last]),
            traffic_percent=float(traffic[first : last + 1].mean()),
        )
        for first, last in runs(flags, recording.time_s, gap_s)
        if last - first + 1 >= LEAST_READINGS and recording.time_s[last] - recording.time_s[first] > LEAST_S
    )


def longest_gap_s(interval_s: float) -> float:
    """Return how far apart two readings may be with nothing lost between them."""
    return HOLE_FACTOR * interval_s


def _limits(track: DeviceTrack, length: int) -> Floats:
    """Return the power cap at each sample: the last that was read, before the first the one of the start."""
    column = track.values(_LIMIT)
    start = limit_of(track.identity, {}) or np.nan
    if column is None:
        return np.full(length, start)
    places = np.maximum.accumulate(np.where(np.isnan(column), -1, np.arange(length)))
    return np.where(places < 0, start, column[places])
