"""What do the bytes of a step's gradients take by themselves? All-reduces of the sizes that are really sent.

DistributedDataParallel sends gradients in buckets. It tells their sizes itself, after the first backward
pass, when it has put them in the order in which gradients come; they are timed as any collective is.
"""

from __future__ import annotations

from time import perf_counter

from torch.nn.parallel import DistributedDataParallel

from gpuproof.records.breakdown import BucketAllReduce
from gpuproof.records.work.collective import CollectiveSpec
from gpuproof.worker.breakdown.bursts import BusyQueue, rounded
from gpuproof.worker.collectives.operations import OPERATIONS, CollectiveTask, whole_elements
from gpuproof.worker.collectives.patterns import pattern_for
from gpuproof.worker.collectives.session import time_iterations
from gpuproof.worker.rank.recorder import Recorder
from gpuproof.worker.step.preparation import Prepared
from gpuproof.worker.step.training import TrainingStep

ITERATIONS = 6
LONGEST_S = 10.0
"""For which a device is kept busy at most: that is how long hosts take that share few processors."""
NO_BUCKETS = "{} sends no buckets of gradients"
COMPRESSED = "gradients are compressed before they are sent ({}), and the sizes of what is sent are not known"
NOT_TOLD = "torch told no sizes of buckets"


def measure_buckets(prepared: Prepared, recorder: Recorder) -> None:
    """Time an all-reduce of each bucket's size and write it down, or why there is none."""
    sizes = bucket_bytes(prepared)
    missing = sizes if isinstance(sizes, str) else None
    bucket_sizes = () if isinstance(sizes, str) else sizes
    busy = BusyQueue(prepared.device, prepared.clock)
    durations, is_queued = [], True
    for size in bucket_sizes:
        recorder.heartbeat.beat()
        times_s, was_behind = _durations_s(prepared, size, busy)
        durations.append(times_s)
        is_queued = is_queued and was_behind
    recorder.write(
        BucketAllReduce(
            rank=prepared.identity.rank,
            clock=prepared.clock.name,
            bucket_bytes=bucket_sizes,
            durations_s=tuple(durations),
            missing=missing,
            is_queued=is_queued,
        )
    )


def bucket_bytes(prepared: Prepared) -> tuple[int, ...] | str:
    """Return the size of each bucket, or say why there are none."""
    shared, step = prepared.parallelism, prepared.step
    assert shared is not None
    if shared.gradient_hook is not None:
        return COMPRESSED.format(shared.gradient_hook)
    if not isinstance(step, TrainingStep) or not isinstance(step.module, DistributedDataParallel):
        return NO_BUCKETS.format(shared.strategy)
    ddp_log = step.module._get_ddp_logging_data()  # torch has no public name for it
    text = str(ddp_log.get("rebuilt_bucket_sizes") or ddp_log.get("bucket_sizes") or "")
    return tuple(int(size) for size in text.split(",")) if text else NOT_TOLD


def _durations_s(prepared: Prepared, size_bytes: int, busy: BusyQueue) -> tuple[tuple[float, ...], bool]:
    """Time it once to see how long the host takes, and then behind a device that is kept busy as long.

    Returns the times, and whether the device was behind the host in all of them.
    """
    ranks, clock = prepared.ranks, prepared.clock
    collective = OPERATIONS["all_reduce"](_task(prepared, size_bytes))
    spec = collective.task.spec
    begin_s = perf_counter()
    times_s = time_iterations(spec, collective, clock=clock, meet=ranks.barrier)
    host_s = perf_counter() - begin_s

    def meet() -> None:
        ranks.barrier()
        busy.hold(host_s, longest_s=LONGEST_S)

    before = clock.caught_up
    if busy.is_needed:
        times_s = time_iterations(spec, collective, clock=clock, meet=meet)
    return rounded(times_s), clock.caught_up == before


def _task(prepared: Prepared, size_bytes: int) -> CollectiveTask:
    identity = prepared.identity
    spec = CollectiveSpec(
        min_bytes=size_bytes,
        max_bytes=size_bytes,
        warmup_iterations=3,
        iterations=ITERATIONS,
        check_iterations=0,
    )
    return CollectiveTask(
        operation="all_reduce",
        num_elements=whole_elements("all_reduce", size_bytes, "float32", identity.world_size),
        rank=identity.rank,
        num_ranks=identity.world_size,
        pattern=pattern_for("float32", "sum", identity.world_size),
        spec=spec,
        device=prepared.device,
    )
