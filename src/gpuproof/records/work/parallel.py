"""`distributed`: how many ranks, on which devices, sharing the work and talking how.

Where a case runs is its `Placement`; of ranks and devices a case's block says what the recipe asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gpuproof.records.work.options import DeviceIndices, Limits, Options, Seconds, Text, read_bytes

Backend = Literal["auto", "nccl", "gloo"]
ParallelStrategy = Literal["ddp", "fsdp", "hsdp", "tensor", "fsdp_tensor"]
GradientCompression = Literal["none", "fp16", "bf16", "powersgd"]
CommunicationProfile = Literal["none", "pcie", "ring", "tree", "no_p2p", "no_fabric", "no_gpudirect"]


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
