"""Warnings about a recording: links, memory, uneven load, and GPUs that are busy without working.

The input is a recording, a device and a window. The output consists of sentences; there are none if nothing
is wrong or nothing was read. The link is evaluated while the device is busy: an idle link runs slower to save
power, and the first reading may still show the slower speed. For lanes, at least two readings must agree, or
all if there are fewer; for the generation, no reading may have been higher.

Balance is computed from a recording's results: for utilisation, memory and power, the measure is the
coefficient of variation over the GPUs' means, with its usual rating (below 5 % excellent, 10 good, 20 fair,
else poor) and the GPU furthest from the mean. With one GPU, or if a GPU did not report a metric, there is a
reason instead of a value.

A kernel that busy-waits, as in a hanging collective, keeps utilisation at 100 %, draws little power, and does
not access memory. From single readings or a recording, stretches of more than ten seconds with this pattern
are returned, with the evidence. This does not prove a hang: ranks that wait for a slow one look the same
while they wait. If utilisation, power, the power limit or memory traffic is not reported, there is no
warning. The same goes for AMD cards, since on some (RDNA 4) utilisation stays at 100 % while a context is
open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from gpuproof.base.units import MISSING, count, seconds, share
from gpuproof.readings.metric_text import quantity, title
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.series import HOLE_FACTOR, counter_change, runs
from gpuproof.readings.window import RecordingWindow
from gpuproof.records.readings import DeviceIdentity
from gpuproof.records.result import Measure
from gpuproof.statistics.dispersion import coefficient_of_variation

LOADED_PERCENT: Final = 10.0
"""Utilisation at which a link starts to count as under load."""
FEWEST_OF_GENERATION: Final = 3
"""Number of readings under load needed to evaluate the generation."""

_FLAGS: Final = {
    "remapped_rows_pending": "memory rows are pending a GPU reset to be remapped",
    "remapped_rows_failed": "a memory row could not be remapped: check the vendor's replacement policy",
    "retired_pages_pending": "memory pages are pending a GPU reset to be retired",
}
_RETIRED: Final = {
    "retired_pages_corrected_count": "after corrected errors",
    "retired_pages_uncorrected_count": "after uncorrected errors",
}
_ERRORS: Final = "ecc_uncorrected_count"
Band = Literal["excellent", "good", "fair", "poor"]
BALANCE_METRICS: Final = ("util_gpu_percent", "mem_used_bytes", "power_w")
VARIATION: Final = "coefficient of variation over GPUs"
_LIMITS: Final[tuple[tuple[float, Band], ...]] = ((0.05, "excellent"), (0.10, "good"), (0.20, "fair"))
UTILISATION_PERCENT: Final = 99.0
POWER_SHARE: Final = 0.4
"""Power as a fraction of the limit in force."""
TRAFFIC_PERCENT: Final = 1.0
"""Memory traffic, which the driver reports in whole percent."""
LEAST_S: Final = 10.0
LEAST_READINGS: Final = 6
SPIN_METRICS: Final = ("util_gpu_percent", "power_w", "util_mem_ctrl_percent")
SPIN_MEANING: Final = "a hanging collective, or one that waits for a slow rank, looks like this"
_CAP: Final = "power_limit_w"


def device_warnings(
    recording: RecordingData, *, track: DeviceTrack, window: RecordingWindow
) -> tuple[str, ...]:
    """Report problems with a device's link and memory; memory is as last read in the window."""
    inside = window.holds(recording.time_s)
    grown = counter_change(recording, track=track, metric=_ERRORS, window=window)
    num = 0.0 if grown is None else grown.at_least
    errors = [f"memory errors that ECC could not correct: {count(int(num))}"] if num else []
    return (*errors, *_link(track, inside), *_memory(track, inside))


def _link(track: DeviceTrack, inside: Flags) -> Iterator[str]:
    util = track.values("util_gpu_percent")
    loaded = inside & (util >= LOADED_PERCENT) if util is not None else inside & False
    yield from _lanes(track, inside, loaded)
    most, generations = track.identity.number("pcie_gen_max"), _at(track.values("pcie_gen"), loaded)
    if most is not None and len(generations) >= FEWEST_OF_GENERATION and generations.max() < most:
        yield f"PCIe generation {generations.max():.0f} under load, but {most:.0f} is possible"


def _lanes(track: DeviceTrack, inside: Flags, loaded: Flags) -> Iterator[str]:
    most, column = track.identity.number("pcie_width_max"), track.values("pcie_width")
    lanes, when = _at(column, loaded), "under load"
    if not len(lanes):
        lanes, when = _at(column, inside), "without load"
    if most is None or not len(lanes):
        return
    below = lanes[lanes < most]
    if len(below) >= min(2, len(lanes)):
        part = "" if len(below) == len(lanes) else f" in {share(len(below) / len(lanes))} of the readings"
        yield (
            f"{below.min():.0f} of {most:.0f} PCIe lanes {when}{part}: check the slot, the riser "
            "and the seating"
        )


def _memory(track: DeviceTrack, inside: Flags) -> Iterator[str]:
    for metric, text in _FLAGS.items():
        if _last(track, metric, inside) > 0:
            yield text
    retired = {text: _last(track, metric, inside) for metric, text in _RETIRED.items()}
    parts = [f"{count(int(pages))} {text}" for text, pages in retired.items() if pages > 0]
    if parts:
        yield f"memory pages are retired: {', '.join(parts)}"


def _last(track: DeviceTrack, metric: str, inside: Flags) -> float:
    values = _at(track.values(metric), inside)
    return float(values[-1]) if len(values) else 0.0


def _at(column: Floats | None, where: Flags) -> Floats:
    return np.empty(0) if column is None else column[where & ~np.isnan(column)]


def describe_variation(variation: float) -> Band:
    """Describe a coefficient of variation in words.

    >>> [describe_variation(v) for v in (0.0499, 0.05, 0.10, 0.20)]
    ['excellent', 'good', 'fair', 'poor']
    """
    return next((band for limit, band in _LIMITS if variation < limit), "poor")


def device_means(measures: Iterable[Measure], metric: str) -> dict[int, float | None]:
    """Return a metric's mean over the whole recording, by physical index; None if it was not read."""
    means: dict[int, float | None] = {}
    for measure in measures:
        labels = measure.labels
        if "gpu" in labels and "phase" not in labels:
            means.setdefault(labels["gpu"], None)
            if labels["metric"] == metric and measure.statistic == "mean":
                means[labels["gpu"]] = measure.value
    return means


def load_balance(measures: Iterable[Measure]) -> tuple[Measure, ...]:
    """Check how evenly utilisation, memory and power are spread across a recording's GPUs."""
    listed = tuple(measures)
    return tuple(_balance(metric, device_means(listed, metric)) for metric in BALANCE_METRICS)


def _balance(metric: str, means: Mapping[int, float | None]) -> Measure:
    values = {index: mean for index, mean in means.items() if mean is not None}
    silent = [index for index in means if index not in values]
    variation = coefficient_of_variation(list(values.values())) if not silent else None
    detail = ""
    if variation is not None:
        centre = sum(values.values()) / len(values)
        furthest = max(values, key=lambda index: abs(values[index] - centre))
        detail = (
            f"{describe_variation(variation)}, over {len(values)} GPUs; "
            f"furthest off: GPU {furthest} with {quantity(metric, values[furthest])}"
        )
    return Measure(
        name=title(metric),
        value=variation,
        unit="1",
        text=MISSING if variation is None else f"varies by {variation * 100:.1f} %",
        detail=detail,
        statistic=VARIATION,
        labels={"metric": metric},
        missing=_reason_against(means, silent) if variation is None else None,
    )


def _reason_against(means: Mapping[int, float | None], silent: list[int]) -> str:
    if len(means) < 2:
        return f"{len(means)} GPU: nothing to balance"
    if silent:
        return f"not read on GPU {', '.join(map(str, silent))}"
    return "0 on every GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spin:
    """A stretch in which a device was busy but did almost nothing; means are over its readings."""

    begin_s: float
    end_s: float
    power_w: float
    limit_w: float
    traffic_percent: float

    @property
    def duration_s(self) -> float:
        """Seconds between the stretch's first and last readings."""
        return self.end_s - self.begin_s

    @property
    def evidence(self) -> str:
        """Describe what was observed."""
        of_limit = share(self.power_w / self.limit_w)
        return (
            f"busy without work for {seconds(self.duration_s)}: utilisation 100 % at {of_limit} of the power "
            f"limit ({quantity('power_w', self.power_w)}), memory traffic {self.traffic_percent:.0f} %"
        )


class SpinWatch:
    """Tracks one device, reading by reading."""

    def __init__(self, *, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._begin_s = 0.0
        self._last_s = 0.0
        self._num = 0
        self._sums = (0.0, 0.0)
        self._limit_w = 0.0
        self.can_tell = False
        """Whether the last reading had all the required values."""

    def take(self, at_s: float, values: Mapping[str, float], *, limit_w: float | None) -> None:
        """Add one reading; a reading without the required values ends a stretch."""
        self.can_tell = bool(limit_w) and all(metric in values for metric in SPIN_METRICS)
        if not self.can_tell or limit_w is None or not _is_spinning(values, limit_w):
            self._num = 0
            return
        if self._num == 0 or at_s - self._last_s > self._longest_gap_s:
            self._begin_s, self._num, self._sums = at_s, 0, (0.0, 0.0)
        self._num, self._last_s = self._num + 1, at_s
        power, traffic = self._sums
        self._sums, self._limit_w = (
            (power + values[SPIN_METRICS[1]], traffic + values[SPIN_METRICS[2]]),
            limit_w,
        )

    @property
    def now(self) -> Spin | None:
        """Return the stretch that is still in progress; None if there is none, or it is too short."""
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
    util_percent, power_w, traffic_percent = (values[metric] for metric in SPIN_METRICS)
    is_busy = util_percent >= UTILISATION_PERCENT
    return is_busy and traffic_percent <= TRAFFIC_PERCENT and power_w <= POWER_SHARE * limit_w


def is_judged(identity: DeviceIdentity) -> bool:
    """Return whether high utilisation on such a device means that something was running on it."""
    return identity.static.get("recorded_vendor", identity.vendor) not in ("amd", "intel")


def limit_of(identity: DeviceIdentity, values: Mapping[str, float]) -> float | None:
    """Return the power cap in force, in watts, or else the default."""
    return values.get(_CAP) or identity.number(_CAP) or identity.number("power_limit_default_w")


def spins(recording: RecordingData, track: DeviceTrack) -> tuple[Spin, ...]:
    """Return every stretch of a recording in which a device was busy without doing any work."""
    columns = [track.values(metric) for metric in SPIN_METRICS]
    if not is_judged(track.identity) or any(column is None for column in columns):
        return ()
    util, power, traffic = (column for column in columns if column is not None)
    limit = _limits(track, len(util))
    with np.errstate(invalid="ignore"):  # a missing reading (NaN) compares as false
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
    """Return the largest spacing of readings that does not count as a gap."""
    return HOLE_FACTOR * interval_s


def _limits(track: DeviceTrack, length: int) -> Floats:
    """Return the power cap at each sample: the last cap read or, before that, the cap at the start."""
    column = track.values(_CAP)
    start = limit_of(track.identity, {}) or np.nan
    if column is None:
        return np.full(length, start)
    places = np.maximum.accumulate(np.where(np.isnan(column), -1, np.arange(length)))
    return np.where(places < 0, start, column[places])
