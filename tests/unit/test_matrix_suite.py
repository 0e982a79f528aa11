"""A sweep as launches: names, order, how they start, and what is left to do."""

from __future__ import annotations

from typing import Any

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.config.matrix import point_names
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment
from gpuproof.suites.sweep.plan import points_of_matrix
from planning import next_cases, suite_of

MATRIX = {"training.precision": ["fp32", "bf16"], "data.batch_size": [32, 64]}


def config(matrix: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"model": {"name": "medium"}, "matrix": MATRIX if matrix is None else matrix, **sections}
    )


def launched(cases: list[Case]) -> list[CaseRecords]:
    return [CaseRecords(case=case, records=()) for case in cases]


def test_each_point_is_a_recipe_of_its_own() -> None:
    asked = config()
    assert suite_of(asked).name == "sweep"
    assert list(points_of_matrix(asked)) == [
        "precision=fp32,batch_size=32",
        "precision=fp32,batch_size=64",
        "precision=bf16,batch_size=32",
        "precision=bf16,batch_size=64",
    ]
    cases = {case.case_id: case for case in next_cases(asked)}
    chosen = cases["precision=bf16,batch_size=64"]
    work = chosen.model_work
    assert (work.training.precision, work.data.batch_size, chosen.replicate) == ("bf16", 64, 0)
    assert {point.config.matrix == {} for point in points_of_matrix(asked).values()} == {True}


def test_replicates_go_round_in_an_order_that_the_seed_decides() -> None:
    asked = config(run={"repeats": 5})
    cases = next_cases(asked)
    assert [case.replicate for case in cases] == [r for r in range(5) for _ in range(4)]
    rounds = [[case.case_id for case in cases[at : at + 4]] for at in range(0, 20, 4)]
    assert all(set(order) == set(rounds[0]) for order in rounds)
    assert len({tuple(order) for order in rounds}) > 1
    assert cases == next_cases(asked)
    other = next_cases(config(run={"repeats": 5, "order_seed": 1}))
    assert [case.case_id for case in other] != [case.case_id for case in cases]


def test_what_was_launched_is_not_launched_again_and_the_order_stays() -> None:
    asked = config(run={"repeats": 2})
    cases = next_cases(asked)
    assert next_cases(asked, launched(cases[:3])) == cases[3:]
    assert next_cases(asked, launched(cases)) == []


def test_launches_describe_the_host_until_one_has() -> None:
    cases = next_cases(config())
    lost = launched(cases[:1])
    told = [CaseRecords(case=cases[1], records=(Environment(host="here", facts={}),))]
    assert {case.capture_env for case in next_cases(config(), lost)} == {True}
    assert [case.capture_env for case in next_cases(config(), [*lost, *told])] == [False, False]


@pytest.mark.parametrize(
    ("sections", "start"),
    [
        ({}, "fork"),
        ({"run": {"start": "exec"}}, "exec"),
        ({"run": {"repeats": 3}}, "exec"),
        ({"run": {"repeats": 3, "start": "fork"}}, "fork"),
        ({"distributed": {"nproc": 2}}, "exec"),
        ({"training": {"compile": {"enabled": True}}}, "exec"),
    ],
)
def test_a_sweep_forks_where_no_interval_between_launches_is_lost(
    sections: dict[str, Any], start: str
) -> None:
    assert {case.start for case in next_cases(config(**sections))} == {start}


def test_a_single_recipe_is_not_forked_unless_asked() -> None:
    assert [case.start for case in next_cases(config(matrix={}))] == ["exec"]


def test_options_of_a_workload_are_swept_and_checked_at_each_point() -> None:
    asked = config(matrix={"model.options.input_dim": [9, 10]})
    assert {case.model_work.model.options["input_dim"] for case in next_cases(asked)} == {9, 10}
    with pytest.raises(UsageError, match=r"unknown option \(at the point colour=red\)"):
        next_cases(config(matrix={"model.options.colour": ["red"]}))


def test_a_point_that_is_no_recipe_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="at the point"):
        next_cases(config(matrix={"data.batch_size": [0]}))


def test_names_are_folders_and_never_the_same() -> None:
    points: list[dict[str, Any]] = [
        {"a.b": "x/y"},
        {"a.b": "x y"},
        {"a.b": True},
        {"a.b": "../up"},
        {"a.b": "long" * 40},
    ]
    names = point_names(points, {"a.b": "b"})
    assert len(set(names)) == len(points)
    assert all(len(name) <= 100 and "/" not in name and " " not in name for name in names)
    assert names[2:4] == ["b=true", "b=up"]
