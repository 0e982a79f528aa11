"""Group a device's driver events into incidents, and determine the cause of each incident.

In: driver reports (`Announced`), with measures and launches. Out: one `Incident` for all events with the same
code on one device within a few minutes, with its conclusion. The conclusion comes from the table, unless the
workload that ran, later tests of that device, or simultaneous reports from other hosts provide more
information.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Final, Literal

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.hardware.events import WITHIN_S, EventKind, event_titled
from gpuproof.launches.probes import WRONG_VALUES
from gpuproof.records.collected import CaseRecords
from gpuproof.records.readings import spellings
from gpuproof.records.result import Measure
from gpuproof.records.run import Failure, Start
from gpuproof.verdict.facts import Announced, FleetFacts, Owner, host_of, setups_on

AT_ONCE_S: Final = 60.0
"""Maximum time between incidents on two hosts to count as simultaneous; clocks differ by seconds."""
OF_DEVICE_CAUSES: Final = ("exception", "hang")
"""Launch failures that the device may have caused. Running out of memory is not included: another process may
have used it."""
FOLLOWS_FROM_KILL: Final = ("xid 43", "xid 45")
STOPPED: Final = "xid 43"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Events with one code within minutes on one device, or on a host if they name no device."""

    subject: str
    title: str
    """The code, e.g. `xid 31`."""
    meaning: EventKind
    num_events: int
    growth: float
    """For a running total, its increase over all launches; 0 for anything else."""
    first_unix_s: float | None
    last_unix_s: float | None
    pids: tuple[int, ...]
    owner: Owner
    """Owner of the incident: ours if one of its processes was ours; unknown if none was identified."""
    instance: str | None
    """For a partitioned GPU: the instance number, as assigned by its driver."""
    launches: tuple[str, ...]
    """The launches during which it was recorded, as CASE/REPLICATE."""
    kill: Literal["before", "after"] | None
    """Whether it came before or after we stopped hung ranks in its launch; None if we did not."""
    other_hosts: tuple[str, ...] = ()
    """Hosts that reported the same code at the same time."""
    is_of_most_hosts: bool = False
    """Whether those hosts and its own host make up most of the hosts monitored at that time."""

    @property
    def code(self) -> str:
        """Its code and its meaning, e.g. `XID 31 (GPU memory page fault)`."""
        return self.meaning.heading

    @property
    def text(self) -> str:
        """Describe what happened, which subject it affected, when and how often."""
        parts = [f"{self.code} grew by {self.growth:g}" if self.growth else self.code]
        parts += [f"on instance {self.instance}"] * (self.instance is not None)
        if self.pids:
            word = "process" if len(self.pids) == 1 else "processes"
            parts.append(f"of {word} {units.first_of([str(pid) for pid in self.pids])} ({self.owner})")
        elif self.title.startswith("xid "):
            parts.append("of one of our processes" if self.owner == "ours" else "of an unseen process")
        return " ".join(parts) + self._times

    @property
    def _times(self) -> str:
        if self.first_unix_s is None or self.last_unix_s is None:
            return f", {units.count(self.num_events)} times" if self.num_events > 1 else ""
        first = units.utc_time(self.first_unix_s)
        if self.num_events == 1:
            return f", once at {first}"
        lasted = units.duration(self.last_unix_s - self.first_unix_s)
        return f", {units.count(self.num_events)} times in {lasted} from {first}"


def incidents_in(facts: FleetFacts) -> dict[str, list[Incident]]:
    """Return the incidents of each device and host, by subject; an empty list if nothing was reported."""
    by_subject = {
        subject: list(_of_subject(subject, [event for event in events if event.unheard is None]))
        for subject, events in (facts.events or {}).items()
    }
    return _with_other_hosts(by_subject, facts)


def _of_subject(subject: str, events: Sequence[Announced]) -> Iterator[Incident]:
    for title, alike in grouped((event.title, event) for event in events).items():
        alike.sort(key=_at_s)
        begins = [i for i in range(1, len(alike)) if _at_s(alike[i]) - _at_s(alike[i - 1]) > WITHIN_S]
        for begin, end in pairwise([0, *begins, len(alike)]):
            yield _incident(subject, title, alike[begin:end])


def _at_s(event: Announced) -> float:
    return event.unix_s or 0.0


def _incident(subject: str, title: str, events: Sequence[Announced]) -> Incident:
    owners = {event.owner for event in events}
    return Incident(
        subject=subject,
        title=title,
        meaning=event_titled(title),
        num_events=len(events),
        growth=sum(event.growth for event in events),
        first_unix_s=events[0].unix_s,
        last_unix_s=events[-1].unix_s,
        pids=tuple(dict.fromkeys(event.pid for event in events if event.pid is not None)),
        owner=next((owner for owner in ("ours", "another's") if owner in owners), "unknown"),
        instance=next((event.instance for event in events if event.instance is not None), None),
        launches=tuple(dict.fromkeys(event.launch for event in events if event.launch is not None)),
        kill=next((when for when in ("before", "after") if any(e.kill == when for e in events)), None),
    )


def _with_other_hosts(
    by_subject: Mapping[str, Sequence[Incident]], facts: FleetFacts
) -> dict[str, list[Incident]]:
    """Add to each incident the hosts that reported the same code at the same time."""
    spans: dict[tuple[str, bool], dict[str, list[tuple[float, float]]]] = {}
    for incident in (one for incidents in by_subject.values() for one in incidents):
        if incident.first_unix_s is not None and incident.last_unix_s is not None:
            span = (incident.first_unix_s - AT_ONCE_S, incident.last_unix_s + AT_ONCE_S)
            hosts = spans.setdefault(_kind(incident), {})
            hosts.setdefault(host_of(incident.subject) or "", []).append(span)
    heard = {host for subject in facts.events or {} if (host := host_of(subject)) is not None}
    of_launch = {_name(launch): {launch.host_of(x) for x in launch.of(Start)} for launch in facts.launches}

    def joined(incident: Incident) -> Incident:
        first_s, last_s, own = incident.first_unix_s, incident.last_unix_s, host_of(incident.subject)
        if first_s is None or last_s is None:
            return incident
        others = sorted(
            host
            for host, those in spans[_kind(incident)].items()
            if host != own and any(begin_s <= last_s and first_s <= end_s for begin_s, end_s in those)
        )
        of_job = heard
        if incident.owner == "ours":
            of_job = heard & set().union(*(of_launch.get(name, set()) for name in incident.launches))
        num_others = len(of_job.intersection(others))
        is_most = num_others > 0 and 2 * (num_others + 1) > len(of_job)
        return replace(incident, other_hosts=tuple(others), is_of_most_hosts=is_most)

    return {subject: [joined(one) for one in incidents] for subject, incidents in by_subject.items()}


def _kind(incident: Incident) -> tuple[str, bool]:
    """Distinguish by code, and by whether our launch or another job was affected."""
    return incident.title, incident.owner == "ours"


def conclude(incident: Incident, beside: Sequence[Incident], facts: FleetFacts) -> EventKind:
    """Determine an incident's cause; `beside` lists all incidents of its subject, including this one.

    If the table attributes a code to the device, or cannot attribute it, a running process does not excuse
    the device. A code that an application can cause is attributed to the device if there were wrong results,
    if our own workload encountered it, or if it occurred in several processes. It is attributed to a job if
    most hosts reported it at the same time. The cause is unknown if no process is visible.
    """
    meaning = incident.meaning
    if incident.title == STOPPED and incident.kill == "before" and incident.owner != "another's":
        return _of_device(incident, "the device stopped before we stopped the rank that hung")
    if incident.title in FOLLOWS_FROM_KILL and incident.kill == "after":
        why = "it results from our stopping a hung rank; why that rank hung is unknown"
        return replace(meaning, word="application", evidence=why)
    parts = _parts(incident.subject, facts)
    wrong = sum(m.value or 0 for m in facts.measures if m.name == WRONG_VALUES and m.subject in parts)
    if meaning.is_restart and wrong:
        return _of_device(incident, f"{wrong:g} wrong values on this device")
    if meaning.is_of_application and incident.is_of_most_hosts:
        others = units.first_of(incident.other_hosts, 3)
        why = f"also reported by {others} at the same time, i.e. by most hosts: caused by a job as it ended"
        return replace(meaning, word="application", evidence=why)
    return _of_process(incident, beside, parts, facts) if meaning.is_restart else meaning


def _of_process(
    incident: Incident, beside: Sequence[Incident], parts: AbstractSet[str], facts: FleetFacts
) -> EventKind:
    """Evaluate a code that the table attributes to applications, using its process and later tests."""
    alike = [one for one in beside if one.meaning.is_restart and not one.is_of_most_hosts]
    if any(one.owner == "ours" for one in alike):
        return _of_device(incident, "it occurred in our own work, whose kernels are known")
    if len(pids := {pid for one in alike for pid in one.pids}) > 1:
        return _of_device(incident, f"{len(pids)} processes encountered it on this device")
    since = [launch for launch in facts.launches if _ranks(launch, parts)]
    if failed := [_name(launch) for launch in since if _failed_since(launch, incident, parts)]:
        return _of_device(incident, f"our {units.first_of(failed)} failed on this device afterwards")
    right = _right_since(incident, since, [m for m in facts.measures if m.subject in parts])
    is_told = incident.owner == "another's" and bool(right) and incident.meaning.is_of_application
    evidence = f"{' and '.join(right)} correct since" if right else "no test has compared results since"
    return replace(incident.meaning, word="application" if is_told else "cannot tell", evidence=evidence)


def _of_device(incident: Incident, why: str) -> EventKind:
    step = "Drain the host, reset the GPU (nvidia-smi --gpu-reset, amd-smi reset -G), and validate it again"
    by_table = replace(incident.meaning, next_step=step, actor="administrator")
    return replace(by_table, word="reset the device", severity="error", evidence=why)


def _right_since(incident: Incident, since: Sequence[CaseRecords], measures: Sequence[Measure]) -> list[str]:
    """Return the tests that started after an incident and had results that were verified as correct."""
    last_s = inf if incident.last_unix_s is None else incident.last_unix_s
    done = (launch for launch in since if launch.status == "done")
    later = {one.case.case_id for one in done if min(x.unix_s for x in one.of(Start)) > last_s}
    right = (m for m in measures if m.name == WRONG_VALUES and m.value == 0 and m.case in later)
    return list(dict.fromkeys(str(m.labels.get("stage") or m.case) for m in right))


def _failed_since(launch: CaseRecords, incident: Incident, parts: AbstractSet[str]) -> bool:
    first_s = incident.first_unix_s
    failures = [f for f in launch.of(Failure) if f.rank is not None and f.cause in OF_DEVICE_CAUSES]
    ranks = _ranks(launch, parts)
    return first_s is not None and any(f.rank in ranks and f.unix_s >= first_s for f in failures)


def _ranks(launch: CaseRecords, subjects: AbstractSet[str]) -> set[int]:
    """Return the ranks that ran on one of these devices."""
    named = ((f"host/{h}/gpu/{s.device.uuid or s.device.index}", s.rank) for h, s in setups_on(launch))
    return {rank for name, rank in named if name in subjects}


def _parts(subject: str, facts: FleetFacts) -> AbstractSet[str]:
    """Return a device and any instances it is divided into: our tests run on these."""
    host, _, uuid = subject.removeprefix("host/").partition("/gpu/")
    listed = ((facts.hosts.get(host) or {}).get("accelerators") or {}).get("devices") or ()
    instances = [d["uuid"] for d in listed if (d.get("static") or {}).get("mig_parent_uuid") == uuid]
    return {subject, *(f"host/{host}/gpu/{form}" for one in instances for form in spellings(one))}


def _name(launch: CaseRecords) -> str:
    return f"{launch.case.case_id}/{launch.case.replicate}"
