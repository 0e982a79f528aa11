"""A check: its name, the meaning of a PASS, and a pure function of a fleet's facts.

gpuproof's checks are objects in their modules (`verdict/checks/` for rules, `doctor/` for a machine before
anything is measured). Another package registers an object with `name`, `summary` and `judge` under the
entry-point group `gpuproof.checks`. `judge` reads no clock, file or device, so its outcome is the same on any
machine at any time. If a package's check returns an outcome that is not allowed, the result is an ERROR,
never a PASS.
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
"""A minimum below this fraction of the current or an earlier measurement is useless as a check: only
something that is obviously broken fails it. Rules and checks from other packages are treated the same."""


@runtime_checkable
class Check(Protocol):
    """A check as registered by another package."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    @property
    def summary(self) -> str:
        """The meaning of a PASS, in one line."""

    def judge(self, launches: FleetFacts, /) -> Outcome | Sequence[Outcome]:
        """Evaluate all launches, including failed ones, with one outcome per subject; pure.

        The facts are a sequence of launches, and also contain all other available data: measures, hosts,
        events.
        """


Answers = Iterable[Outcome | Judged]
"""Outcomes that get the check's name, or that have a name of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactCheck:
    """A check from any source."""

    name: str
    summary: str
    """The meaning of a PASS."""
    judge: Callable[[FleetFacts], Answers]


def check(name: str, summary: str) -> Callable[[Callable[[FleetFacts], Answers]], FactCheck]:
    """Create a check from the decorated function."""
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
    """Create a check that states its expectation for a machine's report, or for a part of it.

    The decorated function gets the report and the expectation; if it returns no answer, the report is
    omitted.
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
    """Return each check's outcomes, in order."""
    return [
        answer if isinstance(answer, Judged) else Judged(name=each.name, outcome=answer)
        for each in checks
        for answer in each.judge(facts)
    ]


def checks_in(module: ModuleType) -> list[FactCheck]:
    """Return the checks that a module defines, in order: single values, and tuples of them."""
    values = (value if isinstance(value, tuple) else (value,) for value in vars(module).values())
    return [item for group in values for item in group if isinstance(item, FactCheck)]


def guarded(name: str, plugin: Check, *, owner: str) -> FactCheck:
    """Return another package's check; errors in it, and a PASS without evidence, become ERROR."""
    return FactCheck(
        name=name, summary=plugin.summary, judge=lambda facts: list(_guarded_answers(plugin, facts, owner))
    )


def _guarded_answers(plugin: Check, facts: FleetFacts, owner: str) -> Iterator[Outcome]:
    try:
        with redirect_stdout(sys.stderr):  # standard output contains only what the command prints
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
    return not_judged("whole", reason, f"Report it to the maintainers of {owner}", "plug-in author")


def _refuse_empty_pass(outcome: Outcome, *, finished: bool) -> Outcome:
    if outcome.status != "PASS" or finished:
        return outcome
    reason = "the check passed a run without any finished launch"
    return not_judged(outcome.subject, reason, "Finish the run with --resume, then run the check again")


def _refuse_vacuous_pass(outcome: Outcome, owner: str) -> Outcome:
    """Return an error instead of a PASS if a minimum is far below what was measured, as for any rule."""
    measured, expected, unit = outcome.measured_value, outcome.expected_value, outcome.unit or ""
    if outcome.status != "PASS" or measured is None or expected is None or not unit.endswith("/s"):
        return outcome
    if expected - (outcome.tolerance or 0.0) >= VACUOUS_OF_USUAL * measured:
        return outcome
    reason = f"{outcome.expected} is not a valid expectation if {outcome.measured} is measured"
    return replace(_broken(reason, owner), subject=outcome.subject)


def exit_code_for(judged: Sequence[Judged]) -> ExitCode:
    """Return 3 if a check failed, 4 if one measured nothing, else 0."""
    statuses = {item.outcome.status for item in judged}
    if "FAIL" in statuses:
        return ExitCode.FAILED
    return ExitCode.DONE if statuses and statuses <= {"PASS", "WARN"} else ExitCode.INCONCLUSIVE
