"""What drivers announced while the run lasted: XIDs by code, from NVIDIA's catalogue (`xids.csv`), and more.

An XID fails its GPU where the catalogue's immediate action is a reset, a restart of the machine, or a look at
the board (`xid_actions.csv`). What asks to restart an application, or to ignore it, is told and holds nothing
back, unless it was met by kernels of ours, or with wrong results, or under different processes of one GPU.

>>> meaning_of(79)["meaning"], *(meaning_of(code)["status"] for code in (79, 43, 999))
('GPU has fallen off the bus', 'FAIL', 'WARN', 'ERROR')
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from gpuproof.launches.probes import WRONG_VALUES
from gpuproof.records.outcome import Judged, Outcome, not_judged, pass_or_fail
from gpuproof.verdict.check import check
from gpuproof.verdict.checks.answers import listed_gpus, unanswered, with_unlisted
from gpuproof.verdict.checks.devices import lacking
from gpuproof.verdict.facts import Announced, FleetFacts

XIDS = "https://docs.nvidia.com/deploy/xid-errors/"
OF_APPLICATION, OF_OTHERS, NO_ANSWER = "RESTART_APP", "event", "not_answering"
GRAVEST = ("FAIL", "ERROR", "WARN")
UNKNOWN = {"meaning": "not in the catalogue", "immediate action": ""}


def meaning_of(code: int) -> Mapping[str, str]:
    """Return a code's `meaning` and immediate `action`, and the `status`, `actor` and `next_step` of that.

    A code that the catalogue lacks has no action, and is an ERROR.
    """
    row = _table("xids.csv", "code").get(str(code), UNKNOWN)
    meaning = row["meaning"].partition(" -- ")[0]
    return {"meaning": meaning, **_table("xid_actions.csv", "action")[row["immediate action"]]}


@cache
def _table(name: str, key: str) -> Mapping[str, Mapping[str, str]]:
    text = files("gpuproof").joinpath("verdict", "checks", name).read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row[key]: row for row in rows}


@check("xid", "no driver announced an error of a GPU")
def judge_events(facts: FleetFacts) -> Sequence[Outcome]:
    """Judge what drivers announced of each GPU; what is advisory alone passes, and is named."""
    subjects = [subject for subject, _ in listed_gpus(facts)]
    if facts.events is None and subjects:
        return [unanswered("whole", "driver events were not recorded", "Run it with monitoring, which does")]
    return with_unlisted((_of_gpu(subject, facts) for subject in subjects), facts)


def advisory_events(facts: FleetFacts) -> list[Judged]:
    """Warn of what was announced and speaks against no GPU: it decides nothing."""
    return [
        Judged(name="xid, advisory", outcome=_warning(subject, title, facts), is_required=False)
        for subject in facts.events or {}
        for title, meaning in _meanings(subject, facts).items()
        if meaning["status"] == "WARN"
    ]


def _warning(subject: str, title: str, facts: FleetFacts) -> Outcome:
    same = [event for event in (facts.events or {})[subject] if event.title == title]
    meaning, pids = _meanings(subject, facts)[title], {event.pid for event in same} - {None}
    whose = f"of process {', '.join(sorted(map(str, pids)))}" if pids else "cannot tell whose"
    measured, step = f"{meaning['named']}, {len(same)} times, {whose}", meaning["next_step"]
    expected: Mapping[str, Any] = {"expected": "no driver event", "source": XIDS, "responsible": "user"}
    return pass_or_fail(subject, False, measured, next_step=step, warns=True, **expected)


def _of_gpu(subject: str, facts: FleetFacts) -> Outcome:
    if subject not in (facts.events or {}):
        step = "Use it in a launch, with monitoring"
        return unanswered(subject, "driver events were recorded in no launch", step)
    meanings = sorted(_meanings(subject, facts).values(), key=lambda row: GRAVEST.index(row["status"]))
    named = ", ".join(row["named"] for row in meanings)
    worst: Mapping[str, Any] = meanings[0] if meanings else {"status": "WARN"}
    unheard = next((event.unheard for event in (facts.events or {})[subject] if event.unheard), None)
    if unheard is not None and worst["status"] != "FAIL":
        return lacking(subject, "its driver", "events", unheard)
    if worst["status"] == "ERROR":
        return not_judged(subject, named, worst["next_step"], worst["actor"])
    is_good = worst["status"] == "WARN"
    seen = (f"no error of the GPU (advisory: {named})" if named else "no driver event") if is_good else named
    todo = {"next_step": worst.get("next_step", ""), "responsible": worst.get("actor", "administrator")}
    return pass_or_fail(subject, is_good, seen, expected="no error of the GPU", source=XIDS, **todo)


def _meanings(subject: str, facts: FleetFacts) -> dict[str, dict[str, str]]:
    """Return what each event of a GPU says of it, by its title."""
    events = [event for event in (facts.events or {})[subject] if event.unheard is None]
    return {event.title: _meaning(event, subject, facts) for event in events}


def _meaning(event: Announced, subject: str, facts: FleetFacts) -> dict[str, str]:
    actions = _table("xid_actions.csv", "action")
    if event.code is None:
        key = event.title if event.title == NO_ANSWER else OF_OTHERS
        return {"named": event.title, **actions[key]}
    xid = meaning_of(event.code)
    is_of_gpu = xid["action"] == OF_APPLICATION and _is_of_gpu(event, subject, facts)
    named = f"{event.title} ({xid['meaning']})"
    return {"named": named, **(actions[f"{OF_APPLICATION} of the GPU"] if is_of_gpu else xid)}


def _is_of_gpu(event: Announced, subject: str, facts: FleetFacts) -> bool:
    """Say whether what a program may have caused was met by ours, with wrong results, or by several."""
    events = [other for other in (facts.events or {})[subject] if other.code is not None]
    alike = [other for other in events if meaning_of(other.code or 0)["action"] == OF_APPLICATION]
    processes = {other.pid or other.launch for other in alike}
    is_wrong = any(m.name == WRONG_VALUES and m.subject == subject and m.value for m in facts.measures)
    return is_wrong or len(processes) > 1 or any(other.is_ours for other in alike)
