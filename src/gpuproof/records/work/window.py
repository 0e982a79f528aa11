"""`benchmark`, `profiling`, `monitoring`: what is measured, looked at after it, and read beside it.

And what keeps a step from being captured as one CUDA graph on any device, as a recipe or a case tells it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from gpuproof.records.work.data import DataSpec
from gpuproof.records.work.options import Limits, Options, Seconds
from gpuproof.records.work.training import TrainingSpec

PRECISION_LIMIT_S = 60.0
"""Where a window measured by precision has no limit of its own."""
GPU_WINDOW_S = 5.0
"""A shorter window holds too few of a driver's readings, which it renews every 0.1 to 1 s."""
OWN_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes in which torch.compile makes CUDA graphs by itself."""
CHANGING = ("AdamWAdv", "AdamWSpam")
"""Optimizers whose updates are not all alike."""
WITHOUT_GRAPHS = "Set training.cuda_graphs to false"
BATCHES_VARY = "requests come in batches of several sizes"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec(Options):
    """What is warmed up, measured and written down."""

    enabled: bool = True
    """Whether to measure; false only trains."""
    warmup_steps: Annotated[int, Limits(ge=0, le=10**6)] = 100
    """Warm-up steps before the measured window, once per launch."""
    measure_by: Literal["steps", "time", "precision"] = "steps"
    """What ends the measured window: a number of steps, seconds, or the mean step time being known to within
    target_precision."""
    measure_steps: Annotated[int, Limits(ge=1, le=10**8)] | None = 2000
    """Steps in the window when measure_by is steps."""
    min_seconds: Annotated[float, Limits(ge=0, le=3600)] | None = None
    """By steps: continue until the window has lasted so long, and to the end of an epoch. 0 measures exactly
    measure_steps; null is 5 on a GPU, but 0 where results depend on the number of steps (pruning, evaluation)
    and on a CPU."""
    measure_seconds: Seconds | None = None
    """Length of the window in seconds when measure_by is time; by precision its limit, null being 60."""
    power_cap_limit_s: Seconds | None = 60.0
    """On a GPU at its power cap the window begins when the cap's controller has settled, and goes on until it
    is long enough to be judged (20 s), but no longer than this. Null: it is as long as it was asked for."""
    log_step_times: bool = True
    """Record every step's time."""
    sync_cuda: bool = False
    """Synchronise after every step: strict step times, but slower."""
    of_device: bool = False
    """The result is to say what the device can do: a rate limited by the host or the loader is SUSPECT."""
    evaluate_after: bool = False
    """Evaluate the model after the window."""
    count_flops: bool = True
    """Let torch count the FLOPs of a step once, before the warm-up: a check on closed forms."""
    target_precision: Annotated[float, Limits(gt=0, le=0.5)] = 0.01
    """By precision: end when the 95% interval of the mean step is ± this share of it, and both halves of the
    window agree; not before 15 seconds, or half of measure_seconds, unless 325 steps or more exclude a drift
    that would move the mean by as much before measure_seconds."""
    min_steps: Annotated[int, Limits(ge=20, le=10**8)] = 100
    """By precision: smallest number of steps."""
    own_compute: bool = True
    """Where ranks average gradients: time some steps of each rank by itself after the window, about a second,
    since in the window all wait for the slowest."""

    @property
    def target(self) -> float | None:
        """Relative half-width of the mean step's interval that ends the window; None where else ends it."""
        return self.target_precision if self.measure_by == "precision" else None

    @property
    def limit_s(self) -> float | None:
        """Seconds after which the window ends in any case; None where it has a number of steps."""
        if self.measure_by == "steps":
            return None
        return self.measure_seconds or (PRECISION_LIMIT_S if self.measure_by == "precision" else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingSpec(Options):
    """What is looked at on the device after the window."""

    enabled: bool = False
    """Trace some steps after the window, on rank 0."""
    ceilings: bool = False
    """Measure after the window how fast the device multiplies matrices in this precision and moves memory:
    the roofline."""
    breakdown: bool = False
    """Take training steps apart after the window, a few seconds: phases of a step, and communication measured
    in three ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSpec(Options):
    """What is read of devices and host beside the work."""

    enabled: bool = True
    """Record devices and host beside each launch."""
    interval_s: Annotated[float, Limits(ge=0.01, le=3600)] = 0.2
    """Seconds between two readings."""
    host_interval_s: Annotated[float, Limits(ge=0.01, le=3600)] | None = None
    """Seconds between two readings of the host, interval_s at least; null is 1."""


class CaptureObstacle(NamedTuple):
    """A key whose value a graph cannot hold, and why."""

    key: str
    cause: str
    next_step: str = WITHOUT_GRAPHS


def capture_obstacles(
    training: TrainingSpec, data: DataSpec, *, updates_weights: bool
) -> Iterator[CaptureObstacle]:
    """Yield what stands in the way in how a step computes, updates weights and comes by its samples."""
    compiled = training.compile
    if updates_weights:
        yield from _update_obstacles(training)
    if compiled.enabled and compiled.mode in OWN_GRAPHS:
        yield CaptureObstacle(
            "training.compile.mode",
            f"torch.compile makes graphs of its own in mode {compiled.mode}",
            f"Set training.compile.mode to default or max-autotune-no-cudagraphs, or {WITHOUT_GRAPHS[4:]}",
        )
    if data.loading == "loader":
        cause = "a loader brings each batch to another place"
        yield CaptureObstacle("data.loading", cause, "Set data.loading to device")


def _update_obstacles(training: TrainingSpec) -> Iterator[CaptureObstacle]:
    prunes = training.pruning.method != "none"
    if training.precision == "amp":
        cause = "amp's gradient scaler waits for the device in each step"
        yield CaptureObstacle("training.precision", cause, "Set training.precision to bf16")
    if training.activation_checkpointing != "none":
        yield CaptureObstacle(
            "training.activation_checkpointing",
            "checkpointing saves and restores the random state on the host",
            "Set training.activation_checkpointing to none",
        )
    if prunes or training.optimizer in CHANGING:
        yield CaptureObstacle(
            "training.pruning.method" if prunes else "training.optimizer",
            f"updates are not all alike with {'pruning' if prunes else training.optimizer}, and a graph "
            "replays always the same",
        )
