"""Ranks are laid out as asked, or the size that does not fit is named; so are keys that contradict."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gpuproof.base.errors import UsageError
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.config.rules import check_place
from gpuproof.config.rules.base import Facts
from gpuproof.records.work.parallel import (
    Arrangement,
    ArrangementError,
    Parallelism,
    ParallelStrategy,
    arrange,
)
from planning import next_cases


@pytest.mark.parametrize(
    ("strategy", "sizes", "expected"),
    [
        ("ddp", {}, (8, 1, 1)),
        ("fsdp", {}, (1, 8, 1)),
        ("hsdp", {"shard_size": 4}, (2, 4, 1)),
        ("tensor", {}, (1, 1, 8)),
        ("tensor", {"tensor_parallel_size": 8}, (1, 1, 8)),
        ("fsdp_tensor", {"tensor_parallel_size": 2}, (1, 4, 2)),
    ],
)
def test_eight_ranks(strategy: ParallelStrategy, sizes: dict[str, int], expected: tuple[int, ...]) -> None:
    assert arrange(strategy, world_size=8, **sizes).sizes == expected


@pytest.mark.parametrize(
    ("strategy", "sizes", "key", "cause"),
    [
        ("hsdp", {}, "shard_size", "shard_size is null, which does not divide 8 ranks"),
        ("hsdp", {"shard_size": 3}, "shard_size", "shard_size is 3, which does not divide 8 ranks"),
        ("hsdp", {"shard_size": 8}, "shard_size", "one group of all 8 ranks is fsdp"),
        ("tensor", {"tensor_parallel_size": 4}, "tensor_parallel_size", "all 8 ranks, not 4"),
        ("fsdp_tensor", {"tensor_parallel_size": 8}, "tensor_parallel_size", "one group of all 8 ranks is"),
        ("fsdp_tensor", {"tensor_parallel_size": 5}, "tensor_parallel_size", "is 5, which does not divide"),
    ],
)
def test_sizes_that_do_not_fit_eight_ranks(
    strategy: ParallelStrategy, sizes: dict[str, int], key: str, cause: str
) -> None:
    with pytest.raises(ArrangementError, match=cause) as caught:
        arrange(strategy, world_size=8, **sizes)
    assert caught.value.key == key


def test_ranks_of_a_tensor_group_share_their_samples_and_one_counts_them() -> None:
    arrangement = Arrangement(shard=2, tensor=3)
    assert [arrangement.data_rank(rank) for rank in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [arrangement.counts_samples(rank) for rank in range(6)] == [True, False, False] * 2
    assert arrangement.data_parallel_size == 2


def test_what_ran_is_said_in_one_line() -> None:
    hsdp = Parallelism(strategy="hsdp", arrangement=Arrangement(replicate=2, shard=4))
    assert hsdp.describe() == "hsdp (replicate 2 × shard 4)"
    ddp = Parallelism(
        strategy="ddp", arrangement=Arrangement(replicate=2), gradient_hook="fp16_compress_hook"
    )
    assert ddp.describe() == "ddp (replicate 2), gradients by fp16_compress_hook"


@pytest.mark.parametrize(
    ("distributed", "others", "cause"),
    [
        ({"shard_size": 2}, {}, "shard_size is for hsdp, but the strategy is ddp"),
        ({"strategy": "fsdp", "tensor_parallel_size": 2}, {}, "is for tensor and fsdp_tensor"),
        (
            {"strategy": "hsdp"},
            {},
            "hsdp creates groups of distributed.shard_size ranks, but that key is null",
        ),
        (
            {"strategy": "fsdp_tensor"},
            {"training": {"precision": "bf16"}},
            "fsdp_tensor creates groups of distributed.tensor_parallel_size ranks, but that key is null",
        ),
        ({"strategy": "fsdp", "gradient_compression": "fp16"}, {}, "compressed by a ddp hook"),
        ({"gradient_compression": "bf16", "device": "cpu"}, {}, "summed over NCCL only"),
        ({"gradient_compression": "bf16", "backend": "gloo"}, {}, "summed over NCCL only"),
        ({"strategy": "fsdp"}, {"kind": "inference"}, "inference has neither"),
        (
            {"strategy": "tensor"},
            {"training": {"precision": "amp"}},
            "amp's gradient scaler does not support",
        ),
    ],
)
def test_keys_that_contradict(distributed: dict[str, Any], others: dict[str, Any], cause: str) -> None:
    with pytest.raises(ValidationError, match=cause) as caught:
        RunConfig.model_validate({"distributed": distributed, **others})
    assert len(caught.value.errors()) == 1


@pytest.mark.parametrize(
    "distributed",
    [
        {"strategy": "hsdp", "shard_size": 2},
        {"gradient_compression": "bf16"},
        {"gradient_compression": "powersgd", "device": "cpu"},
        {"strategy": "fsdp"},
    ],
)
def test_keys_that_agree(distributed: dict[str, Any]) -> None:
    assert RunConfig.model_validate({"distributed": distributed}).distributed


def test_sizes_are_held_against_the_ranks_of_the_launch() -> None:
    config = RunConfig.model_validate({"distributed": {"strategy": "hsdp", "shard_size": 2, "nproc": 3}})
    (found,) = check_place(config, Facts())
    assert found.keys == ("distributed.shard_size", "distributed.nproc", "distributed.strategy")
    assert found.cause == "shard_size is 2, which does not divide 3 ranks"
    assert not check_place(config, Facts(environment={"RANK": "0", "WORLD_SIZE": "4"}))


FP32 = ("--training.precision=fp32", "--distributed.nproc=4", "--data.name=synthetic")


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--model.name=resnet18", "--distributed.strategy=tensor"), "resnet18 has no tensor-parallel plan"),
        (
            (
                "--model.name=transformer",
                "--model.options.num_heads=2",
                "--distributed.tensor_parallel_size=4",
            ),
            "transformer cannot be split across 4 ranks: num_heads 2",
        ),
        (
            ("--model.name=decoder", "--model.options.preset=10m", "--distributed.tensor_parallel_size=4"),
            "decoder cannot be split across 4 ranks: num_kv_heads 2",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_before_a_launch(words: tuple[str, ...], cause: str) -> None:
    config = load_config("quick", [*FP32, "--distributed.strategy=tensor", *words]).config
    with pytest.raises(UsageError, match=cause):
        next_cases(config)
