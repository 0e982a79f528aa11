"""`distributed`: how many ranks, on which devices, and how they share a model and its samples.

The `Placement` of a case determines where it runs; for ranks and devices, the case's block contains the
values requested in the recipe. The arrangement is derived from a strategy and sizes. Ranks form a grid with
three dimensions: groups that each have the whole model (replicate), the ranks within a group that each have a
part of every parameter (shard), and the ranks that process the same samples, each with a part of every layer
(tensor). The last dimension varies fastest, so that its ranks are on one host if possible.

>>> arrange("hsdp", world_size=8, shard_size=4).sizes
(2, 4, 1)
>>> arrange("fsdp_tensor", world_size=8, tensor_parallel_size=2).data_parallel_size
4
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gpuproof.records.work.options import DeviceIndices, Limits, Options, Seconds, Text, read_bytes

Backend = Literal["auto", "nccl", "gloo"]
ParallelStrategy = Literal["ddp", "fsdp", "hsdp", "tensor", "fsdp_tensor"]
GradientCompression = Literal["none", "fp16", "bf16", "powersgd"]
CommunicationProfile = Literal["none", "pcie", "ring", "tree", "no_p2p", "no_fabric", "no_gpudirect"]
AXES = ("replicate", "shard", "tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec(Options):
    """How many ranks run, on which devices, and how they communicate."""

    backend: Backend = "auto"
    """The process group backend; auto uses nccl with CUDA, xccl with XPU, and gloo on the CPU."""
    gradient_accumulation_steps: Annotated[int, Limits(ge=1, le=65_536)] = 1
    """Number of micro-batches per optimizer step."""
    nproc: Annotated[int, Limits(ge=1, le=1024)] = 1
    """Number of ranks to start per host."""
    nodes: Annotated[int, Limits(ge=1, le=4096)] = 1
    """Number of inventory hosts that form one job; 1 runs the recipe on each host separately."""
    device: Text = "auto"
    """The type of device: cuda (also ROCm), xpu, mps, cpu, or one that an installed package registers; auto
    uses the first available type, but never a simulated one."""
    devices: DeviceIndices | None = None
    """Indices of the devices to use, one per rank, as torch counts the visible ones from 0
    (CUDA_VISIBLE_DEVICES changes the numbering); null takes the visible devices in order."""
    threads_per_rank: Annotated[int, Limits(ge=1, le=1024)] | None = None
    """CPU threads per rank; null shares the usable CPUs evenly among the ranks of a host, up to
    OMP_NUM_THREADS if that is set."""
    timeout_s: Seconds = 600.0
    """Seconds that a collective may take to start or finish; if less than 300, also how long ranks started by
    your own launcher wait for each other."""
    hang_timeout_s: Seconds = 300.0
    """Seconds without progress after which a rank counts as hung and is stopped."""
    world_size: Annotated[int, Limits(ge=1, le=10**6)] | None = None
    """World size: null, or a number that must match the launch's world size."""
    local_rank: Annotated[int, Limits(ge=0, le=1023)] | None = None
    """Local rank: null, or a number that must match the launch's local rank."""
    node_rank: Annotated[int, Limits(ge=0, le=65_535)] | None = None
    """Node rank: null, or a number that must match the launch's node rank."""
    strategy: ParallelStrategy = "ddp"
    """How ranks share a model. ddp: each rank has a copy. fsdp: each rank has a shard of every parameter
    (fully_shard). hsdp: several copies, each sharded over a group of shard_size ranks. tensor: all ranks work
    on the same samples, each on a part of every layer. fsdp_tensor: groups of tensor_parallel_size ranks work
    as with tensor, and every parameter is sharded over the groups."""
    shard_size: Annotated[int, Limits(ge=2, le=10**6)] | None = None
    """Number of ranks that share one copy of the model, with hsdp."""
    tensor_parallel_size: Annotated[int, Limits(ge=2, le=1024)] | None = None
    """Number of ranks that work on the same samples, with fsdp_tensor; null with tensor means all ranks."""
    gradient_compression: GradientCompression = "none"
    """How ddp compresses gradients before summing them: fp16 and bf16 halve their size (bf16 over nccl only),
    powersgd sends a rank-1 approximation instead of each matrix."""
    communication_profile: CommunicationProfile = "none"
    """NCCL settings to compare with the defaults: ring and tree select the algorithm, no_p2p copies through
    host memory, no_fabric uses IP sockets only between hosts, no_gpudirect makes network cards copy through
    host memory, pcie is a published set of ten settings for GPUs without direct copies. None of them is known
    to help; settings that conflict with environment variables already set are rejected."""
    memory_limit_bytes: Annotated[int, Limits(read=read_bytes, ge=2**20, le=2**50)] | None = None
    """Limit for torch's memory on each device, in bytes or e.g. 12G; null means no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The dimensions of the rank grid; their product is the world size."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The dimensions, in the order of `AXES`."""
        return self.replicate, self.shard, self.tensor

    @property
    def data_parallel_size(self) -> int:
        """Number of ranks, or groups of ranks, that work on different samples."""
        return self.replicate * self.shard

    def data_rank(self, rank: int) -> int:
        """Return which part of the samples a rank works on; it is the same for a whole tensor group."""
        return rank // self.tensor

    def counts_samples(self, rank: int) -> bool:
        """Return whether this rank counts the samples of its tensor group."""
        return rank % self.tensor == 0


class ArrangementError(ValueError):
    """The sizes do not fit the number of ranks; `key` is the config key to change."""

    def __init__(self, key: str, cause: str, next_step: str) -> None:
        super().__init__(cause)
        self.key, self.cause, self.next_step = key, cause, next_step


def arrange(
    strategy: ParallelStrategy,
    *,
    world_size: int,
    shard_size: int | None = None,
    tensor_parallel_size: int | None = None,
) -> Arrangement:
    """Arrange the ranks in a grid.

    Raises:
        ArrangementError: a size does not divide the world size, or would amount to another strategy.
    """
    if strategy == "ddp":
        return Arrangement(replicate=world_size)
    if strategy == "fsdp":
        return Arrangement(shard=world_size)
    if strategy == "hsdp":
        shard = _inner("shard_size", shard_size, world_size, whole_is="fsdp")
        return Arrangement(replicate=world_size // shard, shard=shard)
    if strategy == "fsdp_tensor":
        tensor = _inner("tensor_parallel_size", tensor_parallel_size, world_size, whole_is="tensor")
        return Arrangement(shard=world_size // tensor, tensor=tensor)
    if tensor_parallel_size not in (None, world_size):
        raise ArrangementError(
            "tensor_parallel_size",
            f"tensor uses one group of all {world_size} ranks, not {tensor_parallel_size}",
            "Use distributed.strategy=fsdp_tensor for several groups, or set the size to null",
        )
    return Arrangement(tensor=world_size)


def _inner(name: str, size: int | None, world_size: int, *, whole_is: ParallelStrategy) -> int:
    if size is None or world_size % size:
        raise ArrangementError(
            name,
            f"{name} is {'null' if size is None else size}, which does not divide {world_size} ranks",
            "Start a multiple of that many ranks, or set it to a divisor of the number of ranks",
        )
    if size == world_size:
        raise ArrangementError(
            name,
            f"one group of all {world_size} ranks is {whole_is}",
            f"Use distributed.strategy={whole_is}, or a smaller group",
        )
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """The parallelism that several ranks actually ran with."""

    strategy: ParallelStrategy
    arrangement: Arrangement
    sharded_blocks: int | None = None
    """Number of blocks with parameters that are gathered and freed one by one; None if nothing is sharded."""
    casts: str | None = None
    """The types used to gather sharded parameters and to sum their gradients; None for float32."""
    gradient_hook: str | None = None
    """How gradients are compressed before they are summed; None for no compression."""

    def describe(self) -> str:
        """Format strategy, mesh and hook as in a report: `hsdp (replicate 2 × shard 2)`."""
        sides = zip(AXES, self.arrangement.sizes, strict=True)
        mesh = " × ".join(f"{axis} {size}" for axis, size in sides if size > 1)
        hook = f", gradients by {self.gradient_hook}" if self.gradient_hook else ""
        return f"{self.strategy} ({mesh}){hook}"


def plain_copies(world_size: int) -> Parallelism:
    """Return the default: a copy of the model on each rank."""
    return Parallelism(strategy="ddp", arrangement=Arrangement(replicate=world_size))
