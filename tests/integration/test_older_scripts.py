"""The commands of the tools that gpuproof grew out of, typed as their users type them, from a checkout."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuproof.base.errors import ExitCode
from old_tree_by_hand import record_of, tree_of_recordings
from running import MEASURED, clean_environment

ROOT = Path(__file__).parents[2]
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
STUDY = "--device cpu --max-devices 2 --runs 1 --benchmark.measure_steps=20 --benchmark.warmup_steps=2"


def typed(words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `python SCRIPT WORDS` or `bash SCRIPT WORDS`, of the checkout, in another folder."""
    script, *options = shlex.split(words)
    start = "bash" if script.endswith(".sh") else sys.executable
    return subprocess.run(
        [start, str(ROOT / script), *options],
        cwd=cwd,
        env=clean_environment(**NO_GPU),
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("gpu_loadtest.py --num-epochs 5 --help", "gpuproof load"),
        ("cli.py test load --deployment-file cluster.json --ssh-key key.pem --help", "gpuproof load"),
        ("run_benchmark.py --model large --gpu-mode auto --runs 25 --dry-run", "gpuproof scale"),
        ("run_benchmark.py --model medium --batch-sizes 32 64 128 --runs 20 --dry-run", "gpuproof scale"),
        ("run_benchmark.py --model large --runs 10 --output-dir ./quick_test --dry-run", "gpuproof scale"),
        (
            "src/train.py --model resnet50 --batch-size 64 --active-iterations 100 --warmup-iterations 20 "
            "--data-mode synthetic --dry-run",
            "gpuproof validate",
        ),
        ("scripts/train_with_monitoring.py --help", "gpuproof monitor exec"),
        ("scripts/gputop.py --help", "gpuproof monitor live"),
        ("scripts/entrypoint.sh --help", "gpuproof validate"),
    ],
)
def test_a_script_by_its_old_name_is_a_command_of_ours_and_says_which(
    words: str, ours: str, tmp_path: Path
) -> None:
    done = typed(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    if not words.startswith("gpu_loadtest"):
        assert done.stderr.splitlines()[0].count(ours) == 1, done.stderr


def test_too_few_gpus_end_the_study_of_old_with_1_and_leave_no_folder(tmp_path: Path) -> None:
    refused = typed("run_benchmark.py --model medium --gpu-mode multi --runs 50", tmp_path)
    assert refused.returncode == 1
    assert "requires at least 2 GPUs; found 0" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_study_of_old_prints_a_heading_and_run_i_of_n(tmp_path: Path) -> None:
    done = typed(f"run_benchmark.py --gpu-mode multi --batch-sizes 8 16 --scaling strong {STUDY}", tmp_path)
    assert done.returncode in MEASURED, done.stderr
    assert {"=== Batch size 8 ===", "=== Batch size 16 ==="} <= set(done.stderr.splitlines())
    assert done.stderr.count("Run 1/1 (1 device)") == 2
    assert done.stderr.count("Run 1/1 (2 devices, strong)") == 2
    for mode in ("single", "multi"):
        path = tmp_path / "results" / f"benchmark_medium_{mode}_gpu.json"
        assert f"Benchmark complete! Results saved to: results/{path.name}" in done.stderr
        assert json.loads(path.read_text())


def test_a_study_of_one_point_is_headed_by_its_throughput(tmp_path: Path) -> None:
    done = typed(f"run_benchmark.py --gpu-mode single --batch-sizes 8 {STUDY}", tmp_path)
    assert done.returncode in MEASURED, done.stderr
    headline = done.stdout.splitlines()[1]
    assert "samples/s" in headline, done.stdout
    assert headline.endswith("batch 8 on 1 device")


def test_a_training_with_its_monitor_leaves_the_record_of_old(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(1)")
    done = typed("scripts/train_with_monitoring.py --config-name a -- python3 train.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("gpu_stats_a_*")), done.stderr


@pytest.mark.parametrize("content", [record_of(10.5), [record_of(10.5)]])
def test_one_record_is_one_sample(content: Any, tmp_path: Path) -> None:
    for name in ("A.json", "B.json"):
        (tmp_path / name).write_text(json.dumps(content))
    compared = typed("scripts/gputop.py --compare A.json B.json", tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "cannot tell" in compared.stdout
    side_by_side = typed("scripts/visualize_gpu_comparison.py A.json B.json", tmp_path)
    assert side_by_side.stdout.splitlines()[0] == compared.stdout.splitlines()[0]
    refused = typed("scripts/gputop.py --stats --help", tmp_path)
    assert refused.returncode == ExitCode.USAGE
    assert "--help is an option, not a file" in refused.stderr
    assert not (tmp_path / "--help").exists()
    drawn = typed("scripts/gputop.py --gen-graph A.json", tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "A_plot.png").is_file()


def test_a_tree_of_recordings_alone_is_a_finished_matrix_of_memory(tmp_path: Path) -> None:
    folder = tree_of_recordings(tmp_path)
    done = typed(f"scripts/generate_gpu_memory_comparison.py {folder.name}", tmp_path)
    said = " ".join(done.stdout.split())
    assert done.returncode == ExitCode.DONE, done.stderr
    assert "mean memory 1,381.5 MiB compared with 1,494.0 MiB: 7.5 % less" in said
    assert "cannot tell whether this applies to other runs" in said
    assert "No such file" not in said
    assert (folder / "graphs" / "training_memory_comparison.png").is_file()
