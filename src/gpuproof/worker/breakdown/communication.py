"""How much does communication cost in a training step? Three measurements after the window.

`measure_buckets` times all-reduces of the sizes in which DistributedDataParallel sends gradients;
DistributedDataParallel reports these sizes after the first backward pass. `measure_sync` interleaves steps
with and without gradient averaging, and repeats this in a group that contains only this rank. Gradients are
copied into buckets and back even without other ranks, so the rest is the communication that a step waits for.
`measure_overlap` uses the device's own record of its work: communication is exposed while a collective runs
and no computation does. A collective's kernel also runs while it waits for other ranks, so a bandwidth cannot
be derived from its duration. Steps are queued behind a busy device, because otherwise each rank would wait
inside the first collectives for hosts that start at different times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpuproof.accelerators.base import DeviceCommand
from gpuproof.accelerators.choose import accelerator_of
from gpuproof.base.spans import covered, merged, without
from gpuproof.records.breakdown import (
    COMMUNICATION,
    BucketAllReduce,
    CollectiveOverlap,
    GradientSync,
    SyncRound,
)
from gpuproof.records.work.collective import CollectiveSpec
from gpuproof.worker.breakdown.bursts import BusyQueue, agreed_steps, queued_burst, without_sync
from gpuproof.worker.collectives.operations import OPERATIONS, task_for
from gpuproof.worker.engine.clocks import time_repeats
from gpuproof.worker.engine.loop import StepFunction
from gpuproof.worker.rank.idleness import OF_OTHERS, UnseenWorkError, commands_during, reason_unseen
from gpuproof.worker.rank.recorder import NANOSECOND_DIGITS, Recorder, rounded
from gpuproof.worker.step.preparation import Prepared
from gpuproof.worker.step.training import TrainingStep

LONGEST_S = 10.0
"""Maximum time to keep a device busy, chosen for hosts where ranks share few CPUs."""
COMPRESSED = "gradients are compressed before they are sent ({}), so the sizes sent are unknown"
NUM_ROUNDS = 5
MIN_STEPS, MAX_STEPS = 2, 20
"""Limits for the number of steps in a burst; each round consists of four bursts."""
REBUILT_AFTER = 2
"""Number of steps after which a data-parallel module orders its buckets by gradient arrival."""
SHARED = "a step of {} gathers data from other ranks, and cannot run without communication"
NUM_STEPS = 5
COPY = re.compile(r"^(memcpy|memset|copy)", re.IGNORECASE)
"""Name prefixes of kernels that are neither computation nor communication."""
NO_KERNELS = (
    "a CPU computes and communicates on the same cores, and has no kernels to examine; "
    "profiling.enabled=true traces its operators"
)


def measure_buckets(prepared: Prepared, recorder: Recorder) -> None:
    """Time an all-reduce for each bucket size and record it, or record why there is none."""
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
    """Return the size of each bucket, or the reason why there are no buckets."""
    shared, step = prepared.parallelism, prepared.step
    assert shared is not None
    if shared.gradient_hook is not None:
        return COMPRESSED.format(shared.gradient_hook)
    if not isinstance(step, TrainingStep) or not isinstance(step.module, DistributedDataParallel):
        return f"{shared.strategy} does not send gradient buckets"
    ddp_log = step.module._get_ddp_logging_data()  # torch has no public name for it
    text = str(ddp_log.get("rebuilt_bucket_sizes") or ddp_log.get("bucket_sizes") or "")
    return tuple(int(size) for size in text.split(",")) if text else "torch did not report bucket sizes"


def _durations_s(prepared: Prepared, size_bytes: int, busy: BusyQueue) -> tuple[tuple[float, ...], bool]:
    """Time the all-reduce once to see how long the host takes, then behind a busy device.

    Returns the times, and whether the device was behind the host in all of them.
    """
    ranks, clock = prepared.ranks, prepared.clock
    spec = CollectiveSpec(
        min_bytes=size_bytes,
        max_bytes=size_bytes,
        warmup_iterations=3,
        iterations=6,
        check_iterations=0,
    )
    task = task_for("all_reduce", size_bytes, spec=spec, identity=prepared.identity, device=prepared.device)
    collective = OPERATIONS["all_reduce"](task)
    timed = partial(
        time_repeats,
        collective.run,
        clock=clock,
        iterations=spec.iterations,
        warmup_iterations=spec.warmup_iterations,
        before=collective.refill,
        is_blocking=spec.blocking,
    )
    begin_s = perf_counter()
    times_s = timed(meet=ranks.barrier)
    host_s = perf_counter() - begin_s

    def meet() -> None:
        ranks.barrier()
        busy.hold(host_s, longest_s=LONGEST_S)

    before = clock.caught_up
    if busy.is_needed:
        times_s = timed(meet=meet)
    return rounded(times_s), clock.caught_up == before


def measure_sync(prepared: Prepared, recorder: Recorder) -> None:
    """Time both kinds of step, with all ranks and in a group of one, and record the times."""
    assert prepared.parallelism is not None
    strategy = prepared.parallelism.strategy
    missing = None if strategy == "ddp" else SHARED.format(strategy)
    rounds = () if missing else tuple(_rounds(prepared, beat=recorder.heartbeat.beat))
    rank, clock = prepared.identity.rank, prepared.clock.name
    recorder.write(GradientSync(rank=rank, clock=clock, rounds=rounds, missing=missing))


def _rounds(prepared: Prepared, *, beat: Callable[[], None]) -> Iterator[SyncRound]:
    step = prepared.step
    assert isinstance(step, TrainingStep)
    kinds, last_loss = _kinds_of_step(step, prepared), step.last_loss
    host_s = max(_host_s(kind) for kind in kinds.values())
    busy = BusyQueue(prepared.device, prepared.clock)
    num_steps = agreed_steps(prepared, step, least=MIN_STEPS, most=MAX_STEPS)
    for number in range(NUM_ROUNDS):
        bursts = {}
        # a machine that is warming up affects them equally
        for name in list(kinds)[:: -1 if number % 2 else 1]:
            # the first step is skipped; after joint steps, it also broadcasts batch norm buffers
            bursts[name] = queued_burst(prepared, kinds[name], busy, num_steps=num_steps, host_s=host_s)
            beat()
        yield SyncRound(**bursts)
    step.last_loss = last_loss


def _host_s(kind: StepFunction) -> float:
    """Run steps until the bucket order is fixed; return the host's time for the last step."""
    for _ in range(REBUILT_AFTER):
        begin_s = perf_counter()
        kind()
    return perf_counter() - begin_s


def _kinds_of_step(step: TrainingStep, prepared: Prepared) -> dict[str, StepFunction]:
    """Return the four kinds of step, keyed by record field."""
    module = step.module
    assert isinstance(module, DistributedDataParallel)
    group = dist.new_group([prepared.identity.rank], use_local_synchronization=True)
    alone = DistributedDataParallel(module.module, device_ids=module.device_ids, process_group=group)

    def alone_with_sync() -> None:
        with step.through(alone):
            step()

    def alone_without_sync() -> None:
        with step.through(alone):
            local_step()

    local_step = without_sync(step)
    return {
        "with_sync_s": step,
        "without_sync_s": local_step,
        "alone_with_sync_s": alone_with_sync,
        "alone_without_sync_s": alone_without_sync,
    }


def measure_overlap(prepared: Prepared, recorder: Recorder) -> None:
    """Profile a few steps on all ranks at once, and record the time of collectives."""
    missing, commands = None, list[DeviceCommand]()
    try:
        commands = _commands(prepared)
    except UnseenWorkError as error:
        missing = str(error)
    recorder.write(overlap_of(commands, rank=prepared.identity.rank, missing=missing))


def _commands(prepared: Prepared) -> list[DeviceCommand]:
    device, accelerator = prepared.device, accelerator_of(prepared.device)
    why = reason_unseen(accelerator, device) if accelerator.asynchronous else NO_KERNELS
    if not prepared.ranks.agree(int(why is None)):  # a step on one rank is a step on all ranks
        raise UnseenWorkError(why or OF_OTHERS)

    busy = BusyQueue(device, prepared.clock)
    prepared.ranks.barrier()
    begin_s = perf_counter()
    prepared.step()
    host_s = NUM_STEPS * (perf_counter() - begin_s)

    def some_steps() -> None:
        busy.hold(host_s)
        dist.all_reduce(torch.zeros(1, device=device))
        for _ in range(NUM_STEPS):
            prepared.step()

    prepared.ranks.barrier()
    return commands_during(some_steps, accelerator, device)


def overlap_of(commands: Sequence[DeviceCommand], *, rank: int, missing: str | None) -> CollectiveOverlap:
    """Summarise what a device did in `NUM_STEPS` steps.

    The first collective is skipped, because during it ranks still wait for each other to arrive.
    """
    talking = [command for command in commands if COMMUNICATION.search(command.name)]
    talking = sorted(talking, key=lambda command: command.begin_s)[1:]
    computing = merged(
        command.span
        for command in commands
        if not COMMUNICATION.search(command.name) and not COPY.search(command.name)
    )
    collectives = merged(command.span for command in talking)
    return CollectiveOverlap(
        rank=rank,
        num_steps=NUM_STEPS,
        collective_s=round(covered(collectives), NANOSECOND_DIGITS),
        exposed_s=round(covered(without(collectives, computing)), NANOSECOND_DIGITS),
        kernels=tuple(sorted({command.name for command in talking})),
        missing=missing,
    )
