"""Measures a case without a model on one rank: device, ranks, clock, setup record, window."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

import torch
from torch.distributed.distributed_c10d import Store

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.devices.other_processes import other_users
from gpuproof.records.case import Case
from gpuproof.records.run import Progress, Setup, Window
from gpuproof.worker.engine.clocks import EventClock, clock_for
from gpuproof.worker.engine.host_clock import HostClock
from gpuproof.worker.host.host_load import load_between, read_load
from gpuproof.worker.parallel.distributed import Ranks, choose_device
from gpuproof.worker.rank.identity import RankIdentity, effective_threads
from gpuproof.worker.rank.recorder import Recorder
from gpuproof.worker.rank.window import write_connections
from gpuproof.worker.step.applicability import profile_not_applied
from gpuproof.worker.step.preparation import device_record


@dataclass(slots=True, kw_only=True)
class Bench:
    """Times everything that a case measures on this rank."""

    case: Case
    identity: RankIdentity
    device: torch.device
    ranks: Ranks
    clock: EventClock | HostClock
    recorder: Recorder
    done: int = 0
    """Number of timed repeats so far."""
    steps_s: list[float] = field(default_factory=list)
    """Total time of the repeats, one sum per timed item."""

    def count(self, times_s: list[float]) -> None:
        """Add timed repeats, and report that this rank is alive."""
        self.done += len(times_s)
        self.steps_s.append(sum(times_s))
        self.beat()

    def count_one(self) -> None:
        """Count one more repeat, without using its time as a result."""
        self.done += 1
        self.beat()

    def beat(self) -> None:
        """Report that this rank is alive."""
        self.recorder.heartbeat.beat(steps_done=self.done)

    def write_progress(self) -> None:
        """Record the progress of this rank."""
        rank, at_s = self.identity.rank, monotonic()
        self.recorder.write(Progress(rank=rank, phase="measure", steps_done=self.done, monotonic_s=at_s))


def prepare_bench(
    case: Case, *, identity: RankIdentity, recorder: Recorder, store: Store | None = None
) -> Bench:
    """Choose device and clock and join the other ranks; one rank per host also describes the host.

    Raises:
        EnvironmentUnfitError: this rank lacks its device or backend.
    """
    if case.capture_env and identity.local_rank == 0:
        recorder.describe_host(case.placement.device)
    parallel = case.work.parallel
    torch.set_num_threads(effective_threads(parallel, identity))
    device = choose_device(case.placement, identity)
    accelerator_of(device).set_device(device)
    return Bench(
        case=case,
        identity=identity,
        device=device,
        ranks=Ranks(identity, device=device, parallel=parallel, store=store),
        clock=clock_for(device, synchronised=False),
        recorder=recorder,
    )


def setup_without_model(bench: Bench, *, precision: str, item: str) -> Setup:
    """Describe the setup; without a model, counts that concern a model are empty."""
    return Setup(
        rank=bench.identity.rank,
        device=device_record(bench.device),
        backend=bench.ranks.backend,
        threads=torch.get_num_threads(),
        num_parameters=0,
        items_per_step=1,
        item=item,
        flops_per_step=None,
        precision=precision,
        compiled=None,
        data="none",
        pool_samples=0,
        not_applied=profile_not_applied(
            bench.case.work.parallel, accelerator_of(bench.device), bench.identity.world_size
        ),
        notes=(),
        monotonic_s=monotonic(),
    )


@contextmanager
def window_of(bench: Bench, *, expected_steps: int | None, stop_reason: str) -> Iterator[None]:
    """Measure from a barrier of all ranks until the end, when the window record is written."""
    uuid = accelerator_of(bench.device).properties(bench.device).uuid
    with bench.recorder.phase("measure", expected_steps=expected_steps):
        bench.ranks.barrier()
        before, begin_s = read_load(), monotonic()
        yield
        end_s, after = monotonic(), read_load()
        bench.recorder.write(
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
                stop_reason=stop_reason,
                begin_monotonic_s=begin_s,
                end_monotonic_s=end_s,
                load=load_between(before, after),
                neighbours=other_users(uuid, our_pids=(os.getpid(),)),
                peak_allocated_bytes=None,
                peak_reserved_bytes=None,
                peak_with_warmup_bytes=None,
            )
        )
    write_connections(bench.recorder, bench.identity)
