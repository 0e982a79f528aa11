"""`gpuproof scale` from the command line: on ranks of the CPU, and what is said without GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from running import MEASURED, clean_environment, gpuproof

NO_GPU = clean_environment(CUDA_VISIBLE_DEVICES="")


@pytest.mark.promise("S2.1", "S2.2", "S2.8", "S2.9", "S2.17", "S2.18", "S2.19", "S2.24", "S2.28", "S3.13")
def test_a_study_on_two_ranks_leaves_the_files_that_people_know(tmp_path: Path) -> None:
    result = gpuproof(
        *("scale", "--device", "cpu", "--max-devices", "2", "--gpu-mode", "multi", "--scaling", "strong"),
        *("--runs", "2", "--batch-sizes", "8", "--output-dir", "out"),
        *("--benchmark.measure_steps=20", "--benchmark.warmup_steps=2", "--monitoring.enabled=false"),
        *("--scale.breakdown_runs=1", "--verbose"),
        cwd=tmp_path,
        environment=NO_GPU,
    )
    assert result.returncode in MEASURED, result.stdout + result.stderr
    single, multi = (
        json.loads((tmp_path / "out" / f"benchmark_medium_{side}_gpu.json").read_text())
        for side in ("single", "multi")
    )
    assert [batch["batch_size"] for batch in single] == [8]
    assert [(b["batch_size"], b["samples_per_device"], b["num_devices"]) for b in multi] == [(8, 4, 2)]
    assert all(batch["model_parameters"] == 54_403 for batch in (*single, *multi))
    orders = sorted(run["order"] for batch in (*single, *multi) for run in batch["detailed_runs"])
    assert orders == list(range(4))
    # a processor has no kernels to look at; what can be measured is, each under its own name
    talking = multi[0]["communication"]
    assert "no kernels to examine" in talking["exposed_ms"]["missing"]
    assert talking["standalone_ms"]["mean"] > 0
    assert multi[0]["bucket_bytes"] == [4 * 54_403]
    assert single[0]["mean_communication_ms"] is None
    phases = multi[0]["phases_ms"]
    assert min(phases["forward"], phases["backward"], phases["optimizer"]) > 0
    # what two ranks learn from the average of their gradients, one learns from both ranks' samples
    assert "trained alike" in result.stdout
    rows = [
        line.split() for line in result.stdout.splitlines() if re.search(r"strong +\d\.\de[+-]\d\d ", line)
    ]
    assert [row[-1] for row in rows] == ["yes"]
    run = multi[0]["detailed_runs"][0]
    assert run["num_steps"] == 20
    assert run["mean_step_ms"] == pytest.approx(run["training_time_ms"] / 20)
    # of normal targets the mean squared error is about 1; a processor's allocator counts nothing
    assert 0.3 < run["mean_absolute_error"] < run["mean_squared_error"] ** 0.5 < 2
    assert run["step_memory_mb"] == {
        "before": None,
        "after": None,
        "missing": "torch does not count memory on this type of device",
    }
    assert multi[0]["detailed_runs"][1]["step_memory_mb"]["missing"].startswith(
        "steps of this run were not broken down"
    )
    assert list((tmp_path / "out" / "scale").glob(f"*/{run['records']}/rank-0.jsonl"))
    assert result.stderr.count(": done, ") == 4
    assert "Validate over multiple runs" in result.stderr
    # two launches a side tell nothing: no recommendation, and it says why
    report = (tmp_path / "out" / "comparison_report_medium.md").read_text()
    assert any(why in report for why in ("needs 3", "is SUSPECT"))  # too few launches, or others beside them
    assert "Model too small (54,403 params): no" in result.stdout
    # taken up again as Ctrl-C says it: the copies lie where they lay, and nowhere else
    (run_folder,) = (tmp_path / "out" / "scale").iterdir()
    copies = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.*")}
    for name in copies:
        (tmp_path / "out" / name).unlink()
    resumed = gpuproof("scale", "--resume", f"out/scale/{run_folder.name}", cwd=tmp_path, environment=NO_GPU)
    assert resumed.returncode == 0, resumed.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.*")} == copies
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.promise("S2.21", "S2.22")
def test_without_gpus_several_are_refused_and_one_is_advised(tmp_path: Path) -> None:
    refused = gpuproof("scale", "--gpu-mode", "multi", cwd=tmp_path, environment=NO_GPU)
    assert refused.returncode == 5
    assert "Multi-GPU mode requires at least 2 GPUs; found 0" in refused.stderr
    advised = gpuproof(
        *("scale", "--model", "large", "--gpu-mode", "auto", "--runs", "1", "--batch-sizes", "64", "128"),
        *("--dry-run", "--verbose"),
        cwd=tmp_path,
        environment=NO_GPU,
    )
    assert advised.returncode == 0, advised.stderr
    assert "evaluate - Medium model may benefit with large batch (heuristic" in advised.stderr
    assert "Measuring one device: only 0 available" in advised.stderr
    assert advised.stdout.count("gpuproof.worker run") == 2
    assert not (tmp_path / "results").exists()


def write_hosts(folder: Path, **keys: int) -> None:
    """Write an inventory of two names of one machine, at a port where nobody listens."""
    hosts = [{"name": name, "host": name, "port": 9, **keys} for name in ("127.0.0.2", "127.0.0.3")]
    (folder / "hosts.json").write_text(json.dumps({"hosts": hosts}), encoding="utf-8")


@pytest.mark.parametrize(
    "words", [("scale", "--max-devices", "2"), ("run", "scale")], ids=["scale", "run scale"]
)
def test_hosts_of_unknown_size_are_refused_before_anything_is_connected_to(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    write_hosts(tmp_path)
    refused = gpuproof(*words, "--on", "ssh:hosts.json", cwd=tmp_path, environment=NO_GPU)
    assert refused.returncode == 2, refused.stderr
    assert "their number of devices is not known" in refused.stderr
    assert not (tmp_path / "results").exists()


def test_the_ladder_over_hosts_fills_one_before_it_takes_the_next(tmp_path: Path) -> None:
    write_hosts(tmp_path, gpus=2)
    planned = gpuproof(
        *("scale", "--on", "ssh:hosts.json", "--gpu-mode", "multi", "--scaling", "strong", "--dry-run", "-v"),
        *("--batch-sizes", "16", "--runs", "1"),
        cwd=tmp_path,
        environment=NO_GPU,
    )
    assert planned.returncode == 0, planned.stderr
    hosts = [line.split()[2] for line in planned.stdout.splitlines() if line.startswith("# on")]
    # 1, 2 and 4 devices, in an order that is drawn: four commands, of which one is on the second host
    assert sorted(hosts) == ["127.0.0.2"] * 3 + ["127.0.0.3"]
