"""Who follows a printed remedy on a simulated device gets rid of the doubt, or of the limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from running import MEASURED, gpuproof, run_directory
from simulating import needs_simulator, simulated

pytestmark = needs_simulator

SHARED = (
    *("--distributed.device=simgpu", "--distributed.threads_per_rank=1", "--data.name=synthetic"),
    *("--training.precision=fp32", "--benchmark.count_flops=false", "--benchmark.warmup_steps=3"),
    *("--run.repeats=1", "--run.experiment_name=quick"),
)
UNREAD = "--monitoring.enabled=false"
BY_STEPS, BY_TIME = "--benchmark.measure_by=steps", "--benchmark.measure_by=time"
SMALL = ("--kind=training", "--model.name=medium", "--data.batch_size=1", "--training.cuda_graphs=false")
PRODUCTS = ("--kind=inference", "--model.name=gemm")
DEVICE = {"flops_per_s": 2e9, "memory_bytes_per_s": 1e13, "launch_latency_s": 1e-6}
CAPPED = {**DEVICE, "power_cap": {"period_s": 0.2, "depth_percent": 20, "settles_after_s": 0.1}}


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A run with a doubt, and what its remedy says to write."""

    code: str
    words: tuple[str, ...]
    remedied: tuple[str, ...]
    """The keys of the remedy, with values."""
    device: Mapping[str, Any] = field(default_factory=lambda: DEVICE)
    faster_by: float | None = None
    """At least by how much more is done in a second after it."""


def products(edge: int) -> str:
    return f"--model.options={{m: {edge}, n: {edge}, k: {edge}}}"


TROUBLES = (
    Trouble(
        code="host-bound",
        words=(*SMALL, UNREAD, BY_TIME, "--benchmark.measure_seconds=1"),
        remedied=("--data.batch_size=1024",),
        device={**DEVICE, "flops_per_s": 4e9, "zero_products": True},
        faster_by=3.0,
    ),
    Trouble(
        code="host-bound",
        words=(*PRODUCTS, UNREAD, BY_TIME, "--benchmark.measure_seconds=1", products(4)),
        remedied=(products(64),),
    ),
    Trouble(
        code="few-steps",
        words=(*PRODUCTS, UNREAD, BY_STEPS, "--benchmark.measure_steps=5", products(64)),
        remedied=("--benchmark.measure_steps=60",),
    ),
    Trouble(
        code="steadiness-unknown",
        words=(
            *(*PRODUCTS, UNREAD, BY_STEPS, "--benchmark.measure_steps=60", products(64)),
            "--benchmark.log_step_times=false",
        ),
        remedied=("--benchmark.log_step_times=true",),
    ),
    Trouble(
        code="short-at-power-cap",
        words=(
            *(*PRODUCTS, BY_TIME, "--benchmark.measure_seconds=2", products(64)),
            "--benchmark.power_cap_limit_s=2",
        ),
        remedied=("--benchmark.measure_by=time", "--benchmark.measure_seconds=5"),
        device=CAPPED,
    ),
)


def measured(tmp_path: Path, name: str, words: tuple[str, ...], device: Mapping[str, Any]) -> dict[str, Any]:
    shown = gpuproof(
        *("run", "quick", *SHARED, *words, f"--run.run_id={name}"),
        cwd=tmp_path,
        environment=simulated(devices=1, **device),
    )
    assert shown.returncode in MEASURED, shown.stdout + shown.stderr
    concluded: dict[str, Any] = json.loads((run_directory(tmp_path, name).root / "result.json").read_text())
    return concluded


def rate(result: Mapping[str, Any]) -> float:
    return next(float(one["value"]) for one in result["measures"] if one["name"] == "throughput")


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda one: f"{one.code} {one.remedied[0]}")
def test_a_remedy_helps(tmp_path: Path, trouble: Trouble) -> None:
    before = measured(tmp_path, "before", trouble.words, trouble.device)
    doubts = {one["code"]: one for one in before["doubts"]}
    assert trouble.code in doubts
    for word in trouble.remedied:
        assert word.removeprefix("--").split("=")[0] in doubts[trouble.code]["remedy"]
    after = measured(tmp_path, "after", (*trouble.words, *trouble.remedied), trouble.device)
    assert trouble.code not in [one["code"] for one in after["doubts"]]
    if trouble.faster_by is not None:
        assert rate(after) > trouble.faster_by * rate(before)
