"""The plan of a window, from the case's request, and its record, from the timings.

They are independent of any framework: the same functions plan and record torch's and TensorFlow's steps.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, perf_counter

from gpuproof.records.case import ModelWork
from gpuproof.records.run import DeviceSharing, HostLoad, Window
from gpuproof.worker.engine.host_clock import ClockName
from gpuproof.worker.engine.loop import FixedSteps, LongEnough, StepPlan, TimeLimit, WindowTiming
from gpuproof.worker.engine.stopping import PrecisionLimit
from gpuproof.worker.host.host_load import read_connections
from gpuproof.worker.rank.identity import RankIdentity
from gpuproof.worker.rank.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """When a window ends, and what it must reach first."""

    plan: StepPlan
    steps: int | None = None
    seconds: float | None = None
    least_s: float | None = None
    """Minimum duration of a window limited by steps, which is extended if necessary."""
    limit_s: float | None = None
    """Maximum duration of a window that ends at a target precision; it always ends by then."""

    @property
    def expected_s(self) -> float | None:
        """Expected duration of the window, if it can be determined in advance."""
        return self.seconds or self.limit_s or self.least_s


def num_steps_of_window(work: ModelWork, *, num_samples: int | None, num_shards: int) -> int | None:
    """Return the number of steps requested for a window; None if a duration is requested."""
    window = work.window
    if window.enabled:
        return window.measure_steps if window.measure_by == "steps" else None
    return work.training.epochs * steps_of_epoch(work, num_samples=num_samples, num_shards=num_shards)


def steps_of_epoch(work: ModelWork, *, num_samples: int | None, num_shards: int) -> int:
    """Return the number of steps in which each sample is used once.

    `num_samples` is the size of the data set, or None if there is none; `num_shards` is the number of devices
    that work on different samples.
    """
    global_batch = work.data.batch_size * work.micro_batches * num_shards
    return math.ceil((num_samples or work.data.samples_per_epoch) / global_batch)


def plan_window(
    work: ModelWork,
    *,
    num_samples: int | None,
    num_shards: int,
    agree: Callable[[int], int],
    step_s: float | None,
    min_window_s: float,
) -> WindowPlan:
    """Plan the window.

    `step_s` is the time of a warm-up step, `agree` returns the smallest of all ranks' proposals, and
    `min_window_s` is the minimum duration of a window defined in steps on this device, unless the recipe
    specifies another.
    """
    window = work.window
    if window.enabled and window.measure_by != "steps":
        limit_s, target = window.limit_s, window.target
        assert limit_s is not None
        if target is None:
            return WindowPlan(plan=TimeLimit(limit_s, agree=agree, step_s=step_s), seconds=limit_s)
        plan = PrecisionLimit(target, min_steps=window.min_steps, limit_s=limit_s, agree=agree, step_s=step_s)
        return WindowPlan(plan=plan, limit_s=limit_s)
    steps = num_steps_of_window(work, num_samples=num_samples, num_shards=num_shards)
    assert steps is not None
    least_s = least_window_s(work, min_window_s)
    if not least_s:
        return WindowPlan(plan=FixedSteps(steps, step_s=step_s), steps=steps)
    long_enough = LongEnough(
        steps,
        epoch_steps=work.steps_of_a_generation
        or steps_of_epoch(work, num_samples=num_samples, num_shards=num_shards),
        least_s=least_s,
        agree=agree,
        step_s=step_s,
    )
    return WindowPlan(plan=long_enough, steps=steps, least_s=least_s)


def least_window_s(work: ModelWork, min_window_s: float) -> float:
    """Return the minimum duration of a step-limited window; 0 means exactly the requested steps."""
    window = work.window
    if not window.enabled:
        return 0.0
    if window.min_seconds is not None:
        return window.min_seconds
    depends_on_steps = window.evaluate_after or work.training.pruning.method != "none"
    return 0.0 if depends_on_steps else min_window_s


def window_record(
    timing: WindowTiming,
    planned: WindowPlan,
    *,
    rank: int,
    items_per_step: int,
    clock: ClockName,
    load: HostLoad,
    neighbours: DeviceSharing,
) -> Window:
    """Return the record of a window; the caller fills in the memory peaks."""
    clock_offset_s = monotonic() - perf_counter()
    plan = planned.plan
    return Window(
        rank=rank,
        host=socket.gethostname(),
        num_steps=timing.num_steps,
        requested_steps=planned.steps,
        requested_s=planned.seconds,
        items=timing.num_steps * items_per_step,
        wall_s=timing.wall_s,
        steps_s=timing.steps_s,
        clock=clock,
        stop_reason=timing.stop_reason,
        begin_monotonic_s=timing.begin_s + clock_offset_s,
        end_monotonic_s=timing.end_s + clock_offset_s,
        load=load,
        neighbours=neighbours,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        peak_with_warmup_bytes=None,
        relative_half_width=plan.half_width if isinstance(plan, PrecisionLimit) else None,
        rarest_seen_stall=plan.rarest_seen_stall if isinstance(plan, PrecisionLimit) else None,
    )


def write_connections(recorder: Recorder, identity: RankIdentity) -> None:
    """Record the kernel's counts for this rank's connections if there are ranks on several hosts."""
    if identity.world_size > identity.local_world_size:
        recorder.write(read_connections(identity.rank))
