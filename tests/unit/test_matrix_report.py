"""What a matrix comes to, from records and from folders of the older test matrix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cases_by_hand import cases_of
from concluding import are_figures_measures, table_of, unmeasured_marks
from gpuproof.base.errors import UsageError
from gpuproof.campaign.conclude import Concluded, conclude_tree
from gpuproof.records.work.command import read_metrics
from gpuproof.report.terminal import terminal_text
from gpuproof.suites.matrix.compare import configurations
from gpuproof.suites.matrix.conclude import matrix_result
from gpuproof.suites.matrix.exports import comparison, memory_bars, memory_timeline
from gpuproof.suites.matrix.old_tree import conclude_old_tree, is_old_tree, read_old_tree, tree_evidence
from gpuproof.suites.matrix.page import page
from old_tree_by_hand import LENET, RESNET, old_tree


def test_both_shapes_of_old_metrics_are_read() -> None:
    resnet, lenet = read_metrics(json.dumps(RESNET)), read_metrics(json.dumps(LENET))
    assert resnet.values["test_accuracy"] == 91.5
    assert resnet.series["sparsity"] == (0.0, 0.3, 0.7)
    assert (resnet.values["epochs"], lenet.values["epochs"]) == (3.0, 2.0)
    assert lenet.values["test_accuracy"] == 98.2
    assert lenet.series["test_accuracy"] == (97.0, 98.2)
    assert lenet.values["total_training_time"] == 12.5


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ('{"a": 1}\n{"a": 2, "b": 0.5}\n', "m.jsonl", {"a": 2.0, "b": 0.5}),
        ("epoch,loss\n1,0.5\n2,0.25\n", "m.csv", {"epoch": 2.0, "loss": 0.25}),
        ('{"a": true, "b": "x", "c": 3, "d": NaN}', "m.json", {"c": 3.0}),
    ],
)
def test_other_forms_give_the_last_value(text: str, name: str, values: dict[str, float]) -> None:
    assert read_metrics(text, name=name).values == values


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '"text"', '{"a": '])
def test_a_file_without_figures_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # every message is of another kind
        read_metrics(text)


@pytest.mark.promise("S4.14", "S4.15")
def test_an_old_tree_gives_the_same_report(tmp_path: Path) -> None:
    folder = old_tree(tmp_path)
    assert is_old_tree(folder)
    concluded = conclude_tree(folder)
    rows = {row["case"].text: row for row in table_of(concluded, "Cases")}
    assert rows["lenet5_adam_none"][""].tone == "bad"
    assert rows["resnet18_adamwprune_state_70"]["GPU memory"].text == "1.35 GiB"
    assert rows["lenet5_sgd_none"]["energy"].text == "1,600 J"
    assert {doubt.code for doubt in concluded.result.doubts} == {"unequal-steps", "older-result"}
    assert sorted(path.name for path in (folder / "graphs").iterdir()) == [
        "comparison.png",
        "gpu_memory_timeline.png",
        "training_memory_comparison.png",
    ]
    assert concluded.result.exit_code == 4, "a test is missing, and nobody knows why"


def test_pictures_of_an_old_tree_are_not_written_over(tmp_path: Path) -> None:
    folder = old_tree(tmp_path)
    (folder / "graphs").mkdir()
    (folder / "graphs" / "comparison.png").write_bytes(b"old")
    conclude_tree(folder)
    assert (folder / "graphs" / "comparison.png").read_bytes() == b"old"


def test_rows_of_all_results_say_what_a_test_was(tmp_path: Path) -> None:
    folder = old_tree(tmp_path)
    what = {"model": "lenet5", "optimizer": "sgd"}
    row = {"test_id": "lenet5_sgd_none", **what, "success": False, "error": "x"}
    (folder / "all_results.json").write_text(json.dumps([row]))
    cases = {case.case_id: case for case in read_old_tree(folder)}
    assert cases["lenet5_sgd_none"].configuration == "model=lenet5 optimizer=sgd"
    assert cases["lenet5_sgd_none"].failure == "x"


def test_a_folder_of_nothing_is_refused(tmp_path: Path) -> None:
    assert not is_old_tree(tmp_path)
    with pytest.raises(UsageError, match="contains no test with training_metrics"):
        read_old_tree(tmp_path)


def test_the_page_says_which_is_best(tmp_path: Path) -> None:
    cases = cases_of({"adam": [0.9, 0.91, 0.905], "sgd": [0.8, 0.81, 0.805]}, memory_bytes=2.0**30)
    result = matrix_result(cases, tree_evidence(tmp_path), title="cases", num_planned=6)
    text = " ".join(terminal_text(page(result), width=150).split())
    assert "adam has the highest accuracy: confirmed against each other configuration" in text
    assert "Pareto front" not in text, "one alone is no front"
    assert result.headline == "6 of 6 cases, best accuracy: adam"
    names = {(measure.case, measure.name) for measure in result.measures}
    assert {("adam", "accuracy"), ("sgd", "memory_bytes")} <= names
    drawn = Concluded(result=result, page=page(result))
    assert are_figures_measures(drawn)
    assert unmeasured_marks(drawn, "accuracy against memory", "accuracy against time") == []


def test_pictures_of_a_matrix_have_its_values_means_and_intervals() -> None:
    cases = cases_of({"adam": (0.90, 0.92, 0.91), "sgd": (0.80, 0.81, 0.85)})
    (chart,) = comparison(cases, metric="accuracy", better="higher", seed="seed").charts
    intervals, launches, means = chart.series
    adam, sgd = configurations(cases, "accuracy", seed="seed")
    assert chart.y.names == (adam.name, sgd.name)
    assert launches.points == tuple(
        (v, row) for row, values in ((0, (0.90, 0.92, 0.91)), (1, (0.80, 0.81, 0.85))) for v in values
    )
    assert means.points == ((adam.mean, 0.0), (sgd.mean, 1.0))
    assert intervals.ranges == (adam.interval, sgd.interval)


def test_memory_of_an_old_tree_is_drawn_over_time_and_in_rows(tmp_path: Path) -> None:
    cases, _ = conclude_old_tree(old_tree(tmp_path))
    (course,) = memory_timeline(cases).charts
    (rows,) = memory_bars(cases).charts
    in_use = {case.configuration: case.memory for case in cases if case.memory.course}
    assert {series.name: series.points for series in course.series} == {
        name: memory.course for name, memory in in_use.items()
    }
    assert {series.form for series in course.series} == {"step"}
    assert dict(zip(rows.y.names, (value for value, _ in rows.series[1].points), strict=True)) == {
        name: memory.peak_bytes for name, memory in in_use.items()
    }


def test_tests_that_differ_in_an_unknown_field_are_no_repeats(tmp_path: Path) -> None:
    rows = [
        {"test_id": f"w{width}", "optimizer": "adam", "width": width, "seed": 1, "success": True}
        for width in (8, 64)
    ]
    for row in rows:
        (tmp_path / str(row["test_id"])).mkdir()
        (tmp_path / str(row["test_id"]) / "training_metrics.json").write_text('{"test_accuracy": 0.9}')
    (tmp_path / "all_results.json").write_text(json.dumps(rows))
    assert len({str(case.configuration) for case in read_old_tree(tmp_path)}) == 2
