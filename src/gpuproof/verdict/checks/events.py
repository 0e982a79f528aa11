"""What drivers announced while the run lasted: XIDs by code, from NVIDIA's catalogue (`xids.csv`), and more.

An XID fails its GPU where the catalogue's immediate action is a reset, a restart of the machine, or a look at
the board (`xid_actions.csv`). What asks to restart an application, or to ignore it, is told and holds nothing
back, unless it was met by kernels of ours, or with wrong results, or under different processes of one GPU.

>>> meaning_of(79).meaning, meaning_of(79).status, meaning_of(43).status, meaning_of(999).status
('GPU has fallen off the bus', 'FAIL', 'WARN', 'ERROR')
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gpuproof.analysis.probes.figures import WRONG_VALUES
from gpuproof.records.outcome import Judged, Outcome, Status
from gpuproof.verdict.checks.answers import listed_gpus, no_gpu, not_asked, not_told, told
from gpuproof.verdict.facts import Announced, FleetFacts

XIDS = "https://docs.nvidia.com/deploy/xid-errors/"
OF_APPLICATION = "RESTART_APP"
GRAVEST: Sequence[Status] = ("FAIL", "ERROR", "WARN")
NO_ANSWER = "not_answering"


@dataclass(frozen=True, slots=True, kw_only=True)
class XidMeaning:
    """What the catalogue says of a code, and what that says of the GPU."""

    meaning: str
    action: str
    """The catalogue's immediate action; empty where it has none, or does not have the code."""
    status: Status
    actor: Any
    next_step: str


def meaning_of(code: int) -> XidMeaning:
    """Look a code up; one that the catalogue lacks is an ERROR."""
    row = _table("xids.csv", "code").get(str(code), {})
    action = row.get("immediate action", "")
    said = _table("xid_actions.csv", "action")[action]
    return XidMeaning(
        meaning=row.get("meaning", "not in the catalogue").partition(" -- ")[0],
        action=action,
        status=said["status"],  # type: ignore[arg-type]  # a test goes through the table
        actor=said["actor"],
        next_step=said["next_step"],
    )


@cache
def _table(name: str, key: str) -> Mapping[str, Mapping[str, str]]:
    text = files("gpuproof").joinpath("verdict", "checks", name).read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row[key]: row for row in rows}


def judge_events(facts: FleetFacts) -> Sequence[Outcome]:
    """Judge what drivers announced of each GPU; what is advisory alone passes, and is named."""
    subjects = [subject for subject, _ in listed_gpus(facts)]
    if not subjects:
        return not_asked(facts) or [no_gpu(facts)]
    if facts.events is None:
        return [
            not_told("whole", "driver events were not recorded", "Run it with monitoring, which records them")
        ]
    return [*(_of_gpu(subject, facts) for subject in subjects), *not_asked(facts)]


def advisory_events(facts: FleetFacts) -> list[Judged]:
    """Warn of what was announced and speaks against no GPU: it decides nothing."""
    warned = []
    for subject, events in (facts.events or {}).items():
        statuses = {event.title: _status(event, subject, facts) for event in events}
        mild = [event for event in events if statuses[event.title] == "WARN" and event.code is not None]
        for event in {event.title: event for event in mild}.values():
            same = [other for other in mild if other.title == event.title]
            outcome = told(
                subject,
                False,
                f"{_named(event)}, {len(same)} times, {_whose(same)}",
                expected="no driver event",
                source=XIDS,
                next_step=meaning_of(event.code or 0).next_step,
                responsible="user",
                warns=True,
            )
            warned.append(Judged(name="xid, advisory", outcome=outcome, is_required=False))
    return warned


def _of_gpu(subject: str, facts: FleetFacts) -> Outcome:
    events = (facts.events or {}).get(subject)
    if events is None:
        step = "Use it in a launch, with monitoring"
        return not_told(subject, "driver events were recorded in no launch", step)
    statuses = {event.title: _status(event, subject, facts) for event in events}
    titles = sorted(statuses, key=lambda title: GRAVEST.index(statuses[title]))
    by_title = {event.title: event for event in events}
    named = ", ".join(_named(by_title[title]) for title in titles)
    worst = by_title[titles[0]] if titles else None
    if worst is None or statuses[worst.title] == "WARN":
        seen = "no driver event" if worst is None else f"no error of the GPU (advisory: {named})"
        return told(subject, True, seen, expected="no error of the GPU", source=XIDS, next_step="")
    step, actor = _next(worst)
    if statuses[worst.title] == "ERROR":
        return Outcome(status="ERROR", subject=subject, reason=named, next_step=step, responsible=actor)
    return told(
        subject, False, named, expected="no error of the GPU", source=XIDS, next_step=step, responsible=actor
    )


def _status(event: Announced, subject: str, facts: FleetFacts) -> Status:
    if event.code is None:
        return "ERROR" if event.title == NO_ANSWER else "FAIL"
    xid = meaning_of(event.code)
    return "FAIL" if xid.action == OF_APPLICATION and _is_of_gpu(event, subject, facts) else xid.status


def _is_of_gpu(event: Announced, subject: str, facts: FleetFacts) -> bool:
    """Say whether what a program may have caused was met by ours, with wrong results, or by several."""
    same = [other for other in (facts.events or {})[subject] if other.code == event.code]
    processes = {other.pid for other in same if other.pid is not None}
    launches = {other.launch for other in same if other.pid is None}
    is_wrong = any(m.name == WRONG_VALUES and m.subject == subject and m.value for m in facts.measures)
    return is_wrong or len(processes) > 1 or len(launches) > 1 or any(other.is_ours for other in same)


def _named(event: Announced) -> str:
    return event.title if event.code is None else f"{event.title} ({meaning_of(event.code).meaning})"


def _whose(events: Sequence[Announced]) -> str:
    processes = sorted({event.pid for event in events if event.pid is not None})
    return f"of process {', '.join(map(str, processes))}" if processes else "cannot tell whose"


def _next(event: Announced) -> tuple[str, Any]:
    if event.code is None:
        return "Drain the host, run dmesg", "administrator"
    xid = meaning_of(event.code)
    if xid.action == OF_APPLICATION:
        return (
            "It was met by our own work, or by several processes: drain the host, reset the GPU",
            "administrator",
        )
    return xid.next_step, xid.actor
