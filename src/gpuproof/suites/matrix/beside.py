"""Did the commands of cases have their host's processors to themselves, or do their times tell of others too?

A launch of a model is judged by its own window; of a command only this is known: the processor time that it
took, and how busy its host was meanwhile. Other cases of the same matrix are others as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuproof.base.groups import grouped
from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Doubt
from gpuproof.records.work.command import CommandEnded, CommandStarted
from gpuproof.suites.base import LaunchKey, launch_key
from gpuproof.verdict.doubts.base import suspect
from gpuproof.verdict.doubts.neighbours import NEIGHBOURS_CODE, fill_the_processors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """When and where a command ran, on its host's monotonic clock, and what it took."""

    case: Case
    host: str
    begin_s: float
    end_s: float
    command_cpus: float
    """Processors that it kept busy, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crowded:
    """A command that shared processors which were all in use."""

    case_id: str
    others_cpus: float
    num_cpus: int


def doubts_of_times(evidence: Evidence) -> dict[LaunchKey, list[Doubt]]:
    """Doubt the times of commands while others kept their processors full: by launch, a doubt a host."""
    by_host = grouped((ran.host, ran) for ran in _commands(evidence.launches))
    doubts: dict[LaunchKey, list[Doubt]] = {}
    for host, commands in by_host.items():
        crowded = {launch_key(ran.case): figures for ran in commands if (figures := _crowding(ran, evidence))}
        for key in crowded:
            doubts.setdefault(key, []).append(_host_doubt(host, commands, list(crowded.values())))
    return doubts


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """Return how many of the spans of time overlapped at most; one that begins as another ends does not.

    >>> most_at_once([(0, 2), (1, 3), (2, 4)])
    2
    """
    steps = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    running, most = 0, 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most


def _commands(launches: Sequence[CaseRecords]) -> Iterator[_Ran]:
    for records in launches:
        for started, ended in zip(records.of(CommandStarted), records.of(CommandEnded), strict=False):
            if ended.wall_s > 0 and records.status == "done":
                yield _Ran(
                    case=records.case,
                    host=started.host,
                    begin_s=ended.begin_monotonic_s,
                    end_s=ended.end_monotonic_s,
                    command_cpus=ended.cpu_s / ended.wall_s,
                )


def _host_doubt(host: str, commands: Sequence[_Ran], crowded: Sequence[_Crowded]) -> Doubt:
    worst = max(crowded, key=lambda one: one.others_cpus)
    at_once = most_at_once([(ran.begin_s, ran.end_s) for ran in commands])
    beside = f"; up to {at_once} cases ran at a time" if at_once > 1 else ""
    alone = ", one case at a time (cases.parallel=1)" if at_once > 1 else ""
    return suspect(
        NEIGHBOURS_CODE,
        f"the processors of {host} were all in use while {len(crowded)} of {len(commands)} commands ran, and "
        f"others had part of them (beside {worst.case_id} {worst.others_cpus:.1f} of {worst.num_cpus})"
        f"{beside}: times may be longer than those of a case alone",
        f"For times that can be compared, run it again on a quiet machine{alone}",
    )


def _crowding(ran: _Ran, evidence: Evidence) -> _Crowded | None:
    recording = evidence.recording(ran.case, ran.host)
    if isinstance(recording, MissingReadings):
        return None
    read = evidence.readings(
        ran.case, ran.host, begin_monotonic_s=ran.begin_s, end_monotonic_s=ran.end_s, uuids=()
    )
    num_cpus = recording.recording.host_facts.get("cpus_logical")
    if isinstance(read, MissingReadings) or read.host.cpu_percent is None or not isinstance(num_cpus, int):
        return None
    busy_cpus = read.host.cpu_percent / 100 * num_cpus
    if not fill_the_processors(busy_cpus, ran.command_cpus, num_cpus):
        return None
    return _Crowded(
        case_id=ran.case.case_id, others_cpus=max(0.0, busy_cpus - ran.command_cpus), num_cpus=num_cpus
    )
