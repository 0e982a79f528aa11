"""The load suite from records on disk to its JSON file, its table and its exit code, without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recordings as r
from concluding import commands_of, table_of
from gpuproof.base import registry
from gpuproof.base.errors import ExitCode
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.load.conclude import GPU_USE
from gpuproof.suites.load.exports import RESULTS_FILE
from gpuproof.suites.load.plan import TESTS
from load_by_hand import HOST, STEP_S, done, failed, named, num_steps, write_load_run
from records_by_hand import start

FIGURES = (
    *("duration_seconds", "iterations", "throughput_samples_per_second", "avg_iteration_time_ms"),
    *("p50_iteration_time_ms", "p95_iteration_time_ms", "p99_iteration_time_ms"),
    *("min_iteration_time_ms", "max_iteration_time_ms", "peak_gpu_memory_mb"),
    *("peak_gpu_memory_with_warmup_mb", "peak_gpu_utilization_percent", "cpu_usage_stats"),
    *("memory_usage_stats", "gpu_utilization_stats", "gpu_memory_stats", "monitoring_sample_rate"),
    "total_samples_collected",
)


def concluded(
    folder: Path, launches: Sequence[CaseRecords], **sections: Any
) -> tuple[dict[str, Any], Concluded]:
    run = write_load_run(folder, launches, **sections)
    conclusion = conclude(run)
    written: dict[str, Any] = json.loads((run.root / RESULTS_FILE).read_text())
    return written, conclusion


def result(written: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in written["results"] if each["test_name"] == name)
    return found


@pytest.mark.promise("S0.3", "S0.5", "S0.15", "S0.16", "S0.17", "S0.32", "S0.33", "S0.34", "F0.2", "F0.9")
def test_a_whole_suite_has_every_field_and_its_figures_agree(tmp_path: Path) -> None:
    written, conclusion = concluded(tmp_path, [done(test) for test in TESTS])
    assert conclusion.result.exit_code == ExitCode.DONE
    assert [each["test_name"] for each in written["results"]] == [test.name for test in TESTS]
    assert written["system_info"] == {
        "hostname": HOST,
        "gpu_names": ["NVIDIA H200"],
        "gpu_count": 1,
        "cuda_version": "12.4",
        "pytorch_version": "2.6.0",
        "cpu_count": 16,
        "memory_total_gb": 128.0,
        "timestamp": "2026-11-20T12:00:00+00:00",
        "missing": {},
    }
    summary = written["test_summary"]
    assert (summary["total_tests"], summary["successful_tests"], summary["failed_tests"]) == (12, 12, 0)
    assert summary["requested_duration_minutes"] is None
    assert "requested_duration_minutes" in summary["missing"]
    # Every launch of the fixture takes 12 s from its first record to its result.
    assert summary["actual_duration_seconds"] == pytest.approx(144)
    first = result(written, "train_simple_cnn_bs32")
    assert (first["test_type"], first["model_name"], first["batch_size"]) == ("training", "simple_cnn", 32)
    # 32 samples in 25.6 ms; 80 steps, which support a p95 and no p99.
    assert first["throughput_samples_per_second"] == pytest.approx(1250)
    assert first["avg_iteration_time_ms"] == pytest.approx(25.6)
    assert (first["iterations"], first["duration_seconds"]) == (80, pytest.approx(2.048))
    assert first["min_iteration_time_ms"] == pytest.approx(25.6 * 0.99)
    assert first["p95_iteration_time_ms"] == pytest.approx(25.6 * 1.01)
    assert first["p99_iteration_time_ms"] is None
    assert first["missing"] == {"p99_iteration_time_ms": "p99 needs at least 299 values (80 measured)"}
    assert first["peak_gpu_memory_mb"] == 300.0
    assert first["peak_gpu_memory_with_warmup_mb"] == 420.0


@pytest.mark.promise("S0.5", "S0.16", "F0.5")
def test_readings_count_within_the_window_and_on_the_devices_used_only(tmp_path: Path) -> None:
    written, _ = concluded(tmp_path, [done(named("inference_resnet_bs8"))])
    found = result(written, "inference_resnet_bs8")
    # 40 steps of 25.6 ms from second 1 on: the readings at 1.05 to 1.95, 80 % where the tick is even.
    assert found["total_samples_collected"] == 10
    assert found["monitoring_sample_rate"] == 0.1
    assert found["gpu_utilization_stats"] == {
        "min_value": 80.0,
        "max_value": 90.0,
        "avg_value": pytest.approx(85.0),
        "sample_count": 10,
    }
    assert found["peak_gpu_utilization_percent"] == 90.0
    assert found["gpu_memory_stats"]["max_value"] == 2048.0
    assert found["memory_usage_stats"]["avg_value"] == pytest.approx(4096.0)
    assert (found["cpu_usage_stats"]["min_value"], found["cpu_usage_stats"]["max_value"]) == (20.0, 21.0)
    (gpu,) = found["gpus"]
    assert (gpu["index"], gpu["uuid"], gpu["missing"]) == (0, "GPU-0000", {})
    assert gpu["utilization_stats"]["max_value"] == 90.0


def test_too_few_readings_are_no_peak(tmp_path: Path) -> None:
    test = named("inference_resnet_bs8")
    run = write_load_run(tmp_path, [done(test)])
    samples = [r.sample(t, {0: {"util_gpu_percent": 0.0}}, host={"cpu_percent": 0.0}) for t in (1.2, 1.7)]
    folder = run.case_folder(done(test).case)
    r.write(folder / f"monitor-{HOST}.jsonl", [r.header([r.identity(0)]), *samples, r.end(2, samples=2)])
    conclude(run)
    found = result(json.loads((run.root / RESULTS_FILE).read_text()), test.name)
    for key in ("cpu_usage_stats", "gpu_utilization_stats", "peak_gpu_utilization_percent"):
        assert found[key] is None
        assert found["missing"][key].startswith("2 readings in 1.02 s, but a peak needs 3: run more batches")
    assert found["gpu_memory_stats"] is None
    assert found["total_samples_collected"] == 2


def test_a_cpu_run_has_no_figure_of_any_gpu(tmp_path: Path) -> None:
    written, conclusion = concluded(tmp_path, [done(test, on_gpu=False) for test in TESTS])
    for each in written["results"]:
        for key in ("peak_gpu_memory_mb", "peak_gpu_utilization_percent", "gpu_memory_stats"):
            assert each[key] is None
            assert each["missing"][key] == "the test ran on the CPU"
        assert each["gpus"] == []
        assert each["cpu_usage_stats"]["sample_count"] >= 10
    used = [measure for measure in conclusion.result.measures if measure.name == GPU_USE]
    assert [(measure.value, measure.missing) for measure in used] == [(None, "the test ran on the CPU")] * 12
    assert not {"GPU", "peak memory"} & set(table_of(conclusion, "Tests")[0])


def test_without_a_sampler_every_block_says_why_it_is_null(tmp_path: Path) -> None:
    written, _ = concluded(tmp_path, [done(test, monitored=False) for test in TESTS])
    missing = written["results"][0]["missing"]
    assert "monitoring.enabled is false" in missing["cpu_usage_stats"]
    assert "monitoring.enabled is false" in missing["monitoring_sample_rate"]


@pytest.mark.promise("S0.9")
def test_a_failed_test_fails_the_suite_and_takes_nothing_from_the_others(tmp_path: Path) -> None:
    broken = failed(TESTS[4], "out_of_memory", "OutOfMemoryError: planted")
    launches = [broken if test is TESTS[4] else done(test) for test in TESTS]
    written, conclusion = concluded(tmp_path, launches)
    assert conclusion.result.exit_code == ExitCode.FAILED
    summary = written["test_summary"]
    assert (summary["successful_tests"], summary["failed_tests"], summary["not_run_tests"]) == (11, 1, [])
    # Eleven of 12 s, and one that broke after 3 s.
    assert summary["actual_duration_seconds"] == pytest.approx(135)
    found = result(written, TESTS[4].name)
    assert (found["success"], found["error_cause"]) == (False, "out_of_memory")
    assert found["error_message"] == "OutOfMemoryError: planted"
    assert {found[key] for key in FIGURES} == {None}
    assert set(FIGURES) <= set(found["missing"])
    assert result(written, TESTS[5].name)["success"] is True
    assert conclusion.result.headline == "11 of 12 tests"
    row = table_of(conclusion, "Tests")[4]
    assert (row["test"].text, row[""].text) == (TESTS[4].name, "failed: out of memory")
    assert {row[figure].text for figure in ("throughput", "mean step", "p95 step", "GPU")} == {"–"}
    command = commands_of(conclusion)[0]
    assert command.startswith("gpuproof load --resume ")
    assert command.endswith(" --retry-failed")


def test_an_interrupted_suite_keeps_what_it_has(tmp_path: Path) -> None:
    launches = [done(TESTS[0]), failed(TESTS[1], "interrupted")]
    written, conclusion = concluded(tmp_path, launches)
    assert conclusion.result.exit_code == ExitCode.INTERRUPTED
    assert [each["success"] for each in written["results"]] == [True, False]
    assert written["test_summary"]["not_run_tests"] == [test.name for test in TESTS[2:]]
    assert conclusion.result.num_planned == 12
    assert table_of(conclusion, "Tests")[5][""].text == "not run"


def test_of_a_suite_that_nobody_began_nothing_is_claimed(tmp_path: Path) -> None:
    written, conclusion = concluded(tmp_path, [])
    assert conclusion.result.exit_code == ExitCode.INCONCLUSIVE
    assert written["results"] == []
    assert written["system_info"]["gpu_names"] is None
    assert set(written["system_info"]["missing"]) >= {"hostname", "gpu_names", "pytorch_version"}
    assert written["test_summary"]["actual_duration_seconds"] is None


def test_figures_that_contradict_each_other_are_no_success_to_rely_on(tmp_path: Path) -> None:
    wrong = done(TESTS[0])
    told = tuple(replace(x, items=x.items * 2) if hasattr(x, "stop_reason") else x for x in wrong.records)
    written, conclusion = concluded(
        tmp_path, [replace(wrong, records=told), *(done(test) for test in TESTS[1:])]
    )
    assert conclusion.result.exit_code == ExitCode.INCONCLUSIVE
    assert result(written, TESTS[0].name)["validity"] == "INVALID"
    assert written["results"][1]["validity"] != "INVALID"


def test_several_launches_of_a_test_are_put_together(tmp_path: Path) -> None:
    test = named("inference_simple_cnn_bs16")
    again = done(test)
    launches = [again, replace(done(test), case=replace(again.case, replicate=1))]
    written, _ = concluded(tmp_path, launches, run={"repeats": 2})
    found = result(written, test.name)
    assert (found["iterations"], found["gpu_utilization_stats"]["sample_count"]) == (80, 20)
    assert found["throughput_samples_per_second"] == pytest.approx(16 / STEP_S)


def test_parameters_are_those_of_the_run(tmp_path: Path) -> None:
    written, _ = concluded(tmp_path, [], data={"loading": "loader", "num_workers": 4})
    parameters = written["parameters"]
    assert (parameters["num_epochs"], parameters["num_batches"], parameters["num_workers"]) == (2, 40, 4)
    assert parameters["missing"] == {}
    written, _ = concluded(tmp_path / "other", [])
    assert written["parameters"]["num_workers"] is None
    assert "no loader runs" in written["parameters"]["missing"]["num_workers"]


ENDS = st.lists(
    st.sampled_from(["done", "exception", "out_of_memory", "timeout", "lost_rank", "not run"]),
    min_size=12,
    max_size=12,
)


@settings(max_examples=10, deadline=None)
@given(ends=ENDS)
def test_success_or_an_error_and_no_figure(ends: list[Any]) -> None:
    launches = [
        done(test, monitored=False) if end == "done" else failed(test, end)
        for test, end in zip(TESTS, ends, strict=True)
        if end != "not run"
    ]
    with TemporaryDirectory() as folder:
        written, _ = concluded(Path(folder), launches)
    summary = written["test_summary"]
    assert summary["successful_tests"] == ends.count("done")
    assert summary["failed_tests"] == sum(end not in ("done", "not run") for end in ends)
    assert len(summary["not_run_tests"]) == ends.count("not run")
    for each in written["results"]:
        if each["success"]:
            assert each["error_message"] is None
            test = named(each["test_name"])
            assert each["iterations"] == num_steps(test)
            rate = each["throughput_samples_per_second"]
            assert rate * each["avg_iteration_time_ms"] / 1e3 == pytest.approx(test.batch_size)
        else:
            assert each["error_message"]
            assert {each[key] for key in FIGURES} == {None}
        nulls = {key for key in FIGURES if each[key] is None}
        assert nulls <= set(each["missing"])


def test_what_is_registered_is_looked_up_once_however_many_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.forget()
    groups: list[str] = []

    def counted(*, group: str) -> EntryPoints:
        groups.append(group)
        return entry_points(group=group)

    monkeypatch.setattr(registry, "entry_points", counted)
    launches = [done(test, monitored=False) for test in TESTS]
    concluded(tmp_path / "all", launches)
    at_all_tests = len(groups)
    registry.forget()
    groups.clear()
    concluded(tmp_path / "one", launches[:1])
    assert at_all_tests == len(groups) <= 10


def test_a_launch_of_which_nothing_is_known_was_not_run(tmp_path: Path) -> None:
    killed = replace(done(TESTS[0]), records=(start(host=HOST),))
    written, _ = concluded(tmp_path, [killed])
    assert written["results"] == []
    assert len(written["test_summary"]["not_run_tests"]) == 12
