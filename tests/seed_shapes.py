"""Files in the shapes that users of the older tools have: pieces of seed_examples.md, and their writers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from old_tree_by_hand import record_of, tree_of_recordings

LOAD = (
    '{"system_info": {hostname, gpu_names, cuda_version, pytorch_version}, "test_summary": '
    "{requested_duration_minutes, actual_duration_seconds, total_tests, successful_tests, failed_tests}, "
    '"results": [{test_name, test_type, description, model_name, batch_size, throughput_samples_per_second, '
    "avg_iteration_time_ms, peak_gpu_memory_mb, peak_gpu_utilization_percent, success}]}"
)
TRAINING = "results/<exp>/<run>/{metrics_epoch.jsonl,run_summary.json,summary.csv,trace_rank0.json}"
STUDY = "benchmark_MODEL_single_gpu.json"
CLUSTER = (
    '{"model", "world_size", "batch_size_per_gpu", "global_batch_size", "avg_step_time_ms", '
    '"throughput_samples_per_second", "nccl_overhead_ms", "gpu_utilization_pct", "backend"}'
)
RECORD = json.dumps(record_of(10.5) | {"timestamp": "2025-08-29T04:35:11.660455"})
TREE = (
    "test_matrix_results_20250829_040425/{resnet18_adamwprune_state_70/{gpu_stats_*.json,"
    "gpu_stats_*_summary.txt,gpu_stats_*_plot.png}, …, "
    "graphs/{gpu_memory_timeline.png,training_memory_comparison.png}}"
)


def write_load(folder: Path, rate: float) -> Path:
    tests = [
        {
            "test_name": f"{kind}_simple_cnn_bs32",
            "test_type": kind,
            "description": "Simple CNN",
            "model_name": "SimpleCNN",
            "batch_size": 32,
            "throughput_samples_per_second": rate if kind == "train" else None,
            "avg_iteration_time_ms": 32e3 / rate,
            "peak_gpu_memory_mb": 512.0,
            "peak_gpu_utilization_percent": 88.0,
            "success": kind == "train",
        }
        for kind in ("train", "inference")
    ]
    system = {"hostname": "a", "gpu_names": ["NVIDIA A10"], "cuda_version": "11.8", "pytorch_version": "2.0"}
    summary = {"requested_duration_minutes": 5, "actual_duration_seconds": 310.2, "total_tests": 2}
    counts = {"successful_tests": 1, "failed_tests": 1}
    content = {"system_info": system, "test_summary": summary | counts, "results": tests}
    return _written(folder / f"load_{rate:g}.json", content)


def write_training(folder: Path, rate: float) -> Path:
    """Write a run of two epochs, of which the first is within its warm-up and measured nothing."""
    run = folder / "results" / "synthetic" / f"run_{rate:g}"
    run.mkdir(parents=True)
    names = "epoch_time_s total_steps measured_steps measured_samples mean_step_ms p50_step_ms p95_step_ms"
    rows = [
        {"epoch": 1, "throughput_samples_per_s": 0.0, **dict.fromkeys(names.split(), 0)},
        {"epoch": 2, "throughput_samples_per_s": rate, **dict.fromkeys(names.split(), 40)},
    ]
    (run / "metrics_epoch.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    facts = {"world_size": 1, "precision": "amp", "batch_size": 256, "total_samples": 10_000}
    _written(run / "run_summary.json", {"experiment_name": "synthetic", "run_id": run.name, **facts})
    (run / "summary.csv").write_text(f"experiment_name,run_id,total_steps\nsynthetic,{run.name},40\n")
    _written(run / "trace_rank0.json", {"traceEvents": []})
    return run


def write_study(folder: Path, rate: float) -> Path:
    keys = {"batch_size": 32, "model_type": "medium", "multi_gpu": False, "num_runs": 2}
    runs = [{"run": n, "samples_per_second": rate + n, "memory_usage_mb": 300.0} for n in (-1, 1)]
    rates = {"mean_samples_per_sec": rate, "std_samples_per_sec": 1.4, "detailed_runs": runs}
    name = f"benchmark_medium_single_gpu_{rate:g}.json"
    return _written(folder / name, [{**keys, **rates, "confidence_interval_95": [rate - 1, rate + 1]}])


def write_cluster(folder: Path, rate: float) -> Path:
    work = {"model": "resnet50", "world_size": 8, "batch_size_per_gpu": 64, "global_batch_size": 512}
    times = {"avg_step_time_ms": 512e3 / rate, "nccl_overhead_ms": 12.0, "gpu_utilization_pct": 93.0}
    content = {**work, **times, "throughput_samples_per_second": rate, "backend": "nccl"}
    return _written(folder / f"results_{rate:g}.json", content)


def write_record(folder: Path, rate: float) -> Path:
    return _written(folder / f"record_{rate:g}.json", record_of(10.5, rate))


def write_tree(folder: Path, rate: float) -> Path:
    return tree_of_recordings(folder / f"{rate:g}")


def _written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


RESULTS: Mapping[str, Callable[[Path, float], Path]] = {
    LOAD: write_load,
    TRAINING: write_training,
    STUDY: write_study,
    CLUSTER: write_cluster,
    TREE: write_tree,
}
"""Shapes of results → what writes one whose throughput is the number."""
SHAPES = {*RESULTS, RECORD}
