"""What every check keeps: pure, one outcome a subject, JSON there and back, no PASS over nothing."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Outcome
from gpuproof.records.run import Failure
from gpuproof.verdict import checks
from gpuproof.verdict.check import Check, FactCheck, ask, guarded
from gpuproof.verdict.checks.registry import check_names, find_check, packaged_checks
from gpuproof.verdict.facts import FleetFacts
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


@pytest.fixture(params=["example", *check_names()])
def check(request: pytest.FixtureRequest) -> FactCheck:
    """Ours, and those of other packages as they are asked."""
    name: str = request.param
    return guarded(name, example(), owner="the example") if name == "example" else find_check(name)


@pytest.fixture(params=RUNS)
def facts(request: pytest.FixtureRequest) -> FleetFacts:
    return FleetFacts(launches=RUNS[request.param])


def outcomes_of(check: FactCheck, facts: FleetFacts) -> list[Outcome]:
    return [item.outcome for item in ask([check], facts)]


@pytest.mark.parametrize("run", RUNS)
def test_the_example_says_nothing_that_a_check_may_not_say(run: str) -> None:
    facts, plugin = FleetFacts(launches=RUNS[run]), example()
    assert isinstance(plugin, Check)
    assert outcomes_of(guarded("example", plugin, owner="the example"), facts) == [plugin.judge(facts)]


def test_a_check_of_ours_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else names it; which host should be asked, and is mute, is not its to know."""
    (tmp_path / "tidy.py").write_text(
        "from gpuproof.records.outcome import pass_or_fail\n"
        "from gpuproof.verdict.checks.answers import host_check\n\n\n"
        "@host_check('tidy', 'every host is tidy')\n"
        "def judge_tidy(subject, node):\n"
        "    good = {'expected': 'yes', 'source': 'by hand', 'next_step': 'Tidy up'}\n"
        "    return pass_or_fail(subject, node['is_tidy'], str(node['is_tidy']), **good)\n"
    )
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])
    tidy = packaged_checks()["tidy"]
    monkeypatch.delitem(sys.modules, "gpuproof.verdict.checks.tidy")
    told = FleetFacts(hosts={"a": {"is_tidy": True}, "b": {"is_tidy": False}}, hosts_there=("a", "b", "c"))
    statuses = {item.outcome.subject: item.outcome.status for item in ask([tidy], told)}
    assert statuses == {"host/a": "PASS", "host/b": "FAIL", "host/c": "ERROR"}


def test_it_says_what_it_is(check: FactCheck) -> None:
    assert isinstance(check, Check)
    assert check.name
    assert check.summary
    assert "\n" not in check.summary


def test_each_subject_has_one_outcome_that_can_be_recorded(check: FactCheck, facts: FleetFacts) -> None:
    outcomes = outcomes_of(check, facts)
    assert outcomes
    assert len({outcome.subject for outcome in outcomes}) == len(outcomes)
    for outcome in outcomes:
        assert from_json(Outcome, json.loads(json.dumps(to_json(outcome)))) == outcome


def test_it_is_pure(check: FactCheck, facts: FleetFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a check reads no file and no clock")

    before = to_json([launch.records for launch in facts.launches])
    with monkeypatch.context() as patch:
        for place in ("builtins.open", "io.open", "time.time", "time.monotonic", "time.perf_counter"):
            patch.setattr(place, refuse)
        first, second = outcomes_of(check, facts), outcomes_of(check, replace(facts, launches=[*facts]))
    assert first == second
    assert to_json([launch.records for launch in facts.launches]) == before


@pytest.mark.parametrize("run", ["nothing", "not finished", "failed"])
def test_nothing_finished_is_no_pass(check: FactCheck, run: str) -> None:
    outcomes = outcomes_of(check, FleetFacts(launches=RUNS[run]))
    assert not {outcome.status for outcome in outcomes} & {"PASS", "WARN"}


def test_a_name_that_no_check_has_is_refused_with_the_nearest_of_ours() -> None:
    with pytest.raises(UsageError, match="no check is called 'clock'") as caught:
        find_check("clock")
    assert "Did you mean 'clocks'?" in str(caught.value)
