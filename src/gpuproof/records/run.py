"""The records that a worker writes while it runs a case, in order.

start → environment (one rank per host) → setup → phase … steps → effective → … window → compilation → result,
or failure at any point. `*_monotonic_s` are on CLOCK_MONOTONIC, comparable between processes on one host;
`*_unix_s` are for dates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gpuproof.base.redaction import redacted
from gpuproof.records.codec import Amount, Amounts, Duration, Host, Natural, Positive
from gpuproof.records.journal import record_kind
from gpuproof.records.progress import RankProgress
from gpuproof.records.readings import with_sound_facts
from gpuproof.records.what_ran import PowerCap, StepOptions
from gpuproof.records.work.data import DataUsed
from gpuproof.records.work.parallel import Parallelism
from gpuproof.records.work.training import Replicas

PhaseName = Literal[
    "prepare",
    "count",
    "compile",
    "capture",
    "warmup",
    "observe",
    "settle",
    "measure",
    "check",
    "evaluate",
    "own_compute",
    "breakdown",
    "ceilings",
    "casts",
    "busy",
    "profile",
    "wait",
    "command",
    "finish",
]
FailureCause = Literal[
    "out_of_memory",
    "exception",
    "hang",
    "timeout",
    "lost_rank",
    "interrupted",
    "disk_full",
    "environment",
    "exit_status",
]

TRANSIENT_CAUSES: frozenset[str] = frozenset({"lost_rank", "interrupted", "disk_full", "environment"})
"""Causes outside the case itself: `--resume` reruns such a case without any further option."""

HostStage = Literal["setup", "deploy", "execute", "download", "parse", "exception"]
"""Stages at which access to a host can fail: connecting, transferring the node side, running it, bringing
files back or reading them; or an internal error. Used as the phase of such a failure."""


@record_kind("start")
@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A rank has started: its identity and location."""

    rank: Natural
    world_size: Positive
    local_rank: Natural
    local_world_size: Positive
    host: Host
    pid: int
    start: Literal["exec", "fork"]
    gpuproof_version: str
    unix_s: float
    monotonic_s: float


@record_kind("environment", unpack=with_sound_facts)
@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The host's facts: operating system, CPU, memory, devices, driver, framework, NCCL variables."""

    host: Host
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device that a rank computes on, by its framework name and permanent identity."""

    kind: str
    """The device type, as torch names it: cuda, cpu."""
    index: int | None
    name: str
    uuid: str | None
    memory_total_bytes: int | None
    simulated: bool = False
    """Whether no such hardware exists: measurements on it say nothing about real hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplied:
    """An option that the user set but that has no effect here."""

    key: str
    reason: str


@record_kind("setup")
@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The setup as actually built: model size, FLOPs per step, effective options."""

    rank: Natural
    device: Device
    backend: str | None
    threads: int
    num_parameters: Natural
    items_per_step: Natural
    """Samples (or tokens, as given by `item`) that this rank processes in one optimizer step, over all
    micro-batches.

    Ranks of a tensor-parallel group work on the same samples: the group's first rank counts them and the
    others count 0, so that the sum over ranks is the actual work."""
    item: str
    flops_per_step: Amount | None
    """Model FLOPs of this rank in one step; None if unknown, with the reason in `notes`.

    Ranks of a tensor-parallel group share the FLOPs of their samples evenly."""
    precision: str
    compiled: str | None
    """The torch.compile mode that was actually used; None for eager mode."""
    data: str
    pool_samples: int
    not_applied: tuple[NotApplied, ...]
    notes: tuple[str, ...]
    monotonic_s: float
    items_per_sample: Positive = 1
    """Items per sample: the number of tokens if `item` is tokens. Batches and epochs are counted in
    samples."""
    num_active_parameters: int | None = None
    """Number of parameters used per token; None if all are used."""
    parallelism: Parallelism | None = None
    """How several ranks shared the workload; None for one rank, and for inference on copies of the model."""
    flops_per_step_counted: Amount | None = None
    """FLOPs as counted by torch: they verify the closed-form FLOP count, or replace it."""
    flops_not_counted: str | None = None
    """Why these FLOPs were not counted."""
    flops_skippable_per_step: Amount | None = None
    """The part of a step's FLOPs that a kernel may skip: attention FLOPs that a causal mask makes
    unnecessary. None if not counted."""
    bytes_per_step: Amount | None = None
    """Bytes that one step of this rank moves to and from the device's memory, computed analytically. Usually
    None, because there is no formula: how much data caches retain is unknown."""
    input_shape: tuple[int, ...] | None = None
    """One sample as the model uses it; sizes that the user did not set are the model's defaults."""
    padded_bytes_per_step: Amount | None = None
    """Bytes of the cache that a decode step reads beyond the tokens, because attention reads to the end of a
    bucket if steps are captured; not included in any other number. None if there are no such extra reads."""
    kv_cache_bytes: Natural | None = None
    """Size of the keys and values of all layers, allocated for prompt and new tokens; None without a
    cache."""
    data_used: DataUsed | None = None
    options: StepOptions | None = None
    """Options of a step; None for TensorFlow, collectives and probes, and in older runs."""
    fitted: Mapping[str, int] = field(default_factory=dict)
    """Workload options that were `auto`, with the values chosen for this device (records/sizes.csv)."""
    replicas: Replicas | None = None
    """Devices on which one process trains, if there are several: `device` is then the first of them, and
    FLOPs are per device."""


@record_kind("phase")
@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase has started or ended."""

    rank: int
    name: PhaseName
    event: Literal["begin", "end"]
    monotonic_s: float
    expected_steps: int | None = None
    expected_s: float | None = None


@record_kind("steps")
@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Times of about one second's worth of steps, in order. `first_step` counts from 0 within the phase."""

    rank: Natural
    phase: PhaseName
    first_step: Natural
    durations_s: Amounts
    data_wait_s: Amount | None = None
    """The part of these steps spent waiting for batches; None if no loader runs."""


@record_kind("progress")
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a phase, about once a second, written if the step times themselves are not stored."""

    rank: int
    phase: PhaseName
    steps_done: int
    monotonic_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """CPU activity of the host during a window. CPU seconds are summed over all CPUs."""

    num_cpus: int
    busy_cpu_s: float | None
    """CPU time of all processes on the host, including this one."""
    own_cpu_s: float
    """CPU time of this rank, including all its threads and loader processes."""
    run_queue_wait_s: float | None
    """Time for which this rank's threads were runnable but had no CPU."""
    steal_cpu_s: float | None
    """Time that the hypervisor gave to other virtual machines."""
    missing: str | None
    """Why a field is None."""
    span_s: Duration | None = None
    """Time between the two readings, which is slightly longer than the window; None in older records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSharing:
    """Other processes on the rank's device just before or after the window, whichever is more."""

    other_processes: int | None
    """Number of other processes, not counting display servers."""
    other_memory_bytes: int | None
    missing: str | None
    display_servers: tuple[str, ...] = ()
    """The names of the display servers; empty if the other processes are unknown."""


@record_kind("window")
@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One measured window on one rank."""

    rank: Natural
    host: Host
    num_steps: Natural
    requested_steps: int | None
    requested_s: float | None
    items: Natural
    wall_s: Duration
    """Time from the synchronised start to the synchronised end, on the host's monotonic clock."""
    steps_s: Amount
    """Sum of the step times, on the clock given by `clock`."""
    clock: Literal["device_event", "host", "host_synchronised"]
    stop_reason: str
    begin_monotonic_s: float
    end_monotonic_s: float
    load: HostLoad
    neighbours: DeviceSharing
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_with_warmup_bytes: int | None
    data_wait_s: Amount | None = None
    """Time within the steps that the device spent waiting for a batch from the loader, on the steps' clock;
    None if all samples were already on the device, so that there is nothing to wait for."""
    relative_half_width: float | None = None
    """Half-width of the 95 % interval of the mean step time within this launch, divided by the mean, at the
    end of a window measured to a given precision."""
    caught_up_steps: int | None = None
    """Number of steps that the device had started by the time the host finished launching them: on a device
    that lags behind its host, almost none apart from the first. None if the clock cannot tell."""
    tokens_before: Natural | None = None
    """For decode steps: number of tokens after the prompt that were in the cache before the first step. Each
    step attends to one more token, until the cache is reset to the prompt."""
    rarest_seen_stall: int | None = None
    """For a window measured by precision: random stalls that occur once in this many steps are seen in 95 %
    of windows of this length; rarer stalls are seen less often."""
    not_finite_after: tuple[int, int] | None = None
    """Step counts after which outputs (in training, the loss) were last seen to be finite, and first seen not
    to be. None if all checked outputs were finite, or none were checked."""
    skipped_updates: Natural | None = None
    """For amp: number of steps of the window, at least, whose gradients contained infinities or NaN, so that
    the gradient scaler left the weights as they were. None for other precisions."""
    power_cap: PowerCap | None = None
    """Data on the power cap; None if the window did not wait for the cap to settle, as on a CPU and in
    windows shorter than a second."""


@record_kind("evaluation")
@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Loss and accuracy after the window, on the rank's pool or on held-out samples."""

    rank: int
    samples: int
    mean_loss: float | None
    accuracy: float | None
    missing: str | None
    is_held_out: bool = False
    """Whether no step used these samples."""
    mean_absolute_error: float | None = None
    """Mean error of a regression's outputs; None for classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingTrial:
    """Repeats of one kind of workload at one size."""

    what: Literal["gemm", "copy", "triad"]
    size: tuple[int, ...]
    """m, n, k of a matmul, or the bytes of one buffer for a memory pass."""
    dtype: str
    work: Amount
    """FLOPs of one matmul, or bytes moved by one memory pass."""
    durations_s: Amounts
    """The time of each repeat, in order, on the clock that times steps."""


@record_kind("ceilings")
@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Peak performance of the rank's device just after the window, with all ranks measuring at once."""

    rank: int
    clock: Literal["device_event", "host", "host_synchronised"]
    trials: tuple[CeilingTrial, ...]
    missing: str | None
    """Why a kind of workload was not tried."""


@record_kind("busy")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBusy:
    """How long the rank's device was busy per step; measured separately: in the window, it may wait."""

    rank: int
    steps_per_block: Natural
    busy_s_per_step: Amounts
    """The mean step time of each block of steps."""
    missing: str | None
    """Reason if this is unknown."""


@record_kind("profile")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTrace:
    """A separate profiler pass after the window, which is not part of any result."""

    rank: Natural
    steps: Positive
    file: str


@record_kind("result")
@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """The rank completed the case. This is the last record of an intact journal."""

    rank: int
    monotonic_s: float
    last_loss: float | None


@record_kind("failure")
@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a rank, or the launch as a whole (rank None), did not finish."""

    rank: int | None
    host: str
    phase: str
    cause: FailureCause
    message: str
    unix_s: float
    next_step: str | None = None
    traceback: str | None = None
    stacks: str | None = None
    steps_done: int | None = None
    progress: RankProgress | None = None
    is_unsupported: bool = False
    """Whether the device lacks what was requested, so that there is nothing to measure."""

    def __post_init__(self) -> None:
        """Remove secrets from all texts: messages from servers, libraries or launchers may contain some."""
        for name in ("message", "next_step", "traceback", "stacks"):
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, redacted(text))


def is_host_failure(failure: Failure) -> bool:
    """Return whether access to a host failed, rather than what ran on it."""
    return failure.rank is None and failure.phase in get_args(HostStage)
