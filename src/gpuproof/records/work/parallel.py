"""`distributed`: how many ranks, on which devices, and how they share a model and its samples.

Where a case runs is its `Placement`; of ranks and devices a case's block says what the recipe asked for. The
arrangement follows from a strategy and sizes: ranks are laid out as a box of three sides, groups that hold
the model once each (replicate), the ranks of a group that hold a share of every parameter (shard), and the
ranks that work on the same samples, each on a part of every layer (tensor). The last side counts fastest, so
that its ranks lie on one host where they can.

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
    """How many ranks, on which devices, talking how."""

    backend: Backend = "auto"
    """The process group; auto is nccl with CUDA, else gloo."""
    gradient_accumulation_steps: Annotated[int, Limits(ge=1, le=65_536)] = 1
    """Micro-batches that make one optimizer step."""
    nproc: Annotated[int, Limits(ge=1, le=1024)] = 1
    """Ranks to start on a host."""
    nodes: Annotated[int, Limits(ge=1, le=4096)] = 1
    """Hosts of the inventory over which the run is one job; 1 runs it on each by itself."""
    device: Text = "auto"
    """The type of device: cuda (ROCm too), xpu, mps, cpu, or one that an installed package registers; auto is
    the first of them that is there, and never a simulated one."""
    devices: DeviceIndices | None = None
    """Indices of the devices to use, as the driver counts them; null is all in order."""
    threads_per_rank: Annotated[int, Limits(ge=1, le=1024)] | None = None
    """CPU threads of each rank; null shares the cores out evenly."""
    timeout_s: Seconds = 600.0
    """Seconds that a collective may take to start or finish, and that ranks of your launcher wait for each
    other where it is less than 300."""
    hang_timeout_s: Seconds = 300.0
    """Seconds without progress after which a rank counts as hung and is ended."""
    world_size: Annotated[int, Limits(ge=1, le=10**6)] | None = None
    """World size: null, or a number that must agree with the launch."""
    local_rank: Annotated[int, Limits(ge=0, le=1023)] | None = None
    """Local rank: null, or a number that must agree with the launch."""
    node_rank: Annotated[int, Limits(ge=0, le=65_535)] | None = None
    """Node rank: null, or a number that must agree with the launch."""
    strategy: ParallelStrategy = "ddp"
    """How ranks share a model. ddp: a copy each. fsdp: a share of every parameter each (fully_shard). hsdp:
    copies, each shared by a group of shard_size ranks. tensor: all ranks work on the same samples, each on a
    part of every layer. fsdp_tensor: groups of tensor_parallel_size ranks do so, and the groups share every
    parameter."""
    shard_size: Annotated[int, Limits(ge=2, le=10**6)] | None = None
    """Ranks that hold a copy of the model together, under hsdp."""
    tensor_parallel_size: Annotated[int, Limits(ge=2, le=1024)] | None = None
    """Ranks that work on the same samples, under fsdp_tensor; null under tensor is all ranks."""
    gradient_compression: GradientCompression = "none"
    """What ddp does to gradients before it sums them: fp16 and bf16 halve their size (bf16 over nccl only),
    powersgd sends a product of rank 1 in the place of each matrix."""
    communication_profile: CommunicationProfile = "none"
    """Settings that NCCL is given, to be tried against none: ring and tree name the algorithm, no_p2p copies
    through the host's memory, pcie is a published set of ten for GPUs without direct copies. None of them is
    known to help; variables that are set otherwise already are refused."""
    memory_limit_bytes: Annotated[int, Limits(read=read_bytes, ge=2**20, le=2**50)] | None = None
    """Limit of torch's memory on each device, in bytes or as 12G; null is all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The sides of the box of ranks; their product is the world size."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sides in the order of `AXES`."""
        return self.replicate, self.shard, self.tensor

    @property
    def data_parallel_size(self) -> int:
        """Ranks, or groups of them, that work on different samples."""
        return self.replicate * self.shard

    def data_rank(self, rank: int) -> int:
        """Say which share of the samples a rank works on: ranks of a tensor group have the same one."""
        return rank // self.tensor

    def counts_samples(self, rank: int) -> bool:
        """Say whether a rank is the one of its tensor group that counts the group's samples."""
        return rank % self.tensor == 0


class ArrangementError(ValueError):
    """The sizes do not fit the number of ranks; `key` is the config's key to change."""

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
    """Lay out the ranks.

    Raises:
        ArrangementError: a size does not divide the world size, or leaves another strategy than is named.
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
            f"tensor alone takes all {world_size} ranks into one group, not {tensor_parallel_size}",
            "Use distributed.strategy=fsdp_tensor for several groups, or set the size to null",
        )
    return Arrangement(tensor=world_size)


def _inner(name: str, size: int | None, world_size: int, *, whole_is: ParallelStrategy) -> int:
    if size is None or world_size % size:
        raise ArrangementError(
            name,
            f"{name} is {'null' if size is None else size}, which does not divide {world_size} ranks",
            "Start a multiple of that many ranks, or set it to a divisor of their number",
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
    """What really ran on several ranks."""

    strategy: ParallelStrategy
    arrangement: Arrangement
    sharded_blocks: int | None = None
    """Blocks whose parameters are gathered and freed one by one; None where nothing is sharded."""
    casts: str | None = None
    """In which types sharded parameters are gathered and their gradients summed; None for float32."""
    gradient_hook: str | None = None
    """What compresses gradients before they are summed; None for nothing."""

    def describe(self) -> str:
        """Name strategy, mesh and hook, as a report does: `hsdp (replicate 2 × shard 2)`."""
        sides = zip(AXES, self.arrangement.sizes, strict=True)
        mesh = " × ".join(f"{axis} {size}" for axis, size in sides if size > 1)
        hook = f", gradients by {self.gradient_hook}" if self.gradient_hook else ""
        return f"{self.strategy} ({mesh}){hook}"


def plain_copies(world_size: int) -> Parallelism:
    """Return what runs where nothing else is asked for: a copy of the model on each rank."""
    return Parallelism(strategy="ddp", arrangement=Arrangement(replicate=world_size))
