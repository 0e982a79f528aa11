"""All data about a run: its launches, its hosts, and their readings, loaded on demand.

The input is run.json, the config, the records of every launch, and the path of each host's recording of a
launch. The output is the single source for analysis, warnings, checks and conclusions, so that they cannot
contradict each other: for a launch, the `WindowReadings` between the start and end of a worker's window on
the host's monotonic clock, and how much of the window the samples cover. Readings are not stored, except for
the most recently requested recordings: two queries about a launch read its file once, and 500 hosts need no
more memory than one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from gpuproof.base.errors import RecordError
from gpuproof.hardware.events import is_harmless
from gpuproof.readings.energy import energy_used
from gpuproof.readings.pcie import links_under_load
from gpuproof.readings.ports import ports_and_gpus
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData, load_recording
from gpuproof.readings.series import longest_step_s, mean_over_time
from gpuproof.readings.summary import events_within
from gpuproof.readings.totals import throttling
from gpuproof.readings.window import RecordingWindow, between, whole
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords, without_copies
from gpuproof.records.ports import PortTotals
from gpuproof.records.readings import named_among

KEPT_VALUES: Final = 2**21
"""Maximum number of readings in all cached recordings, 16 MB; the latest recording stays cached however large
it is."""
KEPT_RECORDINGS: Final = 8
"""Maximum number of cached recordings; all hosts of a launch are queried together."""
NOT_MONITORED: Final = "nothing was recorded (monitoring.enabled is false)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingReadings:
    """No readings are available; contains the reason."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A run, ready to be evaluated."""

    description: Mapping[str, Any]
    """run.json."""
    config: Any
    launches: tuple[CaseRecords, ...]
    hosts: tuple[Mapping[str, Any], ...]
    """The hosts as listed in the inventory; each has its `name`. Empty if the run was on this host."""
    recording_at: Callable[[Case, str], Path | None]
    """Returns the location of a host's recording during a launch; None if there cannot be one."""
    folder_of: Callable[[Case], Path]
    """Returns where a launch stores its other files, such as a trace."""
    loaded: dict[Path, tuple[RecordingData | MissingReadings, int]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """The most recently requested recordings, each with its number of readings; shared with the result of
    `only`."""
    ports: dict[Path, tuple[PortTotals, ...] | MissingReadings] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Port counts of all loaded recordings, cached because they are small and requested repeatedly."""
    links: dict[Path, Mapping[str, Floats]] = field(default_factory=dict, repr=False, compare=False)
    """The PCIe links of GPUs under load, from these recordings."""
    _by_case: dict[str, list[CaseRecords]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The launches of each case, so that a run with thousands of launches is scanned only once."""

    def __post_init__(self) -> None:
        """Treat a launch that is a copy of another launch as missing."""
        object.__setattr__(self, "launches", tuple(without_copies(self.launches)))

    def readings(
        self,
        case: Case,
        host: str,
        *,
        begin_monotonic_s: float,
        end_monotonic_s: float,
        uuids: Collection[str] | None = None,
    ) -> WindowReadings | MissingReadings:
        """Load what a host did in a window of a launch; the window is on the host's monotonic clock.

        `uuids` lists the requested devices; None requests all.
        """
        recording = self.recording(case, host)
        if isinstance(recording, MissingReadings):
            return recording
        devices = None
        if uuids is not None:
            identities = [track.identity for track in recording.devices]
            places = named_among(uuids, [identity.uuid for identity in identities])
            devices = {identities[place].physical_index for place in places}
        return read_window(
            recording, begin_monotonic_s=begin_monotonic_s, end_monotonic_s=end_monotonic_s, devices=devices
        )

    def recording(self, case: Case, host: str) -> RecordingData | MissingReadings:
        """Load a host's recording during a launch."""
        path = None if case.monitor is None else self.recording_at(case, host)
        if path is None:
            return MissingReadings(reason=NOT_MONITORED)
        entry = self.loaded.pop(path, None) or _loaded(path)
        self.loaded[path] = entry
        self.ports[path] = entry[0] if isinstance(entry[0], MissingReadings) else ports_and_gpus(entry[0])
        self.links[path] = {} if isinstance(entry[0], MissingReadings) else links_under_load(entry[0])
        self._forget()
        return entry[0]

    def port_totals(self, case: Case, host: str) -> tuple[PortTotals, ...] | MissingReadings:
        """Return the port counts of a host over time, from its recording during a launch."""
        path = None if case.monitor is None else self.recording_at(case, host)
        if path is None:
            return MissingReadings(reason=NOT_MONITORED)
        if path not in self.ports:
            self.recording(case, host)
        return self.ports[path]

    def only(self, *, case_id: str) -> Evidence:
        """Return everything about one case."""
        if not self._by_case:
            for launch in self.launches:
                self._by_case.setdefault(launch.case.case_id, []).append(launch)
        return replace(self, launches=tuple(self._by_case.get(case_id, ())))

    def _forget(self) -> None:
        """Drop the least recently requested recordings until the rest fits the limits."""
        total = sum(size for _, size in self.loaded.values())
        for path in list(self.loaded)[:-1]:
            if total <= KEPT_VALUES and len(self.loaded) <= KEPT_RECORDINGS:
                break
            total -= self.loaded.pop(path)[1]


def _loaded(path: Path) -> tuple[RecordingData | MissingReadings, int]:
    """Load a recording, and count its readings."""
    try:
        recording = load_recording(path)
    except RecordError as error:
        return MissingReadings(reason=error.cause), 0
    columns = len(recording.host) + sum(len(track.metrics) + 1 for track in recording.devices)
    return recording, len(recording.time_s) * columns


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWindow:
    """Readings of one device in the window. Means are weighted by time; None means unknown."""

    physical_index: int
    throttle_shares: Mapping[str, float] | None
    """Throttle reason → fraction of the window, 0 to 1. None if the device does not report reasons."""
    clock_sm_mhz: float | None = None
    clock_sm_max_mhz: float | None = None
    util_gpu_percent: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temp_gpu_max_c: float | None = None
    energy_j: float | None = None
    energy_method: Literal["counter", "integrated_power"] | None = None
    energy_coverage: float | None = None
    energy_missing: str | None = None
    name: str = ""
    uuid: str | None = None
    is_divided: bool = False
    """Whether the device is in MIG mode, so that its readings cover all its instances."""
    events: Sequence[str] = ()
    """Driver events, such as `xid 63: …`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWindow:
    """Host readings taken during the window; None means unknown."""

    cpu_percent: float | None = None
    cpu_max_core_percent: float | None = None
    cpu_iowait_percent: float | None = None
    swap_growth_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of a window the samples cover."""

    num_samples: int
    """Number of samples in the window."""
    share: float
    """Fraction of the window, 0 to 1, that is covered by samples without a gap."""
    last_sample_s: float | None = None
    """If a recording has no end (its sampler was killed) and stops before the window does, this is the
    time of the last sample, in seconds from the start of the window. Otherwise, or without any sample, it
    is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReadings:
    """A measured window on one host, between two readings of the host's monotonic clock."""

    begin_monotonic_s: float
    end_monotonic_s: float
    devices: tuple[DeviceWindow, ...]
    host: HostWindow = field(default_factory=HostWindow)
    coverage: Coverage | None = None
    """Coverage of the window by readings; None if unknown."""


def read_window(
    recording: RecordingData,
    *,
    begin_monotonic_s: float,
    end_monotonic_s: float,
    devices: Container[int] | None = None,
) -> WindowReadings:
    """Compute what happened between two readings of the host's monotonic clock.

    `devices` are the physical indices of the requested devices; None requests all.
    """
    window = between(recording, begin_monotonic_s=begin_monotonic_s, end_monotonic_s=end_monotonic_s)
    readings = _read(recording, window, devices)
    return replace(readings, begin_monotonic_s=begin_monotonic_s, end_monotonic_s=end_monotonic_s)


def read_whole(recording: RecordingData) -> WindowReadings:
    """Summarise what happened in a whole recording, which starts at 0."""
    return _read(recording, whole(recording), None)


def _read(
    recording: RecordingData, window: RecordingWindow, devices: Container[int] | None
) -> WindowReadings:
    inside = window.holds(recording.time_s)
    tracks = [t for t in recording.devices if devices is None or t.identity.physical_index in devices]
    return WindowReadings(
        begin_monotonic_s=0.0,
        end_monotonic_s=recording.duration_s,
        devices=tuple(_device(recording, track, window, inside) for track in tracks),
        host=_host(recording, inside),
        coverage=_coverage(recording, window, inside),
    )


def _device(
    recording: RecordingData, track: DeviceTrack, window: RecordingWindow, inside: Flags
) -> DeviceWindow:
    def mean(metric: str) -> float | None:
        return _mean(recording, track.values(metric), inside)

    temperatures = _values(track.values("temp_gpu_c"), inside)
    limits_w = _values(track.values("power_limit_w"), inside)
    held = throttling(recording, track=track, window=window)
    energy = energy_used(recording, track=track, window=window)
    events = [announcement.event for announcement in events_within(recording, track=track, window=window)]
    return DeviceWindow(
        physical_index=track.identity.physical_index,
        throttle_shares={item.reason: item.share for item in held.shares} if held.has_answers else None,
        clock_sm_mhz=mean("clock_sm_mhz"),
        clock_sm_max_mhz=track.identity.number("clock_sm_max_mhz"),
        util_gpu_percent=mean("util_gpu_percent"),
        power_limit_w=float(limits_w.min()) if len(limits_w) else None,  # a mean may differ by rounding
        power_limit_default_w=track.identity.number("power_limit_default_w"),
        temp_gpu_max_c=float(temperatures.max()) if len(temperatures) else None,
        energy_j=energy.energy_j,
        energy_method=energy.method,
        energy_coverage=energy.coverage,
        energy_missing=energy.note if energy.energy_j is None else None,
        name=track.identity.name,
        uuid=track.identity.uuid,
        is_divided=track.identity.static.get("mig_mode") == "enabled",
        events=tuple(f"{event.title}: {event.message}" for event in events if not is_harmless(event)),
    )


def _host(recording: RecordingData, inside: Flags) -> HostWindow:
    def mean(metric: str) -> float | None:
        return _mean(recording, recording.host.get(metric), inside)

    swap = _values(recording.host.get("swap_used_bytes"), inside)
    return HostWindow(
        cpu_percent=mean("cpu_percent"),
        cpu_max_core_percent=mean("cpu_max_core_percent"),
        cpu_iowait_percent=mean("cpu_iowait_percent"),
        swap_growth_bytes=float(swap[-1] - swap[0]) if len(swap) > 1 else None,
    )


def _coverage(recording: RecordingData, window: RecordingWindow, inside: Flags) -> Coverage:
    """Add up the time between adjacent samples; the window's ends use the samples just outside."""
    time_s = recording.time_s
    lefts, rights = time_s[:-1], time_s[1:]
    joined = rights - lefts <= longest_step_s(time_s)
    covered_s = 0.0
    for span in window.spans:
        within = np.minimum(rights, span.end_s) - np.maximum(lefts, span.begin_s)
        covered_s += float(within[joined & (within > 0)].sum())
    share = min(1.0, covered_s / window.duration_s) if window.duration_s > 0 else 0.0
    begin_s, end_s = window.spans[0].begin_s, window.spans[-1].end_s
    was_killed = recording.end is None and len(time_s) > 0 and float(time_s[-1]) < end_s
    return Coverage(
        num_samples=int(inside.sum()),
        share=share,
        last_sample_s=float(time_s[-1]) - begin_s if was_killed else None,
    )


def _mean(recording: RecordingData, column: Floats | None, inside: Flags) -> float | None:
    if column is None:
        return None
    is_read = inside & ~np.isnan(column)
    if not is_read.any():
        return None
    dithered = recording.recording.is_dithered
    return mean_over_time(recording.time_s[is_read], column[is_read], dithered=dithered)


def _values(column: Floats | None, inside: Flags) -> Floats:
    return np.empty(0) if column is None else column[inside & ~np.isnan(column)]
