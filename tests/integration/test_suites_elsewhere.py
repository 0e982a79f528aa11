"""`validate`, `matrix` and `scale` on a real Slurm, and on Kubernetes' API with pods that are processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.slurm_commands import fake_slurm
from gpuproof.base.errors import ExitCode
from kubernetes_world import kubernetes_world
from running import MEASURED, gpuproof
from slurm_world import needing_slurm, slurm_world

PROGRAM = Path(__file__).parents[1] / "fakes" / "trains.py"
ON_CPU = ("--device", "cpu", "--monitoring.enabled=false")
VALIDATE = (
    *("validate", "--allow-cpu", "--nproc", "1", "--recipe", "quick", "--run.run_id=v", *ON_CPU),
    *("--validate.stages=[gemm]", "--validate.gemm_size=64", "--validate.window_s=0.2"),
    "--distributed.threads_per_rank=1",
)
SCALE = (
    *("scale", "--max-devices", "2", "--gpu-mode", "multi", "--scaling", "strong", "--runs", "1", *ON_CPU),
    *("--batch-sizes", "8", "--benchmark.measure_steps=5", "--benchmark.warmup_steps=1"),
    "--scale.breakdown_runs=0",
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    needing_slurm()
    with slurm_world(tmp_path_factory.mktemp("slurm") / "w", num_nodes=2) as world:
        yield {**os.environ, **world.environment}
        assert world.jobs() == []


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    with kubernetes_world(tmp_path / "cluster") as (world, environment):
        yield {**os.environ, **environment}
        assert world.left() == []


def options(folder: Path, **told: Any) -> str:
    path = folder / "options.json"
    path.write_text(json.dumps({"gpus_per_node": 0, **told}))
    return str(path)


def matrix(folder: Path) -> str:
    argv = [
        sys.executable,
        str(PROGRAM),
        "--optimizer",
        "{optimizer}",
        "--seed",
        "1",
        "--out",
        "{output_dir}",
    ]
    command = {"argv": argv, "metrics": "training_metrics.json", "time_limit_s": 120}
    path = folder / "m.yaml"
    path.write_text(f"command: {json.dumps(command)}\nmatrix:\n  optimizer: [sgd, adam]\n")
    return str(path)


def result_of(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "results/validate-quick/v/result.json").read_text())
    return result


def hosts_of(folder: Path) -> set[str]:
    """Return the hosts that a validation judged."""
    subjects = {item["outcome"]["subject"] for item in result_of(folder)["outcomes"]}
    return {subject.split("/")[1] for subject in subjects if subject.startswith("host/")}


def test_slurm_gives_a_validation_one_allocation(slurm: Mapping[str, str], tmp_path: Path) -> None:
    on = ("--on", f"slurm:{options(tmp_path, nodes=2)}")
    found = gpuproof(*VALIDATE, "--spares", "1", *on, cwd=tmp_path, environment=slurm)
    assert found.returncode == ExitCode.INCONCLUSIVE, found.stdout + found.stderr
    assert hosts_of(tmp_path) == {"n1", "n2"}
    # whether two busy nodes are alike is for chance to say, and so who is chosen
    assert result_of(tmp_path)["detail"]["chosen"]["num_needed"] == 1
    assert "Granted job allocation" in found.stderr
    shown = gpuproof(*VALIDATE, *on, "--dry-run", "--verbose", cwd=tmp_path, environment=slurm)
    assert shown.stdout.startswith("salloc --job-name=gpuproof --nodes=2 --exclusive ")
    refused = options(tmp_path, partition="nope")
    told = gpuproof(*VALIDATE, "--on", f"slurm:{refused}", cwd=tmp_path, environment=slurm)
    assert (told.returncode, "invalid partition specified: nope" in told.stderr) == (ExitCode.USAGE, True)


def test_an_salloc_that_gives_up_is_no_bug_of_ours_and_says_what_to_do(tmp_path: Path) -> None:
    fake = fake_slurm(tmp_path / "slurm")
    salloc = fake.folder / "bin" / "salloc"
    said = "salloc: error: Unable to allocate resources: Connection timed out"
    salloc.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit "${{SLURM_EXIT_ERROR:-1}}"\n')
    salloc.chmod(0o755)
    on = ("--on", f"slurm:{options(tmp_path, pending_limit_s=2)}")
    told = gpuproof(*VALIDATE, *on, cwd=tmp_path, environment={**os.environ, **fake.environment})
    assert told.returncode == ExitCode.UNFIT_ENVIRONMENT, told.stderr
    assert said in told.stderr
    assert "raise pending_limit_s" in told.stderr
    assert not (tmp_path / "results").exists()


def test_a_matrix_and_a_study_are_jobs_of_slurm(slurm: Mapping[str, str], tmp_path: Path) -> None:
    on = ("--on", f"slurm:{options(tmp_path)}")
    ended = gpuproof("matrix", matrix(tmp_path), *on, cwd=tmp_path, environment=slurm)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "optimizer=adam" in ended.stdout
    submitted = {path.read_text() for path in (tmp_path / "results").glob("**/launch.txt")}
    assert submitted
    assert all("#SBATCH --array=0-1\n" in text for text in submitted), submitted
    study = gpuproof(*SCALE, *on, cwd=tmp_path, environment=slurm)
    assert study.returncode in MEASURED, study.stdout + study.stderr
    assert (tmp_path / "results" / "benchmark_medium_multi_gpu.json").exists()


RECORDED = Path(__file__).parents[1] / "replay/runs/load/run/cases"
RECORDED_RANKS = """#!/bin/sh
case "$2" in
run)
    name=$(grep -o '"case_id": *"[^"]*"' "$3" | head -n 1 | cut -d '"' -f 4)
    cp "{recorded}/$name/0/rank-0.jsonl" "$4/" ;;
sample) ;;
*) exec "{python}" "$@" ;;
esac
"""
LOAD = ("load", "--quick", "--num-batches", "2", "--device", "cpu", "--output", "results.json")


def recorded_ranks(folder: Path) -> str:
    """Write a Python whose ranks leave what those of a recorded load suite left, and take no time."""
    path = folder / "python-of-the-nodes"
    path.write_text(RECORDED_RANKS.format(recorded=RECORDED, python=sys.executable))
    path.chmod(0o755)
    return str(path)


def assert_twelve_tests(folder: Path) -> None:
    summary = json.loads((folder / "results.json").read_text())["test_summary"]
    assert (summary["total_tests"], summary["successful_tests"]) == (12, 12)


def test_the_load_suite_is_one_array_of_twelve_jobs(slurm: Mapping[str, str], tmp_path: Path) -> None:
    told = options(tmp_path, python=recorded_ranks(tmp_path), exclusive=False)
    ended = gpuproof(*LOAD, "--on", f"slurm:{told}", cwd=tmp_path, environment=slurm)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert_twelve_tests(tmp_path)
    submitted = [path.read_text() for path in (tmp_path / "results").glob("**/launch.txt")]
    assert ["#SBATCH --array=0-11\n" in text for text in submitted] == [True] * 12


def test_the_load_suite_is_made_of_pods(kubernetes: Mapping[str, str], tmp_path: Path) -> None:
    on_claim = {"claim": "results", "claim_folder": str(tmp_path)}
    told = options(tmp_path, python=recorded_ranks(tmp_path), **on_claim)
    ended = gpuproof(*LOAD, "--on", f"kubernetes:{told}", cwd=tmp_path, environment=kubernetes)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert_twelve_tests(tmp_path)


def test_an_allocation_that_is_taken_back_interrupts_a_run_as_the_end_of_a_job_does(tmp_path: Path) -> None:
    fake = fake_slurm(tmp_path / "slurm")
    fake.says("scontrol", "n1\nn2\n")
    fake.fails("srun", "srun: error: Unable to create step for job 7: Job has expired\n")
    fake.says("squeue", "7|7|TIMEOUT|n[1-2]|TimeLimit\n")
    inside = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    environment = {**os.environ, **fake.environment, **inside}
    words = ("run", "quick", "--on", "slurm", "--distributed.device=cpu")
    ended = gpuproof(*words, "--one-job", cwd=tmp_path, environment=environment)
    assert ended.returncode == ExitCode.INTERRUPTED, ended.stdout + ended.stderr
    assert "the allocation, job 7, ended TIMEOUT" in " ".join(ended.stdout.split())
    assert "salloc --nodelist" in ended.stdout


def test_kubernetes_validates_a_node_that_is_named(kubernetes: Mapping[str, str], tmp_path: Path) -> None:
    unnamed = gpuproof(
        *VALIDATE, "--on", f"kubernetes:{options(tmp_path)}", cwd=tmp_path, environment=kubernetes
    )
    assert (unnamed.returncode, "kubernetes.io/hostname: NODE" in unnamed.stderr) == (ExitCode.USAGE, True)
    pinned = options(tmp_path, node_selector={"kubernetes.io/hostname": "node-0"}, max_launches=1)
    found = gpuproof(
        *VALIDATE, "--verbose", "--on", f"kubernetes:{pinned}", cwd=tmp_path, environment=kubernetes
    )
    assert found.returncode == ExitCode.INCONCLUSIVE, found.stdout + found.stderr
    assert "gemm-fp32-one was measured" in found.stdout


def test_a_matrix_is_made_of_pods(kubernetes: Mapping[str, str], tmp_path: Path) -> None:
    on = ("--on", f"kubernetes:{options(tmp_path)}")
    ended = gpuproof("matrix", matrix(tmp_path), *on, cwd=tmp_path, environment=kubernetes)
    assert ended.returncode == 0, ended.stdout + ended.stderr
