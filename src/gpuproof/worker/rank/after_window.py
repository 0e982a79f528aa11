"""Optional work after the measured window; none of it is included in the window's results.

Modules that few recipes need are imported only when they run. If ranks average gradients, a window shows only
the speed of the slowest rank. `measure_own_compute` measures how fast each rank is alone, from whole steps
that keep their gradients on the rank, without any collective. These steps run in short bursts, and between
two bursts all ranks run shared steps. So a rank that another process delayed briefly is slow in one burst,
whereas a slow device is slow in all of them. After these steps, weights differ between ranks, so learning is
evaluated earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.records.breakdown import Fp8Casts, OwnCompute
from gpuproof.records.run import Ceilings, ProfileTrace, Window
from gpuproof.worker.breakdown.bursts import agreed_steps, timed_burst, without_sync
from gpuproof.worker.data.sources import open_held_out
from gpuproof.worker.engine.loop import FixedSteps, run_window
from gpuproof.worker.rank.idleness import may_wait, measure_busy
from gpuproof.worker.rank.recorder import Recorder
from gpuproof.worker.step.inference import evaluate
from gpuproof.worker.step.preparation import Prepared
from gpuproof.worker.step.training import TrainingStep
from gpuproof.workloads.torch.gemm import MatrixProduct
from gpuproof.workloads.torch.memory_pass import MemoryPass

PROFILED_STEPS = 5
NUM_BURSTS = 5
MIN_STEPS, MAX_STEPS = 4, 50
"""Limits for the number of steps per burst. All bursts and the steps between them take about a second, for
steps of up to 25 ms. With fewer steps per burst, noise that lasts for tens of steps would look like a slow
rank."""
SHARED = (
    "a step with {strategy} gathers data from other ranks, and cannot run alone; "
    "profiling.ceilings=true measures each device separately"
)


def run_after_window(prepared: Prepared, recorder: Recorder, measured: Window) -> None:
    """Run the optional tasks after the window; tasks that run more steps come last."""
    window, profiling = prepared.work.window, prepared.work.profiling
    if isinstance(prepared.workload.module, MatrixProduct) and prepared.work.model.options.get("check"):
        check_last_product(prepared, recorder, prepared.workload.module)
    if isinstance(prepared.workload.module, MemoryPass) and window.of_device:
        measure_costs(prepared, recorder)
    if window.evaluate_after:
        evaluate_model(prepared, recorder)
    # otherwise this rank never waits for other ranks
    if window.own_compute and prepared.parallelism is not None:
        measure_own_compute(prepared, recorder)
    if profiling.breakdown and prepared.work.trains:
        measure_breakdown(prepared, recorder)
    if profiling.ceilings:
        measure_ceilings(prepared, recorder)
    if prepared.work.training.precision == "fp8" and not prepared.work.training.compile.enabled:
        measure_casts(prepared, recorder)
    may_have_waited = may_wait(measured.caught_up_steps, num_steps=measured.num_steps)
    if prepared.ranks.agree(-int(may_have_waited)):  # a step on one rank is a step on all ranks
        measure_busy(prepared, recorder, step_s=measured.wall_s / measured.num_steps)
    if profiling.enabled:
        profile(prepared, recorder)


def check_last_product(prepared: Prepared, recorder: Recorder, product: MatrixProduct) -> None:
    """Compare the result of the last matmul in the window with a reference."""
    from gpuproof.worker.step.product_check import check_product

    with recorder.phase("check"):
        prepared.clock.synchronize()
        precision = prepared.work.training.precision
        recorder.write(check_product(product, precision, rank=prepared.identity.rank))


def measure_costs(prepared: Prepared, recorder: Recorder) -> None:
    """Measure other rates that matter to buyers, besides memory bandwidth."""
    from gpuproof.worker.engine.ceilings import try_costs

    prepared.clock.drain(in_flight=0)
    with recorder.phase("ceilings"):
        rank, beat = prepared.identity.rank, recorder.heartbeat.beat
        cache_bytes = accelerator_of(prepared.device).properties(prepared.device).cache_bytes
        for figure in try_costs(
            rank, device=prepared.device, cache_bytes=cache_bytes, clock=prepared.clock, beat=beat
        ):
            recorder.write(figure)


def measure_breakdown(prepared: Prepared, recorder: Recorder) -> None:
    """Break steps down after the window; a rank that does not communicate has only phases."""
    from gpuproof.worker.breakdown.phases import measure_phases

    with recorder.phase("breakdown"):
        measure_phases(prepared, recorder)
        if prepared.parallelism is not None:
            from gpuproof.worker.breakdown.communication import measure_buckets, measure_overlap, measure_sync
            from gpuproof.worker.breakdown.equivalence import measure_equivalence

            measure_overlap(prepared, recorder)
            measure_buckets(prepared, recorder)
            measure_sync(prepared, recorder)
            measure_equivalence(prepared, recorder)


def evaluate_model(prepared: Prepared, recorder: Recorder) -> None:
    """Evaluate the model on the samples used in its steps, and on the held-out ones."""
    workload, rank = prepared.workload, prepared.identity.rank
    held_out = open_held_out(prepared.work, workload.shape, prepared.data)
    pools = [(prepared.pool, False), *([] if held_out is None else [(held_out, True)])]
    with recorder.phase("evaluate"):
        for pool, is_held_out in pools:
            evaluation = evaluate(
                workload.module, pool=pool, loss=workload.loss, precision=prepared.precision, rank=rank
            )
            recorder.write(replace(evaluation, is_held_out=is_held_out))


def measure_ceilings(prepared: Prepared, recorder: Recorder) -> None:
    """Measure the device's practical maximum after the window, on all ranks at once."""
    from gpuproof.worker.engine.ceilings import plan_for, reason_no_product, try_ceilings

    precision, device, clock = prepared.work.training.precision, prepared.device, prepared.clock
    clock.drain(in_flight=0)
    prepared.ranks.barrier()
    with recorder.phase("ceilings"):
        beat = recorder.heartbeat.beat
        trials = tuple(try_ceilings(precision, device=device, clock=clock, plan=plan_for(device), beat=beat))
        missing = reason_no_product(precision)
        recorder.write(
            Ceilings(rank=prepared.identity.rank, clock=clock.name, trials=trials, missing=missing)
        )


def measure_casts(prepared: Prepared, recorder: Recorder) -> None:
    """In one more step, observe which tensors are rounded to fp8, and time the rounding alone."""
    from gpuproof.worker.step.fp8 import casts_of_step, time_casts

    eager = prepared.eager_step
    with recorder.phase("casts"):
        seen = casts_of_step(eager.module, eager)
        beat = recorder.heartbeat.beat
        spent_s = time_casts(seen, device=prepared.device, clock=prepared.clock, beat=beat)
        rank = prepared.identity.rank
        recorder.write(Fp8Casts(rank=rank, passes_per_step=sum(seen.values()), s_per_step=spent_s))


def profile(prepared: Prepared, recorder: Recorder) -> None:
    """Trace a few more steps after the window, because tracing slows down the steps that it observes."""
    with recorder.phase("profile", expected_steps=PROFILED_STEPS):
        with torch.profiler.profile() as profiler:
            for _ in range(PROFILED_STEPS):
                prepared.step()
            prepared.clock.synchronize()
        if prepared.identity.rank == 0:
            trace = recorder.path.with_name("trace_rank0.json")
            profiler.export_chrome_trace(str(trace))
            recorder.write(ProfileTrace(rank=0, steps=PROFILED_STEPS, file=trace.name))


def measure_own_compute(prepared: Prepared, recorder: Recorder) -> None:
    """Time this rank alone and record the result, or record why that is not possible."""
    assert prepared.parallelism is not None
    strategy = prepared.parallelism.strategy
    alone = strategy == "ddp"
    bursts: tuple[tuple[float, ...], ...] = ()
    if alone:
        with recorder.phase("own_compute"):
            bursts = tuple(_bursts(prepared, beat=recorder.heartbeat.beat))
    recorder.write(
        OwnCompute(
            rank=prepared.identity.rank,
            clock=prepared.clock.name,
            bursts_s=bursts,
            missing=None if alone else SHARED.format(strategy=strategy),
        )
    )


def _bursts(prepared: Prepared, *, beat: Callable[[], None]) -> Iterator[tuple[float, ...]]:
    step, clock = prepared.step, prepared.clock
    assert isinstance(step, TrainingStep)  # a captured graph covers only one rank
    local_step, last_loss = without_sync(step), step.last_loss
    num_steps = agreed_steps(prepared, local_step, least=MIN_STEPS, most=MAX_STEPS)
    for _ in range(NUM_BURSTS):
        run_window(step, clock, FixedSteps(num_steps), lambda _times: beat())
        local_step()  # after joint steps, this step also broadcasts the batch norm buffers
        prepared.ranks.barrier()
        yield timed_burst(prepared, local_step, num_steps=num_steps)
        beat()
    step.last_loss = last_loss
