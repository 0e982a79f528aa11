"""The records that a worker writes while it runs a case, in the order in which they come.

start → environment (one rank a host) → setup → phase … steps → effective → … window → compilation → result,
or failure at any point.
`*_monotonic_s` are of CLOCK_MONOTONIC, comparable between processes of one host; `*_unix_s` are for dates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gpuproof.base.redaction import redacted
from gpuproof.records.codec import Amount, Amounts, Duration, Host, Natural, Positive
from gpuproof.records.journal import record_kind
from gpuproof.records.progress import RankProgress
from gpuproof.records.readings import with_sound_counters
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
"""Causes outside the case itself: `--resume` runs such a case again without being asked twice."""

HostStage = Literal["setup", "deploy", "execute", "download", "parse", "exception"]
"""Where the way to a host fails: connect, carry the node side over, run, bring files back, read them; or a
fault of ours. The phase of such a failure."""


@record_kind("start")
@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A rank has begun: who and where it is."""

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


@record_kind("environment", unpack=with_sound_counters)
@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the host has: operating system, processor, memory, devices, driver, framework, NCCL variables."""

    host: Host
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device that a rank computes on, named by the framework and by its permanent identity."""

    kind: str
    """As torch names the type: cuda, cpu."""
    index: int | None
    name: str
    uuid: str | None
    memory_total_bytes: int | None
    simulated: bool = False
    """No such hardware exists: what was measured on it says nothing of any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplied:
    """An option that the user set and that has no effect here."""

    key: str
    reason: str


@record_kind("setup")
@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was really built: model size, work per step, effective options."""

    rank: Natural
    device: Device
    backend: str | None
    threads: int
    num_parameters: Natural
    items_per_step: Natural
    """Samples (or tokens, as `item` says) of this rank in one optimizer step, all micro-batches together.

    Ranks of a tensor-parallel group work on the same samples: the group's first rank counts them, the others
    count 0, so that the sum over ranks is what was done."""
    item: str
    flops_per_step: Amount | None
    """Model FLOPs of this rank in one step; None where nobody knows them, with the reason in `notes`.

    Ranks of a tensor-parallel group share their samples' work evenly."""
    precision: str
    compiled: str | None
    """The torch.compile mode that really ran, None for eager."""
    data: str
    pool_samples: int
    not_applied: tuple[NotApplied, ...]
    notes: tuple[str, ...]
    monotonic_s: float
    items_per_sample: Positive = 1
    """Items that one sample counts for: its tokens where `item` is tokens. Batches and epochs are samples."""
    num_active_parameters: int | None = None
    """Parameters that one token goes through; None where it goes through all of them."""
    parallelism: Parallelism | None = None
    """How several ranks shared the work; None for one rank, and for inference on copies of the model."""
    flops_per_step_counted: Amount | None = None
    """As torch's own counter sees them: a check on the closed form, or in its place."""
    flops_not_counted: str | None = None
    """Why they were not counted."""
    flops_skippable_per_step: Amount | None = None
    """Of the FLOPs of a step, those that a kernel may leave out: attention's, where a causal mask hides them.
    None where nobody counted."""
    bytes_per_step: Amount | None = None
    """Bytes that one step of this rank moves to and from the device's memory, from a closed form; None where
    there is none, which is the rule: what caches keep is not known."""
    input_shape: tuple[int, ...] | None = None
    """One sample as the model takes it; sizes that nobody set are the model's own."""
    padded_bytes_per_step: Amount | None = None
    """Bytes of the cache that a decode step reads behind the tokens, since attention reads on to the end of a
    bucket where steps are captured; in no other number. None where it reads no more than it must."""
    kv_cache_bytes: Natural | None = None
    """Of the keys and values of all layers, allocated for prompt and new tokens; None without a cache."""
    data_used: DataUsed | None = None
    options: StepOptions | None = None
    """None in runs of versions that did not write it."""
    fitted: Mapping[str, int] = field(default_factory=dict)
    """Options of the workload that were `auto`, and what they are on this device (records/sizes.csv)."""
    replicas: Replicas | None = None
    """Where one process trains on several devices: `device` is the first of them, and FLOPs are of each."""


@record_kind("phase")
@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase has begun or ended."""

    rank: int
    name: PhaseName
    event: Literal["begin", "end"]
    monotonic_s: float
    expected_steps: int | None = None
    expected_s: float | None = None


@record_kind("steps")
@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """About a second of step times, in order. `first_step` counts from 0 within the phase."""

    rank: Natural
    phase: PhaseName
    first_step: Natural
    durations_s: Amounts
    data_wait_s: Amount | None = None
    """Of these steps, the time waited for batches; None where no loader runs."""


@record_kind("progress")
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a phase is, about once a second, where step times themselves are not kept."""

    rank: int
    phase: PhaseName
    steps_done: int
    monotonic_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """What the host's processors did during a window. CPU seconds are summed over all processors."""

    num_cpus: int
    busy_cpu_s: float | None
    """By every process of the host, this one included."""
    own_cpu_s: float
    """By this rank, all its threads, and the processes of its loader."""
    run_queue_wait_s: float | None
    """Time this rank's threads were ready to run and had no processor."""
    steal_cpu_s: float | None
    """Time that the hypervisor gave to other machines."""
    missing: str | None
    """Why a field is None."""
    span_s: Duration | None = None
    """Time between the two readings, a little more than the window; None in older records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSharing:
    """Other users of the rank's device: read just before and just after the window, and the more of them."""

    other_processes: int | None
    """Without display servers."""
    other_memory_bytes: int | None
    missing: str | None
    display_servers: tuple[str, ...] = ()
    """By name; none where it is not known who the others are."""


@record_kind("window")
@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One measured window of one rank."""

    rank: Natural
    host: Host
    num_steps: Natural
    requested_steps: int | None
    requested_s: float | None
    items: Natural
    wall_s: Duration
    """From the synchronised start to the synchronised end, on the host's monotonic clock."""
    steps_s: Amount
    """Sum of the step times, by the clock named in `clock`."""
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
    """Time within the steps in which the device waited for a batch to come out of the loader, on the clock
    of the steps; None where all samples were on the device before, so that there is nothing to wait for."""
    relative_half_width: float | None = None
    """Half the 95 % interval of the mean step time within this launch, over the mean, at the end of a window
    that was measured by precision."""
    caught_up_steps: int | None = None
    """Steps that the device had begun with when the host was done launching them: of a device that is behind
    its host next to none, the first one apart. None where the clock does not see it."""
    tokens_before: Natural | None = None
    """Where steps decode: tokens that the first step found behind the prompt. Each step attends to one more,
    until the cache goes back to the prompt."""
    rarest_seen_stall: int | None = None
    """Of a window that was measured by precision: stalls that come by chance in one of so many steps are seen
    in 95 % of windows as long as it; rarer ones in fewer."""
    not_finite_after: tuple[int, int] | None = None
    """Steps after which outputs (in training the loss) were last seen to be finite, and first not to be; None
    where all that were looked at were, or nobody looked."""
    power_cap: PowerCap | None = None
    """None where nobody waited for the cap to settle: on a CPU, and in windows of under a second."""


@record_kind("evaluation")
@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Loss and accuracy after the window: over the rank's pool, or over what was held out from it."""

    rank: int
    samples: int
    mean_loss: float | None
    accuracy: float | None
    missing: str | None
    is_held_out: bool = False
    """Whether no step took these samples."""
    mean_absolute_error: float | None = None
    """Of a regression's outputs; None for classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingTrial:
    """One kind of work of one size, done over and over."""

    what: Literal["gemm", "copy", "triad"]
    size: tuple[int, ...]
    """m, n, k of a product; the bytes of one buffer of a pass over memory."""
    dtype: str
    work: Amount
    """FLOPs of one repeat of a product, bytes moved by one of a pass."""
    durations_s: Amounts
    """Of each repeat, in order, by the clock that times steps."""


@record_kind("ceilings")
@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What the rank's device could do at most just after the window, while all ranks did the same."""

    rank: int
    clock: Literal["device_event", "host", "host_synchronised"]
    trials: tuple[CeilingTrial, ...]
    missing: str | None
    """Why a kind of work was not tried."""


@record_kind("busy")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBusy:
    """For how long the rank's device worked in a step, after a window in which it may have waited."""

    rank: int
    steps_per_block: Natural
    busy_s_per_step: Amounts
    """Of each block of steps, the mean."""
    missing: str | None
    """Why nobody could tell."""


@record_kind("profile")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTrace:
    """A profiler pass of its own, after the window and outside every figure."""

    rank: Natural
    steps: Positive
    file: str


@record_kind("result")
@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """The rank did all that the case asked of it. The last record of a good journal."""

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
    """Whether the device has not got what was asked of it; then there is nothing to measure."""

    def __post_init__(self) -> None:
        """Take secrets out of every text: messages of servers, libraries and launchers hold any words."""
        for name in ("message", "next_step", "traceback", "stacks"):
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, redacted(text))


def is_host_failure(failure: Failure) -> bool:
    """Say whether the way to a host failed, rather than what ran there."""
    return failure.rank is None and failure.phase in get_args(HostStage)
