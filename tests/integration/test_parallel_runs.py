"""Every strategy from the command line: what is counted is what was done, and every rank ends cleanly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuproof.records.memory import Memory
from gpuproof.records.run import Evaluation, ProfileTrace, Setup, Window
from running import TINY, gpuproof, only_case, run_directory

BATCH, STEPS, TOKENS = 8, 20, 12
DECODER = (
    "--model.name=decoder",
    *(f"--model.options.{name}={size}" for name, size in (("d_model", 32), ("num_layers", 2), ("d_ff", 48))),
    *("--model.options.num_heads=4", "--model.options.num_kv_heads=4"),
    *(f"--model.options.seq_len={TOKENS}", "--model.options.vocab_size=50"),
)
QUICKLY = ("--distributed.threads_per_rank=1", "--monitoring.enabled=false")


@pytest.mark.parametrize(
    ("strategy", "more", "ranks", "groups"),
    [
        ("fsdp", {"benchmark.evaluate_after": "true", "profiling.enabled": "true"}, 2, 2),
        ("tensor", {}, 2, 1),
        ("hsdp", {"distributed.shard_size": "2"}, 4, 4),
        ("tensor", {}, 4, 1),
        ("fsdp_tensor", {"distributed.tensor_parallel_size": "2"}, 4, 2),
    ],
)
def test_the_rate_is_that_of_samples_done_once(
    strategy: str, more: dict[str, str], ranks: int, groups: int, tmp_path: Path
) -> None:
    words = [f"--{key}={value}" for key, value in more.items()]
    result = gpuproof(
        *("run", "quick", *TINY, *DECODER, *QUICKLY, "--run.run_id=p", f"--nproc={ranks}"),
        *(f"--distributed.strategy={strategy}", *words, "--training.precision=bf16"),
        *("--distributed.gradient_accumulation_steps=2",),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    run = run_directory(tmp_path, "p")
    records = only_case(run)
    windows = records.of(Window)
    longest_s = max(window.wall_s for window in windows)
    done = groups * 2 * BATCH * STEPS
    summary = json.loads((run.root / "run_summary.json").read_text())
    assert summary["total_samples"] == done
    assert sum(window.items for window in windows) == done * TOKENS
    assert summary["throughput_samples_per_s"] / (done / longest_s) == pytest.approx(1.0)
    assert summary["global_batch_size"] == groups * BATCH
    assert summary["effective_batch_size"] == groups * 2 * BATCH
    step_s = summary["mean_step_ms"] / 1e3
    assert summary["throughput_samples_per_s"] * step_s == pytest.approx(groups * 2 * BATCH)
    assert bool(records.of(Evaluation)) == bool(records.of(ProfileTrace)) == ("profiling.enabled" in more)
    setups = records.of(Setup)
    assert all(setup.parallelism == setups[0].parallelism for setup in setups)
    assert {setup.items_per_step for setup in setups} <= {0, 2 * BATCH * TOKENS}
    flops = sum(setup.flops_per_step or 0 for setup in records.of(Setup))
    assert flops == pytest.approx(groups * flops_of_a_group(records.of(Setup)[0], ranks // groups))
    assert {m.rank for m in records.of(Memory)} == set(range(ranks))
    assert f"{strategy} (" in result.stdout
    for rank in range(ranks):
        assert (run.root / "cases" / "main" / "0" / f"stderr-{rank}.txt").read_text() == ""


def flops_of_a_group(setup: Setup, size: int) -> float:
    """Return the model FLOPs of a tensor group in one step, from its first rank's."""
    assert setup.flops_per_step is not None
    return setup.flops_per_step * size


@pytest.mark.parametrize(("hook", "said"), [("fp16", "fp16_compress_hook"), ("powersgd", "powerSGD_hook of")])
def test_gradients_are_compressed_as_the_record_says(hook: str, said: str, tmp_path: Path) -> None:
    result = gpuproof(
        *("run", "quick", *TINY, *QUICKLY, "--run.run_id=h", "--nproc=2"),
        f"--distributed.gradient_compression={hook}",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"ddp (replicate 2), gradients by {said}" in " ".join(result.stdout.split())
    run = run_directory(tmp_path, "h")
    for rank, setup in enumerate(only_case(run).of(Setup)):
        assert setup.parallelism is not None
        assert str(setup.parallelism.gradient_hook).startswith(said)
        assert (run.root / "cases" / "main" / "0" / f"stderr-{rank}.txt").read_text() == ""


def test_bfloat16_gradients_are_refused_where_ranks_talk_over_gloo(tmp_path: Path) -> None:
    result = gpuproof(
        *("run", "quick", *TINY, *QUICKLY, "--run.run_id=g", "--nproc=2"),
        "--distributed.gradient_compression=bf16",
        cwd=tmp_path,
    )
    assert result.returncode != 0
    assert "gradients in bfloat16 are summed over NCCL only" in " ".join(result.stdout.split())
