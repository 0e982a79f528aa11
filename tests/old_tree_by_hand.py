"""A folder of the older test matrix, with readings and the metrics of its scripts in both of their shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESNET = {
    "epochs": [1, 2, 3],
    "train_loss": [1.0, 0.5, 0.3],
    "test_accuracy": [90.1, 91.0, 91.5],
    "sparsity": [0.0, 0.3, 0.7],
    "total_time": 300.0,
    "final_accuracy": 91.5,
}
LENET = {
    "epochs": [{"epoch": 1, "test_accuracy": 97.0}, {"epoch": 2, "test_accuracy": 98.2}],
    "device": "cuda",
    "spam_stats": {"resets": 1},
    "total_training_time": 12.5,
}


def gpu_stats(memory_mib: float) -> list[dict[str, Any]]:
    return [
        {
            "timestamp": f"2025-01-01T00:00:{second:02d}",
            "gpu_name": "W7900",
            "gpu_type": "amd",
            "utilization": 60,
            "memory_used": memory_mib,
            "memory_total": 49140,
            "power": 160.0,
            "temperature": 60,
            "elapsed_seconds": second,
        }
        for second in range(11)
    ]


def record_of(elapsed_s: float, memory_mib: float = 1424.3) -> dict[str, Any]:
    """Return a record of the older monitor, as its users know it."""
    return {
        "timestamp": f"2025-08-29T04:35:{11 + elapsed_s:09.6f}",
        "gpu_name": "AMD Radeon Pro W7900",
        "gpu_type": "AMD",
        "utilization": 95.0,
        "memory_used": memory_mib,
        "memory_total": 49152.0,
        "memory_percent": 2.9,
        "power": 250.0,
        "temperature": 75.0,
        "elapsed_seconds": elapsed_s,
        "training_metadata": {"epoch": 1, "batch": 100, "phase": "training"},
    }


def old_tree(root: Path) -> Path:
    folder = root / "test_matrix_results_20250101_000000"
    tests = {"lenet5_sgd_none": LENET, "resnet18_adamwprune_state_70": RESNET}
    for name, content in tests.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "training_metrics.json").write_text(json.dumps(content))
        stats = folder / name / f"gpu_stats_{name}_20250101_000000.json"
        stats.write_text(json.dumps(gpu_stats(1381.5 if "prune" in name else 1494.0)))
    (folder / "lenet5_adam_none").mkdir()
    (folder / "lenet5_adam_none" / "error.txt").write_text("out of memory")
    return folder


def tree_of_recordings(root: Path) -> Path:
    """Return a tree as the monitor of old left it: recordings, summaries and pictures, and nothing else."""
    folder = root / "test_matrix_results_20250829_040425"
    for test, mib in (("resnet18_adamwprune_state_70", 1381.5), ("resnet18_adamw_magnitude_70", 1494.0)):
        (folder / test).mkdir(parents=True)
        stem = folder / test / f"gpu_stats_{test}_20250829_043501"
        stem.with_suffix(".json").write_text(json.dumps(gpu_stats(mib)))
        stem.with_name(f"{stem.name}_summary.txt").write_text("Mean memory\n")
        stem.with_name(f"{stem.name}_plot.png").write_bytes(b"")
    (folder / "graphs").mkdir()
    return folder
