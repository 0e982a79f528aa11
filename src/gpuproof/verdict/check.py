"""A check: its name, what a PASS says, and a pure question to the facts of a fleet, answered with outcomes.

Checks of ours are values in their modules (`verdict/checks/` for rules, `doctor/` for a machine before
anything is measured). Another package registers an object with `name`, `summary` and `judge` under the
entry-point group `gpuproof.checks`. `judge` reads no clock, file or device, so that it says the same on any
machine and at any time. What a package's check may not say is an ERROR, never a PASS.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from gpuproof.base.errors import ExitCode
from gpuproof.records.outcome import Actor, Expectation, Judged, Outcome, not_judged

if TYPE_CHECKING:
    from types import ModuleType

    from gpuproof.verdict.facts import FleetFacts, HostFacts

VACUOUS_OF_USUAL = 0.5
"""A floor under half of what is measured, or was, judges nothing: only what is broken outright misses it, and
it shows by itself. Rules, and checks of other packages, are held to it alike."""


@runtime_checkable
class Check(Protocol):
    """A check as another package registers it."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def summary(self) -> str:
        """What a PASS says, in one line."""

    def judge(self, launches: FleetFacts, /) -> Outcome | Sequence[Outcome]:
        """Judge all launches, failed ones too, with one outcome a subject; pure.

        The facts are a sequence of launches, and hold what else is known: measures, hosts, events.
        """


Answers = Iterable[Outcome | Judged]
"""Outcomes of the check's name, or with a name of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactCheck:
    """A check, wherever it comes from."""

    name: str
    summary: str
    """What a PASS says."""
    judge: Callable[[FleetFacts], Answers]


def check(name: str, summary: str) -> Callable[[Callable[[FleetFacts], Answers]], FactCheck]:
    """Make a check of the function below."""
    return lambda judge: FactCheck(name=name, summary=summary, judge=judge)


StatedJudge = Callable[["HostFacts", Expectation], Outcome | Answers | None]


def stated_check(
    name: str,
    expected: str,
    source: str,
    next_step: str,
    *,
    responsible: Actor = "user",
    otherwise: Literal["WARN", "FAIL"] = "FAIL",
    part: str | None = None,
) -> Callable[[StatedJudge], FactCheck]:
    """Make a check with a stated expectation of what a machine tells, or a part of that.

    The function below is given both; what it answers nothing of is left out.
    """
    expectation = Expectation(expected, source, next_step, responsible, otherwise)

    def build(judge: StatedJudge) -> FactCheck:
        def of_all(facts: FleetFacts) -> Iterator[Outcome | Judged]:
            for node in facts.hosts.values():
                answers = judge(node if part is None else node[part], expectation) or ()
                yield from (answers,) if isinstance(answers, Outcome) else answers

        return FactCheck(name=name, summary=expected, judge=of_all)

    return build


def ask(checks: Iterable[FactCheck], facts: FleetFacts) -> list[Judged]:
    """Return what each check answers, in their order."""
    return [
        answer if isinstance(answer, Judged) else Judged(name=each.name, outcome=answer)
        for each in checks
        for answer in each.judge(facts)
    ]


def checks_in(module: ModuleType) -> list[FactCheck]:
    """Return the checks that a module defines, in its order: values, and tuples of them."""
    values = (value if isinstance(value, tuple) else (value,) for value in vars(module).values())
    return [item for group in values for item in group if isinstance(item, FactCheck)]


def guarded(name: str, plugin: Check, *, owner: str) -> FactCheck:
    """Return the check of another package: its own faults, and a PASS over nothing, are errors."""
    return FactCheck(
        name=name, summary=plugin.summary, judge=lambda facts: list(_guarded_answers(plugin, facts, owner))
    )


def _guarded_answers(plugin: Check, facts: FleetFacts, owner: str) -> Iterator[Outcome]:
    try:
        with redirect_stdout(sys.stderr):  # standard output carries what the command prints alone
            outcomes = _read_answer(plugin.judge(facts), owner)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # its fault ends its check, and no other
        outcomes = [_broken(f"the check itself failed: {type(error).__name__}: {error}", owner)]
    finished = any(launch.status == "done" for launch in facts.launches)
    for outcome in outcomes:
        yield _refuse_vacuous_pass(_refuse_empty_pass(outcome, finished=finished), owner)


def _read_answer(answer: object, owner: str) -> list[Outcome]:
    outcomes = list(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else [answer]
    strange = [type(item).__name__ for item in outcomes if not isinstance(item, Outcome)]
    if strange:
        return [_broken(f"the check returned a {strange[0]}, not an Outcome", owner)]
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
