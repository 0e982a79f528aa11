"""What is known of a run? Its launches, its hosts, and the readings beside them, read when asked for.

In: run.json, the config, the records of every launch, and where a launch's recording of a host lies. Out: the
one thing that analysis, doubts, checks and conclusions look at, so that they cannot contradict each other.
Readings are not kept, but for the last recordings that were asked for: two questions about a launch read its
file once, and 500 hosts need no more memory than one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gpuproof.base.errors import RecordError
from gpuproof.readings.recording import RecordingData, load_recording
from gpuproof.readings.window_readings import WindowReadings, read_window
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords, without_copies
from gpuproof.records.readings import named_among

KEPT_VALUES: Final = 2**21
"""Readings of all recordings that are kept, 16 MB; the last one is kept however large it is."""
KEPT_RECORDINGS: Final = 8
"""At most: a launch is asked about at once, on all its hosts."""
NOT_MONITORED: Final = "nothing was read beside it (monitoring.enabled is false)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingReadings:
    """There are no readings, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A run as it can be judged."""

    description: Mapping[str, Any]
    """run.json."""
    config: Any
    launches: tuple[CaseRecords, ...]
    hosts: tuple[Mapping[str, Any], ...]
    """As the inventory lists them; each has its `name`. Empty where the run was on this host."""
    recording_at: Callable[[Case, str], Path | None]
    """Where the recording of a host beside a launch lies; None where there can be none."""
    folder_of: Callable[[Case], Path]
    """Where a launch keeps its other files, such as a trace."""
    loaded: dict[Path, tuple[RecordingData | MissingReadings, int]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """The last recordings that were asked for, with how many readings each holds; shared with what `only`
    returns."""
    _by_case: dict[str, list[CaseRecords]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The launches of each case: a run of thousands is looked through once."""

    def __post_init__(self) -> None:
        """Take a launch that is a copy of another for none."""
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
        """Read what a host did in a window of a launch, given on the host's monotonic clock.

        `uuids` names the devices that are asked for; None asks for all.
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
        """Load what was recorded of a host beside a launch."""
        path = None if case.monitor is None else self.recording_at(case, host)
        if path is None:
            return MissingReadings(reason=NOT_MONITORED)
        entry = self.loaded.pop(path, None) or _loaded(path)
        self.loaded[path] = entry
        self._forget()
        return entry[0]

    def only(self, *, case_id: str) -> Evidence:
        """Return what there is of one case."""
        if not self._by_case:
            for launch in self.launches:
                self._by_case.setdefault(launch.case.case_id, []).append(launch)
        return replace(self, launches=tuple(self._by_case.get(case_id, ())))

    def _forget(self) -> None:
        """Drop the recordings that were not asked for longest, until the rest is small."""
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
