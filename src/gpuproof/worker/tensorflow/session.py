"""One case under TensorFlow: prepare, warm up, measure. Writes the same records as with torch.

Steps are timed on the host's clock. On a CPU, a step is complete when its call returns. On GPUs, the host
waits for each step, so no other step is queued behind it; the setup record states this.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from gpuproof.devices.other_processes import most_users, other_users
from gpuproof.monitor.host import cpu_model
from gpuproof.processes.granted import threads_per_rank, users_threads
from gpuproof.records.breakdown import BucketAllReduce, CollectiveOverlap, GradientSync, StepPhases
from gpuproof.records.case import Case, TrainingWork
from gpuproof.records.run import (
    DeviceSharing,
    Environment,
    Evaluation,
    NotApplied,
    Setup,
)
from gpuproof.records.work.data import DataUsed
from gpuproof.records.work.training import Replicas
from gpuproof.worker.engine.host_clock import HostClock, SynchronisedClock
from gpuproof.worker.engine.loop import FixedSteps, run_window
from gpuproof.worker.engine.stopping import feed_plan
from gpuproof.worker.host.environment import describe_system
from gpuproof.worker.host.host_load import load_between, read_load
from gpuproof.worker.rank.identity import RankIdentity
from gpuproof.worker.rank.recorder import Recorder, StepTimesWriter
from gpuproof.worker.rank.window import plan_window, steps_of_epoch, window_record
from gpuproof.worker.tensorflow.mirrored import (
    MirroredTraining,
    Mirrors,
    describe_framework,
    import_tensorflow,
    set_process_up,
)
from gpuproof.workloads.info.base import InputShape, Work
from gpuproof.workloads.info.lookup import find_workload

NOT_APART = "TensorFlow's step is a single graph: it can run neither without the gradient sum nor in parts"
WITHOUT_EFFECT = {
    "training.epochs": "the measured window decides the length (benchmark.enabled)",
    "training.cudnn_benchmark": "TensorFlow chooses cuDNN's algorithms by itself",
    "training.keep_freed_memory": "TensorFlow uses its own allocator",
    "training.optimizer_implementation": "TensorFlow's optimizer runs as part of its graph",
    "benchmark.count_flops": "torch counts FLOPs; for TensorFlow's step there is only the closed form",
    "benchmark.own_compute": "one process trains on all devices",
    "benchmark.sync_cuda": "the host always waits for each step",
    "distributed.backend": "replicas in one process sum gradients as set by training.reduction",
    "distributed.timeout_s": "one process does not wait for other ranks",
}


@dataclass(slots=True, kw_only=True)
class PreparedMirrors:
    """A case that is ready to run."""

    case: Case
    work: TrainingWork
    tf: Any
    mirrors: Mirrors
    training: MirroredTraining
    clock: HostClock
    threads: int
    shape: InputShape
    costs: Work | None

    @property
    def items_per_step(self) -> int:
        """Number of samples per step, over all replicas."""
        return self.work.data.batch_size * self.work.num_replicas


def run_tensorflow_case(
    case: Case, work: TrainingWork, *, identity: RankIdentity, recorder: Recorder
) -> None:
    """Run the whole case; its last record is the result.

    Raises:
        EnvironmentUnfitError: TensorFlow cannot be imported, or sees too few devices.
    """
    with recorder.phase("prepare"):
        tf = import_tensorflow()
        if case.capture_env:
            facts = {**describe_system(), **describe_framework(tf)}
            recorder.write(Environment(host=socket.gethostname(), facts=facts))
        prepared = _prepare(tf, case, work)
        recorder.heartbeat.clock = prepared.clock
    recorder.write(setup_record(prepared, rank=identity.rank))
    step_s, peak_bytes = _warm_up(prepared, recorder)
    _measure(prepared, recorder, step_s=step_s, warm_peak_bytes=peak_bytes)
    loss = prepared.training.last_loss
    if work.window.evaluate_after:
        recorder.write(_evaluation(prepared, rank=identity.rank))
    if work.profiling.breakdown:
        for record in _not_taken_apart(identity.rank, prepared.clock):
            recorder.write(record)
    recorder.finish(last_loss=loss if math.isfinite(loss) else None)


def _prepare(tf: Any, case: Case, work: TrainingWork) -> PreparedMirrors:
    info = find_workload(work.model.name)
    options = info.options_type(**work.model.options)
    shape = info.resolve_shape(options, work.data.image_size, work.model.num_classes)
    # Replicas on a CPU share the CPU's threads; each replica gets as many as a torch rank would.
    num_threads, replicas = work.parallel.threads_per_rank, work.num_replicas
    of_all = None if num_threads is None else num_threads * replicas
    threads = threads_per_rank(of_all, num_ranks=1, users=users_threads())
    mirrors = set_process_up(tf, work, case.placement, threads=threads, processor=cpu_model() or "processor")
    training = MirroredTraining(tf, work, shape, mirrors)
    return PreparedMirrors(
        case=case,
        work=work,
        tf=tf,
        mirrors=mirrors,
        training=training,
        clock=SynchronisedClock(training.synchronize) if mirrors.is_gpu else HostClock(),
        threads=threads,
        shape=shape,
        costs=info.work(options, shape),
    )


def setup_record(prepared: PreparedMirrors, *, rank: int) -> Setup:
    """Return a record of what was actually built; FLOPs are per replica."""
    work, training, replicas = prepared.work, prepared.training, prepared.work.num_replicas
    costs, batch = prepared.costs, work.data.batch_size
    reduction = training.reduction if replicas > 1 else None
    return Setup(
        rank=rank,
        device=prepared.mirrors.first,
        backend=reduction,
        threads=prepared.threads,
        num_parameters=int(training.model.count_params()),
        items_per_step=prepared.items_per_step,
        item="samples",
        flops_per_step=None if costs is None else batch * costs.training_flops,
        precision=work.training.precision,
        compiled=None,
        data=work.data.name,
        pool_samples=training.num_pool_batches * prepared.items_per_step,
        not_applied=tuple(_not_applied(work, is_gpu=prepared.mirrors.is_gpu)),
        notes=tuple(_notes(prepared, reduction)),
        monotonic_s=monotonic(),
        flops_not_counted="torch's counter cannot see TensorFlow's steps",
        input_shape=prepared.shape.shape,
        data_used=DataUsed(
            loading="device",
            split=None,
            source=None,
            num_samples=None,
            sha256=None,
            sha256_of=None,
            batches_ahead=0,
        ),
        replicas=Replicas(
            framework=f"TensorFlow {prepared.tf.__version__}", num_devices=replicas, reduction=reduction
        ),
    )


def _notes(prepared: PreparedMirrors, reduction: str | None) -> Iterator[str]:
    replicas = prepared.work.num_replicas
    summed = "" if reduction is None else f", gradients summed by {reduction}"
    copies = f"{replicas} replicas" if replicas > 1 else "one replica"
    yield (
        f"TensorFlow {prepared.tf.__version__}: one process, {copies} under "
        f"MirroredStrategy{summed}, with the step as one tf.function"
    )
    waits = (
        "the host waits for each step"
        if prepared.mirrors.is_gpu
        else "a step is complete when its call returns"
    )
    yield f"timed by the host's clock: {waits}"


def _not_applied(work: TrainingWork, *, is_gpu: bool) -> Iterator[NotApplied]:
    keys = dict(WITHOUT_EFFECT)
    keys |= {f"data.{key}": "samples are drawn before the window; no loader runs" for key in work.data.loader}
    if work.training.optimizer != "SGD":
        keys["training.momentum"] = f"{work.training.optimizer} does not use it; it is for SGD"
    if work.num_replicas == 1:
        keys["training.reduction"] = "one replica has nothing to sum"
    if not is_gpu:
        keys["distributed.memory_limit_bytes"] = "it is for GPUs; this run is on the CPU"
    yield from (NotApplied(key=key, reason=reason) for key, reason in keys.items())


def _warm_up(prepared: PreparedMirrors, recorder: Recorder) -> tuple[float | None, int | None]:
    """Run the warm-up (its first step builds the graph); return seconds per step and peak memory."""
    window = prepared.work.window
    num_steps = window.warmup_steps if window.enabled else 0
    with recorder.phase("warmup", expected_steps=num_steps):
        writer = StepTimesWriter(recorder, "warmup", keep_times=True)
        first = run_window(prepared.training, prepared.clock, FixedSteps(min(1, num_steps)), writer)
        rest = run_window(prepared.training, prepared.clock, FixedSteps(num_steps - first.num_steps), writer)
        writer.flush()
    peak_bytes = prepared.mirrors.peak_memory_bytes(prepared.tf)
    prepared.mirrors.forget_peak(prepared.tf)
    return (rest.wall_s / rest.num_steps if rest.num_steps else None), peak_bytes


def _measure(
    prepared: PreparedMirrors, recorder: Recorder, *, step_s: float | None, warm_peak_bytes: int | None
) -> None:
    """Run the measured window; record how long it took, and what else the host did meanwhile."""
    work, replicas = prepared.work, prepared.work.num_replicas
    planned = plan_window(
        work,
        num_samples=None,
        num_shards=replicas,
        agree=lambda wish: wish,
        step_s=step_s,
        min_window_s=prepared.mirrors.min_window_s,
    )
    with recorder.phase("measure", expected_steps=planned.steps, expected_s=planned.expected_s):
        epoch = steps_of_epoch(work, num_samples=None, num_shards=replicas)
        keep_times = work.window.log_step_times
        writer = StepTimesWriter(recorder, "measure", keep_times=keep_times, steps_of_epoch=epoch)
        neighbours, load_before = _other_processes(), read_load()
        timing = run_window(prepared.training, prepared.clock, planned.plan, feed_plan(planned.plan, writer))
        load = load_between(load_before, read_load())
        writer.flush()
        record = window_record(
            timing,
            planned,
            rank=recorder.rank,
            items_per_step=prepared.items_per_step,
            clock=prepared.clock.name,
            load=load,
            neighbours=most_users(neighbours, _other_processes()),
        )
        peak_bytes = prepared.mirrors.peak_memory_bytes(prepared.tf)
        recorder.write(
            replace(record, peak_allocated_bytes=peak_bytes, peak_with_warmup_bytes=warm_peak_bytes)
        )


def _evaluation(prepared: PreparedMirrors, *, rank: int) -> Evaluation:
    """Compute the errors over all samples used by the steps."""
    squared, absolute = prepared.training.errors()
    return Evaluation(
        rank=rank,
        samples=prepared.training.num_pool_batches * prepared.items_per_step,
        mean_loss=squared,
        accuracy=None,
        missing="accuracy applies to classes, and this workload is a regression",
        mean_absolute_error=absolute,
    )


def _other_processes() -> DeviceSharing:
    """Check for other users of the device; TensorFlow does not report a permanent device identity."""
    return other_users(None, our_pids=(os.getpid(),))


def _not_taken_apart(rank: int, clock: HostClock) -> Iterator[Any]:
    """Record why communication measurements and phases are missing."""
    yield StepPhases(rank=rank, clock=clock.name, is_queued=False, missing=NOT_APART)
    yield GradientSync(rank=rank, clock=clock.name, rounds=(), missing=NOT_APART)
    yield CollectiveOverlap(
        rank=rank, num_steps=0, collective_s=0.0, exposed_s=0.0, kernels=(), missing=NOT_APART
    )
    yield BucketAllReduce(rank=rank, clock=clock.name, bucket_bytes=(), durations_s=(), missing=NOT_APART)
