"""Precisions and speed options by the real command: what was asked for runs, or is refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.processes.granted import usable_cpus
from gpuproof.records.breakdown import Fp8Casts
from gpuproof.records.run import Environment, Failure, RankResult, Setup
from gpuproof.records.what_ran import Effective, StepOptions
from running import MEASURED, TINY, clean_environment, gpuproof, only_case, run_directory

SHORT = ("--benchmark.measure_steps=2", "--monitoring.enabled=false", "--run.run_id=s", "--verbose")

SOURCE = """
import torch
from torch import nn

class Probe(nn.Module):
    def __init__(self, *, num_classes, put=False, keep_fp32=False):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))
        self.put, self.keep_fp32 = put, keep_fp32

    def forward(self, images):
        if self.put and self.training:  # of two values for one place either may stay
            torch.zeros(4).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
        with torch.autocast("cpu", enabled=not self.keep_fp32, dtype=torch.bfloat16):
            return self.layers(images)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "my models"
    folder.mkdir()
    (folder / "own_probe.py").write_text(SOURCE)
    variables = clean_environment()
    path = ":".join(filter(None, (str(folder), variables.get("PYTHONPATH"))))
    return {**variables, "PYTHONPATH": path}


def own(options: str) -> list[str]:
    return [
        *("--model.name=python:own_probe:Probe", f"--model.options={options}"),
        *("--model.num_classes=10", "--data.image_size=8"),
    ]


@pytest.mark.promise("S1.22", "F1.17")
def test_two_deterministic_launches_end_in_the_same_bits_and_say_what_ran(tmp_path: Path) -> None:
    asked = (
        *("--training.deterministic=true", "--training.optimizer=AdamW", "--run.repeats=2"),
        *("--training.optimizer_implementation=fused", "--training.activation_checkpointing=all"),
        *("--training.precision=bf16", "--training.learning_rate=0.01"),
    )
    result = gpuproof("run", "quick", *TINY, *SHORT, *asked, cwd=tmp_path)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    run = run_directory(tmp_path, "s")
    losses = [records.of(RankResult)[0].last_loss for records in run.cases()]
    assert len(losses) == 2
    assert losses[0] is not None
    assert losses[0] == losses[1]
    assert run.cases()[0].of(Setup)[0].options == StepOptions(
        optimizer="AdamW",
        optimizer_implementation="fused",
        activation_checkpointing="all",
        checkpointed_modules=1,
        cuda_graphs=False,
        deterministic=True,
        tf32=None,
        linear_layers=4,
        fp8_linear_layers=0,
        weights="float32",
    )
    facts = json.loads((run.root / "environment.json").read_text())
    assert [host["environment"]["CUBLAS_WORKSPACE_CONFIG"] for host in facts.values()] == [":4096:8"]
    text = " ".join(result.stdout.split())
    options = "AdamW (fused), checkpointing all (1 module), deterministic"
    assert f"options bf16, weights in float32, eager, no captured CUDA graph, {options}" in text
    assert "observed matrix product: bfloat16 100 % of the FLOPs" in text


def test_an_operation_without_a_deterministic_algorithm_is_a_failure_in_words(
    environment: dict[str, str], tmp_path: Path
) -> None:
    asked = (*own("{put: true}"), "--training.deterministic=true")
    result = gpuproof("run", "quick", *TINY, *SHORT, *asked, cwd=tmp_path, environment=environment)
    assert result.returncode == ExitCode.FAILED, result.stdout + result.stderr
    (failure,) = only_case(run_directory(tmp_path, "s")).of(Failure)
    assert "put_ does not have a deterministic implementation" in failure.message
    assert failure.next_step == ("Set training.deterministic to false, or use a model without this operation")


def test_a_model_that_runs_in_another_precision_than_asked_is_invalid(
    environment: dict[str, str], tmp_path: Path
) -> None:
    asked = (*own("{keep_fp32: true}"), "--training.precision=bf16")
    result = gpuproof("run", "quick", *TINY, *SHORT, *asked, cwd=tmp_path, environment=environment)
    assert result.returncode == ExitCode.INCONCLUSIVE, result.stdout + result.stderr
    text = " ".join(result.stdout.split())
    assert "training.precision is bf16, but 100 % of the FLOPs of rank 0 ran in something else" in text


def test_fp8_runs_on_a_processor_and_says_that_it_is_software(tmp_path: Path) -> None:
    decoder = (
        "d_model: 32, num_layers: 2, num_heads: 2, num_kv_heads: 1, d_ff: 48, seq_len: 8, vocab_size: 64"
    )
    asked = (
        *("--model.name=decoder", f"--model.options={{{decoder}}}", "--data.batch_size=2"),
        *("--training.precision=fp8", "--training.activation_checkpointing=blocks"),
        "--benchmark.warmup_steps=1",
    )
    result = gpuproof("run", "quick", *TINY, *SHORT, *asked, cwd=tmp_path)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    records = only_case(run_directory(tmp_path, "s"))
    (setup,) = records.of(Setup)
    assert setup.options is not None
    # Two layers of queries with keys and values, output, gate with up, down; and the head.
    assert (setup.options.fp8_linear_layers, setup.options.linear_layers) == (9, 9)
    assert setup.options.checkpointed_modules == 2
    assert "fp8 on a CPU is computed in software: its speed says nothing about a GPU" in setup.notes
    (effective,) = records.of(Effective)
    assert {work.dtype for work in effective.work if work.operation == "matrix product"} == {
        "float8_e4m3fn",
        "float8_e5m2 × float8_e4m3fn",
    }
    # The gradients of each layer's input and weight; blocks are computed again forward only.
    calls = {work.dtype: work.calls for work in effective.work if work.operation == "matrix product"}
    assert calls["float8_e5m2 × float8_e4m3fn"] == 2 * 9
    (casts,) = records.of(Fp8Casts)
    assert casts.passes_per_step == 9 + 2 * 4 + 9  # forward, again in the two blocks, backward
    assert casts.s_per_step > 0
    report = gpuproof("report", "--json", str(tmp_path / "results" / "quick" / "s"), cwd=tmp_path)
    shown = json.loads(report.stdout)
    assert "fp8 in 9 of 9 linear layers" in shown["detail"]["options"]["summary"]
    (share,) = (measure for measure in shown["measures"] if measure["name"] == "casts to fp8")
    assert share["unit"] == "share"
    assert "of a step, timed separately after the window" in share["detail"]


def test_what_this_machine_lacks_is_refused(tmp_path: Path) -> None:
    lacking = (
        "training.precision: TF32 needs NVIDIA's tensor cores",
        "training.cuda_graphs: CUDA graphs are for CUDA devices",
    )
    points = [
        {"training.precision": "tf32", "training.cuda_graphs": False},
        {"training.precision": "fp32", "training.cuda_graphs": True},
    ]
    sweep = ("--run.start=fork", f"--matrix.include={json.dumps(points)}")
    result = gpuproof("run", "quick", *TINY, *SHORT, *sweep, cwd=tmp_path)
    assert result.returncode == ExitCode.UNFIT_ENVIRONMENT, result.stdout + result.stderr
    failures = [records.of(Failure)[0] for records in run_directory(tmp_path, "s").cases()]
    assert [failure.cause for failure in failures] == ["environment", "environment"]
    for message in lacking:
        assert sum(failure.message.startswith(message) for failure in failures) == 1


@pytest.mark.parametrize(("users", "ranks", "threads"), [("1", 1, 1), (None, 2, None)])
def test_threads_and_what_is_recorded_of_them_are_the_users(
    tmp_path: Path, users: str | None, ranks: int, threads: int | None
) -> None:
    variables = clean_environment() if users is None else clean_environment(OMP_NUM_THREADS=users)
    if users is None:
        variables.pop("OMP_NUM_THREADS", None)
    words = (*TINY, *SHORT, f"--nproc={ranks}", "--distributed.threads_per_rank=null")
    result = gpuproof("run", "quick", *words, cwd=tmp_path, environment=variables)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    records = run_directory(tmp_path, "s").cases()[0]
    expected = threads or max(1, usable_cpus() // ranks)
    assert {setup.threads for setup in records.of(Setup)} == {expected}
    told = {host.facts["environment"].get("OMP_NUM_THREADS") for host in records.of(Environment)}
    assert told == {users}  # torchrun's 1 and our own number are not the user's
    assert ("because of OMP_NUM_THREADS=1" in result.stdout) == (users is not None and usable_cpus() > 1)
