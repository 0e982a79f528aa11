"""What did the monitor lose beside launches? Devices that went, drivers that hang, recordings cut short.

In: the evidence of a run. Out: a doubt a host and kind of loss, each with the launches that it is of. Work on
processors loses nothing by a GPU; what the driver told again before a window began was not lost to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.recording import RecordingData
from gpuproof.records.collected import CaseRecords
from gpuproof.records.readings import named_among
from gpuproof.records.result import Doubt
from gpuproof.records.run import Start
from gpuproof.records.work.command import CommandEnded
from gpuproof.records.work.placed import DeviceTaken
from gpuproof.verdict.doubts.base import suspect

CODE: Final = "readings-lost"
ENDED_EARLY: Final = "the recording ended early"
GONE: Final = ("lost", "hung", "unreadable", "not_answering")
BACK: Final = ("recovered", "appeared")
LATE_S: Final = 5.0
"""A recording that ends so much before its launch's window, and two readings more, ended early."""


def lost_readings(evidence: Evidence) -> list[Doubt]:
    """Doubt the launches beside which readings were lost."""
    losses: dict[tuple[str, str], list[str]] = {}
    unread: dict[tuple[str, str], list[str]] = {}
    seen: dict[str, dict[str, str]] = {}
    for launch in evidence.launches:
        is_judged = launch.case.monitor is not None and launch.status == "done"
        for host in dict.fromkeys(start.host for start in launch.of(Start)) if is_judged else ():
            recording = evidence.recording(launch.case, host)
            if isinstance(recording, MissingReadings):
                unread.setdefault((host, recording.reason), []).append(launch.case.case_id)
                continue
            for loss in _losses(launch, host, recording, seen.setdefault(host, {})):
                losses.setdefault((host, loss), []).append(launch.case.case_id)
    losses |= {(host, loss): cases for (host, loss), cases in unread.items() if seen.get(host)}
    return [_doubt(host, loss, cases) for (host, loss), cases in losses.items()]


def _doubt(host: str, loss: str, cases: list[str]) -> Doubt:
    more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
    return suspect(
        CODE,
        f"readings of {host} were lost beside {cases[0]}{more}: {loss}",
        "Look at dmesg and gpuproof doctor; measure again once the driver answers",
    )


def _losses(launch: CaseRecords, host: str, recording: RecordingData, seen: dict[str, str]) -> Iterator[str]:
    """Yield what was lost beside one launch; `seen` holds the devices of the host's recordings before it."""
    begin_s, end_s = _span(launch, host, recording)
    if ended_early(launch, host, recording):
        yield ENDED_EARLY
    if launch.setups and all(setup.device.kind == "cpu" for setup in launch.setups):
        return
    present = {t.identity.uuid or str(t.identity.physical_index): t.identity.name for t in recording.devices}
    if len(present) < len(seen):
        names = ", ".join(name for uuid, name in seen.items() if uuid not in present)
        absent = recording.recording.host_facts.get("vendors_absent", {})
        why = "".join(f"; {vendor}: {reason}" for vendor, reason in absent.items())
        yield f"{len(seen) - len(present)} devices that were read before were not there ({names}{why})"
    elif any(track.metrics for track in recording.devices):  # a job of its own may have been given others
        seen.clear()
        seen |= present
    yield from _gone(launch, recording, begin_s, end_s)


def ended_early(launch: CaseRecords, host: str, recording: RecordingData) -> bool:
    """Say whether a recording has no reading of the last seconds of its launch's work on a host."""
    last_s = float(recording.time_s[-1]) if len(recording.time_s) else 0.0
    _, end_s = _span(launch, host, recording)
    return last_s + LATE_S + 2 * recording.recording.fast_interval_s < end_s


def _gone(launch: CaseRecords, recording: RecordingData, begin_s: float, end_s: float) -> Iterator[str]:
    """Yield which devices of the launch went while it worked, by what was announced."""
    gone: dict[str, list[str]] = {}
    launch_devices = _launch_devices(launch, recording)
    for track in recording.devices:
        place = track.identity.physical_index
        events = [e for e in recording.events if e.physical_index == place and e.event in (*GONE, *BACK)]
        times = [recording.seconds_in(event.monotonic_s) for event in events]
        if place not in launch_devices or not events or (times[0] > end_s and track.metrics):
            continue  # what was never read was not there, whenever that was noticed
        if events[-1].event in GONE or times[-1] > begin_s:
            gone.setdefault(events[0].event, []).append(str(place))
    for event, places in gone.items():
        yield f"GPU {', '.join(places)} {event.replace('_', ' ')}"


def _span(launch: CaseRecords, host: str, recording: RecordingData) -> tuple[float, float]:
    """Return when the launch's work on a host began and ended, in seconds of the recording."""
    spans = [(w.begin_monotonic_s, w.end_monotonic_s) for w in launch.windows if w.host == host]
    spans += [(ended.begin_monotonic_s, ended.end_monotonic_s) for ended in launch.of(CommandEnded)]
    if not spans:
        return 0.0, 0.0
    begins, ends = zip(*spans, strict=True)
    return recording.seconds_in(min(begins)), recording.seconds_in(max(ends))


def _launch_devices(launch: CaseRecords, recording: RecordingData) -> set[int]:
    """Name the devices of the launch by their physical index; where it does not say which, all of them."""
    identities = [track.identity for track in recording.devices]
    uuids = [setup.device.uuid for setup in launch.setups if setup.device.uuid is not None]
    if uuids:
        return {
            identities[i].physical_index
            for i in named_among(uuids, [identity.uuid for identity in identities])
        }
    taken = {device.physical_index for device in launch.of(DeviceTaken)}
    return taken or {int(identity.physical_index) for identity in identities}
