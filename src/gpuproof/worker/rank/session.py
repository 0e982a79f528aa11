"""One case on one rank: prepare, compile, warm up, measure, evaluate, profile.

In: a case and the identity of this rank. Out: records, through the recorder. Everything expensive happens
before the window; between the window's start and end, only the engine runs.
"""

from __future__ import annotations

import gc
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.distributed.distributed_c10d import Store

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.devices.other_processes import most_users, other_users
from gpuproof.records.case import Case
from gpuproof.records.run import (
    DeviceSharing,
    HostLoad,
    PhaseName,
    Window,
)
from gpuproof.records.what_ran import Effective
from gpuproof.worker.engine.loop import FixedSteps, StepFunction, WindowTiming, run_window
from gpuproof.worker.engine.stopping import feed_plan
from gpuproof.worker.host.host_load import load_between, read_load
from gpuproof.worker.rank.after_window import run_after_window
from gpuproof.worker.rank.identity import RankIdentity
from gpuproof.worker.rank.power_cap import PowerCapWatch, settle
from gpuproof.worker.rank.recorder import Recorder, StepTimesWriter
from gpuproof.worker.rank.window import (
    WindowPlan,
    num_steps_of_window,
    plan_window,
    steps_of_epoch,
    window_record,
    write_connections,
)
from gpuproof.worker.step.cuda_graph import (
    STEPS_BEFORE_CAPTURE,
    CapturedStep,
    StaticBatches,
    capture_step,
    compilation_record,
    read_counts,
)
from gpuproof.worker.step.effective import HIDDEN_BY_COMPILER, ObservedStep, hidden, observe
from gpuproof.worker.step.flop_count import CountedFlops, count_step_flops
from gpuproof.worker.step.generation import DecodeStep
from gpuproof.worker.step.inference import OutputWatch
from gpuproof.worker.step.memory import MemoryWatch
from gpuproof.worker.step.preparation import Prepared, prepare, setup_record
from gpuproof.worker.step.training import TrainingStep

COMPILE_STEPS = 2


def run_case(
    case: Case,
    *,
    identity: RankIdentity,
    recorder: Recorder,
    run_folder: Path,
    store: Store | None = None,
) -> Prepared:
    """Run the whole case on this rank; its last record is the result. Return what must be released."""
    with recorder.phase("prepare"):
        if case.capture_env and identity.local_rank == 0:
            recorder.describe_host(case.placement.device)
        prepared = prepare(case, identity=identity, run_folder=run_folder, store=store)
        recorder.heartbeat.clock = prepared.clock

    counted = count_work(prepared, recorder)
    compile_and_capture(prepared, recorder)
    setup = replace(
        setup_record(prepared),
        flops_per_step_counted=counted.flops_per_step,
        flops_not_counted=counted.missing,
        flops_skippable_per_step=counted.skippable_per_step,
    )
    recorder.write(setup)
    memory = MemoryWatch(prepared)
    observed = ObservedStep(memory, rank=identity.rank)
    warm = warm_up(prepared, recorder, memory if _reason_hidden(prepared) else observed)
    write_effective(prepared, recorder, observed.seen)
    window = (measure_compiled if case.model_work.training.compile.enabled else measure)(
        prepared, recorder, warm
    )
    recorder.write(memory.record(device_used_bytes=_device_used_bytes(prepared.device)))
    if isinstance(prepared.step, TrainingStep) and prepared.step.pruner is not None:
        recorder.write(prepared.step.pruner.record(rank=identity.rank))
    loss = _finite_loss(prepared.eager_step.last_loss)
    run_after_window(prepared, recorder, window)

    recorder.finish(last_loss=loss)
    return prepared


def compile_and_capture(prepared: Prepared, recorder: Recorder) -> None:
    """Compile the model and capture its steps, if requested; for decoding, one bucket at a time."""
    by_bucket = isinstance(prepared.step, DecodeStep) and prepared.step.decoding.capture is not None
    if prepared.work.training.compile.enabled and not by_bucket:
        compile_model(prepared, recorder)
    if prepared.static is not None or by_bucket:
        capture_graph(prepared, recorder, prepared.static)


def _finite_loss(loss: torch.Tensor | None) -> float | None:
    value = math.nan if loss is None else float(loss.detach())
    return value if math.isfinite(value) else None


def count_work(prepared: Prepared, recorder: Recorder) -> CountedFlops:
    """Let torch count the FLOPs of a step, if requested.

    Later launches repeat the workload of the first, so if a closed-form count is available, it is enough to
    check it once. For tokens, the count also covers the scores that a causal mask hides, which no closed-form
    count includes.
    """
    if not prepared.work.window.count_flops:
        return CountedFlops(flops_per_step=None, missing="benchmark.count_flops is false")
    is_known = prepared.flops_per_step is not None and "tokens" not in prepared.workload.item
    if prepared.case.replicate and is_known:
        prepared.pool.next_batch()  # as counting requires: every launch trains on the same batches
        return CountedFlops(flops_per_step=None, missing="compared with the closed form in the first launch")
    with recorder.phase("count"):
        return count_step_flops(prepared)


def compile_model(prepared: Prepared, recorder: Recorder) -> None:
    """Run a compiled model's first steps separately: they take minutes, and are not timed as steps.

    If the step is to be captured, these steps run on a side stream, as do all its steps before the capture.
    """

    def first_steps() -> None:
        for _ in range(COMPILE_STEPS):
            prepared.step()

    with recorder.phase("compile", expected_steps=COMPILE_STEPS):
        if prepared.static is None:
            first_steps()
        else:
            accelerator_of(prepared.device).run_aside(first_steps)
        prepared.clock.synchronize()
        gc.collect()  # the compiler leaves a lot of cyclic garbage, some of it in older generations


def capture_graph(prepared: Prepared, recorder: Recorder, static: StaticBatches | None) -> None:
    """Capture the step as one CUDA graph, or as one per length bucket."""
    rank, step = prepared.identity.rank, prepared.eager_step

    def look(run: StepFunction) -> Effective:
        if not prepared.work.training.compile.enabled:
            return observe(run, rank=rank)
        run()
        return hidden(HIDDEN_BY_COMPILER, rank=rank)

    name: PhaseName = "compile" if static is None else "capture"
    with recorder.phase(name, expected_steps=STEPS_BEFORE_CAPTURE):
        if isinstance(step, DecodeStep):
            prepared.step = step.capture(look)
        else:
            assert static is not None
            prepared.step = capture_step(
                step,
                static,
                capture=accelerator_of(prepared.device),
                observe=look,
                key=prepared.work.graphs_key,
            )
        prepared.clock.synchronize()


def _reason_hidden(prepared: Prepared) -> str | None:
    """Return why no warm-up step can reveal its kernel inputs; None if the first one can."""
    if prepared.work.training.compile.enabled:
        return HIDDEN_BY_COMPILER
    return "observed when the graph was captured" if isinstance(prepared.step, CapturedStep) else None


def write_effective(prepared: Prepared, recorder: Recorder, seen: Effective | None) -> None:
    """Record the kernel inputs of a step: those already in `seen`, or those of an extra step."""
    rank = prepared.identity.rank
    if isinstance(prepared.step, CapturedStep) and prepared.step.is_graph:
        seen = prepared.step.effective
    elif why := _reason_hidden(prepared):
        seen = hidden(why, rank=rank)
    elif seen is None:
        with recorder.phase("observe", expected_steps=1):
            seen = observe(prepared.step, rank=rank)
            prepared.clock.synchronize()
    recorder.write(seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Warm-up facts that the window needs."""

    step_s: float | None
    peak_bytes: int | None
    power_cap: PowerCapWatch | None = None
    """State of the power cap; None if the window does not wait for a cap."""


def warm_up(prepared: Prepared, recorder: Recorder, step: StepFunction) -> WarmUp:
    """Run the warm-up, once per case; record and reset its memory peak, and let a power cap settle."""
    window = prepared.work.window
    num_steps = window.warmup_steps if window.enabled else 0
    with recorder.phase("warmup", expected_steps=num_steps):
        writer = StepTimesWriter(recorder, "warmup", keep_times=True)
        timing = run_window(step, prepared.clock, FixedSteps(num_steps), writer)
        writer.flush()
    accelerator = accelerator_of(prepared.device)
    peak_bytes, _ = accelerator.peak_memory_bytes(prepared.device)
    accelerator.forget_peak_memory(prepared.device)
    step_s = timing.wall_s / timing.num_steps if timing.num_steps else None
    shards = prepared.arrangement.data_parallel_size
    steps = num_steps_of_window(prepared.work, num_samples=prepared.pool.used.num_samples, num_shards=shards)
    power_cap = settle(prepared, recorder, step_s=step_s, steps=steps)
    return WarmUp(step_s=step_s, peak_bytes=peak_bytes, power_cap=power_cap)


def measure(prepared: Prepared, recorder: Recorder, warm: WarmUp) -> Window:
    """Run the measured window; record how long it took, and what else the host did meanwhile."""
    num_samples, num_shards = prepared.pool.used.num_samples, prepared.arrangement.data_parallel_size
    planned, cap = _planned(prepared, warm), warm.power_cap
    epoch = steps_of_epoch(prepared.work, num_samples=num_samples, num_shards=num_shards)
    with recorder.phase("measure", expected_steps=planned.steps, expected_s=planned.expected_s):
        pool, log = prepared.pool, prepared.work.window.log_step_times
        writer = StepTimesWriter(
            recorder, "measure", keep_times=log, take_wait_s=pool.take_wait_s, steps_of_epoch=epoch
        )
        neighbours = _other_processes(prepared)
        eager = prepared.eager_step
        scale_before = _loss_scale(eager)
        prepared.ranks.barrier()
        pool.take_wait_s()  # waits during the warm-up do not belong to the window
        load_before, caught_up_before = read_load(), prepared.clock.caught_up
        plan = planned.plan if cap is None else cap.lengthen(planned.plan, prepared.ranks.agree)
        watch = OutputWatch(eager, feed_plan(plan, writer))
        timing = run_window(prepared.step, prepared.clock, plan, watch)
        load = load_between(load_before, read_load())
        writer.flush()
        caught_up = prepared.clock.caught_up
        window = replace(
            _window_record(prepared, timing, planned, load=load, neighbours=neighbours),
            peak_with_warmup_bytes=warm.peak_bytes,
            data_wait_s=writer.data_wait_s,
            tokens_before=eager.tokens_before if isinstance(eager, DecodeStep) else None,
            caught_up_steps=None if caught_up is None else caught_up - (caught_up_before or 0),
            not_finite_after=watch.not_finite_after(),
            skipped_updates=skipped_updates(scale_before, _loss_scale(eager), num_steps=timing.num_steps),
            power_cap=None if cap is None else cap.record(timing.wall_s),
        )
        recorder.write(window)
    write_connections(recorder, prepared.identity)
    return window


def _loss_scale(step: object) -> float | None:
    return step.loss_scale if isinstance(step, TrainingStep) else None


def skipped_updates(before: float | None, after: float | None, *, num_steps: int) -> int | None:
    """Return how many updates amp's scaler skipped at least: it halves the scale for each; None without amp.

    >>> skipped_updates(65536.0, 65536.0, num_steps=100), skipped_updates(65536.0, 8192.0, num_steps=100)
    (0, 3)
    >>> skipped_updates(65536.0, 0.0, num_steps=200)
    200
    """
    if before is None or after is None:
        return None
    if after == 0:
        return num_steps
    return min(num_steps, max(0, round(math.log2(before / after))))


def _planned(prepared: Prepared, warm: WarmUp) -> WindowPlan:
    """Create the plan for the requested window."""
    return plan_window(
        prepared.work,
        num_samples=prepared.pool.used.num_samples,
        num_shards=prepared.arrangement.data_parallel_size,
        agree=prepared.ranks.agree,
        step_s=warm.step_s,
        min_window_s=accelerator_of(prepared.device).min_window_s,
    )


def _other_processes(prepared: Prepared) -> DeviceSharing:
    uuid = accelerator_of(prepared.device).properties(prepared.device).uuid
    return other_users(uuid, our_pids=(os.getpid(),))


def _window_record(
    prepared: Prepared,
    timing: WindowTiming,
    planned: WindowPlan,
    *,
    load: HostLoad,
    neighbours: DeviceSharing,
) -> Window:
    """Return the record of a window; `neighbours` are the processes that used the device before it."""
    peaks = accelerator_of(prepared.device).peak_memory_bytes(prepared.device)
    record = window_record(
        timing,
        planned,
        rank=prepared.identity.rank,
        items_per_step=prepared.items_per_step,
        clock=prepared.clock.name,
        load=load,
        neighbours=most_users(neighbours, _other_processes(prepared)),
    )
    return replace(record, peak_allocated_bytes=peaks[0], peak_reserved_bytes=peaks[1])


def measure_compiled(prepared: Prepared, recorder: Recorder, warm: WarmUp) -> Window:
    """Measure, and record what was compiled before the window and during it."""
    before = read_counts()
    window = measure(prepared, recorder, warm)
    rank = prepared.identity.rank
    recorder.write(compilation_record(prepared.work.training, rank=rank, before=before, after=read_counts()))
    return window


def _device_used_bytes(device: torch.device) -> int | None:
    memory = accelerator_of(device).free_and_total_bytes(device)
    if memory is None:
        return None
    free, total = memory
    return total - free
