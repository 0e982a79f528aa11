"""`benchmark`, `profiling`, `monitoring`: settings for measuring, profiling afterwards, and monitoring.

This module also defines what prevents a step from being captured as one CUDA graph on any device, for a
recipe or a case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from gpuproof.records.work.data import DataSpec
from gpuproof.records.work.options import Limits, Options, Seconds
from gpuproof.records.work.training import TrainingSpec

PRECISION_LIMIT_S = 60.0
"""Default time limit for a window with a target precision."""
GPU_WINDOW_S = 5.0
"""Minimum length of a window on a GPU: a shorter one contains too few of the driver's readings, which are
updated every 0.1 to 1 s."""
OWN_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes in which torch.compile itself creates CUDA graphs."""
CHANGING = ("AdamWAdv", "AdamWSpam")
"""Optimizers with different kinds of updates, so that steps vary."""
WITHOUT_GRAPHS = "Set training.cuda_graphs to false"
BATCHES_VARY = "requests come in batches of varying sizes"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec(Options):
    """Settings for warm-up, measurement and recording."""

    enabled: bool = True
    """Whether benchmark.* decides the length of the measured window; false measures training.epochs epochs
    from the first step, without warm-up."""
    warmup_steps: Annotated[int, Limits(ge=0, le=10**6)] = 100
    """Warm-up steps before the measured window, once per launch."""
    measure_by: Literal["steps", "time", "precision"] = "steps"
    """How the length of the measured window is determined: by a number of steps, a time in seconds, or
    reaching target_precision for the mean step time."""
    measure_steps: Annotated[int, Limits(ge=1, le=10**8)] | None = 2000
    """Steps in the window when measure_by is steps."""
    min_seconds: Annotated[float, Limits(ge=0, le=3600)] | None = None
    """If measure_by is steps: minimum length of the window, in seconds; a window that is shorter after
    measure_steps is continued to the end of an epoch (with decode, of a generation), or only to min_seconds
    if that end is more than min_seconds further away. 0 measures exactly measure_steps; null means 5 on a
    GPU, but 0 on a CPU or if results depend on the number of steps (pruning, evaluation)."""
    measure_seconds: Seconds | None = None
    """Length of the window in seconds if measure_by is time. If measure_by is precision, this is the upper
    limit, and null means 60."""
    power_cap_limit_s: Seconds | None = 60.0
    """On a GPU at its power cap, a window of 1 s or more that is not measured by precision starts once the
    cap's controller has settled, and continues until it is long enough to be assessed (20 s, or 20 periods of
    the controller if longer), but no longer than this. If null, the window has the requested length."""
    log_step_times: bool = True
    """Record every step's time."""
    sync_cuda: bool = False
    """Synchronise after every step: this times each step strictly, but is slower."""
    of_device: bool = False
    """Whether the result is meant to show what the device can do: if so, a rate limited by the host or the
    loader is SUSPECT."""
    evaluate_after: bool = False
    """Evaluate the model after the window."""
    count_flops: bool = True
    """Let torch count the FLOPs of a step once, before warm-up, to check the closed-form formulas."""
    target_precision: Annotated[float, Limits(gt=0, le=0.5)] = 0.01
    """If measure_by is precision: stop when the 95% interval of the mean step time is within ± this fraction
    of the mean, and both halves of the window agree. The window does not stop before 15 seconds, or half of
    measure_seconds if that is less, unless 325 steps or more rule out a drift that would move the mean by
    that fraction before measure_seconds."""
    min_steps: Annotated[int, Limits(ge=20, le=10**8)] = 100
    """If measure_by is precision: minimum number of steps."""
    own_compute: bool = True
    """With several ranks and strategy ddp, in training: after the window, time some steps of each rank alone,
    for about a second, because within the window all ranks wait for the slowest."""

    @property
    def target(self) -> float | None:
        """Relative half-width of the mean step's interval at which the window ends; None for other rules."""
        return self.target_precision if self.measure_by == "precision" else None

    @property
    def limit_s(self) -> float | None:
        """Seconds after which the window always ends; None if it has a fixed number of steps."""
        if self.measure_by == "steps":
            return None
        return self.measure_seconds or (PRECISION_LIMIT_S if self.measure_by == "precision" else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingSpec(Options):
    """Settings for profiling the device after the window."""

    enabled: bool = False
    """Trace some steps on rank 0 after the window."""
    ceilings: bool = False
    """After the window, measure how fast the device multiplies matrices in this precision and how fast it
    moves data: the roofline."""
    breakdown: bool = False
    """After the window, break training steps down into their phases for a few seconds, with communication
    measured in three ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSpec(Options):
    """Settings for monitoring devices and the host during a launch."""

    enabled: bool = True
    """Record readings of devices and the host during each launch."""
    interval_s: Annotated[float, Limits(ge=0.01, le=3600)] = 0.2
    """Seconds between two readings."""
    host_interval_s: Annotated[float, Limits(ge=0.01, le=3600)] | None = None
    """Seconds between two readings of the host, at least interval_s; null means 1, or interval_s if that is
    longer."""


class CaptureObstacle(NamedTuple):
    """A setting that is incompatible with a CUDA graph, and the reason."""

    key: str
    cause: str
    next_step: str = WITHOUT_GRAPHS


def capture_obstacles(
    training: TrainingSpec, data: DataSpec, *, updates_weights: bool
) -> Iterator[CaptureObstacle]:
    """Yield obstacles to graph capture in how a step computes, updates weights and gets its samples."""
    compiled = training.compile
    if updates_weights:
        yield from _update_obstacles(training)
    if compiled.enabled and compiled.mode in OWN_GRAPHS:
        yield CaptureObstacle(
            "training.compile.mode",
            f"torch.compile creates its own graphs in mode {compiled.mode}",
            f"Set training.compile.mode to default or max-autotune-no-cudagraphs, or {WITHOUT_GRAPHS[4:]}",
        )
    if data.loading == "loader":
        cause = "a loader puts each batch at a different address"
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
            f"updates are not all identical with {'pruning' if prunes else training.optimizer}, "
            "but a graph always replays the same operations",
        )
