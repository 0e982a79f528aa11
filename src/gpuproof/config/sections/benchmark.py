"""`benchmark`, `profiling`, `monitoring`: what is measured, and what is looked at beside it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpuproof.config.sections.base import ConfigSection
from gpuproof.records.work.options import Seconds


class BenchmarkConfig(ConfigSection):
    """What is warmed up, measured and written down."""

    enabled: bool = True
    """Whether to measure; false only trains."""
    warmup_steps: int = Field(default=100, ge=0, le=10**6)
    """Warm-up steps before the measured window, once per launch."""
    measure_by: Literal["steps", "time", "precision"] = "steps"
    """What ends the measured window: a number of steps, seconds, or the mean step time being known to within
    target_precision."""
    measure_steps: int | None = Field(default=2000, ge=1, le=10**8)
    """Steps in the window when measure_by is steps."""
    measure_seconds: Seconds | None = None
    """Length of the window in seconds when measure_by is time; by precision its limit, null being 60."""
    log_step_times: bool = True
    """Record every step's time."""
    sync_cuda: bool = False
    """Synchronise after every step: strict step times, but slower."""
    evaluate_after: bool = False
    """Evaluate the model after the window."""
    count_flops: bool = True
    """Let torch count the FLOPs of a step once, before the warm-up: a check on closed forms."""
    target_precision: float = Field(default=0.01, gt=0, le=0.5)
    """By precision: end when the 95% interval of the mean step is ± this share of it, and both halves of the
    window agree; not before 15 seconds, or half of measure_seconds, unless 325 steps or more exclude a drift
    that would move the mean by as much before measure_seconds."""
    min_steps: int = Field(default=100, ge=20, le=10**8)
    """By precision: smallest number of steps."""
    own_compute: bool = True
    """Where ranks average gradients: time some steps of each rank by itself after the window, about a second,
    since in the window all wait for the slowest."""


class ProfilingConfig(ConfigSection):
    """What is looked at on the device after the window."""

    enabled: bool = False
    """Trace some steps after the window, on rank 0."""
    ceilings: bool = False
    """Measure after the window how fast the device multiplies matrices in this precision and moves memory:
    the roofline."""
    breakdown: bool = False
    """Take training steps apart after the window, a few seconds: phases of a step, and communication measured
    in three ways."""


class MonitoringConfig(ConfigSection):
    """What is read of devices and host beside the work."""

    enabled: bool = True
    """Record devices and host beside each launch."""
    interval_s: float = Field(default=0.2, ge=0.01, le=3600)
    """Seconds between two readings."""
    host_interval_s: float | None = Field(default=None, ge=0.01, le=3600)
    """Seconds between two readings of the host, interval_s at least; null is 1."""
