"""The pipeline whole: a recipe in, records and every derived file out, figures that agree with each other."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.records.run import Evaluation, Phase, ProfileTrace, RankResult, Setup, Steps, Window
from gpuproof.records.what_ran import Compilation, Effective
from gpuproof.store.names import read_config
from gpuproof.suites.sweep.plan import points_of_matrix
from running import MEASURED, TINY, gpuproof, only_case, run_directory


@pytest.fixture(scope="module")
def odd_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run") / "it's an odd place – ünï $HOME"
    place.mkdir()
    return place


@pytest.fixture(scope="module")
def finished(odd_place: Path) -> Path:
    result = gpuproof(
        *("run", "quick", *TINY, "--run.run_id=whole", "--run.repeats=2", "--data.samples_per_epoch=64"),
        *("--benchmark.evaluate_after=true", "--profiling.enabled=true", "--run.notes=a note", "--json"),
        cwd=odd_place,
    )
    assert result.returncode in MEASURED, result.stderr
    found = json.loads(result.stdout)
    assert (found["validity"] == "INVALID") == (result.returncode == ExitCode.INCONCLUSIVE)
    (steps,) = [measure for measure in found["measures"] if measure["name"] == "steps"]
    assert [launch["value"] for launch in steps["launches"]] == [20, 20]
    return odd_place


@pytest.mark.promise("S1.6")
def test_records_come_in_the_order_of_the_story(finished: Path) -> None:
    records = run_directory(finished, "whole").cases()[0]
    phases = [(p.name, p.event) for p in records.of(Phase)]
    assert [name for name, event in phases if event == "begin"] == [
        *("prepare", "count", "warmup", "measure", "evaluate", "profile", "finish"),
    ]
    (setup,), (window,) = records.of(Setup), records.of(Window)
    assert (setup.num_parameters, setup.items_per_step) == (54_403, 8)
    assert (window.num_steps, window.items) == (20, 160)
    assert len(records.step_times_s(0)) == 20
    assert len(records.step_times_s(0, phase="warmup")) == 2
    assert sum(records.step_times_s(0)) == pytest.approx(window.steps_s, rel=1e-6)
    assert records.of(Evaluation)[0].mean_loss is not None
    assert isinstance(records.records[-1], RankResult)


@pytest.mark.promise("S1.8", "S1.10", "S1.23", "S1.27", "F1.12")
def test_summary_has_the_known_fields_and_agrees_with_itself(finished: Path) -> None:
    root = run_directory(finished, "whole").root
    summary = json.loads((root / "run_summary.json").read_text())
    known = "experiment_name run_id world_size precision channels_last batch_size global_batch_size "
    known += "effective_batch_size total_steps total_samples total_measured_time_s total_wall_clock_s "
    known += "commit_hash env notes"
    assert set(known.split()) <= set(summary)
    assert summary["total_samples"] == 2 * 20 * 8
    assert summary["throughput_samples_per_s"] == pytest.approx(
        summary["total_samples"] / summary["total_measured_time_s"]
    )
    assert summary["mean_step_ms"] == pytest.approx(summary["total_measured_time_s"] / 40 * 1e3)
    assert summary["notes"] == "a note"
    assert next(iter(summary["env"].values()))["torch"]
    assert summary["p99_step_ms"] is None
    assert "p99 needs at least 299 values (40 measured)" in summary["percentiles_missing"]


@pytest.mark.promise("S1.7", "S1.8", "S1.27", "F1.7")
def test_epochs_are_cut_from_the_endless_stream(finished: Path) -> None:
    root = run_directory(finished, "whole").root
    rows = [json.loads(line) for line in (root / "metrics_epoch.jsonl").read_text().splitlines()]
    first_launch = [row for row in rows if row["replicate"] == 0]
    # 64 samples an epoch at 8 a step: 8 + 8 + 4 of the 20 steps.
    assert [(row["epoch"], row["measured_steps"], row["measured_samples"]) for row in first_launch] == [
        *((1, 8, 64), (2, 8, 64), (3, 4, 32)),
    ]
    known = "epoch throughput_samples_per_s epoch_time_s total_steps measured_steps measured_samples "
    known += "mean_step_ms p50_step_ms p95_step_ms"
    assert all(set(known.split()) <= set(row) for row in rows)
    assert all(
        row["throughput_samples_per_s"] == pytest.approx(row["measured_samples"] / row["epoch_time_s"])
        and row["mean_step_ms"] == pytest.approx(row["epoch_time_s"] / row["measured_steps"] * 1e3)
        for row in rows
    )


@pytest.mark.promise("F1.6")
def test_csv_header_is_the_keys_of_its_rows(finished: Path) -> None:
    root = run_directory(finished, "whole").root
    with (root / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["replicate"] for row in rows] == ["0", "1"]
    assert all(None not in row and None not in row.values() for row in rows)
    for row in rows:
        assert (row["measured_steps"], row["measured_samples"]) == ("20", "160")
        assert float(row["mean_step_ms"]) == pytest.approx(float(row["measured_time_s"]) / 20 * 1e3)


@pytest.mark.promise("S1.11", "S1.12", "S1.23", "F1.14")
def test_trace_and_environment_lie_in_the_run(finished: Path) -> None:
    run = run_directory(finished, "whole")
    assert run.cases()[0].of(ProfileTrace)[0].steps == 5
    assert json.loads((run.root / "trace_rank0.json").read_text())["traceEvents"]
    profile = json.loads((run.root / "run_summary.json").read_text())["profile"]["summary"]
    assert (profile["steps"], profile["profiled"], profile["looked_at"]) == (5, True, "processor")
    # Four linear layers forward; backward, a gradient for each weight and for each input but the first.
    calls = {row["name"]: row["calls"] for row in profile["operators"]}
    assert (calls["aten::addmm"], calls["aten::mm"]) == (5 * 4, 5 * 7)
    (facts,) = json.loads((run.root / "environment.json").read_text()).values()
    assert facts["cpu"]["logical_cpus"] >= 1


def test_report_and_runs_read_it_again_from_disk(finished: Path) -> None:
    root = run_directory(finished, "whole").root
    before = (root / "run_summary.json").read_text()
    (root / "run_summary.json").unlink()
    shown = gpuproof("report", str(root), cwd=finished)
    assert shown.returncode in MEASURED, shown.stderr
    assert "medium training on synthetic" in shown.stdout
    assert "95% interval" in shown.stdout
    assert "evaluation loss" in shown.stdout
    assert "traced after the window" in shown.stdout
    assert (root / "run_summary.json").read_text() == before
    listed = json.loads(gpuproof("runs", "--json", cwd=finished).stdout)
    assert [(row["launches"], row["what"]) for row in listed] == [("2/2", "medium training on synthetic")]


def test_inference_takes_no_gradients_and_counts_forward_work(tmp_path: Path) -> None:
    result = gpuproof(
        "run",
        "quick",
        *TINY,
        "--kind=inference",
        "--run.run_id=i",
        "--training.learning_rate=1",
        cwd=tmp_path,
    )
    assert result.returncode in MEASURED, result.stderr
    assert "training.learning_rate" in result.stdout
    assert "inference does not update weights" in " ".join(result.stdout.split())
    (setup,) = only_case(run_directory(tmp_path, "i")).of(Setup)
    weights = 50 * 256 + 256 * 128 + 128 * 64 + 64 * 3
    assert setup.flops_per_step == setup.flops_per_step_counted == 8 * 2 * weights


OPTIONS: tuple[tuple[dict[str, object], dict[str, object]], ...] = (
    ({"training.precision": "bf16"}, {"precision": "bf16"}),
    ({"training.precision": "amp"}, {"precision": "amp"}),
    ({"training.optimizer": "Adam", "training.grad_clip_norm": 1.0}, {"items_per_step": 8}),
    ({"distributed.gradient_accumulation_steps": 3}, {"items_per_step": 24}),
    # 7·256 + 256 + 256·128 + 128 + 128·64 + 64 + 64·2 + 2 = 43,330 parameters of the small perceptron.
    ({"model.options": {"input_dim": 7, "output_dim": 2}}, {"num_parameters": 43_330}),
    ({"distributed.threads_per_rank": 1}, {"threads": 1}),
    (
        {"data.name": "digits", "model.name": "resnet18", "data.image_size": 16},
        {"num_parameters": 11_181_642},
    ),
)
PLAIN: dict[str, object] = {
    **{"training.precision": "fp32", "training.optimizer": "SGD", "training.grad_clip_norm": None},
    **{"distributed.gradient_accumulation_steps": 1, "distributed.threads_per_rank": None},
    **{"model.name": "medium", "model.options": {}, "data.name": "synthetic", "data.image_size": None},
}
"""Each point of a sweep sets the same keys."""


@pytest.fixture(scope="module")
def with_options(tmp_path_factory: pytest.TempPathFactory) -> list[Setup]:
    """Run all of them as one sweep, forked from a process that has imported torch."""
    place = tmp_path_factory.mktemp("options")
    points = json.dumps([PLAIN | chosen for chosen, _ in OPTIONS])
    result = gpuproof(
        *("run", "quick", *TINY, "--benchmark.measure_steps=3", "--run.start=fork"),
        *(f"--matrix.include={points}", "--run.run_id=o"),
        cwd=place,
    )
    assert result.returncode in MEASURED, result.stdout + result.stderr
    run = run_directory(place, "o")
    setups = {records.case.case_id: records.of(Setup)[0] for records in run.cases()}
    return [setups[name] for name in points_of_matrix(read_config(run))]


@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_options_reach_the_worker(number: int, with_options: list[Setup]) -> None:
    setup, (_, expected) = with_options[number], OPTIONS[number]
    assert {key: getattr(setup, key) for key in expected} == expected


@pytest.mark.promise("S1.6")
def test_windows_by_seconds_end_on_time_and_without_step_times_still_count(tmp_path: Path) -> None:
    result = gpuproof(
        *("run", "quick", *TINY, "--benchmark.measure_by=time", "--benchmark.measure_seconds=1.5"),
        *("--benchmark.log_step_times=false", "--run.run_id=t"),
        cwd=tmp_path,
    )
    assert result.returncode in MEASURED, result.stderr
    assert "step times were not stored" in result.stdout
    records = only_case(run_directory(tmp_path, "t"))
    (window,) = records.of(Window)
    assert window.wall_s >= 1.5
    assert window.stop_reason == "1.5 s"
    assert not [steps for steps in records.of(Steps) if steps.phase == "measure"]


def test_epochs_decide_only_where_no_window_is_measured(tmp_path: Path) -> None:
    result = gpuproof(
        *("run", "quick", *TINY, "--benchmark.enabled=false", "--training.epochs=3"),
        *("--data.samples_per_epoch=20", "--run.run_id=e"),
        cwd=tmp_path,
    )
    assert result.returncode in MEASURED, result.stderr
    (window,) = only_case(run_directory(tmp_path, "e")).of(Window)
    assert window.num_steps == 3 * 3  # 20 samples are 3 steps of 8


@pytest.mark.promise("S0.7", "S0.24", "F0.7")
def test_log_file_holds_every_detail(tmp_path: Path) -> None:
    result = gpuproof("run", "quick", *TINY, "--log-file", "the log.txt", "--run.run_id=l", cwd=tmp_path)
    assert result.returncode in MEASURED, result.stderr
    log = (tmp_path / "the log.txt").read_text()
    assert " DEBUG gpuproof" in log
    assert "gpuproof.worker run" in log


@pytest.mark.skipif(
    bool(set(" '") & set(sys.prefix)),
    reason="torch's compiler does not quote its own path, which here holds a blank or a quote",
)
def test_a_compiled_model_is_said_to_be_and_its_compilation_is_no_step(tmp_path: Path) -> None:
    result = gpuproof(
        *("run", "quick", *TINY, "--training.compile.enabled=true", "--run.run_id=c"),
        "--distributed.hang_timeout_s=1800",
        cwd=tmp_path,
    )
    assert result.returncode in MEASURED, result.stdout + result.stderr
    records = only_case(run_directory(tmp_path, "c"))
    assert records.setups[0].compiled == "default"
    phases = [phase.name for phase in records.of(Phase) if phase.event == "begin"]
    assert phases[:5] == ["prepare", "count", "compile", "warmup", "measure"]
    (compilation,) = records.of(Compilation)
    assert (compilation.num_graphs, compilation.graph_breaks, compilation.compiled_in_window) == (1, (), 0)
    (effective,) = records.of(Effective)
    assert effective.work == ()
    assert "kernels generated by torch.compile" in str(effective.missing)
    assert "torch.compile default (1 graph, 0 breaks)" in " ".join(result.stdout.split())
    assert len(records.step_times_s(0)) == 20
