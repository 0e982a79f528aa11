"""A folder as the pages take it to be: recipes, data, hosts, and runs that were made before."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np

from running import clean_environment, gpuproof

ROOT = Path(__file__).resolve().parents[1]
REPLAY = ROOT / "tests" / "replay"
TINY_RUN = (
    *("--benchmark.warmup_steps=1", "--benchmark.measure_by=steps", "--benchmark.measure_steps=2"),
    *("--data.batch_size=4", "--data.image_size=32", "--training.compile.enabled=false"),
    *("--model.name=simple_cnn", "--training.precision=bf16", "--run.repeats=1"),
    *("--benchmark.own_compute=false", "--distributed.threads_per_rank=1"),
)
"""Behind a command that trains: as long as importing torch takes."""
RECORDED = {
    "runs/training/run": (
        *("quick/RUN", "quick/before", "quick/after", "quick/fp32"),
        *("main/run_1", "main/run_2"),
    ),
    "runs/load/run": ("load/RUN",),
    "to_ready": ("validate/RUN", "validate/day1", "validate/day2"),
    "disturbed_cpu": ("crowded/RUN",),
}
"""Recorded runs, and under which names pages speak of them."""
RECORDINGS = ("other", "adamw", "sgd", "a", "b")
SMALL_RECIPE = "model: {name: medium}\ndata: {name: synthetic, batch_size: %d}\n"
RULES = """rules:
  - name: products are fast
    each: gpu
    measure: {name: throughput, labels: {workload: gemm}}
    expect: {at_least: 1.0e+9, unit: FLOP/s}
"""
TRAIN = "import json, os\nprint('training')\n"


def make_place(folder: Path) -> None:
    """Fill the folder."""
    shutil.copytree(ROOT / "configs", folder / "configs")
    shutil.copytree(ROOT / "examples" / "matrix", folder / "examples" / "matrix")
    write_tiny_cifar100(folder / "data" / "cifar-100-python")
    results = folder / "results"
    for recorded, (first, *others) in RECORDED.items():
        shutil.copytree(REPLAY / recorded, results / first)
        concluded = gpuproof("report", f"results/{first}", cwd=folder)
        assert "Traceback" not in concluded.stderr, concluded.stderr
        for other in others:
            shutil.copytree(results / first, results / other)
    shutil.copytree(results / "quick/fp32", results / "quick/bf16")
    for name in ("run.json", "result.json"):
        file = results / "quick/bf16" / name
        file.write_text(file.read_text(encoding="utf-8").replace('"fp32"', '"bf16"'), encoding="utf-8")
    for number, name in enumerate(("before", "after", "small", "large")):
        (folder / f"{name}.yaml").write_text(SMALL_RECIPE % (8 * (number + 1)), encoding="utf-8")
    for name in ("ours", "stricter"):
        (folder / f"{name}.yaml").write_text(RULES, encoding="utf-8")
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    (folder / "train.sh").write_text("sleep 1\n", encoding="utf-8")
    hosts = {"hosts": [{"host": f"10.0.0.{n}", "name": f"node{n}", "gpus": 8} for n in (1, 2)]}
    for name in ("cluster.json", "hosts.yaml", "chosen-hosts.json"):
        (folder / name).write_text(json.dumps(hosts), encoding="utf-8")
    fake = clean_environment(GPUPROOF_FAKE_DEVICES="2")
    watched = gpuproof(
        "monitor", "exec", "--config-name", RECORDINGS[0], "--", "sleep", "1", cwd=folder, environment=fake
    )
    assert watched.returncode == 0, watched.stderr
    for name in RECORDINGS[1:]:
        for file in results.glob(f"gpu_stats_{RECORDINGS[0]}_*"):
            shutil.copy(file, file.with_name(file.name.replace(RECORDINGS[0], name, 1)))


def write_tiny_cifar100(folder: Path) -> None:
    """Write a data set of forty pictures as CIFAR-100's files are."""
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3072), dtype=np.uint8)
    content = {b"data": pixels, b"fine_labels": [i % 100 for i in range(40)]}
    (folder / "train").write_bytes(pickle.dumps(content, protocol=2))
