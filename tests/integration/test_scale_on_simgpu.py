"""A scaling study on simulated devices: what is measured is what the declared timeline says, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from running import MEASURED, gpuproof
from simulating import needs_simulator, simulated

pytestmark = needs_simulator

LINK_BYTES_PER_S, LINK_LATENCY_S = 4e6, 2e-5
GRADIENT_BYTES, NUM_TENSORS = 4 * 54_403, 8
ALL_REDUCE_MS = 1e3 * (LINK_LATENCY_S + GRADIENT_BYTES / LINK_BYTES_PER_S)
"""Of the only bucket over two ranks, each of which sends 2 (n - 1) / n of its bytes: 54.423 ms."""
COPIES_MS = 1e3 * 2 * (NUM_TENSORS * 1e-4 + 2 * GRADIENT_BYTES / 1e10)
"""Each gradient into its bucket and back: a launch, and its bytes read and written: 1.687 ms."""

PARAMETERS_HELD = 4
"""Parameters, gradients and two moments of Adam, each as large."""
SLACK = 0.25
"""Of what waits for a host that much else keeps busy; what is queued before it runs is exact."""


def study(folder: Path) -> dict[str, Any]:
    """Run one device against two whose link is slow; return the record of each side, and the report."""
    declared = simulated(
        devices=2, flops_per_s=2e9, peer_link_bytes_per_s=LINK_BYTES_PER_S, zero_products=True
    )
    result = gpuproof(
        *("scale", "--device", "simgpu", "--max-devices", "2", "--gpu-mode", "multi", "--scaling", "strong"),
        *("--runs", "3", "--batch-sizes", "256", "--output-dir", "out", "--scale.breakdown_runs=1"),
        *("--benchmark.measure_steps=20", "--benchmark.warmup_steps=3", "--benchmark.own_compute=false"),
        *("--benchmark.count_flops=false", "--monitoring.enabled=false"),
        cwd=folder,
        environment=declared,
    )
    assert result.returncode in MEASURED, result.stdout + result.stderr
    files = {
        side: json.loads((folder / "out" / f"benchmark_medium_{side}_gpu.json").read_text())[0]
        for side in ("single", "multi")
    }
    report = (folder / "out" / "comparison_report_medium.md").read_text()
    return {**files, "report": report, "page": result.stdout}


@pytest.mark.promise("S2.3")
def test_a_second_device_over_a_slow_link_is_measured_right_and_advised_against(tmp_path: Path) -> None:
    """What a busy host can make no shorter; the figures from both sides are those of the long test."""
    found = study(tmp_path)
    multi, single = found["multi"], found["single"]
    assert multi["bucket_bytes"] == [GRADIENT_BYTES]
    talking = {name: figure["mean"] for name, figure in multi["communication"].items()}
    assert talking["exposed_ms"] >= ALL_REDUCE_MS * (1 - 1e-4)
    assert all(run["mean_step_ms"] >= ALL_REDUCE_MS for run in multi["detailed_runs"])
    assert multi["mean_communication_ms"] == talking["sync_difference_ms"]
    assert single["mean_communication_ms"] is None
    # the allocator holds as much before a step as after it, and more while it runs
    (run, *_) = multi["detailed_runs"]
    before, after = run["step_memory_mb"]["before"], run["step_memory_mb"]["after"]
    assert before == after
    assert PARAMETERS_HELD * GRADIENT_BYTES / 2**20 < min(before) < run["memory_usage_mb"]
    if "is SUSPECT" not in found["report"]:  # beside neighbours no side wins, and the report says so
        assert "Single GPU preferred" in found["report"]
        assert "avoid multi-GPU" in found["report"]
    assert "Phases of a step" in found["page"]


@pytest.mark.long
def test_what_two_devices_come_to_is_what_their_timeline_says(tmp_path: Path) -> None:
    found = study(tmp_path)
    multi, single = found["multi"], found["single"]
    talking = {name: figure["mean"] for name, figure in multi["communication"].items()}
    assert talking["standalone_ms"] == pytest.approx(ALL_REDUCE_MS, rel=1e-4)
    assert talking["exposed_ms"] == pytest.approx(ALL_REDUCE_MS, rel=SLACK)
    assert talking["overlapped_ms"] == pytest.approx(0.0, abs=SLACK * ALL_REDUCE_MS)
    assert talking["sync_difference_ms"] == pytest.approx(ALL_REDUCE_MS, rel=SLACK)
    phases = multi["phases_ms"]
    assert phases["communication"] == pytest.approx(ALL_REDUCE_MS + COPIES_MS, rel=1e-3)
    # half the batch on each device: what each computes is between half and the whole of one device's step
    alone_ms = sum(single["phases_ms"][name] for name in ("forward", "backward", "optimizer"))
    computed_ms = sum(phases[name] for name in ("forward", "backward", "optimizer"))
    assert alone_ms / 2 < computed_ms < alone_ms
    expected = alone_ms / (computed_ms + phases["communication"])
    measured = multi["mean_samples_per_sec"] / single["mean_samples_per_sec"]
    assert measured == pytest.approx(expected, rel=SLACK)
    assert expected < 0.6
