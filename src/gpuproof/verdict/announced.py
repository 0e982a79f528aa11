"""What drivers announced of each device while a run was recorded, and which memory errors grew in it.

In: the recordings beside launches. Out: by the subject of each device that was watched, what was announced of
it, nothing being an empty list; None where nobody listened. A device that is not in it was not watched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.recording import DeviceTrack, RecordingData
from gpuproof.records.collected import CaseRecords
from gpuproof.records.readings import named_among
from gpuproof.records.run import Setup, Start

GROWING: Final = ("ecc_uncorrected_count", "remapped_rows_failed")
"""Totals of a driver of which one more is an error that the run itself met."""
HARMLESS: Final = ("recovered",)


def announced_in(evidence: Evidence) -> Mapping[str, Sequence[str]] | None:
    """Return what was announced of each device, by subject; None where nothing was recorded of any."""
    found: dict[str, list[str]] = {}
    for launch in evidence.launches:
        for own, host in _hosts(launch):
            recording = evidence.recording(launch.case, own)
            if isinstance(recording, MissingReadings):
                continue
            for track in recording.devices:
                subject = f"host/{host}/gpu/{_name(launch, host, track)}"
                found.setdefault(subject, []).extend(announced_of(recording, track))
    return found or None


def _hosts(launch: CaseRecords) -> list[tuple[str, str]]:
    """Return each host by the name that it gives itself, and by that of the inventory."""
    return list({start.host: launch.host_of(start) for start in launch.of(Start)}.items())


def _name(launch: CaseRecords, host: str, track: DeviceTrack) -> str:
    """Name a device as its measures do: torch may give a shorter UUID than the driver."""
    hosts = {start.rank: launch.host_of(start) for start in launch.of(Start)}
    listed = track.identity.uuid
    for setup in launch.of(Setup):
        uuid = setup.device.uuid
        if uuid is not None and hosts.get(setup.rank) == host and named_among([uuid], [listed]):
            return uuid
    return listed or str(track.identity.physical_index)


def announced_of(recording: RecordingData, track: DeviceTrack) -> Iterator[str]:
    """Yield what one recording has of a device, and the totals of `GROWING` that rose from its begin."""
    place = track.identity.physical_index
    for event in recording.events:
        if event.physical_index == place and event.event not in HARMLESS:
            yield event.title
    totals = [count.devices.get(str(place), {}) for count in recording.counters]
    for name in GROWING:
        known = [total[name] for total in totals if name in total]
        if len(known) > 1 and known[-1] > known[0]:
            yield f"{name} grew by {known[-1] - known[0]:g}"
