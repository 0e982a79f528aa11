"""A simulated GPU at its power cap: its window settles, goes on, and is judged by its periods."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.records.run import Steps, Window
from running import gpuproof, only_case, run_directory
from simulating import needs_simulator, simulated

pytestmark = needs_simulator

GEMM = """
kind: inference
data: {name: synthetic, batch_size: 1}
model: {name: gemm, options: {m: 256, n: 256, k: 256}}
training: {precision: fp32}
benchmark: {warmup_steps: 2, measure_by: time, measure_seconds: 1, power_cap_limit_s: 3, count_flops: false}
run: {experiment_name: gemm, repeats: 1}
"""
CAP = {"period_s": 0.5, "depth_percent": 20, "settles_after_s": 0.1}


def test_a_window_at_the_cap_settles_goes_on_and_says_that_its_limit_was_too_short(tmp_path: Path) -> None:
    (tmp_path / "gemm.yaml").write_text(GEMM)
    environment = simulated(devices=1, flops_per_s=1.25e9, power_cap=CAP)
    options = ("--distributed.device=simgpu", "--run.run_id=s", "--distributed.threads_per_rank=1")
    shown = gpuproof("run", "gemm.yaml", *options, cwd=tmp_path, environment=environment)
    assert shown.returncode == ExitCode.DONE, shown.stdout + shown.stderr
    run = run_directory(tmp_path, "s", "gemm")
    records = only_case(run)
    (window,) = records.of(Window)
    assert (window.requested_s, window.stop_reason) == (1.0, "3 s at the power cap")
    why = (
        r"1 s per launch requested, then extended for periods of 0\.\d+ s of the power cap \(benchmark\.power"
    )
    assert re.search(why, " ".join(shown.stdout.split()))
    assert window.wall_s >= 3
    cap = window.power_cap
    assert cap is not None
    assert (cap.missing, cap.needed_s) == (None, 3.0)
    assert cap.period_s == pytest.approx(0.5, rel=0.1)
    assert (cap.share or 0.0) > 0.9
    assert (cap.settled_after_s or 0.0) >= 3
    assert any(steps.phase == "settle" for steps in records.of(Steps))
    result = json.loads((run.root / "result.json").read_text())
    assert "short-at-power-cap" in [doubt["code"] for doubt in result["doubts"]]
    assert "unsteady" not in [doubt["code"] for doubt in result["doubts"]]
    limited = [measure for measure in result["measures"] if measure["name"] == "limited by"]
    assert "power cap" in json.dumps(limited)
