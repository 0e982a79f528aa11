"""The eight options of the training test, given at once in each mode: what runs is what was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from gpuproof.base.errors import ExitCode
from gpuproof.records.case import InferenceWork, TrainingWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Setup, Steps, Window
from running import clean_environment, gpuproof, run_directory

EIGHT = (
    *("--model", "simple_cnn", "--batch-size", "4", "--data-mode", "imagenet", "--data-dir", "images"),
    *("--num-classes", "3", "--learning-rate", "0.02"),
    *("--warmup-iterations", "3", "--active-iterations", "12"),
)
SHORT = (
    *("--allow-cpu", "--device", "cpu", "--recipe", "quick", "--run.run_id=v", "--data.image_size=8"),
    *("--monitoring.enabled=false", "--distributed.threads_per_rank=1", "--benchmark.own_compute=false"),
    *("--validate.collective={operations: [all_reduce], min_bytes: 8K, max_bytes: 8K}",),
    *("--validate.window_s=0.2", "--validate.memory_buffer_bytes=1048576"),
)
MODES = {
    "full": ("--nproc", "2", "--validate.gemm_size=64"),
    "training": ("--nproc", "1"),
    "nccl": ("--nproc", "2"),
}
EVERY_STAGE = {
    *("links", "pattern", "fingerprint", "gemm-fp32-one", "gemm-fp32-all", "memory-one", "memory-all"),
    *("overlap", "collective-within", "nccl-tests", "training-one", "training"),
}
"""Cases of `full` over two ranks of a processor; a disk is tried where a folder is named."""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Small JPEG files: 8 of each of two classes to train on, 3 of each to test on."""
    for part, number in {"train": 8, "val": 3}.items():
        for name, colour in {"cat": (255, 0, 0), "dog": (0, 0, 255)}.items():
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for i in range(number):
                Image.new("RGB", (40, 30), colour).save(folder / f"{i}.jpg")
    return tmp_path


@pytest.mark.parametrize("mode", [pytest.param("full", marks=pytest.mark.long), "training", "nccl"])
@pytest.mark.promise("S3.3", "S3.5", "S3.14", "S3.17")
def test_what_is_run_is_what_was_asked_for(mode: str, images: Path) -> None:
    environment = clean_environment(CUDA_VISIBLE_DEVICES="")
    found = gpuproof(
        "validate", "--mode", mode, *EIGHT, *SHORT, *MODES[mode], cwd=images, environment=environment
    )
    assert found.returncode == ExitCode.INCONCLUSIVE, found.stdout + found.stderr
    assert ", and for the tests that follow" in found.stderr.split("launch 1/")[0], (
        "how long it may take is said before"
    )
    run = run_directory(images, "v", "validate-quick")
    launches = {launch.case.case_id: launch for launch in run.cases()}
    said = " ".join(found.stdout.split())
    if mode == "nccl":
        assert set(launches) == {"collective-within"}
        assert "validation_result.json is not written" in said
        ignored = said.partition("no stage trains a model: ")[2]
        for key in ("model.name", "data.batch_size", "data.name", "data.path", "model.num_classes"):
            assert key in ignored
        for key in ("training.learning_rate", "benchmark.warmup_steps", "benchmark.measure_steps"):
            assert key in ignored
        return
    assert "without effect" not in said
    assert set(launches) == (EVERY_STAGE if mode == "full" else {"training"})
    for name, launch in launches.items():
        if name.startswith("training"):
            trained_as_asked(launch)
        elif isinstance(launch.case.work, InferenceWork | TrainingWork):
            assert launch.case.work.data.name == "synthetic"
    is_what_was_measured(run.root, ranks=2 if mode == "full" else 1)


def trained_as_asked(training: CaseRecords) -> None:
    """Hold what the ranks wrote down against the eight options."""
    work = training.case.work
    assert isinstance(work, TrainingWork)
    assert (work.model.name, work.model.num_classes, work.data.batch_size) == ("simple_cnn", 3, 4)
    assert work.training.learning_rate == 0.02
    for setup, window in zip(training.of(Setup), training.of(Window), strict=True):
        assert (setup.items_per_step, window.num_steps, window.items) == (4, 12, 48)
        phases = [steps for steps in training.of(Steps) if steps.rank == setup.rank]
        assert sum(len(steps.durations_s) for steps in phases if steps.phase == "warmup") == 3
        used = setup.data_used
        assert used is not None
        assert (used.source, used.split, used.num_samples) == ("images", "train", 16)


def is_what_was_measured(folder: Path, *, ranks: int) -> None:
    """Hold S3.14's file against the measures of the run."""
    found = json.loads((folder / "validation_result.json").read_text())
    result = json.loads((folder / "result.json").read_text())
    measured = {
        measure["name"]: measure["value"]
        for measure in result["measures"]
        if measure["subject"] == "whole" and measure["labels"].get("stage") == "training"
    }
    assert found == {
        "model": "simple_cnn",
        "world_size": ranks,
        "batch_size_per_gpu": 4,
        "global_batch_size": 4 * ranks,
        "avg_step_time_ms": pytest.approx(1e3 * measured["mean step"]),
        "throughput_samples_per_second": measured["throughput"],
        "nccl_overhead_ms": None,
        "gpu_utilization_pct": None,
        "backend": "gloo" if ranks > 1 else found["backend"],
    }
