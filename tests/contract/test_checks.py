"""What every check keeps: pure, one outcome a subject, JSON there and back, no PASS over nothing."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from gpuproof import registry
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged, Outcome
from gpuproof.records.run import Failure
from gpuproof.verdict.check import Check, judge, load_check
from records_by_hand import case, one_rank, start

EXAMPLE = Path(__file__).parents[2] / "examples/check_plugin/src/gpuproof_example_check/__init__.py"
FAILED = Failure(
    cause="lost_rank", message="rank 0 ended with signal 9", rank=0, host="h", phase="measure", unix_s=1.0
)
RUNS: dict[str, Sequence[CaseRecords]] = {
    "nothing": (),
    "not finished": (CaseRecords(case=case(), records=(start(),)),),
    "failed": (CaseRecords(case=case(), records=(start(), FAILED)),),
    "finished": (one_rank().records(), one_rank().records()),
    "finished and failed": (
        one_rank().records(),
        CaseRecords(case=replace(case(), replicate=2), records=(start(), FAILED)),
    ),
}


def example() -> Check:
    spec = importlib.util.spec_from_file_location("gpuproof_example_check", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    check: Check = module.STEADY
    return check


@pytest.fixture(params=["example", *registry.names(registry.CHECKS)])
def check(request: pytest.FixtureRequest) -> Check:
    name: str = request.param
    return example() if name == "example" else load_check(name)


@pytest.fixture(params=RUNS)
def launches(request: pytest.FixtureRequest) -> Sequence[CaseRecords]:
    return RUNS[request.param]


def asked(check: Check, launches: Sequence[CaseRecords]) -> list[Judged]:
    answer: Any = check.judge(launches)
    outcomes = [answer] if isinstance(answer, Outcome) else list(answer)
    judged = judge(check.name, check, launches)
    assert [item.outcome for item in judged] == outcomes, "the check says what a check may not say"
    return judged


def test_it_says_what_it_is(check: Check) -> None:
    assert isinstance(check, Check)
    assert check.name
    assert check.summary
    assert "\n" not in check.summary


def test_each_subject_has_one_outcome_that_can_be_recorded(
    check: Check, launches: Sequence[CaseRecords]
) -> None:
    outcomes = [item.outcome for item in asked(check, launches)]
    assert outcomes
    assert len({outcome.subject for outcome in outcomes}) == len(outcomes)
    for outcome in outcomes:
        assert from_json(Outcome, json.loads(json.dumps(to_json(outcome)))) == outcome


def test_it_is_pure(check: Check, launches: Sequence[CaseRecords], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a check reads no file and no clock")

    before = to_json([launch.records for launch in launches])
    with monkeypatch.context() as patch:
        for place in ("builtins.open", "io.open", "time.time", "time.monotonic", "time.perf_counter"):
            patch.setattr(place, refuse)
        first, second = check.judge(launches), check.judge(list(launches))
    assert first == second
    assert to_json([launch.records for launch in launches]) == before


@pytest.mark.parametrize("run", ["nothing", "not finished", "failed"])
def test_nothing_finished_is_no_pass(check: Check, run: str) -> None:
    assert not {item.outcome.status for item in asked(check, RUNS[run])} & {"PASS", "WARN"}
