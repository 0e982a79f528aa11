"""However ranks share a model, it learns what one process learns from the same global batches.

All scenarios of as many ranks run in one launch, of a tiny model each, held against one rank by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuproof.records.what_ran import Memory
from integration.conftest import SOURCE, TESTS
from running import clean_environment
from waiting import PATIENCE_S

PROGRAM = Path(__file__).with_name("train_in_parallel.py")
TOKENS = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "seq_len": 12, "vocab_size": 51}
"""An odd number of words, so that ranks have unequal shares."""
MODELS: dict[str, dict[str, Any]] = {
    "decoder": {"model": "decoder", "options": {**TOKENS, "num_kv_heads": 4}},
    "vit_b_16": {
        "model": "vit_b_16",
        "options": {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "patch_size": 8},
        "image_size": 16,
    },
    "transformer": {"model": "transformer", "options": TOKENS},
    "medium": {"model": "medium", "options": {}},
    "moe_decoder": {"model": "moe_decoder", "options": {**TOKENS, "num_kv_heads": 4, "num_experts": 3}},
}
SGD: dict[str, Any] = {"training": {}, "parallel": {}}
ADAM: dict[str, Any] = {
    "training": {"optimizer": "Adam", "learning_rate": 1e-3, "grad_clip_norm": 0.3},
    "parallel": {"gradient_accumulation_steps": 2},
}
"""Clipped always: the norm of the gradients is over 0.3 in each step."""
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {},
    "hsdp": {"shard_size": 2},
    "tensor": {},
    "fsdp_tensor": {"tensor_parallel_size": 2},
}
RANKS = {"hsdp": 4, "fsdp_tensor": 4}
"""Of strategies that divide ranks twice; all others show with two ranks what they do."""
GROUP_SIZE = 2
"""Of the ranks that share one model's layers."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A model trained under a strategy, and how closely one rank alone must agree."""

    model: str
    strategy: str
    changes: dict[str, Any]
    compression: str = "none"
    precision: str = "fp32"
    losses: float = 1e-5
    weights: float = 2e-5
    whole_gradient_bytes: int = 0
    """Of an embedding that is split by the vocabulary, torch makes every rank the whole gradient."""

    @property
    def ranks(self) -> int:
        """How many ranks train."""
        return RANKS.get(self.strategy, 2)

    def scenario(self, *, ranks: int) -> dict[str, Any]:
        """Say what is trained by how many ranks; one trains on the whole global batch."""
        group = GROUP_SIZE if "tensor" in self.strategy else 1
        training = {"precision": self.precision, **self.changes["training"]}
        parallel = dict(self.changes["parallel"])
        if ranks > 1:
            parallel |= {"strategy": self.strategy, **STRATEGIES[self.strategy]}
            parallel |= {"gradient_compression": self.compression}
        return {
            **MODELS[self.model],
            "training": training,
            "parallel": parallel,
            "data_parallel_size": ranks // group if ranks > 1 else 1,
            "in_order_of": group if ranks == 1 and group > 1 else None,
        }


POINTS = {
    **{strategy: Point(model="decoder", strategy=strategy, changes=ADAM) for strategy in STRATEGIES},
    "fsdp, SGD": Point(model="decoder", strategy="fsdp", changes=SGD),
    # A gradient scaler over sharded gradients; products in half precision differ in their order.
    "fsdp, amp": Point(
        model="decoder", strategy="fsdp", changes=SGD, precision="amp", losses=2e-3, weights=2e-3
    ),
    "ddp, fp16": Point(
        model="decoder", strategy="ddp", changes=SGD, compression="fp16", losses=1e-4, weights=1e-4
    ),
    "ddp, powersgd": Point(
        model="decoder", strategy="ddp", changes=SGD, compression="powersgd", losses=1e-1, weights=1e-1
    ),
    "perceptron": Point(model="medium", strategy="tensor", changes=SGD),
    "encoder": Point(
        model="transformer", strategy="tensor", changes=ADAM, whole_gradient_bytes=(51 - 26) * 32 * 4
    ),
    "vision": Point(model="vit_b_16", strategy="fsdp_tensor", changes=ADAM),
    "experts": Point(model="moe_decoder", strategy="tensor", changes=ADAM),
}


def learn(folder: Path, scenarios: list[dict[str, Any]], *, ranks: int) -> list[dict[str, Any]]:
    """Run the program on `ranks` ranks, started as the tool starts them; return rank 0's results."""
    out = folder / f"{ranks}.pt"
    agent = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    words = [str(PROGRAM), str(out), *map(json.dumps, scenarios)]
    result = subprocess.run(
        [sys.executable, *(agent if ranks > 1 else ()), *words],
        cwd=folder,
        env={
            **clean_environment(OMP_NUM_THREADS="1", LOGLEVEL="ERROR"),
            "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    results: list[dict[str, Any]] = torch.load(out, weights_only=False)
    return results


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[dict[str, Any], dict[str, Any]]]:
    """What ranks learnt at every point, and one rank by itself with its weights in the same order."""
    folder = tmp_path_factory.mktemp("parallel")
    alone = learn(folder, [point.scenario(ranks=1) for point in POINTS.values()], ranks=1)
    shared: dict[str, dict[str, Any]] = {}
    for ranks in (2, 4):
        names = [name for name, point in POINTS.items() if point.ranks == ranks]
        scenarios = [POINTS[name].scenario(ranks=ranks) for name in names]
        shared |= zip(names, learn(folder, scenarios, ranks=ranks), strict=True)
    return {name: (shared[name], by_itself) for name, by_itself in zip(POINTS, alone, strict=True)}


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.promise("S3.12")
def test_losses_and_weights_are_those_of_one_rank_on_the_global_batch(
    name: str, learnt: Mapping[str, tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    shared, alone = learnt[name]
    point = POINTS[name]
    assert shared["parallelism"].strategy == point.strategy
    assert alone["parallelism"] is None
    assert shared["losses"] == pytest.approx(alone["losses"], rel=point.losses)
    assert len(set(alone["losses"])) == len(alone["losses"])
    assert shared["weights"].keys() == alone["weights"].keys()
    for part, weight in alone["weights"].items():
        torch.testing.assert_close(shared["weights"][part], weight, rtol=1e-4, atol=point.weights, msg=part)


def test_what_compresses_gradients_is_recorded_and_changes_them(
    learnt: Mapping[str, tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    hooks = {name: learnt[name][0]["parallelism"].gradient_hook for name in POINTS if name.startswith("ddp")}
    assert hooks == {
        "ddp": None,
        "ddp, fp16": "fp16_compress_hook",
        "ddp, powersgd": "powerSGD_hook of rank 1, after 2 backward passes",
    }
    for name in ("ddp, fp16", "ddp, powersgd"):
        shared, alone = learnt[name]
        differences = [shared["weights"][part] - weight for part, weight in alone["weights"].items()]
        assert max(float(difference.abs().max()) for difference in differences) > 1e-6


@pytest.mark.parametrize("name", POINTS)
def test_the_estimate_of_memory_is_what_the_tensors_hold(
    name: str, learnt: Mapping[str, tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    shared, alone = learnt[name]
    point = POINTS[name]
    for who, copies in ((shared, point.strategy == "ddp"), (alone, True)):
        memory = who["memory"]
        assert isinstance(memory, Memory)
        estimate, counted = memory.estimate, memory.counted
        assert counted is not None
        rows = 0.0 if copies else 0.03  # a share is of whole rows, and the first ranks may have one more
        counters = 4 * len(alone["weights"]) if point.changes is ADAM else 0
        assert counted.parameters_bytes == pytest.approx(estimate.parameters_bytes, rel=rows, abs=0)
        whole = 0 if who is alone else point.whole_gradient_bytes
        assert counted.gradients_bytes == pytest.approx(estimate.gradients_bytes + whole, rel=rows, abs=0)
        assert counted.optimizer_bytes == pytest.approx(estimate.optimizer_bytes, rel=rows, abs=counters)
        assert memory.activations_bytes


def test_activations_are_what_is_kept_for_the_backward_pass(
    learnt: Mapping[str, tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    _, alone = learnt["perceptron"]
    # 8 samples: the outputs of three ReLUs, 256 + 128 + 64 wide, and three predictions, 4 bytes each value.
    assert alone["memory"].activations_bytes == 8 * (256 + 128 + 64 + 3) * 4 == 14_432
