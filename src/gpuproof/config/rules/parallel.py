"""Which keys of `distributed` that say how ranks share a model cannot hold together, and what to change.

In: a `RunConfig` whose single values are in bounds; and, once it is known, how many ranks there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuproof.config.rules.refusal import Contradiction
from gpuproof.records.parallel import ArrangementError, arrange

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig
    from gpuproof.config.sections.distributed import DistributedConfig

USES = {"shard_size": ("hsdp",), "tensor_parallel_size": ("tensor", "fsdp_tensor")}
NEEDS = {"hsdp": "shard_size", "fsdp_tensor": "tensor_parallel_size"}


def find_parallel_contradictions(config: RunConfig) -> list[Contradiction]:
    """Name every contradiction among the keys, in the order of the rules below."""
    return [found for rule in _RULES if (found := rule(config)) is not None]


def _a_size_is_of_its_strategy(config: RunConfig) -> Contradiction | None:
    where = config.distributed
    for name, strategies in USES.items():
        if getattr(where, name) is not None and where.strategy not in strategies:
            return Contradiction(
                keys=(f"distributed.{name}", "distributed.strategy"),
                cause=f"{name} is for {' and '.join(strategies)}, and the strategy is {where.strategy}",
                next_step=f"Set it to null, or use distributed.strategy={strategies[0]}",
            )
    return None


def _a_strategy_has_its_size(config: RunConfig) -> Contradiction | None:
    where = config.distributed
    name = NEEDS.get(where.strategy)
    if name is None or getattr(where, name) is not None:
        return None
    return Contradiction(
        keys=("distributed.strategy", f"distributed.{name}"),
        cause=f"{where.strategy} makes groups of distributed.{name} ranks, which is null",
        next_step=f"Set distributed.{name}",
    )


def _compression_is_of_ddp(config: RunConfig) -> Contradiction | None:
    where = config.distributed
    if where.gradient_compression == "none" or where.strategy == "ddp":
        return None
    return Contradiction(
        keys=("distributed.gradient_compression", "distributed.strategy"),
        cause=f"gradients are compressed by a hook of ddp, and {where.strategy} has none",
        next_step="Set distributed.gradient_compression to none, or distributed.strategy to ddp",
    )


def _bfloat16_needs_nccl(config: RunConfig) -> Contradiction | None:
    where = config.distributed
    if where.gradient_compression != "bf16" or (where.backend != "gloo" and where.device != "cpu"):
        return None
    return Contradiction(
        keys=("distributed.gradient_compression", "distributed.backend"),
        cause="gradients in bfloat16 are summed over NCCL only, and these ranks talk over gloo",
        next_step="Use distributed.gradient_compression=fp16 or none",
    )


def _inference_shards_nothing(config: RunConfig) -> Contradiction | None:
    strategy = config.distributed.strategy
    if config.kind != "inference" or strategy in ("ddp", "tensor"):
        return None
    return Contradiction(
        keys=("distributed.strategy", "kind"),
        cause=f"{strategy} shares gradients and optimizer state, and inference has neither",
        next_step="Use distributed.strategy=tensor to split a model, or ddp for a copy on each rank",
    )


def _a_scaler_sees_whole_lists(config: RunConfig) -> Contradiction | None:
    strategy = config.distributed.strategy
    training = config.kind == "training"
    if not training or config.training.precision != "amp" or strategy not in ("tensor", "fsdp_tensor"):
        return None
    return Contradiction(
        keys=("training.precision", "distributed.strategy"),
        cause="the gradient scaler of amp takes no gradients of which some are split and some are whole",
        next_step="Use training.precision=bf16, or distributed.strategy=fsdp",
    )


_RULES: tuple[Callable[[RunConfig], Contradiction | None], ...] = (
    _a_size_is_of_its_strategy,
    _a_strategy_has_its_size,
    _compression_is_of_ddp,
    _bfloat16_needs_nccl,
    _inference_shards_nothing,
    _a_scaler_sees_whole_lists,
)


def find_misfits(distributed: DistributedConfig, *, world_size: str) -> list[Contradiction]:
    """Name the size that does not fit the ranks of this launch; `world_size` as its witness wrote it."""
    if not world_size.isdecimal():
        return []  # the launcher's own check says so
    try:
        arrange(
            distributed.strategy,
            world_size=int(world_size),
            shard_size=distributed.shard_size,
            tensor_parallel_size=distributed.tensor_parallel_size,
        )
    except ArrangementError as error:
        keys = (f"distributed.{error.key}", "distributed.nproc")
        return [Contradiction(keys=keys, cause=error.cause, next_step=error.next_step)]
    return []
