"""Records of the step breakdown after the window: by rank, by phase, by communication view.

Each view answers a different question, and none replaces another: how much shorter a step would be without
gradient averaging (`GradientSync`), how busy the device was while collectives ran (`CollectiveOverlap`), and
how long the same bytes take when nothing else is running (`BucketAllReduce`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gpuproof.records.codec import Amounts, Natural
from gpuproof.records.journal import record_kind

COMMUNICATION = re.compile(
    r"nccl|rccl|simccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE
)
"""Text contained in the name of every communication kernel."""
ClockName = Literal["device_event", "host", "host_synchronised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRound:
    """Step times of four consecutive bursts, in seconds, each without its first step.

    Bursts within a group of one rank run the same code as bursts of all ranks, but communicate with no other
    rank: differences between these bursts are not due to communication.
    """

    with_sync_s: tuple[float, ...]
    without_sync_s: tuple[float, ...]
    alone_with_sync_s: tuple[float, ...]
    alone_without_sync_s: tuple[float, ...]


@record_kind("gradient_sync")
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSync:
    """One rank's steps with and without gradient averaging, interleaved."""

    rank: int
    clock: ClockName
    rounds: tuple[SyncRound, ...]
    missing: str | None
    """Reason if there are no step times."""


@record_kind("collective_overlap")
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveOverlap:
    """Activity of a rank's device while collectives ran, summed over some steps, in seconds.

    A collective runs from the start of its kernel, which includes waiting for other ranks.
    """

    rank: int
    num_steps: Natural
    collective_s: float
    exposed_s: float
    """The part of the collectives' time during which nothing was computed."""
    kernels: tuple[str, ...]
    """Names of the collectives' kernels, sorted and without duplicates."""
    missing: str | None
    """Why this is unknown, if it is; the sums are 0 then."""


@record_kind("bucket_all_reduce")
@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAllReduce:
    """All-reduces with the sizes used for gradient averaging, with nothing else running."""

    rank: int
    clock: ClockName
    bucket_bytes: tuple[int, ...]
    """Sizes of the buckets created by DistributedDataParallel, in the order in which they are sent."""
    durations_s: tuple[tuple[float, ...], ...]
    """Times per bucket and iteration."""
    missing: str | None
    """Reason why there are no times."""
    is_queued: bool = True
    """Whether each all-reduce was queued before it started; if not, times include waits for the host."""


@record_kind("step_phases")
@dataclass(frozen=True, slots=True, kw_only=True)
class StepPhases:
    """Steps with marks between their parts, in a separate window. Times are in seconds, one per step.

    On an asynchronous device, marks are events, and the device was kept busy until entire steps were queued
    (`is_queued`), so no phase includes a wait for the host.
    """

    rank: int
    clock: ClockName
    is_queued: bool
    data_s: tuple[float, ...] = ()
    forward_s: tuple[float, ...] = ()
    backward_s: tuple[float, ...] = ()
    """Backward pass, including gradient averaging, if any."""
    optimizer_s: tuple[float, ...] = ()
    """Zeroing gradients, gradient clipping and the optimizer update."""
    backward_without_sync_s: tuple[float, ...] = ()
    """Backward pass of additional steps with gradients that stay on the rank; empty if a step cannot run
    alone."""
    plain_step_s: tuple[float, ...] = ()
    """The mean step time after the first step, for bursts of steps without phase marks …"""
    marked_step_s: tuple[float, ...] = ()
    """… and for bursts with marks; the two are interleaved."""
    allocated_before_bytes: tuple[int, ...] = ()
    """Memory allocated by torch's allocator when the host started to queue each step …"""
    allocated_after_bytes: tuple[int, ...] = ()
    """… and when it had queued the entire step. Empty if the allocator does not track memory."""
    missing: str | None = None
    """Why a step cannot be broken down."""


@record_kind("own_compute")
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCompute:
    """Steps that one rank runs alone after the window: full steps, but without gradient exchange."""

    rank: int
    clock: ClockName
    bursts_s: tuple[Amounts, ...]
    """Step times of each burst; between bursts, all ranks step together, which separates the bursts in
    time."""
    missing: str | None
    """Reason if there are no such steps: in this setup, a step cannot run without the other ranks."""


@record_kind("trained_alike")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAgreement:
    """A few steps of one model, with the same initial weights and samples: on all ranks, and on one."""

    rank: int
    loss_together: tuple[float, ...] = ()
    """The mean loss over all ranks, per step …"""
    loss_alone: tuple[float, ...] = ()
    """… and the loss on a single rank that processes the samples of all ranks."""
    gradient_norm_together: tuple[float, ...] = ()
    gradient_norm_alone: tuple[float, ...] = ()
    largest_weight_difference: float | None = None
    """Largest difference over all weights after the last step."""
    missing: str | None = None
    """Reason why there is no comparison."""


@record_kind("fp8_casts")
@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Casts:
    """Cost of fp8 rounding in the rank's step, timed alone afterwards; no compiler fuses it."""

    rank: int
    passes_per_step: Natural
    """Number of forward and backward passes through linear layers in fp8, including recomputed ones."""
    s_per_step: float
