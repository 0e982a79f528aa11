"""Two configurations in turns: the order, how many pairs, what is confirmed, and what it comes to."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ab_by_hand import concluded, config, launched, run_to_its_end, sections
from concluding import are_figures_measures, table_of, text_of, words_of
from gpuproof.base.errors import UsageError
from gpuproof.campaign.conclude import conclude
from gpuproof.cli.main import cli
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import NotApplied, Setup
from gpuproof.suites.ab import SUITE
from gpuproof.suites.ab.plan import RATE, AbOptions, LaunchFigures, course, launch_order
from gpuproof.suites.base import HostPlace, LaunchKey
from planning import HERE, next_cases
from records_by_hand import failure, start, write_run


def test_figures_of_sides_give_their_ratio_and_a_throughput_has_one_value(tmp_path: Path) -> None:
    done = concluded(tmp_path, 0.5)
    (compared,) = done.result.detail["ab"]["measures"]
    ratio = compared["comparison"]["ratio"]["centre"]
    assert compared["b"]["value"] / compared["a"]["value"] == pytest.approx(ratio, rel=1e-12)
    assert (
        "A and B are geometric means of the launches, and B against A is the ratio B/A; elsewhere"
        in text_of(done)
    )
    for side in ("a", "b"):
        values = [m.value for m in done.result.measures if m.case == side and m.name == "throughput"]
        assert len(values) == 2  # of the whole and of its one device
        assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_launches_take_turns_and_each_side_is_its_own_recipe() -> None:
    cases = next_cases(config())
    turns = [case.case_id for case in cases]
    assert len(turns) == 8
    for block in (turns[:4], turns[4:]):
        assert block in (["a", "b", "b", "a"], ["b", "a", "a", "b"])
    precisions = {case.case_id: case.model_work.training.precision for case in cases}
    assert precisions == {"a": RunConfig().training.precision, "b": "bf16"}
    assert {case.start for case in cases} == {"exec"}


def test_turns_are_drawn() -> None:
    assert launch_order([True]) == [("b", "a"), ("a", "b")]


def figures(*ratios: float, first: int = 0) -> dict[LaunchKey, LaunchFigures]:
    pairs = enumerate(ratios, start=first)
    return {
        key: value
        for pair, ratio in pairs
        for key, value in ((("a", pair), {RATE: 100.0}), (("b", pair), {RATE: 100.0 * exp(ratio)}))
    }


def test_the_spread_of_the_pilot_says_how_many_pairs() -> None:
    # s = 0.02·√(4/3) = 0.0231; t(0.975; 3) + t(0.99; 3) = 3.182 + 4.541: (7.723·0.0231/log 1.03)² = 36.4
    options = AbOptions(pilot_pairs=4, max_pairs=60)
    pilot = figures(0.02, -0.02, 0.02, -0.02)
    assert course(options, {}).num_pairs == 4
    assert course(options, pilot).needed == 37
    assert course(options, pilot).num_pairs == 37
    capped = course(AbOptions(pilot_pairs=4, max_pairs=10), pilot)
    assert (capped.num_pairs, capped.is_short) == (10, True)
    calm = course(options, figures(0.001, -0.001, 0.001, -0.001))
    assert (calm.num_pairs, calm.is_short) == (4, False)


def test_a_regression_is_confirmed_only_for_a_gate_and_only_where_one_shows() -> None:
    gate = AbOptions(pilot_pairs=4, max_regression=0.0)
    worse, same = figures(-0.05, -0.051, -0.049, -0.05), figures(0.001, -0.001, 0.001, -0.001)
    assert course(gate, worse).suspected == (RATE,)
    assert course(gate, worse).total == 8
    assert course(gate, same).total == 4
    assert course(AbOptions(pilot_pairs=4), worse).total == 4
    assert course(AbOptions(pilot_pairs=4, max_regression=0.1, find=0.2), worse).total == 4


def test_launches_that_failed_leave_their_pair_out() -> None:
    some = figures(0.001, -0.001, 0.001, -0.001) | {("a", 1): {}}
    assert course(AbOptions(pilot_pairs=4), some).needed == 4
    none: dict[LaunchKey, LaunchFigures] = {("a", pair): {} for pair in range(4)} | {
        ("b", pair): {RATE: 1.0} for pair in range(4)
    }
    found = course(AbOptions(pilot_pairs=4), none)
    assert (found.num_pairs, found.needed, found.is_short) == (4, None, True)


@pytest.mark.parametrize(
    ("slower", "limit", "word", "code", "launches"),
    [
        (0.05, 0.0, "REGRESSION", 3, 16),
        (0.0, 0.0, "NO REGRESSION", 0, 8),
        (-0.05, 0.0, "NO REGRESSION", 0, 8),
        (0.05, None, "SLOWER", 0, 8),
        (0.0, None, "NO DIFFERENCE SHOWN", 0, 8),
    ],
)
def test_what_launches_in_turns_come_to(
    slower: float, limit: float | None, word: str, code: int, launches: int, tmp_path: Path
) -> None:
    done = concluded(tmp_path, slower, max_regression=limit, find=0.05)
    assert (done.result.verdict, done.result.exit_code) == (word, code), text_of(done)
    assert done.result.num_launches == done.result.num_planned == launches
    assert are_figures_measures(done)
    (row,) = table_of(done, "Measures")
    assert row["launches"].text == "4 + 4"
    assert (("confirmation" in row) and bool(row["confirmation"].text)) is (launches == 16)
    shown = words_of(done)
    assert "training.precision: " in shown
    assert "4 pairs are needed to find a difference of 5.0 %" in shown


def test_a_gate_that_lacks_the_launches_it_takes_passes_nothing(tmp_path: Path) -> None:
    done = concluded(tmp_path, 0.0, max_regression=0.0, find=0.002)
    assert (done.result.verdict, done.result.exit_code) == ("CANNOT TELL", 4)
    assert "but max_pairs allows only 8" in words_of(done)


def test_launches_that_fail_decide_the_exit_code(tmp_path: Path) -> None:
    def end(case: Case, slower: float) -> CaseRecords:
        if case.case_id == "b" and case.replicate == 1:
            return CaseRecords(case=case, records=(start(), failure("out_of_memory")))
        return launched(case, slower)

    launches = run_to_its_end(config(max_regression=0.0, find=0.05), 0.0, end)
    done = conclude(write_run(tmp_path, launches, **sections(max_regression=0.0, find=0.05)))
    assert done.result.exit_code == 3
    assert "out of memory" in words_of(done)


@pytest.mark.parametrize(
    ("changed", "block"),
    [
        ({"kind": "serving"}, {}),
        ({"matrix": {"data.batch_size": [1, 2]}}, {}),
        ({}, {"b": {"data.batch": 1}}),
    ],
)
def test_what_has_no_two_sides_is_refused(changed: dict[str, Any], block: dict[str, Any]) -> None:
    with pytest.raises((UsageError, ValueError)):
        SUITE.begin(RunConfig.model_validate({**sections(**block), **changed}), HERE)
    with pytest.raises(UsageError, match="a single machine"):
        SUITE.begin(config(), (HostPlace(name="node1"),))


@pytest.mark.parametrize(
    "block", [{"find": 0.01, "max_regression": 0.02}, {"pilot_pairs": 2}, {"pilot_pairs": 9}, {"find": 1.0}]
)
def test_options_that_make_no_sense_are_refused(block: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"find must be|pilot_pairs \(\d\) must be .* --ab.OPTION=VALUE"):
        config(**block)


DRY = ("--dry-run", "--verbose", "--training.precision=fp32")


@pytest.mark.parametrize(
    ("words", "num"),
    [
        (("--ab", "quick", "--b.data.batch_size=64", *DRY), 20),
        (("--aa", "quick", "--ab.pilot_pairs=3", *DRY), 6),
    ],
)
def test_the_command_plans_both_sides(words: tuple[str, ...], num: int, tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["compare", *words, "--save-dir", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("gpuproof.worker run") == num
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ab", "quick"), "--ab two, or one with side-specific keys"),
        (("--aa", "quick", "--a.data.batch_size=2"), "--aa takes one configuration"),
        (("--ab", "quick", "--b.data.batch_sze=2"), "did you mean batch_size"),
        (("one",), "expected two runs to compare, not 1"),
        (("--ab", "quick", "scale"), "scale: each side must be one recipe, not the suite scale"),
        (("--ab", "quick", "quick", "--across", "x"), "are for two finished runs"),
        (("quick", "quick", "--find", "2%"), "two finished runs are compared, and nothing is launched"),
        (("quick", "quick", "--dry-run"), "Omit --dry-run"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], said: str) -> None:
    shown = CliRunner().invoke(cli, ["compare", *words])
    assert isinstance(shown.exception, UsageError)
    assert said in str(shown.exception)


@pytest.mark.parametrize(("word", "is_good"), [("2%", True), ("0.02", True), ("2", False), ("x", False)])
def test_a_share_is_a_per_cent_or_a_part_of_one(word: str, is_good: bool) -> None:
    shown = CliRunner().invoke(cli, ["compare", "none", "none", "--max-regression", word])
    assert (shown.exit_code == 2) is not is_good or isinstance(shown.exception, UsageError) is is_good


def test_a_key_that_changed_nothing_on_its_side_is_said(tmp_path: Path) -> None:
    """Settings of NCCL between ranks that talk over something else: both sides are the same program."""
    inert = NotApplied(key="distributed.communication_profile", reason="ranks talk over gloo")
    block = {"b": {"distributed.communication_profile": "tree"}, "b_name": "--b…"}

    def end(case: Case, slower: float) -> CaseRecords:
        found = launched(case, slower)
        applied = (inert,) if case.case_id == "b" else ()
        records = (replace(x, not_applied=applied) if isinstance(x, Setup) else x for x in found.records)
        return replace(found, records=tuple(records))

    launches = run_to_its_end(config(**block), 0.0, end)
    done = conclude(write_run(tmp_path, launches, **sections(**block)))
    assert "distributed.communication_profile had no effect on --b…: ranks talk over gloo" in text_of(done)


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (("--aa", "own.yaml"), "mine"),
        (("--ab", "own.yaml", "--b.training.precision=bf16", "--run.save_dir=third"), "third"),
        (("--aa", "own.yaml", "--save-dir", "other"), "other"),
        (("--aa", "quick"), "./results"),
    ],
)
def test_the_recipes_own_folder_holds_unless_one_is_named(
    words: tuple[str, ...], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"model": {"name": "lenet5"}, "data": {"name": "synthetic"}, "run": {"save_dir": "mine"}}
    Path("own.yaml").write_text(json.dumps(settings))
    shown = CliRunner().invoke(cli, ["compare", *words, "--dry-run", "--verbose"])
    assert shown.exit_code == 0, shown.output
    lines = [line for line in shown.stdout.splitlines() if "gpuproof.worker run" in line]
    assert lines
    assert all(f" {Path(folder)}/" in line for line in lines), lines[0]
