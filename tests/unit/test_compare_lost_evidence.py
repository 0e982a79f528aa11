"""Comparisons that rest on something that was lost."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

from ab_by_hand import NOISE, config, launched, run_to_its_end, sections
from concluding import words_of
from gpuproof.campaign.conclude import conclude
from gpuproof.comparison.conditions import conditions_of, differing_keys
from gpuproof.comparison.runs import compare_runs
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from records_by_hand import failure, start, write_run
from served_by_hand import records, spec_in
from unit.test_compare_runs import CONFIG, RATES, finished, rate, text

GATE = {"max_regression": 0.0, "find": 0.05}


@pytest.mark.parametrize("num_kept", [8, 10, 15])
def test_a_regression_whose_confirmation_is_missing_is_not_excluded(num_kept: int, tmp_path: Path) -> None:
    launches = run_to_its_end(config(**GATE), 0.05)[:num_kept]
    done = conclude(write_run(tmp_path, launches, **sections(**GATE)))
    assert "NO REGRESSION" not in words_of(done)
    assert done.result.exit_code == 4


def test_a_regression_whose_confirmation_failed_is_not_excluded(tmp_path: Path) -> None:
    def end(case: Case, slower: float) -> CaseRecords:
        if case.replicate >= 4 and case.case_id == "b":
            return CaseRecords(case=case, records=(start(), failure("out_of_memory")))
        return launched(case, slower)

    launches = run_to_its_end(config(**GATE), 0.05, end)
    done = conclude(write_run(tmp_path, launches, **sections(**GATE)))
    assert (done.result.verdict, done.result.exit_code) == ("CANNOT TELL", 3)


def served_sections() -> dict[str, Any]:
    return {
        "kind": "serving",
        "suite": "ab",
        "ab": {
            "b": {"serving.max_batch": 64},
            "pilot_pairs": 4,
            "max_pairs": 8,
            "max_regression": 0.05,
            "find": 0.1,
        },
        "serving": {"latency_bound_s": 0.05, "rate_per_s": 100.0, "min_requests": 100},
        "monitoring": {"enabled": False},
    }


@pytest.mark.parametrize("late", [range(100), [2]])
def test_a_side_without_goodput_does_not_pass_by_its_latency(late: Any, tmp_path: Path) -> None:
    def served(case: Case, slower: float) -> CaseRecords:
        is_late = case.case_id == "b" and case.replicate in late
        middle_s = (0.051 if is_late else 0.049) * exp(
            NOISE[(2 * case.replicate + (case.case_id == "b")) % 5] / 10
        )
        latencies = [middle_s * (1 + (k % 11 - 5) / 1000) for k in range(200)]
        return replace(records(latencies, spec=spec_in(case)), case=case)

    launches = run_to_its_end(RunConfig.model_validate(served_sections()), 0.0, served)
    done = conclude(write_run(tmp_path, launches, **served_sections()))
    assert (done.result.verdict, done.result.exit_code) == ("CANNOT TELL", 4)
    assert "B has a launch of goodput 0" in words_of(done)


def test_a_run_that_lacks_launches_passes_no_gate() -> None:
    points = [rate(RATES, case=case, value=v) for case, v in (("x", 1.0), ("y", 2.0))]
    a = finished(*points, num_launches=10, num_planned=10)
    b = finished(points[0], name="results/y", num_launches=5, num_planned=10, exit_code=3)
    found = compare_runs(a, b, max_regression=0.05)
    assert (found.verdict, found.exit_code) == ("CANNOT TELL", 4)
    assert "only 5 of 10 launches of results/y were measured" in text(found)


def test_a_measure_that_b_lost_passes_no_gate() -> None:
    step = rate([1 / x for x in RATES], name="p50 step", unit="s", better="lower")
    found = compare_runs(finished(rate(RATES), step), finished(step, name="results/y"), max_regression=0.05)
    assert (found.verdict, found.exit_code) == ("CANNOT TELL", 4)
    assert (
        compare_runs(finished(step), finished(step, rate(RATES), name="y"), max_regression=0.05).exit_code
        == 0
    )


@pytest.mark.parametrize("key", ["power_limit_w", "clock_sm_application_mhz", "mig_mode", "ecc_mode"])
def test_settings_of_the_cards_used_are_conditions(key: str) -> None:
    def of(value: Any, uuid: str = "GPU-1") -> dict[str, Any]:
        cards = [{"uuid": uuid, "static": {key: value}}]
        facts = {"devices": [{"name": "H100", "uuid": "GPU-1"}], "accelerators": {"devices": cards}}
        return conditions_of(finished(rate(RATES)).result, CONFIG, {"node1": facts})

    assert [x.key for x in differing_keys(of(1), of(2))] == [f"machine.devices.{key}"]
    assert not differing_keys(of(1, "GPU-2"), of(2, "GPU-2"))  # of a card that the run did not use


def test_a_run_compared_with_itself_passes_no_gate() -> None:
    a = finished(rate(RATES))
    found = compare_runs(a, a, max_regression=0.05)
    assert (found.verdict, found.exit_code) == ("CANNOT TELL", 4)
    assert "A and B are the same run, x" in text(found)


def test_launches_that_differ_by_rounding_only_are_identical() -> None:
    from gpuproof.statistics.comparison import compare_launches

    a = [0.91, 0.91, 0.91 * (1 + 3e-16)]
    found = compare_launches(a, [0.9, 0.9, 0.9], better="higher", is_cautious=True)
    assert (found.verdict, str(found.reason).partition(":")[0]) == (
        "cannot tell",
        "all launches are identical",
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plain.yaml", "sweep.yaml"), "without matrix or search"),
        (("plain.yaml", "--b.run.start=fork"), "A and B are the same configuration (keys of run, "),
        (("plain.yaml", "plain.yaml"), "A and B are the same configuration"),
    ],
)
def test_sides_that_do_not_differ_or_are_sweeps_are_refused(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from gpuproof.cli.main import cli

    monkeypatch.chdir(tmp_path)
    Path("plain.yaml").write_text("model: {name: medium}\n", encoding="utf-8")
    Path("sweep.yaml").write_text(
        "model: {name: medium}\nmatrix: {data.batch_size: [1, 2]}\n", encoding="utf-8"
    )
    shown = CliRunner().invoke(cli, ["compare", "--ab", *words, "--dry-run"])
    assert said in str(shown.exception), shown.output


@pytest.mark.parametrize(
    "facts",
    [
        None,
        [],
        "x",
        {"cpu": "x"},
        {"environment": 5},
        {"devices": [None]},
        {"accelerators": {"drivers": {"nvidia": 1}}},
    ],
)
def test_facts_of_another_shape_are_a_damaged_file(facts: Any, tmp_path: Path) -> None:
    import json

    from gpuproof.base.errors import RecordError
    from gpuproof.campaign.finished import read_finished
    from unit.test_compare_runs import written

    root = written(tmp_path, 0.01, "x")
    (root / "environment.json").write_text(json.dumps({"node1": facts}), encoding="utf-8")
    with pytest.raises(RecordError, match="does not contain facts of hosts"):
        read_finished(root)


@pytest.mark.parametrize("row", [{}, None, {"case_id": "main", "replicate": [], "clock_sm_mhz": 1}])
def test_rows_of_another_shape_are_a_damaged_result(row: Any) -> None:
    from gpuproof.base.errors import RecordError

    a = finished(rate(RATES))
    with pytest.raises(RecordError, match="is damaged"):
        compare_runs(a, finished(rate(RATES), name="y", detail={"common": {"devices": [row]}}))
    with pytest.raises(RecordError, match="is damaged"):
        compare_runs(a, finished(rate(RATES), name="y", detail={"points": None}))


@pytest.mark.parametrize("mhz", [-1.0, float("nan"), float("inf")])
def test_an_impossible_clock_is_no_clock(mhz: float) -> None:
    a, b = (
        finished(rate(times), name=n, clocks_mhz=[1980, mhz, 1980, 1980, 1980])
        for n, times in (("x", RATES), ("y", [0.9 * x for x in RATES]))
    )
    assert "clocks were not read during every launch" in text(compare_runs(a, b))
