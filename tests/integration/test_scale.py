"""`gpuproof scale` from the command line: on ranks of the processor, and what is said without GPUs."""

from __future__ import annotations

import json
from pathlib import Path

from running import clean_environment, gpuproof

NO_GPU = clean_environment(CUDA_VISIBLE_DEVICES="")


def test_a_study_on_two_ranks_leaves_the_files_that_people_know(tmp_path: Path) -> None:
    result = gpuproof(
        *("scale", "--device", "cpu", "--max-devices", "2", "--gpu-mode", "multi", "--scaling", "strong"),
        *("--runs", "2", "--batch-sizes", "8", "16", "--output-dir", "out"),
        *("--benchmark.measure_steps=20", "--benchmark.warmup_steps=2", "--monitoring.enabled=false"),
        "--scale.breakdown_runs=1",
        cwd=tmp_path,
        environment=NO_GPU,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    single, multi = (
        json.loads((tmp_path / "out" / f"benchmark_medium_{side}_gpu.json").read_text())
        for side in ("single", "multi")
    )
    assert [batch["batch_size"] for batch in single] == [8, 16]
    assert [(b["batch_size"], b["samples_per_device"], b["num_devices"]) for b in multi] == [
        (8, 4, 2),
        (16, 8, 2),
    ]
    assert all(batch["model_parameters"] == 54_403 for batch in (*single, *multi))
    orders = sorted(run["order"] for batch in (*single, *multi) for run in batch["detailed_runs"])
    assert orders == list(range(8))
    # a processor has no kernels to look at; what can be measured is, each under its own name
    talking = multi[0]["communication"]
    assert "no kernels to look at" in talking["exposed_ms"]["missing"]
    assert talking["standalone_ms"]["mean"] > 0
    assert multi[0]["bucket_bytes"] == [4 * 54_403]
    assert single[0]["mean_communication_ms"] is None
    phases = multi[0]["phases_ms"]
    assert min(phases["forward"], phases["backward"], phases["optimizer"]) > 0
    # two launches a side tell nothing: no recommendation, and it says why
    assert "needs 3" in (tmp_path / "out" / "comparison_report_medium.md").read_text()
    assert "Model too small (54,403 params): no" in result.stdout


def test_without_gpus_several_are_refused_and_one_is_advised(tmp_path: Path) -> None:
    refused = gpuproof("scale", "--gpu-mode", "multi", cwd=tmp_path, environment=NO_GPU)
    assert refused.returncode == 5
    assert "Multi-GPU mode requires at least 2 GPUs; found 0" in refused.stderr
    advised = gpuproof(
        *("scale", "--model", "large", "--gpu-mode", "auto", "--runs", "1", "--batch-sizes", "64", "128"),
        "--dry-run",
        cwd=tmp_path,
        environment=NO_GPU,
    )
    assert advised.returncode == 0, advised.stderr
    assert "evaluate - Medium model may benefit with large batch (heuristic" in advised.stderr
    assert "One device is measured: there are 0" in advised.stderr
    assert advised.stdout.count("gpuproof.worker run") == 2
    assert not (tmp_path / "results").exists()
