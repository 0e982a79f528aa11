"""Which keys of `distributed` cannot hold together: devices of ranks, and how ranks share a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.base.registry import ACCELERATORS, names
from gpuproof.config.rules.base import Refusal, Refusals
from gpuproof.config.rules.workload import ChosenWorkload
from gpuproof.records.case import OWN_DEVICE_TYPES

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

USES = {"shard_size": ("hsdp",), "tensor_parallel_size": ("tensor", "fsdp_tensor")}
NEEDS = {"hsdp": "shard_size", "fsdp_tensor": "tensor_parallel_size"}


def device_type_exists(config: RunConfig) -> Refusals:
    """Refuse a type of device that neither we nor an installed package know."""
    types = ("auto", *OWN_DEVICE_TYPES, *names(ACCELERATORS))
    if config.distributed.device not in types:
        yield Refusal(
            keys=("distributed.device",),
            cause=f"no installed package provides the device type {config.distributed.device!r}",
            next_step=f"Use one of {', '.join(types)}, or install the package that registers it "
            f"({ACCELERATORS})",
        )


def cpu_has_no_indices(config: RunConfig) -> Refusals:
    """Refuse device indices on the CPU."""
    if config.distributed.device == "cpu" and config.distributed.devices is not None:
        yield Refusal(
            keys=("distributed.devices", "distributed.device"),
            cause="device indices are given, but the device is cpu, which has none",
            next_step="Remove distributed.devices, or set distributed.device to cuda",
        )


def nccl_needs_gpus(config: RunConfig) -> Refusals:
    """Refuse NCCL on the CPU."""
    if config.distributed.device == "cpu" and config.distributed.backend == "nccl":
        yield Refusal(
            keys=("distributed.backend", "distributed.device"),
            cause="nccl connects GPUs, but the device is cpu",
            next_step="Set distributed.backend to auto",
        )


def devices_are_distinct(config: RunConfig) -> Refusals:
    """Refuse a device for two ranks."""
    devices = config.distributed.devices or ()
    if len(set(devices)) < len(devices):
        yield Refusal(
            keys=("distributed.devices",),
            cause=f"a device is named twice in {list(devices)}",
            next_step="Name each device once",
        )


def ranks_have_devices(config: RunConfig) -> Refusals:
    """Refuse more ranks than devices."""
    nproc, devices = config.distributed.nproc, config.distributed.devices
    if devices is not None and nproc > len(devices):
        yield Refusal(
            keys=("distributed.nproc", "distributed.devices"),
            cause=f"{nproc} ranks are asked for, but distributed.devices names {len(devices)}",
            next_step="Name a device for each rank in distributed.devices, or lower distributed.nproc",
        )


def a_size_is_of_its_strategy(config: RunConfig) -> Refusals:
    """Refuse the size of a group that the strategy does not make."""
    ranks = config.distributed
    for name, strategies in USES.items():
        if getattr(ranks, name) is not None and ranks.strategy not in strategies:
            yield Refusal(
                keys=(f"distributed.{name}", "distributed.strategy"),
                cause=f"{name} is for {' and '.join(strategies)}, and the strategy is {ranks.strategy}",
                next_step=f"Set it to null, or use distributed.strategy={strategies[0]}",
            )


def a_strategy_has_its_size(config: RunConfig) -> Refusals:
    """Ask for the size of the groups that the strategy makes."""
    strategy = config.distributed.strategy
    name = NEEDS.get(strategy)
    if name is not None and getattr(config.distributed, name) is None:
        yield Refusal(
            keys=("distributed.strategy", f"distributed.{name}"),
            cause=f"{strategy} makes groups of distributed.{name} ranks, which is null",
            next_step=f"Set distributed.{name}",
        )


def compression_is_of_ddp(config: RunConfig) -> Refusals:
    """Refuse compressed gradients where no hook of ddp sees them."""
    ranks = config.distributed
    if ranks.gradient_compression != "none" and ranks.strategy != "ddp":
        yield Refusal(
            keys=("distributed.gradient_compression", "distributed.strategy"),
            cause=f"gradients are compressed by a hook of ddp, and {ranks.strategy} has none",
            next_step="Set distributed.gradient_compression to none, or distributed.strategy to ddp",
        )


def bfloat16_needs_nccl(config: RunConfig) -> Refusals:
    """Refuse gradients in bfloat16 over gloo."""
    ranks = config.distributed
    if ranks.gradient_compression == "bf16" and (ranks.backend == "gloo" or ranks.device == "cpu"):
        yield Refusal(
            keys=("distributed.gradient_compression", "distributed.backend"),
            cause="gradients in bfloat16 are summed over NCCL only, and these ranks talk over gloo",
            next_step="Use distributed.gradient_compression=fp16 or none",
        )


def inference_shards_nothing(config: RunConfig) -> Refusals:
    """Refuse to share what inference does not have."""
    strategy = config.distributed.strategy
    if config.kind == "inference" and strategy not in ("ddp", "tensor"):
        yield Refusal(
            keys=("distributed.strategy", "kind"),
            cause=f"{strategy} shares gradients and optimizer state, and inference has neither",
            next_step="Use distributed.strategy=tensor to split a model, or ddp for a copy on each rank",
        )


def a_scaler_sees_whole_lists(config: RunConfig) -> Refusals:
    """Refuse amp where some gradients are split and some are whole."""
    splits = config.distributed.strategy in ("tensor", "fsdp_tensor")
    if config.kind == "training" and config.training.precision == "amp" and splits:
        yield Refusal(
            keys=("training.precision", "distributed.strategy"),
            cause="the gradient scaler of amp takes no gradients of which some are split and some are whole",
            next_step="Use training.precision=bf16, or distributed.strategy=fsdp",
        )


def workload_can_be_split(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Refuse a workload without a tensor-parallel plan, or with sizes that its groups cannot share.

    Under `tensor` with a null size the ranks that are started decide; the worker checks the same then.
    """
    size, plan = config.distributed.tensor_parallel_size, chosen.info.tensor_parallel
    if config.distributed.strategy not in ("tensor", "fsdp_tensor"):
        return
    if plan is None:
        yield Refusal(
            keys=("distributed.strategy", "model.name"),
            cause=f"{chosen.info.name} has no tensor-parallel plan: nothing says how its layers are split",
            next_step="Use ddp, fsdp or hsdp, or register a plan with the workload (tensor_parallel)",
        )
    elif size is not None and (undivided := plan.undivided(chosen.options, size=size)) is not None:
        yield Refusal(
            keys=("distributed.tensor_parallel_size", "model.name"),
            cause=f"{chosen.info.name} does not divide over {size} ranks: {undivided}",
            next_step="Use a size that divides the heads and the hidden layers",
        )
