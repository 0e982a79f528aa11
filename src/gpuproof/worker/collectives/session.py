"""One collective case on one rank: every operation at every size, timed and checked.

Comes in: a case and the identity of this rank. Goes out: a record for each operation and size, and the window
over all of them, to which readings of the host are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

from torch.distributed.distributed_c10d import Store

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.case import Case, CollectiveWork
from gpuproof.records.run import RankResult
from gpuproof.records.work.collective import CollectiveSpec, CollectiveTrial
from gpuproof.worker.collectives.operations import (
    OPERATIONS,
    Collective,
    CollectiveTask,
    pattern_for,
    whole_elements,
)
from gpuproof.worker.engine.clocks import time_repeats
from gpuproof.worker.engine.loop import StepClock
from gpuproof.worker.rank.bench import Bench, prepare_bench, setup_without_model, window_of
from gpuproof.worker.rank.identity import RankIdentity
from gpuproof.worker.rank.recorder import NANOSECOND_DIGITS, Recorder

ITEM = "operations"


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
        EnvironmentUnfitError: this rank is alone, or lacks its device or backend.
    """
    if identity.world_size < 2:
        raise EnvironmentUnfitError(
            "a collective over one rank moves nothing: there is no bandwidth to measure",
            place="distributed.nproc",
            next_step="Start at least two ranks: --nproc 2",
        )
    with recorder.phase("prepare"):
        bench = prepare_bench(case, identity=identity, recorder=recorder, store=store)
    recorder.write(setup_without_model(bench, precision=work.collective.dtype, item=ITEM))
    _measure(bench, work.collective)
    recorder.begin("finish")
    bench.ranks.barrier()
    recorder.write(RankResult(rank=identity.rank, monotonic_s=monotonic(), last_loss=None))
    bench.ranks.close()


def _measure(bench: Bench, spec: CollectiveSpec) -> None:
    """Time every operation at every size in turn, and write down the window over all of them."""
    expected = len(spec.operations) * len(spec.sizes_bytes) * spec.iterations
    with window_of(bench, expected_steps=expected, stop_reason="all sizes were measured"):
        for asked_bytes, task in _tasks(bench, spec):
            bench.recorder.write(_trial(bench, task, asked_bytes=asked_bytes))
            bench.write_progress()


def _tasks(bench: Bench, spec: CollectiveSpec) -> Iterator[tuple[int, CollectiveTask]]:
    """Yield each operation at each size, with the size in bytes that was asked for."""
    identity = bench.identity
    for operation in spec.operations:
        for size_bytes in spec.sizes_bytes:
            yield (
                size_bytes,
                CollectiveTask(
                    operation=operation,
                    num_elements=whole_elements(operation, size_bytes, spec.dtype, identity.world_size),
                    rank=identity.rank,
                    num_ranks=identity.world_size,
                    pattern=pattern_for(spec.dtype, spec.reduction, identity.world_size),
                    spec=spec,
                    device=bench.device,
                ),
            )


def _trial(bench: Bench, task: CollectiveTask, *, asked_bytes: int) -> CollectiveTrial:
    """Time and check one operation at one size; a size that holds no element of every rank is left out."""
    if not task.num_elements:
        why = f"{asked_bytes} bytes hold no whole element of each of {task.num_ranks} ranks"
        return _record(task, asked_bytes=asked_bytes, num_elements=0, not_checked=why)
    collective = OPERATIONS[task.operation](task)
    heartbeat = bench.recorder.heartbeat
    heartbeat.clock, heartbeat.operation = bench.clock, f"{task.operation} of {asked_bytes} bytes"
    not_checked = _reason_not_checked(task)
    times_s = time_iterations(
        task.spec,
        collective,
        clock=bench.clock,
        meet=bench.ranks.barrier,
        beat=heartbeat.beat,
        before=collective.refill if not_checked else collective.renew,
    )
    bench.count(times_s)
    checked, wrong = (0, 0) if not_checked else _check(bench, collective)
    return _record(
        task,
        asked_bytes=asked_bytes,
        num_elements=collective.size_elements,
        durations_s=tuple(round(time_s, NANOSECOND_DIGITS) for time_s in times_s),
        num_checked=checked,
        num_wrong=wrong,
        not_checked=not_checked,
    )


def _record(
    task: CollectiveTask,
    *,
    asked_bytes: int,
    num_elements: int,
    durations_s: tuple[float, ...] = (),
    num_checked: int = 0,
    num_wrong: int = 0,
    not_checked: str | None = None,
) -> CollectiveTrial:
    return CollectiveTrial(
        rank=task.rank,
        operation=task.operation,
        asked_bytes=asked_bytes,
        size_bytes=num_elements * task.element_bytes,
        num_elements=num_elements,
        durations_s=durations_s,
        num_checked=num_checked,
        num_wrong=num_wrong,
        not_checked=not_checked,
    )


def time_iterations(
    spec: CollectiveSpec,
    collective: Collective,
    *,
    clock: StepClock,
    meet: Callable[[], None],
    beat: Callable[[], None] = lambda: None,
    before: Callable[[], None] | None = None,
) -> list[float]:
    """Return the seconds of each iteration, after the warm-up; all ranks begin together.

    `beat` is called when the device has done more of them, and not because the host asked for more. `before`,
    outside of the time of each, brings the input back; None does nothing else.
    """
    return time_repeats(
        collective.run,
        clock=clock,
        iterations=spec.iterations,
        warmup_iterations=spec.warmup_iterations,
        before=before or collective.refill,
        meet=meet,
        is_blocking=spec.blocking,
        beat=beat,
    )


def _reason_not_checked(task: CollectiveTask) -> str | None:
    if not task.spec.check_iterations:
        return "collective.check_iterations is 0"
    if task.pattern is None:
        ranks, dtype = task.num_ranks, task.spec.dtype
        return f"{dtype} holds no sum over {ranks} ranks exactly, so that right and wrong look alike"
    return None


def _check(bench: Bench, collective: Collective) -> tuple[int, int]:
    """Do the operation again; return how many elements of all its outputs were compared, and are wrong."""
    for _ in range(collective.task.spec.check_iterations):
        collective.renew()
        collective.run()
    bench.clock.synchronize()
    return collective.count_wrong()
