"""Driver reports during the run, combined with what ran, our tests, and other hosts.

An incident fails its GPU if the table says to reset the GPU, to restart the machine, or to inspect the board.
If the table says to restart an application, or to ignore the incident, it is reported and blocks nothing.
There are exceptions: it counts if one of gpuproof's processes encountered it, if several processes did on one
GPU, or if it came with wrong results (`verdict/incidents.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.hardware.events import EventKind, find_event
from gpuproof.records.outcome import Judged, Outcome, not_judged, pass_or_fail
from gpuproof.verdict.check import check
from gpuproof.verdict.checks.answers import listed_gpus, unanswered, with_unlisted
from gpuproof.verdict.checks.devices import lacking
from gpuproof.verdict.facts import FleetFacts, host_of
from gpuproof.verdict.incidents import Incident, conclude, incidents_in

GRAVEST = ("FAIL", "ERROR", "WARN")
XIDS = find_event("xid", "79").reference
MOST_NAMED = 6
"""Maximum number of incidents per GPU that an outcome lists; the rest are counted."""
Concluded = tuple[Incident, EventKind]


@check("xid", "no driver reported a GPU error")
def judge_events(facts: FleetFacts) -> Sequence[Outcome]:
    """Evaluate driver reports about each GPU; advisory events pass, but are listed."""
    subjects = [subject for subject, _ in listed_gpus(facts)]
    if facts.events is None and subjects:
        return [unanswered("whole", "driver events were not recorded", "Run with monitoring to record them")]
    concluded = _concluded(facts)
    grave = (s for s, pairs in concluded.items() if any(said.status != "WARN" for _, said in pairs))
    hosts = [subject for subject in grave if subject.count("/") == 1]
    return with_unlisted((_of_gpu(subject, concluded, facts) for subject in (*subjects, *hosts)), facts)


def advisory_events(facts: FleetFacts) -> list[Judged]:
    """Warn about events that are not evidence against a GPU; a job's cleanup is reported once."""
    concluded = _concluded(facts)
    told = [pair for pairs in concluded.values() for pair in pairs if pair[1].status == "WARN"]
    jobs = grouped((one.title, (one, said)) for one, said in told if _is_of_job(one, said))
    others = grouped(
        ((one.subject, one.title), (one, said)) for one, said in told if not _is_of_job(one, said)
    )
    outcomes = [
        *(_of_job(pairs) for pairs in jobs.values()),
        *(_warning(subject, pairs) for (subject, _), pairs in others.items()),
    ]
    return [Judged(name="xid, advisory", outcome=outcome, is_required=False) for outcome in outcomes]


def _concluded(facts: FleetFacts) -> Mapping[str, list[Concluded]]:
    return {
        subject: [(one, conclude(one, incidents, facts)) for one in incidents]
        for subject, incidents in incidents_in(facts).items()
    }


def _is_of_job(incident: Incident, conclusion: EventKind) -> bool:
    return incident.is_of_most_hosts and conclusion.word == "application"


def _of_job(pairs: Sequence[Concluded]) -> Outcome:
    """Report, only once, the events that a job caused on its hosts when it ended."""
    most = max((one for one, _ in pairs), key=lambda one: one.num_events)
    hosts = dict.fromkeys(host_of(one.subject) or "" for one, _ in pairs)
    total = sum(one.num_events for one, _ in pairs)
    where = f"{units.count(total)} times on {len(hosts)} hosts ({units.first_of(hosts)})"
    text = f"{most.text}, most on {most.subject}; {where} at the same time, as happens when a job ends"
    return _outcome("whole", f"{text}: application", pairs[0])


def _warning(subject: str, pairs: Sequence[Concluded]) -> Outcome:
    more = f"; {len(pairs) - 1} more incidents of it" if len(pairs) > 1 else ""
    return _outcome(subject, f"{_reported(pairs[0])}{more}: {pairs[0][1].word}", pairs[0])


def _outcome(subject: str, text: str, pair: Concluded, *, expected: str = "no driver event") -> Outcome:
    incident, conclusion = pair
    return pass_or_fail(
        subject,
        False,
        text,
        expected=expected,
        source=pair[1].reference,
        next_step=conclusion.next_step,
        responsible=conclusion.actor,
        warns=conclusion.status == "WARN",
        records=incident.launches[:MOST_NAMED],
    )


def _reported(pair: Concluded) -> str:
    incident, meaning = pair
    hosts = units.first_of(incident.other_hosts, 3)
    also = f"; also on {hosts} at the time" if hosts and not incident.is_of_most_hosts else ""
    return f"{incident.text}{also}; {meaning.evidence}"


def _of_gpu(subject: str, concluded: Mapping[str, list[Concluded]], facts: FleetFacts) -> Outcome:
    if subject not in concluded:
        step = "Use it in a launch with monitoring"
        return unanswered(subject, "no launch recorded driver events", step)
    pairs = sorted(concluded[subject], key=lambda pair: GRAVEST.index(pair[1].status))
    worst = pairs[0] if pairs else None
    unheard = _unheard(subject, facts)
    if unheard is not None and (worst is None or worst[1].status != "FAIL"):
        return lacking(
            subject, "its driver", "events", unheard, "Run it again with monitoring to record them"
        )
    if worst is None or worst[1].status == "WARN":
        named = ", ".join(_names(pairs))
        seen = f"no error of the GPU (advisory: {named})" if named else "no driver event"
        unread = _unheard(f"host/{host_of(subject)}", facts)
        seen += f"; the kernel log was not read: {unread}" if unread else ""
        return pass_or_fail(subject, True, seen, expected="no error of the GPU", source=XIDS, next_step=None)
    conclusion = worst[1]
    text = "; ".join([f"{_reported(worst)}: {conclusion.word}", *_names(pairs[1:])])
    if conclusion.status == "ERROR":
        return not_judged(subject, text, conclusion.next_step, conclusion.actor)
    return _outcome(subject, text, worst, expected="no error of the GPU")


def _unheard(subject: str, facts: FleetFacts) -> str | None:
    return next((event.unheard for event in (facts.events or {}).get(subject, ()) if event.unheard), None)


def _names(pairs: Sequence[Concluded]) -> Iterator[str]:
    """Yield the first codes among incidents, without duplicates, and the number of further codes."""
    named = list(dict.fromkeys(one.code for one, _ in pairs))
    yield from named[:MOST_NAMED]
    if len(named) > MOST_NAMED:
        yield f"{len(named) - MOST_NAMED} more"
