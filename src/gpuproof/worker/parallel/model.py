"""Several ranks, one model: replicated, sharded or split by layer, depending on the strategy.

In: the model on this rank's device, and the layout of the ranks. Out: the callable for a step, how it
computes, and a record of what actually runs. Sharding applies torch's fully_shard (FSDP2) to each repeated
block and then to the whole model. The overall order follows torch's own documentation: tensor parallelism,
sharding, compilation, and finally replication.
https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.records.case import ModelWork
from gpuproof.records.work.parallel import (
    AXES,
    Arrangement,
    ArrangementError,
    GradientCompression,
    Parallelism,
    arrange,
)
from gpuproof.worker.step.checkpointing import checkpointed, has_batch_norm, repeated_blocks
from gpuproof.worker.step.model import WorkloadOnTorch, compiled
from gpuproof.worker.step.precision import AUTOCAST_TYPES, PrecisionPolicy
from gpuproof.workloads.info.base import resolve

POWER_RANK = 1
POWER_START = 2
"""Number of backward passes before compression starts; torch requires 2 or more, and its default of 1,000
would outlast a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """The model as this rank runs it."""

    module: nn.Module
    precision: PrecisionPolicy
    parallelism: Parallelism | None
    num_gathered_parameters: int = 0
    """Maximum number of parameters that a sharded model keeps unsharded at once: the parameters of the root
    and of two blocks."""


def arranged(work: ModelWork, *, world_size: int) -> Arrangement:
    """Arrange the ranks of this launch in a mesh.

    Raises:
        EnvironmentUnfitError: the sizes do not match the number of ranks that were started.
    """
    if not work.trains and work.parallel.strategy != "tensor":
        return Arrangement(replicate=world_size)
    try:
        return arrange(
            work.parallel.strategy,
            world_size=world_size,
            shard_size=work.parallel.shard_size,
            tensor_parallel_size=work.parallel.tensor_parallel_size,
        )
    except ArrangementError as error:
        raise EnvironmentUnfitError(
            error.cause, place=f"distributed.{error.key}", next_step=error.next_step
        ) from error


def parallelize(
    work: ModelWork,
    workload: WorkloadOnTorch,
    *,
    arrangement: Arrangement,
    backend: str | None,
    device: torch.device,
    precision: PrecisionPolicy,
) -> ParallelModel:
    """Prepare the model to run on all ranks; with a single rank, it is at most compiled.

    Raises:
        EnvironmentUnfitError: torch or the backend does not support what the case requests.
        UsageError: the workload cannot be split the way the strategy requires.
    """
    strategy = work.parallel.strategy
    if backend is None or (not work.trains and strategy != "tensor"):
        module = compiled(_recomputed(work, workload.module), work.training)
        return ParallelModel(module=module, precision=precision, parallelism=None)
    if strategy == "ddp":
        module = DistributedDataParallel(
            compiled(_recomputed(work, workload.module), work.training),
            device_ids=None if device.index is None else [device.index],
        )
        hook = compress_gradients(module, work.parallel.gradient_compression, backend=backend)
        parallelism = Parallelism(strategy=strategy, arrangement=arrangement, gradient_hook=hook)
        return ParallelModel(module=module, precision=precision, parallelism=parallelism)
    mesh = _mesh(arrangement, device)
    if arrangement.tensor > 1:
        split_layers(work, workload, mesh=mesh["tensor"])
    recomputed = _recomputed(work, workload.module)
    if arrangement.shard == 1:
        parallelism = Parallelism(strategy=strategy, arrangement=arrangement)
        return ParallelModel(
            module=compiled(recomputed, work.training), precision=precision, parallelism=parallelism
        )
    return _sharded(work, recomputed, arrangement=arrangement, mesh=mesh, precision=precision)


def _recomputed(work: ModelWork, module: nn.Module) -> nn.Module:
    """Apply checkpointing after layers are split, since plans name layers, and before sharding."""
    if not work.trains:
        return module
    return checkpointed(module, work.activation_checkpointing, name=work.model.name)


def _mesh(arrangement: Arrangement, device: torch.device) -> DeviceMesh:
    """Create a mesh from the dimensions larger than 1; every rank takes part."""
    # torch warns about sums over two mesh dimensions. The only such sum here is of a single number, the
    # gradient-clipping norm.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    sides = {name: size for name, size in zip(AXES, arrangement.sizes, strict=True) if size > 1}
    return init_device_mesh(device.type, tuple(sides.values()), mesh_dim_names=tuple(sides))


def split_layers(work: ModelWork, workload: WorkloadOnTorch, *, mesh: DeviceMesh) -> None:
    """Split the workload's layers over the ranks of a tensor group, in place.

    Raises:
        UsageError: the workload has no plan, or has a size that cannot be divided evenly among the ranks.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    plan, module = workload.info.tensor_parallel, workload.module
    if plan is None:
        raise UsageError(f"{work.model.name} has no tensor-parallel plan", place="distributed.strategy")
    undivided = plan.undivided(workload.info.options_type(**work.model.options), size=mesh.size())
    if undivided is not None:
        raise UsageError(
            f"{work.model.name} cannot be split evenly over {mesh.size()} ranks: {undivided}",
            place="distributed.tensor_parallel_size",
        )
    tied = list(_tied_parameters(module))
    parallelize_module(module, mesh, resolve(plan.plan)(module, mesh.size()))
    for first, *others in tied:  # after splitting, each module has its own parameter
        for name in others:
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, module.get_parameter(first))


def _tied_parameters(module: nn.Module) -> Iterator[list[str]]:
    """List the parameters that several modules share, with all names of each."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return (same for same in names.values() if len(same) > 1)


def _sharded(
    work: ModelWork,
    module: nn.Module,
    *,
    arrangement: Arrangement,
    mesh: DeviceMesh,
    precision: PrecisionPolicy,
) -> ParallelModel:
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"torch {torch.__version__} has no fully_shard",
            place="distributed.strategy",
            next_step="Use torch 2.6 or newer, or distributed.strategy=ddp",
        ) from error
    sharding = mesh["replicate", "shard"] if arrangement.replicate > 1 else mesh["shard"]
    # batch norm statistics stay float32
    dtype = None if has_batch_norm(module) else AUTOCAST_TYPES.get(precision.name)
    of_blocks = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype and torch.float32)
    blocks = repeated_blocks(module)
    in_blocks = [_num_local_parameters(block) for block in blocks]
    in_root = _num_local_parameters(module) - sum(in_blocks)
    for block in blocks:
        fully_shard(block, mesh=sharding, mp_policy=of_blocks)
    fully_shard(module, mesh=sharding, mp_policy=replace(of_blocks, output_dtype=dtype and torch.float32))
    # The warning concerns code that changes outputs in place, which no loss does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    kind = str(dtype).removeprefix("torch.")
    return ParallelModel(
        module=compiled(module, work.training),
        precision=replace(precision, cast_by="shards") if dtype else precision,
        parallelism=Parallelism(
            strategy=work.parallel.strategy,
            arrangement=arrangement,
            sharded_blocks=len(blocks),
            casts=f"parameters gathered in {kind}, gradients summed in float32" if dtype else None,
        ),
        num_gathered_parameters=in_root + sum(sorted(in_blocks)[-2:]),
    )


def _num_local_parameters(module: nn.Module) -> int:
    return sum(local_part(parameter).numel() for parameter in module.parameters())


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor: its shard if the tensor is distributed, else all of it."""
    share: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    # The result of a collective in flight wraps the tensor that it will be written to.
    result: torch.Tensor = getattr(share, "elem", share)
    return result


def compress_gradients(
    module: DistributedDataParallel, choice: GradientCompression, *, backend: str
) -> str | None:
    """Install the communication hook; return its name and actual settings, or None if there is none.

    https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html

    Raises:
        EnvironmentUnfitError: the backend or this Python cannot run the hook.
    """
    if choice == "none":
        return None
    if choice == "powersgd":
        return _install_power_sgd(module)
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if choice == "bf16" and backend != "nccl":
        raise EnvironmentUnfitError(
            f"gradients can be summed in bfloat16 only over NCCL, and these ranks use {backend}",
            place="distributed.gradient_compression",
            next_step="Use fp16 or none here",
        )
    hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    module.register_comm_hook(None, hooks[choice])
    return hooks[choice].__name__


def _install_power_sgd(module: DistributedDataParallel) -> str:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    try:
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=POWER_RANK, start_powerSGD_iter=POWER_START
        )
    except ImportError as error:  # it uses numpy to draw seeds
        raise EnvironmentUnfitError(
            f"PowerSGD is not available here: {error}",
            place="distributed.gradient_compression",
            next_step="Install numpy alongside torch, or use fp16",
        ) from error
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return f"powerSGD_hook of rank {POWER_RANK}, after {POWER_START} backward passes"
