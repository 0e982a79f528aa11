"""Driver reports about each device during launches, and devices or recordings that were lost.

Input: a run's evidence. Output: for each watched device, by subject, the reported events with time and
process, and the memory errors that increased (an empty list if there were none); None if events were not
recorded at all. A device that is not included was not watched. In addition, one warning per host and kind of
loss (devices that disappeared, drivers that hang, truncated recordings), each with its launches. Work on CPUs
is not affected by losing a GPU. A device that the driver reported again before a window began does not count
as lost in that window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final, Literal

from gpuproof.hardware.events import read_message
from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.pcie import pcie_under_load
from gpuproof.readings.ports import ports_in
from gpuproof.readings.recording import DeviceTrack, RecordingData
from gpuproof.readings.series import counter_change
from gpuproof.readings.window import whole
from gpuproof.records.case import DeviceTaken
from gpuproof.records.collected import CaseRecords
from gpuproof.records.readings import DRIVER_EVENTS, KERNEL_LOG, UNREAD, DriverEvent, named_among
from gpuproof.records.result import Doubt, Measure
from gpuproof.records.run import TRANSIENT_CAUSES, Failure, Start
from gpuproof.records.work.command import CommandEnded
from gpuproof.verdict.doubts.base import suspect
from gpuproof.verdict.facts import Announced, FleetFacts, Owner, facts_by_host, setups_on

GROWING: Final = ("ecc_uncorrected_count", "remapped_rows_failed")
"""Driver totals for which an increase means an error that the run itself encountered."""
HARMLESS: Final = ("recovered", "appeared")
KILLED: Final = ("hang", "timeout", "interrupted")
"""Failure causes of ranks that gpuproof stopped: those that hung, and the others in their launch."""
GRACE_S: Final = 10.0
"""How long ranks have to exit on their own before they are killed."""
TREND: Final = "ecc_corrected_count"
CODE: Final = "readings-lost"
ENDED_EARLY: Final = "the recording ended early"
GONE: Final = ("lost", "hung", "unreadable", "not_answering")
BACK: Final = ("recovered", "appeared")
LATE_S: Final = 5.0
"""Time in seconds: a complete recording whose last reading is more than this, plus two intervals, before the
end of its launch's window ended early."""


def facts_of(evidence: Evidence, measures: Sequence[Measure]) -> FleetFacts:
    """Return the facts that checks evaluate: measures, launches, and reports from hosts and drivers."""
    return FleetFacts(
        measures=measures,
        hosts=facts_by_host(evidence.launches),
        launches=evidence.launches,
        events=announced_in(evidence),
        ports=ports_in(evidence),
        pcie_under_load=pcie_under_load(evidence),
    )


def announced_in(evidence: Evidence) -> Mapping[str, Sequence[Announced]] | None:
    """Return what was reported about each device, by subject; None if no device was recorded.

    If a device that ran in a launch could not report anything, this is included, with the reason.
    """
    announced: dict[str, list[Announced]] = {}
    is_recorded = False
    for launch in evidence.launches:
        name = f"{launch.case.case_id}/{launch.case.replicate}"
        for rank_host, host in _hosts(launch):
            recording = evidence.recording(launch.case, rank_host)
            tracks = () if isinstance(recording, MissingReadings) else recording.devices
            is_recorded = is_recorded or bool(tracks)
            pids = {start.pid for start in launch.of(Start) if start.host == rank_host}
            by_subject = {f"host/{host}/gpu/{_name(launch, host, track)}": track for track in tracks}
            places = {subject: track.identity.physical_index for subject, track in by_subject.items()}
            for subject, place in {**places, f"host/{host}": None}.items() if tracks else ():
                assert not isinstance(recording, MissingReadings)
                has_failed = _has_failed(launch, subject)
                killed_s = _killed_unix_s(launch, rank_host)
                announced.setdefault(subject, []).extend(
                    replace(
                        event,
                        launch=name,
                        owner=_owner(event.pid, pids, has_failed=has_failed),
                        kill=_kill(event, killed_s),
                    )
                    for event in announced_of(recording, place)
                )
            for subject in _gpus_on(launch, host):
                reason = _reason_unheard(launch, rank_host, recording, by_subject.get(subject))
                if reason is not None and launch.case.monitor is not None and launch.status == "done":
                    unheard = Announced(title="", launch=name, unheard=f"{reason} (during {name})")
                    announced.setdefault(subject, []).append(unheard)
    return announced if is_recorded else None


def _gpus_on(launch: CaseRecords, host: str) -> list[str]:
    """Return the devices on a host that a launch computed on; CPUs do not count."""
    devices = [setup.device for on, setup in setups_on(launch) if on == host]
    return [f"host/{host}/gpu/{d.uuid or d.index}" for d in devices if d.kind != "cpu"]


def _reason_unheard(
    launch: CaseRecords, host: str, recording: RecordingData | MissingReadings, track: DeviceTrack | None
) -> str | None:
    """Explain why a device's silence proves nothing: it was not monitored, or not until the end."""
    if isinstance(recording, MissingReadings):
        return f"not recorded: {recording.reason}"
    if track is None:
        return "not recorded: the recording does not list it"
    if ended_early(launch, host, recording):
        return f"not recorded: {ENDED_EARLY}"
    return recording.reasons_missing(track).get(DRIVER_EVENTS)


def _has_failed(launch: CaseRecords, subject: str) -> bool:
    """Return whether a rank on a device failed on its own."""
    here = {
        setup.rank
        for host, setup in setups_on(launch)
        if subject == f"host/{host}/gpu/{setup.device.uuid or setup.device.index}"
    }
    return any(f.rank in here and f.cause not in TRANSIENT_CAUSES for f in launch.of(Failure))


def _owner(pid: int | None, pids: set[int], *, has_failed: bool) -> Owner:
    """Return who owns the process behind an event; if none is given, infer it from the failed ranks."""
    if pid is None:
        return "ours" if has_failed else "unknown"
    return "ours" if pid in pids else "another's"


def _killed_unix_s(launch: CaseRecords, host: str) -> float | None:
    """Return when ranks of a host were first stopped after a hang or timeout; None if none were.

    A rank records this before it is stopped, using its host's clock. The launcher records it afterwards, up
    to one grace period later.
    """
    causes = {failure.cause for failure in launch.of(Failure)}
    if not causes & {"hang", "timeout"}:
        return None
    ended = [f for f in launch.of(Failure) if f.cause in KILLED]
    of_ranks = [f for f in ended if f.rank is not None]
    here = [f.unix_s for f in of_ranks if f.host == host] or [f.unix_s for f in of_ranks]
    return min(here) if here else min(f.unix_s for f in ended) - GRACE_S


def _kill(event: Announced, killed_unix_s: float | None) -> Literal["before", "after"] | None:
    if event.unix_s is None or killed_unix_s is None:
        return None
    return "before" if event.unix_s < killed_unix_s else "after"


def _hosts(launch: CaseRecords) -> list[tuple[str, str]]:
    """Pair the name that each host uses for itself with its inventory name."""
    return list({start.host: launch.host_of(start) for start in launch.of(Start)}.items())


def _name(launch: CaseRecords, host: str, track: DeviceTrack) -> str:
    """Return a device's name as used in measures: torch may report a shorter UUID than the driver."""
    listed = track.identity.uuid
    for on, setup in setups_on(launch):
        uuid = setup.device.uuid
        if uuid is not None and on == host and named_among([uuid], [listed]):
            return uuid
    return listed or str(track.identity.physical_index)


def announced_of(recording: RecordingData, place: int | None) -> Iterator[Announced]:
    """Yield a recording's events for one device, and the totals in `GROWING` that increased.

    Events that drivers report for the host as a whole have no index, e.g. events from a switch, or from a
    device that they do not identify.
    """
    begun = recording.recording
    for event in recording.events:
        if event.physical_index != place or event.event in HARMLESS or not _is_of(recording, event):
            continue
        message = read_message(event.message)
        if message is None and event.event == KERNEL_LOG:
            yield Announced(title="", unheard=event.message.removeprefix(UNREAD))
            continue
        yield Announced(
            title=event.title,
            unix_s=begun.unix_s + recording.seconds_in(event.monotonic_s),
            pid=None if message is None else message.pid,
            instance=None if message is None else message.instance,
        )
    for track in (track for track in recording.devices if track.identity.physical_index == place):
        for name in (*GROWING, TREND):
            change = counter_change(recording, track=track, metric=name, window=whole(recording))
            if change is not None and change.at_least:
                yield Announced(title=name, growth=change.at_least)


def _is_of(recording: RecordingData, event: DriverEvent) -> bool:
    """Return whether an event occurred during the recording, and not earlier or in another boot."""
    end_s = inf if recording.end is None else recording.seconds_in(recording.end.monotonic_s) + LATE_S
    return 0 <= recording.seconds_in(event.monotonic_s) <= end_s


def lost_readings(evidence: Evidence) -> list[Doubt]:
    """Warn about the launches during which readings were lost."""
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
        f"readings of {host} were lost during {cases[0]}{more}: {loss}",
        "Check dmesg and gpuproof doctor; measure again once the driver responds",
    )


def _losses(launch: CaseRecords, host: str, recording: RecordingData, seen: dict[str, str]) -> Iterator[str]:
    """Yield what was lost during one launch; `seen` contains the devices in the host's earlier recordings."""
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
        yield f"{len(seen) - len(present)} devices that were read before were missing ({names}{why})"
    # a separate job may have been given other devices
    elif any(track.metrics for track in recording.devices):
        seen.clear()
        seen |= present
    yield from _gone(launch, recording, begin_s, end_s)


def ended_early(launch: CaseRecords, host: str, recording: RecordingData) -> bool:
    """Return whether a recording lacks readings for the end of its launch's workload on a host.

    A recording without its last line was cut off, and proves nothing about the time after its last reading.
    """
    last_s = float(recording.time_s[-1]) if len(recording.time_s) else 0.0
    late_s = 0.0 if recording.end is None else LATE_S + 2 * recording.recording.fast_interval_s
    return last_s + late_s < _span(launch, host, recording)[1]


def _gone(launch: CaseRecords, recording: RecordingData, begin_s: float, end_s: float) -> Iterator[str]:
    """Yield the launch's devices that disappeared while it ran, according to the events."""
    gone: dict[str, list[str]] = {}
    launch_devices = _launch_devices(launch, recording)
    for track in recording.devices:
        place = track.identity.physical_index
        events = [e for e in recording.events if e.physical_index == place and e.event in (*GONE, *BACK)]
        times = [recording.seconds_in(event.monotonic_s) for event in events]
        if place not in launch_devices or not events or (times[0] > end_s and track.metrics):
            continue  # a device that was never read was already missing, whenever this was noticed
        if events[-1].event in GONE or times[-1] > begin_s:
            gone.setdefault(events[0].event, []).append(str(place))
    for event, places in gone.items():
        yield f"GPU {', '.join(places)} {event.replace('_', ' ')}"


def _span(launch: CaseRecords, host: str, recording: RecordingData) -> tuple[float, float]:
    """Return when the launch's workload started and ended on a host, in seconds from recording start."""
    spans = [(w.begin_monotonic_s, w.end_monotonic_s) for w in launch.windows if w.host == host]
    spans += [(ended.begin_monotonic_s, ended.end_monotonic_s) for ended in launch.of(CommandEnded)]
    if not spans:
        return 0.0, 0.0
    begins, ends = zip(*spans, strict=True)
    return recording.seconds_in(min(begins)), recording.seconds_in(max(ends))


def _launch_devices(launch: CaseRecords, recording: RecordingData) -> set[int]:
    """Return the launch's devices by physical index; all devices if the launch does not list any."""
    identities = [track.identity for track in recording.devices]
    uuids = [setup.device.uuid for setup in launch.setups if setup.device.uuid is not None]
    if uuids:
        return {
            identities[i].physical_index
            for i in named_among(uuids, [identity.uuid for identity in identities])
        }
    taken = {device.physical_index for device in launch.of(DeviceTaken)}
    return taken or {int(identity.physical_index) for identity in identities}
