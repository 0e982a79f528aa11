"""One collective case on one rank: every operation at every size, timed and checked.

The input is a case and the identity of this rank. The output is a record for each operation and size, and a
single window over all of them, which is matched to the host's readings.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from time import monotonic

from torch.distributed.distributed_c10d import Store

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.case import Case, CollectiveWork
from gpuproof.records.run import RankResult
from gpuproof.records.work.collective import ELEMENT_BYTES, CollectiveSpec, CollectiveTrial
from gpuproof.worker.collectives.operations import (
    OPERATIONS,
    Collective,
    CollectiveTask,
    task_for,
)
from gpuproof.worker.engine.clocks import time_repeats
from gpuproof.worker.rank.bench import Bench, prepare_bench, setup_without_model, window_of
from gpuproof.worker.rank.identity import RankIdentity
from gpuproof.worker.rank.recorder import Recorder, rounded


def run_collective_case(
    case: Case,
    work: CollectiveWork,
    *,
    identity: RankIdentity,
    recorder: Recorder,
    store: Store | None = None,
) -> None:
    """Run the whole case on this rank; its last record is the result.

    Raises:
        EnvironmentUnfitError: this rank is the only one, or lacks its device or backend.
    """
    if identity.world_size < 2:
        raise EnvironmentUnfitError(
            "a collective over one rank moves no data: there is no bandwidth to measure",
            place="distributed.nproc",
            next_step="Start at least two ranks: --nproc 2",
        )
    with recorder.phase("prepare"):
        bench = prepare_bench(case, identity=identity, recorder=recorder, store=store)
    recorder.write(setup_without_model(bench, precision=work.collective.dtype, item="operations"))
    _measure(bench, work.collective)
    recorder.begin("finish")
    bench.ranks.barrier()
    recorder.write(RankResult(rank=identity.rank, monotonic_s=monotonic(), last_loss=None))
    bench.ranks.close()


def _measure(bench: Bench, spec: CollectiveSpec) -> None:
    """Time every operation at every size in order, and record the window over all of them."""
    expected = len(spec.operations) * len(spec.sizes_bytes) * spec.iterations
    with window_of(bench, expected_steps=expected, stop_reason="all sizes were measured"):
        for operation, size_bytes in product(spec.operations, spec.sizes_bytes):
            task = task_for(operation, size_bytes, spec=spec, identity=bench.identity, device=bench.device)
            bench.recorder.write(_trial(bench, task, asked_bytes=size_bytes))
            bench.write_progress()


def _trial(bench: Bench, task: CollectiveTask, *, asked_bytes: int) -> CollectiveTrial:
    """Time and check one operation at one size; skip sizes smaller than one element per rank."""
    trial = CollectiveTrial(
        rank=task.rank,
        operation=task.operation,
        asked_bytes=asked_bytes,
        size_bytes=0,
        num_elements=0,
        durations_s=(),
        num_checked=0,
        num_wrong=0,
    )
    if not task.num_elements:
        why = f"{asked_bytes} bytes are less than one element for each of {task.num_ranks} ranks"
        return replace(trial, not_checked=why)
    collective = OPERATIONS[task.operation](task)
    heartbeat = bench.recorder.heartbeat
    heartbeat.clock, heartbeat.operation = bench.clock, f"{task.operation} of {asked_bytes} bytes"
    not_checked = _reason_not_checked(task)
    times_s = time_repeats(
        collective.run,
        clock=bench.clock,
        iterations=task.spec.iterations,
        warmup_iterations=task.spec.warmup_iterations,
        before=collective.refill if not_checked else collective.renew,
        meet=bench.ranks.barrier,
        is_blocking=task.spec.blocking,
        beat=heartbeat.beat,
    )
    bench.count(times_s)
    checked, wrong = (0, 0) if not_checked else _check(bench, collective)
    return replace(
        trial,
        size_bytes=collective.size_elements * ELEMENT_BYTES[task.spec.dtype],
        num_elements=collective.size_elements,
        durations_s=rounded(times_s),
        num_checked=checked,
        num_wrong=wrong,
        not_checked=not_checked,
    )


def _reason_not_checked(task: CollectiveTask) -> str | None:
    if not task.spec.check_iterations:
        return "collective.check_iterations is 0"
    if task.pattern is None:
        ranks, dtype = task.num_ranks, task.spec.dtype
        return (
            f"{dtype} cannot represent sums over {ranks} ranks exactly, so wrong results cannot be "
            "distinguished from correct ones"
        )
    return None


def _check(bench: Bench, collective: Collective) -> tuple[int, int]:
    """Repeat the operation; return how many output elements were compared, and how many were wrong."""
    for _ in range(collective.task.spec.check_iterations):
        collective.renew()
        collective.run()
    bench.clock.synchronize()
    return collective.count_wrong()
