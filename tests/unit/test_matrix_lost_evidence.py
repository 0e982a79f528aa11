"""What a matrix may call best when something of it was lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cases_by_hand import cases_of, done_case
from gpuproof.records.case import CommandWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.work.command import CommandEnded, read_metrics
from gpuproof.suites.matrix.compare import differing_work
from gpuproof.suites.matrix.plan import plan
from unit.test_matrix_cases import all_cases, ended, recipe
from unit.test_matrix_ranking import ranked

GROUPS = {"a": [0.90, 0.91, 0.905], "b": [0.80, 0.81, 0.805]}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_seed_that_did_less_work_is_seen_wherever_it_stands(place: int) -> None:
    cases = cases_of(GROUPS, steps=5000.0)
    cases[place] = replace(cases[place], metrics={**cases[place].metrics, "steps": 50.0})
    (doubt,) = differing_work(cases)
    assert f"50 steps for a_{place}, 5000 for a_" in doubt.reason
    assert ranked(cases).best is None


def test_a_metric_that_nothing_has_is_said() -> None:
    found = ranked(cases_of(GROUPS), "no_such_metric")
    assert (found.best, found.missing) == (None, "no launch has no_such_metric")


def test_a_configuration_that_lost_its_metric_is_not_called_compared() -> None:
    cases = cases_of({**GROUPS, "c": [0.95, 0.96, 0.955]})
    lost = [replace(case, metrics={}) if case.configuration == "c" else case for case in cases]
    assert ranked(lost).left_out == {"c": "c has accuracy in only 0 of 3 launches"}
    some = cases_of({"a": [0.90, 0.91, 0.905, 0.1, 0.1], "b": [0.80, 0.81, 0.805]})
    few = [replace(case, metrics={}) if case.metrics["accuracy"] == 0.1 else case for case in some]
    assert ranked(few).best is None


def test_schedules_are_compared_at_the_same_relative_point() -> None:
    course = tuple(1 - step / 99 for step in range(100))
    often = replace(done_case("often", 1), schedules={"learning_rate": course})
    rarely = replace(done_case("rarely", 1), schedules={"learning_rate": course[::11]})
    assert list(differing_work([often, rarely])) == []
    begin = replace(done_case("begin", 1), schedules={"learning_rate": course[:10]})
    assert [doubt.code for doubt in differing_work([often, begin])] == ["unlike-learning-rate"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"epochs": [{"loss": 0.5}, {"loss": NaN}]}', "m.json"),
        ('{"loss": 0.5}\n{"loss": Infinity}\n{"other": 1}\n', "m.jsonl"),
        ("epoch,loss\n1,0.5\n2,nan\n", "m.csv"),
    ],
)
def test_a_last_value_of_nan_is_no_value_and_not_the_one_before(text: str, name: str) -> None:
    assert "loss" not in read_metrics(text, name=name).values


def test_a_value_that_is_not_written_in_the_last_row_is_the_last_written() -> None:
    assert read_metrics("epoch,loss\n1,0.5\n2,\n", name="m.csv").values["loss"] == 0.5


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"wall_s": -1.0}, "but took -1 s"),
        ({"wall_s": 3.0}, "but took 3 s"),
        ({"returncode": 1}, "its command ended with status 1"),
        ({"ended_by": "time_limit"}, "its command ended with status 0"),
        (None, "has 0 records CommandEnded"),
    ],
)
def test_a_done_launch_whose_command_did_not_end_so_is_a_contradiction(changed: Any, said: str) -> None:
    (case, *_) = all_cases(plan(recipe()))
    whole = ended(case)
    own = [
        replace(record, **changed) if changed and isinstance(record, CommandEnded) else record
        for record in whole.records
        if changed or not isinstance(record, CommandEnded)
    ]
    assert isinstance(case.work, CommandWork)
    work = replace(case.work, command=replace(case.work.command, metrics=None))
    found = CaseRecords(case=replace(case, work=work), records=tuple(own)).first_contradiction
    assert said in str(found)
    assert CaseRecords(case=replace(case, work=work), records=whole.records).first_contradiction is None
