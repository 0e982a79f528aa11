"""The records of steps taken apart after the window: by rank, by phase, and communication in three ways.

Each of these answers another question, and none stands for another: what a step would be shorter without the
average of gradients (`GradientSync`), what the device did while collectives ran (`CollectiveOverlap`), and
what the same bytes take when nothing else is done (`BucketAllReduce`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gpuproof.records.codec import Natural
from gpuproof.records.journal import record_kind

COMMUNICATION = re.compile(
    r"nccl|rccl|simccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE
)
"""In the name of a kernel that is communication."""
ClockName = Literal["device_event", "host", "host_synchronised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRound:
    """Step times of four bursts, one after another, in seconds; each without its first step.

    The bursts of a group of one go through the same code as those of all ranks, and talk to nobody: what they
    differ by is no communication.
    """

    with_sync_s: tuple[float, ...]
    without_sync_s: tuple[float, ...]
    alone_with_sync_s: tuple[float, ...]
    alone_without_sync_s: tuple[float, ...]


@record_kind("gradient_sync")
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSync:
    """Steps that average gradients and steps that do not, of one rank, by turns."""

    rank: int
    clock: ClockName
    rounds: tuple[SyncRound, ...]
    missing: str | None
    """Why there are none."""


@record_kind("collective_overlap")
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveOverlap:
    """What a rank's device did while collectives ran, summed over some steps, in seconds.

    A collective runs from the moment its kernel begins, the wait for other ranks included.
    """

    rank: int
    num_steps: Natural
    collective_s: float
    exposed_s: float
    """Of these, beside which nothing was computed."""
    kernels: tuple[str, ...]
    """Names of the collectives' kernels, each once, sorted."""
    missing: str | None
    """Why nobody could tell; the sums are 0 then."""


@record_kind("bucket_all_reduce")
@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAllReduce:
    """All-reduces of the sizes in which gradients are averaged, with nothing beside them."""

    rank: int
    clock: ClockName
    bucket_bytes: tuple[int, ...]
    """As DistributedDataParallel made them, in the order in which they are sent."""
    durations_s: tuple[tuple[float, ...], ...]
    """Of each bucket, of each iteration."""
    missing: str | None
    """Why there are none."""
    is_queued: bool = True
    """Whether each was in the queue before it began: else the times hold waits for the host."""


@record_kind("step_phases")
@dataclass(frozen=True, slots=True, kw_only=True)
class StepPhases:
    """Steps with marks between their parts, in a window of their own. Times are seconds, one for each step.

    On a device that runs ahead, marks are events, and the device was kept busy until whole steps were
    queued (`is_queued`): then no phase holds a wait for the host.
    """

    rank: int
    clock: ClockName
    is_queued: bool
    data_s: tuple[float, ...] = ()
    forward_s: tuple[float, ...] = ()
    backward_s: tuple[float, ...] = ()
    """With the average of gradients where there is one."""
    optimizer_s: tuple[float, ...] = ()
    """Zeroing of gradients, clip and update."""
    backward_without_sync_s: tuple[float, ...] = ()
    """Of other steps, whose gradients stay on the rank; empty where a step cannot be taken alone."""
    plain_step_s: tuple[float, ...] = ()
    """Of bursts of steps without marks, the mean step after the first …"""
    marked_step_s: tuple[float, ...] = ()
    """… and of bursts with marks, by turns."""
    allocated_before_bytes: tuple[int, ...] = ()
    """What torch's allocator had given out when the host began each step …"""
    allocated_after_bytes: tuple[int, ...] = ()
    """… and when it had queued the whole of it. Empty where the allocator keeps no count."""
    missing: str | None = None
    """Why a step cannot be taken apart."""


@record_kind("own_compute")
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCompute:
    """Steps of one rank by itself, after the window: whole steps whose gradients stay on the rank."""

    rank: int
    clock: ClockName
    bursts_s: tuple[tuple[float, ...], ...]
    """Step times of each burst; between bursts all ranks step together, so that bursts are apart in time."""
    missing: str | None
    """Why there are none: a step of this arrangement cannot be taken without the other ranks."""


@record_kind("trained_alike")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAgreement:
    """A few steps of one model from the same weights on the same samples: by all ranks, and by one alone."""

    rank: int
    loss_together: tuple[float, ...] = ()
    """The mean over all ranks, step by step …"""
    loss_alone: tuple[float, ...] = ()
    """… and of the rank that has the samples of all."""
    gradient_norm_together: tuple[float, ...] = ()
    gradient_norm_alone: tuple[float, ...] = ()
    largest_weight_difference: float | None = None
    """Of any weight, after the last step."""
    missing: str | None = None
    """Why there is none."""


@record_kind("fp8_casts")
@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Casts:
    """What rounding to fp8 costs the rank's step where no compiler joins it, timed alone after the window."""

    rank: int
    passes_per_step: Natural
    """Through linear layers in fp8, forward and backward."""
    s_per_step: float
