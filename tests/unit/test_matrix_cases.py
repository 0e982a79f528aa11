"""The cases of a matrix as they are planned: which, in what order, how many at once, and how long yet."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from concluding import notes_of
from gpuproof.campaign.conclude import conclude
from gpuproof.config.kconfig import words_of
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.base import Facts
from gpuproof.config.settings import ConfigError
from gpuproof.records.case import Case, CommandWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Failure, RankResult
from gpuproof.records.work.command import CommandEnded, CommandMetrics
from gpuproof.suites.cases import build_case
from gpuproof.suites.matrix import SUITE
from gpuproof.suites.matrix.plan import MatrixPlan, plan
from records_by_hand import start, write_run

TEMPLATE = {"argv": ["train", "--optimizer={optimizer}", "--seed={seed}", "{output_dir}"]}
AXES: dict[str, list[Any]] = {"optimizer": ["sgd", "adam"], "seed": [1, 2, 3]}


def recipe(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"kind": "command", "command": TEMPLATE, "matrix": AXES, **sections})


def ended(case: Case, *, wall_s: float = 1.0, returncode: int = 0) -> CaseRecords:
    taken = CommandEnded(
        rank=0,
        returncode=returncode,
        ended_by="itself",
        wall_s=wall_s,
        cpu_s=0.0,
        begin_monotonic_s=0.0,
        end_monotonic_s=wall_s,
        left_behind=0,
    )
    failed = Failure(
        rank=0,
        host="h",
        phase="command",
        cause="exit_status",
        message=f"{case.case_id} gave {returncode}",
        unix_s=0.0,
    )
    last = failed if returncode else RankResult(rank=0, monotonic_s=40.0 + wall_s, last_loss=None)
    return CaseRecords(case=case, records=(start(), taken, last))


def all_cases(planned: MatrixPlan) -> list[Case]:
    return [planned.case(key) for key in planned.order]


def argv(case: Case) -> tuple[str, ...]:
    assert isinstance(case.work, CommandWork)
    return case.work.command.argv


def test_every_combination_fills_the_template_once() -> None:
    planned = plan(recipe())
    words = {argv(case)[1:3] for case in all_cases(planned)}
    assert words == {(f"--optimizer={o}", f"--seed={s}") for o in AXES["optimizer"] for s in AXES["seed"]}
    assert {argv(case)[3] for case in all_cases(planned)} == {"{output_dir}"}
    assert {case.start for case in all_cases(planned)} == {"exec"}
    assert all(case.monitor is not None for case in all_cases(planned))


def test_as_many_run_at_once_as_are_asked_for() -> None:
    planned = plan(recipe(cases={"parallel": 4}))
    first = list(planned.next([]))
    assert len(first) == 4
    assert {case.placement.exclusive for case in first} == {"nothing"}
    assert {case.placement.share.cases_at_once for case in first if case.placement.share} == {4}
    running = [(case.case_id, 0) for case in first]
    assert list(planned.next(running)) == []
    after = planned.settle(ended(first[0]))
    (following,) = after.next(running[1:])
    assert following.case_id not in {case.case_id for case in first}


def test_a_queue_gets_all_cases_at_once_and_each_has_its_own_devices() -> None:
    queued = plan(recipe(), num_hosts=0)
    assert len(list(queued.next([]))) == 6
    limited = plan(recipe(cases={"parallel": 2}), num_hosts=0)
    first = list(limited.next([]))
    assert len(first) == 2
    assert {case.placement.share for case in first} == {None}
    assert len(list(plan(recipe(cases={"stop_on_failure": True}), num_hosts=0).next([]))) == 1
    assert SUITE.remaining(queued.settle(ended(first[0]))).seconds is None


def test_the_time_left_goes_by_what_cases_of_a_kind_took() -> None:
    planned = plan(recipe())
    assert SUITE.remaining(planned).seconds is None
    by_optimizer = {"sgd": 10.0, "adam": 100.0}
    for case in all_cases(planned)[:4]:
        optimizer = argv(case)[1].partition("=")[2]
        planned = planned.settle(ended(case, wall_s=by_optimizer[optimizer]))
    left = [argv(case)[1].partition("=")[2] for case in planned.next([]) or ()]
    rest = [planned.cases[name]["optimizer"] for name, _ in planned.order[4:]]
    assert left == rest[:1]
    assert SUITE.remaining(planned).num_launches == 2
    assert planned.seconds_left == pytest.approx(sum(by_optimizer[str(name)] for name in rest))


def test_one_failure_stops_a_matrix_that_is_to_stop() -> None:
    for stops, left in ((True, 0), (False, 5)):
        planned = plan(recipe(cases={"stop_on_failure": stops}))
        (first,) = planned.next([])
        after = planned.settle(ended(first, returncode=3))
        assert after.num_left == left
        assert len(list(after.next([]))) == min(1, left)


def test_the_others_are_not_begun_where_the_first_three_fail_alike() -> None:
    for first, keeps_going, left in (
        ([3, 3, 3], False, 0),
        ([3, 3, 3], True, 3),
        ([3, 3], False, 4),
        ([0, 3, 3, 3], False, 2),  # one that ended well shows that the others may, too
        ([3, 4, 3], False, 3),  # for another reason
    ):
        planned = plan(recipe(cases={"keep_going": keeps_going}))
        for case, code in zip(all_cases(planned), first, strict=False):
            planned = planned.settle(ended(case, returncode=code))
        assert planned.num_left == left, first
        assert len(list(planned.next([]))) == min(1, left)


def test_cases_are_chosen_by_their_fields() -> None:
    chosen = plan(recipe(cases={"only": ["optimizer=adam", "seed=1,3"]}))
    assert sorted(chosen.cases) == ["optimizer=adam,seed=1", "optimizer=adam,seed=3"]
    named = plan(recipe(cases={"name": "{optimizer}_{seed}"}))
    assert {"sgd_1", "adam_3"} <= set(named.cases)


def test_a_launch_costs_as_much_in_a_matrix_of_9000_as_of_9(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def counted(config: RunConfig, replicate: int, *, case_id: str, **more: Any) -> Case:
        built.append(case_id)
        return build_case(config, replicate, case_id=case_id, **more)

    monkeypatch.setattr(sys.modules[MatrixPlan.__module__], "build_case", counted)
    for size in (9, 9000):
        built.clear()
        planned = plan(recipe(matrix={"optimizer": ["sgd"], "seed": list(range(size))}))
        assert next(planned.next([])).case_id in planned.cases
        assert len(built) == 1


def refused(text: str, tmp_path: Path, words: Sequence[str] = ()) -> str:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), ["--suite=matrix", *words])
    return str(caught.value).replace(str(path), "m.yaml")


COMMAND = 'command: [run, "{a}"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (COMMAND + "matrix:\n  b: [1]\n", "m.yaml:1: command.argv: the field {a} has no value"),
        (COMMAND + "matrix:\n  a: [1]\n  b: [1, 2]\n", "m.yaml:4: matrix.b: the command does not use b"),
        (COMMAND + "matrix:\n  a: []\n", "m.yaml:3: matrix.a: expected a list of values"),
        (COMMAND + "matrix:\n  a: [1]\n  exclude: [{a: 1}]\n", "m.yaml:3: matrix.a: every point is excluded"),
        (COMMAND + f"matrix:\n  a: {list(range(10_001))}\n", "m.yaml:3: matrix.a: 10,001 combinations"),
        (COMMAND + "matrix:\n  a: [1, 2]\ncases:\n  name: same\n", "m.yaml:5: cases.name: 2 cases have"),
        (
            COMMAND + "matrix:\n  a: [1]\n  include: [{a: 1}]\n",
            "m.yaml:4: matrix.include: a=1 is listed already",
        ),
        (COMMAND + "matrix:\n  a: [1]\ncases:\n  only: [a=2]\n", "m.yaml:5: cases.only: no case matches"),
        (COMMAND + "matrix:\n  a: [[1]]\n", "m.yaml:3: matrix.a: [1] is not a single value"),
        (
            COMMAND + "matrix:\n  a: [1]\nmodel:\n  name: cnn\n",
            "m.yaml:5: model.name: unknown key when kind is command",
        ),
        ("kind: command\n", "kind is command, but no command is given"),
        (
            'command:\n  argv: ["{a}"]\n  metrics: m.json\nmatrix:\n  a: [1, 2]\ncases:\n  parallel: 2\n',
            "m.yaml:7: cases.parallel: concurrent cases would overwrite",
        ),
    ],
)
def test_bad_input_is_refused_at_its_line(text: str, said: str, tmp_path: Path) -> None:
    assert said in refused(text, tmp_path)


def test_every_case_without_figures_is_named_with_its_reason(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "kind": "command",
        "command": TEMPLATE,
        "matrix": AXES,
        "suite": "matrix",
        "data": {},
        "model": {},
    }
    launches = []
    for case in all_cases(plan(recipe())):
        metrics = {"rank": 0, "file": "m.json", "values": {}, "series": {}}
        reason = "no m.json: none was written" if "seed=3" not in case.case_id else "m.json: no JSON"
        records = (*ended(case).records, CommandMetrics(**metrics, missing=reason))  # type: ignore[arg-type]
        launches.append(CaseRecords(case=case, records=records))
    notes = notes_of(conclude(write_run(tmp_path, launches, **sections)))
    without = " reported no results: "
    told = {note.partition(without)[2]: note for note in notes if without in note}
    assert {reason: note.count("seed=") for reason, note in told.items()} == {
        "no m.json: none was written": 4,
        "m.json: no JSON": 2,
    }


@pytest.mark.parametrize(
    ("command", "axis", "cause"),
    [
        (
            {"argv": ["no-such-program", "{x}"]},
            ["1", "2"],
            "m.yaml:1: command.argv: there is no program no-s",
        ),
        ({"argv": ["{x}"]}, ["ls", "no-such"], "there is no program no-such, or it is not executable"),
        ({"argv": ["./own", "{x}"], "cwd": "below"}, ["1"], "there is no program below/./own, or"),
        ({"argv": ["ls", "{x}"], "env": {"PATH": "/nowhere"}}, ["1"], "there is no program ls"),
        ({"argv": ["ls", "{x}"]}, ["1"], None),
        ({"argv": ["./own", "{x}"]}, ["1"], None),
        ({"argv": ["{output_dir}/built", "{x}"]}, ["1"], None),
    ],
)
def test_a_missing_program_is_found_before_anything_is_launched(
    command: dict[str, Any],
    axis: list[str],
    cause: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own").touch(mode=0o755)
    Path("m.yaml").write_text(f"command: {json.dumps(command)}\nmatrix:\n  x: {json.dumps(axis)}\n")
    facts = Facts(hosts=(), environment={"PATH": "/usr/bin:/bin"})
    load_config("m.yaml", ["--suite=matrix"], facts=replace(facts, hosts=None))  # elsewhere a launch tells
    if cause is None:
        load_config("m.yaml", ["--suite=matrix"], facts=facts)
        return
    with pytest.raises(ConfigError) as caught:
        load_config("m.yaml", ["--suite=matrix"], facts=facts)
    assert cause in str(caught.value)


def test_a_kconfig_file_names_the_cases_that_can_be(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text('command: [t, "{model}", "{optimizer}", "{pruning}", "{sparsity}", "{epochs}"]\n')
    words = words_of(
        'CONFIG_TEST_MODELS="lenet5"\nCONFIG_TEST_OPTIMIZERS="sgd,adamwprune"\n# a comment\n'
        'CONFIG_TEST_PRUNING_METHODS="none,magnitude,state"\nCONFIG_TEST_SPARSITY_70=y\n'
        "CONFIG_TEST_SPARSITY_95=y\nCONFIG_NUM_EPOCHS=2\n",
        source=".config",
    )
    planned = plan(load_config(str(path), ["--suite=matrix", *words]).config)
    found = {tuple(one.values())[1:] for one in planned.cases.values()}
    assert found == {
        ("sgd", "none", 0.0),
        ("sgd", "magnitude", 0.7),
        ("sgd", "magnitude", 0.95),
        ("adamwprune", "none", 0.0),
        ("adamwprune", "state", 0.7),
        ("adamwprune", "state", 0.95),
    }
    with pytest.raises(ConfigError, match=r"\.config:1: .TEST_MODELS=x. is not a line of Kconfig"):
        words_of("TEST_MODELS=x", source=".config")
    with pytest.raises(ConfigError, match="it names no case"):
        words_of("CONFIG_NUM_EPOCHS=2", source=".config")
