"""What a check may say, and what becomes of one that says something else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fleet_by_hand import host_facts
from gpuproof.base import registry
from gpuproof.base.errors import UsageError
from gpuproof.cli.main import cli
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged, Outcome, Status
from gpuproof.records.run import Environment
from gpuproof.verdict.check import Check, ask, exit_code_for, guarded
from gpuproof.verdict.checks.registry import load_check
from gpuproof.verdict.facts import FleetFacts
from records_by_hand import case, one_rank, start, write_run

PASS = Outcome(status="PASS", measured="2", expected="1 or more", source="by hand")
FAIL = Outcome(status="FAIL", measured="0", expected="1 or more", source="by hand", next_step="Try again")
SKIP = Outcome(status="SKIP", reason="not asked for")
NONE = Outcome(status="NOT-APPLICABLE", reason="there is no link to measure")
ERROR = Outcome(status="ERROR", reason="no reading", next_step="Look")
JUDGED = {"status": "PASS", "measured": "1 s", "expected": "1 s", "source": "by hand"}
DONE = [one_rank().records()]
UNFINISHED = [CaseRecords(case=case(), records=(start(),))]


class Answer:
    name = "answer"
    summary = "answers as it is told"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def judge(self, launches: Sequence[CaseRecords]) -> Outcome | Sequence[Outcome]:
        assert not isinstance(launches, str)
        if isinstance(self.answer, BaseException):
            raise self.answer
        answer: Outcome | Sequence[Outcome] = self.answer
        return answer


def asked(answer: Any, launches: Sequence[CaseRecords] = DONE) -> Outcome:
    check = Answer(answer)
    assert isinstance(check, Check)
    (judged,) = judged_by(check, launches)
    return judged.outcome


def judged_by(check: Check, launches: Sequence[CaseRecords]) -> list[Judged]:
    return ask([guarded("answer", check, owner="its makers")], FleetFacts(launches=launches))


def test_an_answer_is_passed_on() -> None:
    for outcome in (PASS, FAIL, SKIP, NONE, ERROR):
        assert asked(outcome) is outcome


@pytest.mark.parametrize(
    ("expected", "tolerance", "status"),
    [(100.0, 0.0, "ERROR"), (300.0, 60.0, "ERROR"), (300.0, 10.0, "PASS")],
)
def test_a_pass_by_a_floor_far_under_what_was_measured_is_none(
    expected: float, tolerance: float, status: str
) -> None:
    """Half of 500 are 250: 240 say nothing, 290 do."""
    figures = {"measured_value": 500.0, "expected_value": expected, "tolerance": tolerance}
    outcome = replace(PASS, subject="host/a", unit="tokens/s", **figures)  # type: ignore[arg-type]

    found = asked(outcome)

    assert (found.status, found.subject) == (status, "host/a")
    assert status == "PASS" or "1 or more is not a valid expectation if 2 is measured" in (found.reason or "")


def test_an_answer_for_each_subject() -> None:
    outcomes = [replace(PASS, subject="host/a"), replace(FAIL, subject="link/a>b")]
    judged = judged_by(Answer(outcomes), DONE)
    assert [(item.name, item.outcome) for item in judged] == [("answer", outcome) for outcome in outcomes]
    unfinished = judged_by(Answer(outcomes), UNFINISHED)
    assert [(i.outcome.subject, i.outcome.status) for i in unfinished] == [
        ("host/a", "ERROR"),
        ("link/a>b", "FAIL"),
    ]
    assert asked([PASS, PASS]).reason == "the check gave several outcomes for whole"
    assert asked([]).reason == "the check returned no outcome"
    assert asked([PASS, 1]).reason == "the check returned a int, not an Outcome"


def test_a_pass_over_nothing_is_an_error() -> None:
    assert asked(PASS, UNFINISHED).status == "ERROR"
    assert asked(PASS, []).status == "ERROR"
    assert asked(FAIL, UNFINISHED) is FAIL


def test_a_check_that_breaks_is_an_error_that_names_it() -> None:
    outcome = asked(ZeroDivisionError("division by zero"))
    assert outcome.status == "ERROR"
    assert outcome.reason == "the check itself failed: ZeroDivisionError: division by zero"
    assert asked(True).reason == "the check returned a bool, not an Outcome"
    assert asked(None).reason == "the check returned a NoneType, not an Outcome"
    assert asked("PASS").reason == "the check returned a str, not an Outcome"


def test_a_check_that_would_end_the_process_is_an_error() -> None:
    """`sys.exit(0)` in it would be exit code 0 of a run that nobody judged."""
    outcome = asked(SystemExit(0))
    assert (outcome.status, outcome.reason) == ("ERROR", "the check itself failed: SystemExit: 0")


def test_an_answer_that_breaks_while_it_is_read_is_an_error() -> None:
    class Torn(Sequence[Outcome]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, place: Any) -> Any:
            raise RuntimeError("no more")

    assert asked(Torn()).reason == "the check itself failed: RuntimeError: no more"


def test_what_a_check_prints_is_not_on_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Loud(Answer):
        def judge(self, launches: Sequence[CaseRecords]) -> Outcome | Sequence[Outcome]:
            print("{not json")
            return super().judge(launches)

    assert judged_by(Loud(PASS), DONE)[0].outcome is PASS
    assert capsys.readouterr() == ("", "{not json\n")


def test_a_check_of_another_package_is_given_what_ours_are() -> None:
    """Its launches are the facts: what was written for a sequence of launches works, and more is there."""
    facts = FleetFacts(launches=DONE, hosts={"a": {"torch": "2.9"}})
    assert (len(facts), facts[0], facts[-1:], list(facts)) == (1, DONE[0], DONE[-1:], DONE)

    class Asking(Answer):
        def judge(self, launches: Any) -> Outcome | Sequence[Outcome]:
            assert launches is facts
            return replace(PASS, measured=launches.hosts["a"]["torch"])

    (judged,) = ask([guarded("asking", Asking(None), owner="its makers")], facts)
    assert judged.outcome.measured == "2.9"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"status": "OK", "reason": "x"}, "'OK' is not a status"),
        ({"status": "PASS"}, "PASS needs what was measured"),
        ({"status": "WARN", "measured": "1", "expected": "2"}, "and the source of the expectation"),
        ({"status": "FAIL", "measured": "1", "expected": "2", "source": "x"}, "FAIL needs a next step"),
        ({"status": "SKIP"}, "SKIP needs a reason"),
        ({"status": "NOT-APPLICABLE"}, "NOT-APPLICABLE needs a reason"),
        ({"status": "ERROR", "reason": "x"}, "ERROR needs a next step"),
        ({"status": "SKIP", "reason": "x", "subject": "host/"}, "'host/' is not a subject"),
        ({"status": "SKIP", "reason": "x", "subject": "link/a"}, "'link/a' is not a subject"),
        ({**JUDGED, "measured_value": 1.0}, "numbers need their unit"),
        ({**JUDGED, "expected_value": float("nan"), "unit": "s"}, "not finite"),
        ({**JUDGED, "measured_low": 1.0, "unit": "s"}, "an interval must contain the measured value"),
        ({**JUDGED, "measured_low": 2.0, "measured_value": 1.0, "unit": "s"}, "an interval must contain"),
    ],
)
def test_an_outcome_stands_on_something(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Outcome(**fields)


def test_an_outcome_with_numbers_comes_back_from_json() -> None:
    outcome = Outcome(
        status="FAIL",
        subject="host/node1/gpu/GPU-8a6f",
        measured="812 samples/s",
        expected="900 or more",
        source="contract 7",
        next_step="Exchange the board",
        responsible="vendor",
        measured_value=812.0,
        measured_low=809.5,
        measured_high=814.0,
        expected_value=900.0,
        tolerance=9.0,
        unit="samples/s",
        records=("main/1", "main/2"),
    )
    assert from_json(Outcome, json.loads(json.dumps(to_json(outcome)))) == outcome


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([PASS], 0),
        ([PASS, FAIL], 3),
        ([FAIL, ERROR], 3),
        ([PASS, SKIP], 4),
        ([PASS, NONE], 4),
        ([ERROR], 4),
        ([], 4),
    ],
)
def test_the_exit_code_never_passes_what_was_not_measured(outcomes: list[Outcome], code: int) -> None:
    assert exit_code_for([Judged(name="x", outcome=outcome) for outcome in outcomes]) == code


@pytest.mark.parametrize(("outcome", "code"), [(PASS, 0), (FAIL, 3), (ERROR, 4)])
def test_the_command_prints_the_outcome(
    outcome: Outcome, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "load", lambda _group, _name: Answer(outcome))
    run = write_run(tmp_path, DONE)
    shown = CliRunner().invoke(cli, ["report", str(run.root), "--check", "answer"])
    assert shown.exit_code == code
    status: Status = outcome.status
    assert status in shown.output
    assert (outcome.measured or outcome.reason or "") in shown.output
    assert not (run.root / "run_summary.json").exists()


def test_the_command_asks_checks_of_ours_with_what_hosts_told(tmp_path: Path) -> None:
    """By the door that rules ask by: of a run without a report of its hosts nothing passes."""
    environment = Environment(host="h", facts=host_facts("h", gpus=1))
    for name, records, expected in (("with", (environment,), ["PASS"]), ("without", (), ["ERROR"])):
        launch = one_rank().records()
        run = write_run(tmp_path / name, [replace(launch, records=(*launch.records, *records))])
        shown = CliRunner().invoke(cli, ["report", str(run.root), "--check", "ecc", "--json"])
        judged = json.loads(shown.stdout)["checks"]
        assert [item["outcome"]["status"] for item in judged] == expected
        assert shown.exit_code == (0 if expected == ["PASS"] else 4)


def test_a_check_of_no_name() -> None:
    with pytest.raises(UsageError, match="no check is called 'nothing'"):
        load_check("nothing")
