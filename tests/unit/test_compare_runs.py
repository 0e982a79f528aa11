"""Two finished runs against each other: verdicts, gates, what is refused, and what is said beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

import gpuproof
from concluding import figures_on
from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.campaign.conclude import conclude
from gpuproof.cli.main import cli
from gpuproof.comparison.conditions import conditions_of
from gpuproof.comparison.runs import FinishedRun, compare_runs, page_of
from gpuproof.records.result import Doubt, LaunchValue, Measure, Result
from gpuproof.report.formats import ReportFormat, render
from gpuproof.report.terminal import terminal_text
from gpuproof.store.provenance import of_old_tree
from records_by_hand import environment, one_rank, steady_times, write_run

RATES = (100.0, 101.0, 99.0, 100.5, 99.5)
STACK = {"node1": {"host": "node1", "torch": "2.6.0", "environment": {"NCCL_ALGO": "Ring"}}}
CONFIG = {"model": {"name": "m"}, "training": {"precision": "fp32"}, "run": {"repeats": 5}}
FEW_STEPS = Doubt(validity="SUSPECT", code="few-steps", reason="2 steps were measured", remedy="Measure more")
NOISE = Doubt(validity="SUSPECT", code="cpu-neighbours", reason="others ran beside it", remedy="Run it alone")


def rate(values: Sequence[float], *, name: str = "throughput", **changes: Any) -> Measure:
    launches = tuple(LaunchValue(replicate=i, order=i, value=value) for i, value in enumerate(values))
    value = sum(values) / len(values)
    made = Measure(name=name, value=value, unit="samples/s", text="", better="higher", launches=launches)
    return replace(made, **changes)


def finished(
    *measures: Measure,
    name: str = "results/x",
    doubts: tuple[Doubt, ...] = (),
    config: Mapping[str, Any] = CONFIG,
    hosts: Mapping[str, Any] | None = STACK,
    clocks_mhz: Sequence[float] = (),
    **changes: Any,
) -> FinishedRun:
    rows = [{"case_id": "main", "replicate": i, "clock_sm_mhz": mhz} for i, mhz in enumerate(clocks_mhz)]
    result = Result(
        suite="recipe",
        run_id=name.rpartition("/")[2],
        gpuproof_version="0.1.0",
        validity="SUSPECT" if doubts else "VALID",
        verdict="SUSPECT" if doubts else "VALID",
        headline="",
        exit_code=0,
        num_launches=5,
        num_planned=5,
        conditions={"model": "m", "precision": "fp32", "device": "GPU"},
        doubts=doubts,
        failures=(),
        measures=measures,
        detail={"common": {"devices": rows}},
    )
    result = replace(result, **changes)
    return FinishedRun(
        name=name,
        result=result,
        conditions=conditions_of(result, config, hosts),
        knows_stack=hosts is not None,
        provenance=of_old_tree(),
    )


def times(factor: float) -> tuple[float, ...]:
    return tuple(value * factor for value in RATES)


def ratios(result: Result) -> list[Measure]:
    return [measure for measure in result.measures if measure.labels["compared"] == "B over A"]


def text(result: Result) -> str:
    return " ".join(terminal_text(page_of(result), width=200).split())


@pytest.mark.parametrize(
    ("factor", "limit", "word", "code"),
    [
        (1.1, None, "FASTER", 0),
        (0.9, None, "SLOWER", 0),
        (1.0, None, "NO DIFFERENCE SHOWN", 0),
        (0.9, 0.02, "REGRESSION", 3),
        (0.9, 0.095, "CANNOT TELL", 4),  # slower, and by 7 to 12 %
        (0.999, 0.05, "NO REGRESSION", 0),
        (0.999, 0.02, "CANNOT TELL", 4),  # two sessions are more than 2 % apart in one case of six
        (1.1, 0.02, "NO REGRESSION", 0),
        (1.0, 0.001, "CANNOT TELL", 4),  # a regression of 0.1 % would not have been seen
    ],
)
def test_a_word_and_an_exit_code(factor: float, limit: float | None, word: str, code: int) -> None:
    found = compare_runs(
        finished(rate(RATES)), finished(rate(times(factor)), name="results/y"), max_regression=limit
    )
    assert (found.verdict, found.exit_code) == (word, code)
    assert word in text(found)


def test_another_version_of_gpuproof_is_a_note_and_no_other_subject() -> None:
    a = finished(rate(RATES))
    found = compare_runs(a, finished(rate(times(1.1)), name="results/y", gpuproof_version="0.2.0"))
    assert found.verdict == "FASTER"
    note = "results/x was measured with gpuproof 0.1.0, results/y with 0.2.0"
    assert note in text(found)
    assert note not in text(compare_runs(a, finished(rate(RATES), name="results/y")))


def test_a_ratio_stands_with_its_interval_and_what_would_have_been_shown() -> None:
    found = compare_runs(finished(rate(RATES)), finished(rate(RATES), name="results/y"))
    (measure,) = ratios(found)
    assert measure.value == pytest.approx(1)
    assert measure.interval is not None
    assert measure.interval.low < 1 < measure.interval.high
    assert measure.interval.kind == "between_launches"
    assert "no difference shown (one of" in measure.detail
    assert "would be needed" not in text(found)  # no number of launches takes 1 % between sessions away
    assert "A and B ran at different times" in text(found)
    assert "1.0 % between sessions" in text(found)
    same_session = compare_runs(finished(rate(RATES)), finished(rate(RATES)), between_sessions=0.0)
    assert "for a ratio to ±1 % 8 launches per side would be needed" in text(same_session)


def test_every_figure_of_the_page_is_a_measure_and_has_the_prefix_that_fits() -> None:
    sent = [rate([x * 1.48e6 for x in RATES], name="bus bandwidth", unit="B/s")]
    result = compare_runs(finished(*sent), finished(*sent, name="results/y"))
    shown = figures_on(page_of(result))
    assert [(m.labels["compared"], m.text) for m in shown[:2]] == [("A", "148 MB/s"), ("B", "148 MB/s")]
    assert shown == list(result.measures)


def test_the_interval_holds_the_launches_and_both_sessions() -> None:
    """Logarithms of five launches have s = 0.79 %: √(2·0.79²/5 + 2·1²) = 1.5 %, and 1.96 to 2.0 of them."""
    found = compare_runs(finished(rate(RATES)), finished(rate(RATES), name="results/y"))
    interval = ratios(found)[0].interval
    assert interval is not None
    assert interval.low - 1 == pytest.approx(-0.029, abs=5e-4)
    assert interval.high - 1 == pytest.approx(0.030, abs=5e-4)
    with pytest.raises(UsageError, match="not a fraction"):
        compare_runs(finished(rate(RATES)), finished(rate(RATES)), between_sessions=2.0)
    assert "each launch uses fresh processes" in text(found)


def test_many_measures_share_one_error_rate() -> None:
    sides = [
        finished(*(rate(RATES, case=f"point{i}", name="throughput") for i in range(10)), name=name)
        for name in ("results/x", "results/y")
    ]
    found = compare_runs(sides[0], sides[1])
    assert len(ratios(found)) == 10
    assert all(m.interval is not None and m.interval.level == pytest.approx(0.995) for m in ratios(found))
    assert "95% for all 10 measures together" in text(found)


def test_a_headline_that_says_a_point_again_counts_once() -> None:
    point = rate(RATES, case="batch_size=8")
    best = replace(point, name="best throughput")
    found = compare_runs(finished(best, point), finished(best, point, name="results/y"))
    assert [measure.name for measure in ratios(found)] == ["throughput, B over A"]


@pytest.mark.parametrize(
    ("other", "key"),
    [
        ({"config": {**CONFIG, "training": {"precision": "bf16"}}}, "training.precision: fp32 against bf16"),
        ({"hosts": {"node1": {**STACK["node1"], "torch": "2.7.0"}}}, "stack.torch: 2.6.0 against 2.7.0"),
        ({"conditions": {"device": "H200"}}, "device: GPU against H200"),
        (
            {"config": {**CONFIG, "data": {"pin_memory": True}}},
            "data.pin_memory: not set against true",
        ),
        ({"suite": "sweep"}, "suite: recipe against sweep"),
        ({"hosts": {"node2": {**STACK["node1"], "host": "node2"}}}, "machine.host: node1 against node2"),
    ],
)
def test_unlike_runs_are_refused_by_their_keys(other: dict[str, Any], key: str) -> None:
    a, b = finished(rate(RATES)), finished(rate(times(0.5)), name="results/y", **other)
    with pytest.raises(UsageError) as caught:
        compare_runs(a, b)
    assert key in caught.value.cause
    named = key.partition(":")[0]
    assert f"--across {named}" in (caught.value.next_step or "")
    gate = compare_runs(a, b, max_regression=0.02)
    assert (gate.verdict, gate.exit_code) == ("CANNOT TELL", 4)
    assert key in text(gate)
    stated = compare_runs(a, b, across=[named.partition(".")[0]], max_regression=0.02)
    assert (stated.verdict, stated.exit_code) == ("REGRESSION", 3)
    assert f"They differ in {key}" in text(stated)


@pytest.mark.parametrize(
    ("kind", "precision", "unlike"),
    [
        ("inference", "bf16", "inference.weights: fp32 against precision"),
        ("serving", "amp", "inference.weights: fp32 against precision"),
        ("inference", "tf32", None),
        ("training", "bf16", None),
    ],
)
def test_runs_of_before_have_weights_in_fp32(kind: str, precision: str, unlike: str | None) -> None:
    old = {"kind": kind, "training": {"precision": precision}, "inference": {"phase": "decode"}}
    new = {**old, "training": {"precision": precision, "weights": "fp32"}}
    new["inference"] = {"phase": "decode", "weights": "precision", "cuda_graphs": False}
    sides = [finished(rate(RATES), config=config) for config in (old, new)]
    if unlike is None:
        assert compare_runs(*sides).exit_code == 0
    else:
        with pytest.raises(UsageError, match=unlike):
            compare_runs(*sides)


def test_how_often_was_measured_is_no_difference_and_a_stated_one_must_be_there() -> None:
    a = finished(rate(RATES))
    b = finished(rate(RATES), name="results/y", config={**CONFIG, "run": {"repeats": 50}})
    assert compare_runs(a, b).verdict == "NO DIFFERENCE SHOWN"
    with pytest.raises(UsageError, match="do not differ in training"):
        compare_runs(a, b, across=["training"])


@pytest.mark.parametrize(
    ("b", "reason"),
    [
        (rate([100.0]), "B has 1 launch but needs 3: even two launches of the same configuration differ"),
        (rate(RATES, unit="tokens/s"), "A counts samples/s, B tokens/s"),
        (rate([0.0, 1.0, 2.0]), "B has a launch of throughput 0"),
        (
            rate(RATES, launches=tuple(replace(x, start="fork") for x in rate(RATES).launches)),
            "B: its launches were forked",
        ),
    ],
)
def test_what_cannot_be_compared_is_said_and_passes_nothing(b: Measure, reason: str) -> None:
    found = compare_runs(finished(rate(RATES)), finished(b, name="results/y"), max_regression=0.02)
    assert (found.verdict, found.exit_code) == ("CANNOT TELL", 4)
    assert reason in text(found)
    assert ratios(found)[0].value is None


@pytest.mark.parametrize("limit", [None, 0.02])
@pytest.mark.parametrize("factor", [0.9, 1.0, 5.388])
@pytest.mark.parametrize("doubts", [((), (NOISE,)), ((NOISE, FEW_STEPS), (NOISE, FEW_STEPS))])
def test_a_suspect_side_wins_nothing_and_passes_and_fails_no_gate(
    doubts: tuple[tuple[Doubt, ...], ...], factor: float, limit: float | None
) -> None:
    a = finished(rate(RATES), doubts=doubts[0])
    b = finished(rate(times(factor)), name="results/y", doubts=doubts[1])
    found = compare_runs(a, b, max_regression=limit)
    assert (found.verdict, found.exit_code, found.validity) == ("CANNOT TELL", 4, "SUSPECT")
    shown = text(found)
    assert f"CANNOT TELL: {'A' if doubts[0] else 'B'} is SUSPECT (others ran beside it)" in shown
    assert "FASTER" not in shown.upper()
    assert "+438.8 %" not in shown
    assert ratios(found)[0].value is None


def test_a_doubt_that_does_not_touch_the_difference_takes_nothing_away() -> None:
    differ, bound = (replace(NOISE, code=code) for code in ("launches-differ", "host-bound"))
    a, b = finished(rate(RATES), doubts=(bound,)), finished(rate(times(0.9)), doubts=(bound, differ))
    assert compare_runs(a, b).verdict == "SLOWER"
    assert compare_runs(finished(rate(RATES)), b).verdict == "CANNOT TELL"  # one side alone is host-bound


def test_of_a_sweep_the_point_in_doubt_alone_is_not_compared() -> None:
    points = [rate(RATES, case=case) for case in ("x", "y")]
    said = {"validity": "SUSPECT", "code": NOISE.code, "reason": NOISE.reason, "remedy": ""}
    detail = {"points": [{"case_id": "x", "doubts": [said]}, {"case_id": "y", "doubts": []}]}
    b = finished(*(replace(p, value=90.0) for p in points), doubts=(NOISE,), detail=detail)
    found = compare_runs(finished(*points), b)
    assert [m.missing for m in ratios(found)] == ["B is SUSPECT (others ran beside it)", None]


def test_an_invalid_side_is_not_compared() -> None:
    b = finished(rate(times(0.9)), name="results/y", validity="INVALID", verdict="INVALID")
    found = compare_runs(finished(rate(RATES)), b)
    assert (found.verdict, found.exit_code) == ("CANNOT TELL", 4)
    assert "results/y is INVALID" in text(found)


def test_simulated_sides_are_said_and_pass_nothing() -> None:
    conditions = {"device": "simgpu", "simulated": True}
    sides = [finished(rate(times(f)), name=f"results/{f}", conditions=conditions) for f in (1.0, 0.999, 0.9)]
    passed = compare_runs(sides[0], sides[1], max_regression=0.05)
    assert (passed.verdict, passed.exit_code) == ("INCONCLUSIVE (simulated)", 4)
    failed = compare_runs(sides[0], sides[2], max_regression=0.05)
    assert (failed.verdict, failed.exit_code) == ("SIMULATED REGRESSION", 3)
    assert "no result here applies to any hardware" in text(failed)


@pytest.mark.parametrize(
    ("mhz_a", "mhz_b", "factor", "said"),
    [
        (1980, 1782, 0.9, "the clock is the cause: the clock of B was 10.0% lower"),
        (1980, 1980, 0.9, "confirmed in cycles"),
        (1980, 1881, 0.85, "confirmed in cycles, though the clock of B was 5.0% lower"),
        (1980, 2178, 0.9, "confirmed in cycles, though the clock of B was 10.0% higher"),
        (1980, 1881, 0.95, "the clock is the cause: the clock of B was 5.0% lower, and in cycles: no diff"),
    ],
)
def test_a_difference_is_looked_at_in_cycles(mhz_a: float, mhz_b: float, factor: float, said: str) -> None:
    a = finished(rate(RATES), clocks_mhz=[mhz_a] * 5)
    b = finished(rate(times(factor)), name="results/y", clocks_mhz=[mhz_b] * 5)
    assert said in text(compare_runs(a, b))


def test_clocks_that_were_not_read_are_said() -> None:
    a, b = finished(rate(RATES), clocks_mhz=[1980] * 4), finished(rate(times(0.9)), name="results/y")
    assert "not confirmed in cycles: clocks were not read during every launch" in text(compare_runs(a, b))


def test_an_outlying_launch_is_named_and_told_with_and_without() -> None:
    a = finished(rate((*RATES, 100.2, 99.8)))
    b = finished(rate((*times(0.95), 95.2, 60.0)), name="results/y")
    shown = text(compare_runs(a, b))
    assert "outliers: launch B 7; without -4.97 % (-7.6" in shown
    assert "none is excluded from the results above" in shown


def test_the_time_of_a_step_is_not_compared_where_it_is_other_work() -> None:
    configs = [{**CONFIG, "data": {"batch_size": size}} for size in (16, 32)]
    step = rate([1 / value for value in RATES], name="p50 step", unit="s", better="lower")
    a, b = (finished(rate(RATES), step, name="results/x", config=c) for c in configs)
    found = compare_runs(a, b, across=["data.batch_size"])
    assert [measure.name for measure in ratios(found)] == ["throughput, B over A"]


def test_measures_of_one_side_are_named() -> None:
    extra = rate(RATES, name="other", case="main")
    found = compare_runs(finished(rate(RATES)), finished(rate(times(1.1)), extra, name="results/y"))
    assert len(ratios(found)) == 1
    assert "other at main exists only in B" in text(found)


@pytest.mark.parametrize("form", [form for form in get_args(ReportFormat) if form != "junit"])
def test_every_format_has_the_ratio(form: ReportFormat) -> None:
    found = compare_runs(finished(rate(RATES)), finished(rate(times(0.9)), name="results/y"))
    shown = render(found, page_of(found), form)
    assert ("0.9" if form in ("json", "csv") else "-10.0 %") in shown
    assert "results/y" in shown or form == "csv"


def written(folder: Path, step_s: float, run_id: str) -> Path:
    """Write a run of three launches as a campaign leaves it, and conclude it."""
    stories = [
        one_rank(times_s=steady_times(step_s=step_s * factor), replicate=i)
        for i, factor in enumerate((1.0, 1.01, 0.99))
    ]
    launches = [replace(story, extra=(environment(),)).records() for story in stories]
    run = write_run(folder, launches, run_id=run_id, run={"repeats": 3}, monitoring={"enabled": False})
    conclude(run)
    return run.root


def test_runs_on_disk_by_python_and_by_command(tmp_path: Path) -> None:
    fast, slow = written(tmp_path, 0.01, "fast"), written(tmp_path, 0.02, "slow")
    found = gpuproof.compare(fast, slow, max_regression=0.02)
    assert (found.verdict, found.exit_code) == ("REGRESSION", ExitCode.FAILED)
    assert {measure.name for measure in ratios(found)} == {"throughput, B over A", "p50 step, B over A"}
    page = tmp_path / "page.html"
    words = ["compare", str(fast), str(slow), "--max-regression", "2%", "-o", str(page)]
    shown = CliRunner().invoke(cli, words)
    assert shown.exit_code == 3, shown.output
    assert "REGRESSION" in page.read_text(encoding="utf-8")
    assert gpuproof.compare(fast, fast).verdict == "NO DIFFERENCE SHOWN"


def test_a_run_that_was_not_concluded_says_how(tmp_path: Path) -> None:
    root = written(tmp_path, 0.01, "x")
    (root / "result.json").unlink()
    with pytest.raises(UsageError) as caught:
        gpuproof.compare(root, root)
    assert "gpuproof report" in (caught.value.next_step or "")
