"""Every strategy from the command line: what is counted is what was done, and every rank ends cleanly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from torch.nn.parallel import DistributedDataParallel

from gpuproof.base import registry
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.breakdown import OwnCompute
from gpuproof.records.run import Evaluation, Setup, Window
from gpuproof.records.what_ran import Memory
from gpuproof.worker.parallel.model import arranged, compress_gradients
from gpuproof.worker.step.checkpointing import repeated_blocks
from gpuproof.workloads.info.catalogue.decoder import DecoderOptions, decoder_work
from records_by_hand import case
from running import TINY, gpuproof, only_case, run_directory

BATCH, STEPS, TOKENS = 8, 20, 12
SIZES: dict[str, Any] = {
    **{"d_model": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4, "d_ff": 48},
    **{"seq_len": TOKENS, "vocab_size": 50},
}
PLAN = DecoderOptions(**SIZES).plan
DECODER = ("--model.name=decoder", *(f"--model.options.{name}={size}" for name, size in SIZES.items()))
QUICKLY = ("--distributed.threads_per_rank=1", "--monitoring.enabled=false")


@pytest.mark.parametrize(
    ("strategy", "more", "ranks", "groups"),
    [
        ("fsdp", {"benchmark.evaluate_after": "true"}, 2, 2),
        ("tensor", {}, 2, 1),
        pytest.param("hsdp", {"distributed.shard_size": "2"}, 4, 4, marks=pytest.mark.long),
        pytest.param("fsdp_tensor", {"distributed.tensor_parallel_size": "2"}, 4, 2, marks=pytest.mark.long),
    ],
)
def test_the_rate_is_that_of_samples_done_once(
    strategy: str, more: dict[str, str], ranks: int, groups: int, tmp_path: Path
) -> None:
    words = [f"--{key}={value}" for key, value in more.items()]
    result = gpuproof(
        *("run", "quick", *TINY, *DECODER, *QUICKLY, "--run.run_id=p", f"--nproc={ranks}"),
        *(f"--distributed.strategy={strategy}", *words, "--training.precision=bf16"),
        *("--distributed.gradient_accumulation_steps=2", "--verbose"),
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
    assert bool(records.of(Evaluation)) == ("benchmark.evaluate_after" in more)
    setups = records.of(Setup)
    assert all(setup.parallelism == setups[0].parallelism for setup in setups)
    assert {setup.items_per_step for setup in setups} <= {0, 2 * BATCH * TOKENS}
    flops = sum(setup.flops_per_step or 0 for setup in setups)
    assert flops == pytest.approx(groups * 2 * BATCH * decoder_work(PLAN, seq_len=TOKENS).training_flops)
    assert {m.rank for m in records.of(Memory)} == set(range(ranks))
    alone = records.of(OwnCompute)
    assert [(each.rank, each.bursts_s) for each in alone] == [(rank, ()) for rank in range(ranks)]
    assert f"a step with {strategy} gathers data from other ranks" in str(alone[0].missing)
    assert f"{strategy} (" in result.stdout
    for rank in range(ranks):
        assert (run.root / "cases" / "main" / "0" / f"stderr-{rank}.txt").read_text() == ""


def test_bfloat16_gradients_are_refused_where_ranks_talk_over_gloo() -> None:
    with pytest.raises(EnvironmentUnfitError, match="over NCCL, and these ranks use gloo"):
        compress_gradients(cast("DistributedDataParallel", None), "bf16", backend="gloo")


def test_blocks_are_found_where_they_repeat_and_nowhere_else() -> None:
    def found(name: str) -> list[str]:
        info = registry.load(registry.WORKLOADS, name)
        options = info.options_type(**(SIZES if name == "decoder" else {}))
        module = info.resolve_implementation()(options, info.input_shape(options, None, None))
        return [type(block).__name__ for block in repeated_blocks(module)]

    assert found("decoder") == ["DecoderLayer"] * 2
    assert found("resnet18") == ["ResidualBlock"] * 8
    assert found("medium") == found("simple_cnn") == []


def test_ranks_that_do_not_fit_the_case_are_an_unfit_environment() -> None:
    asked = case(parallel={"strategy": "hsdp", "shard_size": 2})
    assert arranged(asked.model_work, world_size=4).sizes == (2, 2, 1)
    with pytest.raises(EnvironmentUnfitError, match="shard_size is 2, which does not divide 3 ranks"):
        arranged(asked.model_work, world_size=3)
