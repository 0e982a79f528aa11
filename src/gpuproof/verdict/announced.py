"""What drivers announced of each device while a run was recorded, and which memory errors grew in it.

In: the recordings beside launches. Out: by the subject of each device that was watched, what was announced of
it, nothing being an empty list; None where nobody listened. A device that is not in it was not watched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.recording import DeviceTrack, RecordingData
from gpuproof.records.collected import CaseRecords
from gpuproof.records.readings import DRIVER_EVENTS, named_among
from gpuproof.records.result import Measure
from gpuproof.records.run import TRANSIENT_CAUSES, Failure, Start
from gpuproof.verdict.doubts.lost import ENDED_EARLY, ended_early
from gpuproof.verdict.facts import Announced, FleetFacts, facts_by_host, setups_on

GROWING: Final = ("ecc_uncorrected_count", "remapped_rows_failed")
"""Totals of a driver of which one more is an error that the run itself met."""
HARMLESS: Final = ("recovered", "appeared")
PROCESS: Final = re.compile(r"\bpid[=:' ]+(\d+)")
"""As the kernel's log has it: `NVRM: Xid (PCI:0000:01:00): 31, pid=1234, name=python, …`."""


def facts_of(evidence: Evidence, measures: Sequence[Measure]) -> FleetFacts:
    """Return what checks are asked about: measures, launches, and what hosts and drivers told beside them."""
    return FleetFacts(
        measures=measures,
        hosts=facts_by_host(evidence.launches),
        launches=evidence.launches,
        events=announced_in(evidence),
    )


def announced_in(evidence: Evidence) -> Mapping[str, Sequence[Announced]] | None:
    """Return what was announced of each device, by subject; None where nothing was recorded of any.

    Where nothing could be heard of a device that ran in a launch, that is among it, with the reason.
    """
    announced: dict[str, list[Announced]] = {}
    is_recorded = False
    for launch in evidence.launches:
        name = f"{launch.case.case_id}/{launch.case.replicate}"
        for rank_host, host in _hosts(launch):
            recording = evidence.recording(launch.case, rank_host)
            tracks = () if isinstance(recording, MissingReadings) else recording.devices
            is_recorded = is_recorded or bool(tracks)
            by_subject = {f"host/{host}/gpu/{_name(launch, host, track)}": track for track in tracks}
            for subject, track in by_subject.items():
                assert not isinstance(recording, MissingReadings)
                ours, has_failed = _ranks_on(launch, subject)
                announced.setdefault(subject, []).extend(
                    replace(
                        event,
                        launch=name,
                        is_ours=has_failed if event.pid is None else event.pid in ours,
                    )
                    for event in announced_of(recording, track)
                )
            for subject in _gpus_on(launch, host):
                reason = _reason_unheard(launch, rank_host, recording, by_subject.get(subject))
                if reason is not None and launch.case.monitor is not None and launch.status == "done":
                    unheard = Announced(title="", launch=name, unheard=f"{reason} (beside {name})")
                    announced.setdefault(subject, []).append(unheard)
    return announced if is_recorded else None


def _gpus_on(launch: CaseRecords, host: str) -> list[str]:
    """Name the devices on which a launch computed on a host; processors are none."""
    devices = [setup.device for on, setup in setups_on(launch) if on == host]
    return [f"host/{host}/gpu/{d.uuid or d.index}" for d in devices if d.kind != "cpu"]


def _reason_unheard(
    launch: CaseRecords, host: str, recording: RecordingData | MissingReadings, track: DeviceTrack | None
) -> str | None:
    """Say why silence of a device says nothing: nobody listened to it, or not to the end, or none could."""
    if isinstance(recording, MissingReadings):
        return f"not recorded: {recording.reason}"
    if track is None:
        return "not recorded: the recording does not list it"
    if ended_early(launch, host, recording):
        return f"not recorded: {ENDED_EARLY}"
    return recording.reasons_missing(track).get(DRIVER_EVENTS)


def _ranks_on(launch: CaseRecords, subject: str) -> tuple[set[int], bool]:
    """Return the processes of the ranks on a device, and whether one of them failed by itself."""
    here = {
        setup.rank
        for host, setup in setups_on(launch)
        if subject == f"host/{host}/gpu/{setup.device.uuid or setup.device.index}"
    }
    failures = [f for f in launch.of(Failure) if f.rank in here and f.cause not in TRANSIENT_CAUSES]
    return {start.pid for start in launch.of(Start) if start.rank in here}, bool(failures)


def _hosts(launch: CaseRecords) -> list[tuple[str, str]]:
    """Return each host by the name that it gives itself, and by that of the inventory."""
    return list({start.host: launch.host_of(start) for start in launch.of(Start)}.items())


def _name(launch: CaseRecords, host: str, track: DeviceTrack) -> str:
    """Name a device as its measures do: torch may give a shorter UUID than the driver."""
    listed = track.identity.uuid
    for on, setup in setups_on(launch):
        uuid = setup.device.uuid
        if uuid is not None and on == host and named_among([uuid], [listed]):
            return uuid
    return listed or str(track.identity.physical_index)


def announced_of(recording: RecordingData, track: DeviceTrack) -> Iterator[Announced]:
    """Yield what one recording has of a device, and the totals of `GROWING` that rose from its begin."""
    place = track.identity.physical_index
    for event in recording.events:
        if event.physical_index == place and event.event not in HARMLESS:
            pid = PROCESS.search(event.message)
            code = event.code if event.event == "xid" else None
            yield Announced(title=event.title, code=code, pid=None if pid is None else int(pid[1]))
    totals = [count.devices.get(str(place), {}) for count in recording.counters]
    for name in GROWING:
        counts = [total[name] for total in totals if name in total]
        if len(counts) > 1 and counts[-1] > counts[0]:
            yield Announced(title=f"{name} grew by {counts[-1] - counts[0]:g}")
