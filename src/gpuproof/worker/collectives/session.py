"""One collective case on one rank: every operation at every size, timed and checked.

Comes in: a case and the identity of this rank. Goes out: a record for each operation and size, and the window
over all of them, to which readings of the host are joined.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic

import torch
from torch.distributed.distributed_c10d import Store

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.devices.neighbours import other_users
from gpuproof.errors import EnvironmentUnfitError
from gpuproof.records.case import Case, CollectiveWork
from gpuproof.records.run import Environment, Progress, RankResult, Setup, Window
from gpuproof.records.work.collective import CollectiveSpec, CollectiveTrial
from gpuproof.worker.collectives.operations import OPERATIONS, Asked, Collective, whole_elements
from gpuproof.worker.collectives.patterns import pattern_for
from gpuproof.worker.engine.clocks import EventClock, HostClock, clock_for
from gpuproof.worker.engine.loop import StepClock, paused_collector
from gpuproof.worker.host.environment import describe_host
from gpuproof.worker.host.host_load import load_between, read_load
from gpuproof.worker.parallel.distributed import Ranks, choose_device
from gpuproof.worker.rank.identity import RankIdentity, effective_threads
from gpuproof.worker.rank.recorder import NANOSECOND_DIGITS, Recorder
from gpuproof.worker.step.preparation import device_record

ITEM = "operations"


@dataclass(slots=True, kw_only=True)
class Bench:
    """What all operations of a case are timed with on this rank."""

    work: CollectiveWork
    identity: RankIdentity
    device: torch.device
    ranks: Ranks
    clock: EventClock | HostClock
    recorder: Recorder
    done: int = 0
    """Timed iterations so far."""
    steps_s: list[float] = field(default_factory=list)
    """Time in operations, one sum for each that was timed."""


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
        if case.capture_env and identity.local_rank == 0:
            recorder.write(Environment(host=socket.gethostname(), facts=describe_host()))
        bench = _prepare(case, work, identity=identity, recorder=recorder, store=store)
    recorder.write(_setup(bench))
    _measure(bench)
    recorder.begin("finish")
    bench.ranks.barrier()
    recorder.write(RankResult(rank=identity.rank, monotonic_s=monotonic(), last_loss=None))
    bench.ranks.close()


def _prepare(
    case: Case, work: CollectiveWork, *, identity: RankIdentity, recorder: Recorder, store: Store | None
) -> Bench:
    torch.set_num_threads(effective_threads(work.parallel, identity))
    device = choose_device(case.placement, identity)
    accelerator_of(device).set_device(device)
    ranks = Ranks(identity, device=device, parallel=work.parallel, store=store)
    return Bench(
        work=work,
        identity=identity,
        device=device,
        ranks=ranks,
        clock=clock_for(device, synchronised=False),
        recorder=recorder,
    )


def _setup(bench: Bench) -> Setup:
    """Say what is measured with; there is no model, so that nothing of one is counted."""
    return Setup(
        rank=bench.identity.rank,
        device=device_record(bench.device),
        backend=bench.ranks.backend,
        threads=torch.get_num_threads(),
        num_parameters=0,
        items_per_step=1,
        item=ITEM,
        flops_per_step=None,
        precision=bench.work.collective.dtype,
        compiled=None,
        data="none",
        pool_samples=0,
        not_applied=(),
        notes=(),
        monotonic_s=monotonic(),
    )


def _measure(bench: Bench) -> None:
    """Time every operation at every size in turn, and write down the window over all of them."""
    spec, recorder = bench.work.collective, bench.recorder
    uuid = accelerator_of(bench.device).driver_uuid(bench.device)
    expected = len(spec.operations) * len(spec.sizes_bytes) * spec.iterations
    with recorder.phase("measure", expected_steps=expected):
        bench.ranks.barrier()
        before, begin_s = read_load(), monotonic()
        for asked_bytes, asked in _all_asked(bench):
            recorder.write(_trial(bench, asked, asked_bytes=asked_bytes))
            at_s, done = monotonic(), bench.done
            recorder.write(
                Progress(rank=bench.identity.rank, phase="measure", steps_done=done, monotonic_s=at_s)
            )
        end_s, after = monotonic(), read_load()
        recorder.write(
            Window(
                rank=bench.identity.rank,
                host=socket.gethostname(),
                num_steps=bench.done,
                requested_steps=None,
                requested_s=None,
                items=bench.done,
                wall_s=end_s - begin_s,
                steps_s=sum(bench.steps_s),
                clock=bench.clock.name,
                stop_reason="all sizes were measured",
                begin_monotonic_s=begin_s,
                end_monotonic_s=end_s,
                load=load_between(before, after),
                neighbours=other_users(uuid, own_pids=(os.getpid(),)),
                peak_allocated_bytes=None,
                peak_reserved_bytes=None,
                peak_with_warmup_bytes=None,
            )
        )


def _all_asked(bench: Bench) -> Iterator[tuple[int, Asked]]:
    """Yield each operation at each size, with the size in bytes that was asked for."""
    spec, identity = bench.work.collective, bench.identity
    for operation in spec.operations:
        for size_bytes in spec.sizes_bytes:
            yield (
                size_bytes,
                Asked(
                    operation=operation,
                    num_elements=whole_elements(operation, size_bytes, spec.dtype, identity.world_size),
                    rank=identity.rank,
                    num_ranks=identity.world_size,
                    pattern=pattern_for(spec.dtype, spec.reduction, identity.world_size),
                    spec=spec,
                    device=bench.device,
                ),
            )


def _trial(bench: Bench, asked: Asked, *, asked_bytes: int) -> CollectiveTrial:
    """Time and check one operation at one size; a size that holds no element of every rank is left out."""
    if not asked.num_elements:
        why = f"{asked_bytes} bytes hold no whole element of each of {asked.num_ranks} ranks"
        return _record(asked, asked_bytes=asked_bytes, num_elements=0, not_checked=why)
    collective = OPERATIONS[asked.operation](asked)
    spec = bench.work.collective
    heartbeat = bench.recorder.heartbeat
    heartbeat.clock, heartbeat.operation = bench.clock, f"{asked.operation} of {asked_bytes} bytes"
    times_s = time_iterations(
        spec, collective, clock=bench.clock, meet=bench.ranks.barrier, beat=heartbeat.beat
    )
    bench.done += len(times_s)
    bench.steps_s.append(sum(times_s))
    heartbeat.beat(steps_done=bench.done)
    checked, wrong, not_checked = _check(bench, collective)
    return _record(
        asked,
        asked_bytes=asked_bytes,
        num_elements=collective.size_elements,
        durations_s=tuple(round(time_s, NANOSECOND_DIGITS) for time_s in times_s),
        num_checked=checked,
        num_wrong=wrong,
        not_checked=not_checked,
    )


def _record(
    asked: Asked,
    *,
    asked_bytes: int,
    num_elements: int,
    durations_s: tuple[float, ...] = (),
    num_checked: int = 0,
    num_wrong: int = 0,
    not_checked: str | None = None,
) -> CollectiveTrial:
    return CollectiveTrial(
        rank=asked.rank,
        operation=asked.operation,
        asked_bytes=asked_bytes,
        size_bytes=num_elements * asked.element_bytes,
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
) -> list[float]:
    """Return the seconds of each iteration, after the warm-up; all ranks begin together.

    `beat` is called when the device has done more of them, and not because the host asked for more.
    """
    for _ in range(spec.warmup_iterations):
        collective.refill()
        collective.run()
    clock.synchronize()
    meet()
    times_s: list[float] = []
    with paused_collector():
        for _ in range(spec.iterations):
            collective.refill()
            clock.begin()
            collective.run()
            clock.end()
            done = clock.drain(in_flight=spec.iterations)
            times_s += done
            if done:
                beat()
            if spec.blocking:
                clock.synchronize()
                meet()
        times_s += clock.drain(in_flight=0)
    return times_s


def _check(bench: Bench, collective: Collective) -> tuple[int, int, str | None]:
    """Do the operation again and compare its output: elements compared, wrong ones, why nothing was."""
    spec = bench.work.collective
    if not spec.check_iterations:
        return 0, 0, "collective.check_iterations is 0"
    if collective.asked.pattern is None:
        ranks = collective.asked.num_ranks
        return (
            0,
            0,
            f"{spec.dtype} holds no sum over {ranks} ranks exactly, so that right and wrong look alike",
        )
    checked = wrong = 0
    for _ in range(spec.check_iterations):
        collective.refill()
        collective.spoil()
        collective.run()
        bench.clock.synchronize()
        compared, differing = collective.count_wrong()
        checked, wrong = checked + compared, wrong + differing
    return checked, wrong, None
