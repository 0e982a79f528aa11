"""The contract of a check, a pure question to the records of a finished run, and how it is asked.

A plug-in registers an object with `name`, `summary` and `judge` under the entry-point group
`gpuproof.checks`. `judge` takes the records of every launch and returns an `Outcome`, or one a subject; it
reads no clock, file or device, so that it says the same on any machine and at any time. What a check may
not say is an ERROR, never a PASS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from gpuproof import registry
from gpuproof.errors import ExitCode, UsageError
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged, Outcome, not_judged

VACUOUS_OF_USUAL = 0.5
"""A floor under half of what is measured, or was, judges nothing: only what is broken outright misses it, and
it shows by itself. Rules, and checks of other packages, are held to it alike."""


@runtime_checkable
class Check(Protocol):
    """A check as the registry knows it."""

    name: str
    summary: str
    """What a PASS says, in one line."""

    def judge(self, launches: Sequence[CaseRecords]) -> Outcome | Sequence[Outcome]:
        """Judge the records of all launches, failed ones too, with one outcome a subject; pure."""


def load_check(name: str) -> Check:
    """Import a registered check.

    Raises:
        UsageError: there is none of that name, it cannot be loaded, or is not what a check must be.
    """
    check = registry.load(registry.CHECKS, name)
    if not isinstance(check, Check) or not callable(check.judge):
        raise UsageError(
            f"{name!r} from {registry.find_owner(registry.CHECKS, name)} is registered as a check and is a "
            f"{type(check).__name__} without name, summary and judge",
            next_step="See gpuproof.verdict.check.Check, or uninstall it",
        )
    return check


def judge(name: str, check: Check, launches: Sequence[CaseRecords]) -> list[Judged]:
    """Ask a check; its own faults, and a PASS over nothing, are errors."""
    owner = registry.find_owner(registry.CHECKS, name)
    try:
        answer: object = check.judge(launches)
    except Exception as error:  # noqa: BLE001  # a plug-in's own fault ends its check, and no other
        outcomes = [_broken(f"the check itself failed: {type(error).__name__}: {error}", owner)]
    else:
        finished = any(launch.status == "done" for launch in launches)
        outcomes = [
            _refuse_vacuous_pass(_refuse_empty_pass(outcome, finished=finished), owner)
            for outcome in _read_answer(answer, owner)
        ]
    return [Judged(name=name, outcome=outcome) for outcome in outcomes]


def _read_answer(answer: object, owner: str) -> list[Outcome]:
    outcomes = list(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else [answer]
    strange = next((item for item in outcomes if not isinstance(item, Outcome)), None)
    if strange is not None:
        return [_broken(f"the check returned a {type(strange).__name__}, not an Outcome", owner)]
    read = [item for item in outcomes if isinstance(item, Outcome)]
    twice = [subject for subject, count in Counter(item.subject for item in read).items() if count > 1]
    if twice:
        return [_broken(f"the check gave several outcomes for {', '.join(twice)}", owner)]
    return read or [_broken("the check returned no outcome", owner)]


def _broken(reason: str, owner: str) -> Outcome:
    return not_judged("whole", reason, f"Report it to the makers of {owner}", "plug-in author")


def _refuse_empty_pass(outcome: Outcome, *, finished: bool) -> Outcome:
    if outcome.status != "PASS" or finished:
        return outcome
    reason = "the check passed a run of which no launch was finished"
    return not_judged(outcome.subject, reason, "Finish the run with --resume, then ask again")


def _refuse_vacuous_pass(outcome: Outcome, owner: str) -> Outcome:
    """Return an error in place of a PASS by a rate that is far under what was measured, as of any rule."""
    measured, expected, unit = outcome.measured_value, outcome.expected_value, outcome.unit or ""
    if outcome.status != "PASS" or measured is None or expected is None or not unit.endswith("/s"):
        return outcome
    if expected - (outcome.tolerance or 0.0) >= VACUOUS_OF_USUAL * measured:
        return outcome
    reason = f"{outcome.expected} is no expectation where {outcome.measured} is measured"
    return replace(_broken(reason, owner), subject=outcome.subject)


def exit_code_for(judged: Sequence[Judged]) -> ExitCode:
    """Return 3 where a check failed, 4 where one measured nothing, else 0."""
    statuses = {item.outcome.status for item in judged}
    if "FAIL" in statuses:
        return ExitCode.FAILED
    return ExitCode.DONE if statuses and statuses <= {"PASS", "WARN"} else ExitCode.INCONCLUSIVE
