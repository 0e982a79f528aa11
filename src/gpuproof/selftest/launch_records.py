"""Write what the ranks of a made-up fleet would write: healthy GPUs with planted faults.

A fault is injected into the worker's output (its records), never into anything derived from it. Each launch
of a run is written to disk when the suite requests it, and the run is read back like any other. Values vary
by 0.3 % from step to step, by 0.2 % from GPU to GPU, and by 0.5 % from day to day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from gpuproof import __version__
from gpuproof.records.breakdown import OwnCompute
from gpuproof.records.case import Case
from gpuproof.records.progress import RankProgress
from gpuproof.records.run import (
    Device,
    DeviceSharing,
    Environment,
    Failure,
    FailureCause,
    HostLoad,
    RankResult,
    Setup,
    Start,
    Steps,
    Window,
)
from gpuproof.records.what_ran import Connections, CountedConnection
from gpuproof.records.work.collective import ELEMENT_BYTES, CollectiveTrial
from gpuproof.selftest.announcing import recorded_xids
from gpuproof.selftest.fleet import (
    BEGAN_UNIX_S,
    LINK_BYTES_PER_S,
    OPERATION_S,
    PRODUCTS_FLOPS_PER_S,
    SETTLED_S,
    STEP_S,
    Fleet,
)

STEP_NOISE, DEVICE_NOISE, DAY_NOISE = 0.003, 0.002, 0.005
SLOWER_LINK = 1.4
PARAMETERS = 1_000_000
SEGMENTS = 50_000
"""TCP segments sent from each rank to every other host."""
ALONE = DeviceSharing(other_processes=0, other_memory_bytes=0, missing=None)
BURSTS = 5
NUM_STEPS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    rank: int
    local_rank: int
    host: str
    device: Device
    slower: float


def write_launch(fleet: Fleet, case: Case, folder: Path) -> None:
    """Write the files that the ranks and the launcher would leave in a launch's folder."""
    from gpuproof.records.journal import encode
    from gpuproof.store import layout

    lines: dict[Path, list[str]] = {}
    rank: int | None = 0
    for record in records_of(fleet, case):
        rank = getattr(record, "rank", rank)
        path = folder / layout.LAUNCHER_JOURNAL if rank is None else layout.rank_journal(folder, rank)
        lines.setdefault(path, []).append(encode(record) + "\n")
    for path, written in lines.items():
        path.write_text("".join(written), encoding="utf-8")
    for host in case.placement.hosts if fleet.planted.xids is not None else ():
        recording = "".join(encode(record) + "\n" for record in recorded_xids(fleet, case, host))
        (folder / layout.recording_name(host)).write_text(recording, encoding="utf-8")
    if fleet.planted.torn == case.case_id:
        last = layout.rank_journals(folder)[-1]
        last.write_bytes(last.read_bytes()[:-20])


def records_of(fleet: Fleet, case: Case) -> Iterator[Any]:
    """Yield the records of one launch, rank by rank."""
    planted, hosts = fleet.planted, case.placement.hosts
    if planted.lost in hosts:
        yield Failure(
            rank=None,
            host=str(planted.lost),
            phase="setup",
            cause="environment",
            message="no answer on port 22",
            unix_s=BEGAN_UNIX_S,
        )
        return
    # no two launches start at the same time
    offset_s = crc32(f"{case.case_id}/{case.replicate}".encode()) * 1e-12
    fleet = replace(fleet, begins_monotonic_s=fleet.begins_monotonic_s + offset_s)
    rng = np.random.default_rng([fleet.seed, *_day(fleet), *case.case_id.encode()])
    ranks = list(_ranks(fleet, case))
    for worker in ranks[:1] if planted.is_split else ranks:
        world_size = 1 if planted.is_split else len(ranks)
        yield from _begin(fleet, worker, world_size)
        if (planted.hung, planted.stopped) != (None, None) and case.case_id == "training":
            yield from _no_end(fleet, worker)
        else:
            yield from _done(fleet, case, worker, ranks, rng)


def _day(fleet: Fleet) -> tuple[int, ...]:
    """Return an additional random seed for a fleet measured on a given day."""
    return () if fleet.day is None else (fleet.day,)


def _all_slower(fleet: Fleet) -> float:
    """Return the factor by which the day or the fault slows everything down."""
    rng = np.random.default_rng([fleet.seed, *_day(fleet)])
    return fleet.planted.all_slower * (1.0 if fleet.day is None else float(rng.normal(1.0, DAY_NOISE)))


def _ranks(fleet: Fleet, case: Case) -> Iterator[_Rank]:
    per_host = case.placement.ranks_per_host
    indices = case.placement.devices or tuple(range(per_host))
    for node, host in enumerate(case.placement.hosts):
        for local, index in enumerate(indices[:per_host]):
            uuid = fleet.uuid_of(host, index)
            device = Device(
                kind="cuda",
                index=index,
                name=fleet.device_name,
                uuid=uuid,
                memory_total_bytes=2**34,
                simulated=True,
            )
            noise = np.random.default_rng([fleet.seed, *uuid.encode()]).normal(1.0, DEVICE_NOISE)
            slower = float(noise) * _all_slower(fleet) * fleet.planted.slower.get(uuid, 1.0)
            yield _Rank(
                rank=node * per_host + local, local_rank=local, host=host, device=device, slower=slower
            )


def _begin(fleet: Fleet, worker: _Rank, world_size: int) -> Iterator[Any]:
    yield Start(
        rank=worker.rank,
        world_size=world_size,
        local_rank=worker.local_rank,
        local_world_size=min(world_size, fleet.num_devices),
        host=worker.host,
        pid=1000 + worker.rank,
        start="exec",
        gpuproof_version=__version__,
        unix_s=BEGAN_UNIX_S + fleet.planted.clock_ahead_s.get(worker.host, 0.0),
        monotonic_s=fleet.begins_monotonic_s - SETTLED_S,
    )
    if worker.local_rank == 0 and worker.host != fleet.planted.mute:
        yield Environment(host=worker.host, facts=_facts(fleet, worker.host))


def _facts(fleet: Fleet, host: str) -> dict[str, Any]:
    devices = [
        {"index": index, "name": fleet.device_name, "uuid": fleet.uuid_of(host, index)}
        for index in range(fleet.num_devices)
    ]
    return {
        "host": host,
        "os": "Linux",
        "torch": "2.13.0",
        "torch_cuda": "13.0",
        "nccl": "2.28",
        "devices": devices,
        "accelerators": {
            "devices": list(
                fleet.listed or (listed_device(fleet, host, index) for index in range(fleet.num_devices))
            ),
            "drivers": {"seeded": {"version": "580.1"}},
            "absent": {},
        },
        "environment": {},
        **fleet.planted.facts.get(host, {}),
    }


def listed_device(fleet: Fleet, host: str, index: int) -> dict[str, Any]:
    """Return a device as its host's driver lists it; the framework sees only devices that exist."""
    return {
        "physical_index": index,
        "framework_index": index if index < fleet.num_devices else None,
        "uuid": fleet.uuid_of(host, index),
        "name": fleet.device_name,
        "static": {"power_limit_w": 700.0, "power_limit_default_w": 700.0},
        "state": {"remapped_rows_failed": 0.0, "remapped_rows_pending": 0.0, "ecc_uncorrected_count": 0.0},
    }


def _no_end(fleet: Fleet, worker: _Rank) -> Iterator[Failure]:
    """Yield the failure record of a hung rank; if a rank is stopped, the launcher's and the others'."""
    hung, stopped = fleet.planted.hung, fleet.planted.stopped
    if worker.rank == stopped:
        yield _failure(worker, None, "lost_rank", f"rank {stopped} ended without an error message")
    elif stopped is not None or worker.rank == hung:
        progress = None if stopped is None else RankProgress(collectives=17, launched=9, begun=9, completed=8)
        failure = _failure(worker, worker.rank, "hang", "no step completed for 60 s")
        yield replace(failure, steps_done=17, progress=progress)


def _failure(worker: _Rank, rank: int | None, cause: FailureCause, message: str) -> Failure:
    return Failure(
        rank=rank, host=worker.host, phase="measure", cause=cause, message=message, unix_s=BEGAN_UNIX_S + 100
    )


def _done(
    fleet: Fleet, case: Case, worker: _Rank, ranks: Sequence[_Rank], rng: np.random.Generator
) -> Iterator[Any]:
    is_collective = _is_collective(case)
    waits = is_collective or _trains(case)
    slower = max(rank.slower for rank in ranks) if waits else worker.slower
    yield _setup(fleet, case, worker)
    times_s: list[float] = []
    if is_collective:
        trials = list(_trials(fleet, case, worker, len(ranks), rng))
        yield from trials
        times_s = [time_s for trial in trials for time_s in trial.durations_s]
    else:
        step_s = _step_s(case) * slower
        slowest_s = _step_s(case) * max(rank.slower for rank in ranks)  # all ranks finish on the same step
        num_steps = NUM_STEPS if fleet.window_s is None else max(1, int(fleet.window_s / slowest_s))
        times_s = _noisy(rng, step_s, num_steps)
        yield Steps(rank=worker.rank, phase="measure", first_step=0, durations_s=tuple(times_s))
    yield _window(fleet, case, worker, times_s)
    if len({rank.host for rank in ranks}) > 1:
        yield _connections(fleet, worker, ranks)
    if _trains(case) and len(ranks) > 1 and not fleet.planted.is_split:
        bursts = tuple(tuple(_noisy(rng, STEP_S * worker.slower, 10)) for _ in range(BURSTS))
        yield OwnCompute(rank=worker.rank, clock="device_event", bursts_s=bursts, missing=None)
    has_loss = _trains(case) and fleet.planted.without_loss != worker.rank
    ended_s = fleet.begins_monotonic_s + sum(times_s) + 1
    yield RankResult(rank=worker.rank, monotonic_s=ended_s, last_loss=0.5 if has_loss else None)


def _connections(fleet: Fleet, worker: _Rank, ranks: Sequence[_Rank]) -> Connections:
    addresses = {rank.host: f"10.0.{place // 256}.{place % 256}" for place, rank in enumerate(ranks)}
    hosts = list(addresses)
    place = hosts.index(worker.host)
    beside = dict.fromkeys((hosts[place - 1], hosts[(place + 1) % len(hosts)]))  # as in a ring algorithm
    return Connections(
        rank=worker.rank,
        connections=tuple(
            CountedConnection(
                local=addresses[worker.host],
                peer=addresses[host],
                segments_sent=SEGMENTS,
                segments_sent_again=SEGMENTS // 10 if (worker.host, host) == fleet.planted.lossy else 0,
            )
            for host in beside
        ),
        missing=None,
    )


def _noisy(rng: np.random.Generator, middle_s: float, count: int) -> list[float]:
    return [float(time_s) for time_s in middle_s * np.exp(rng.normal(0.0, STEP_NOISE, count))]


def _is_collective(case: Case) -> bool:
    return hasattr(case.work, "collective")


def _trains(case: Case) -> bool:
    return not _is_collective(case) and case.model_work.trains


def _is_products(case: Case) -> bool:
    return case.model_work.model.name == "gemm"


def _flops(case: Case) -> float:
    if not _is_products(case):
        return 6.0 * PARAMETERS * case.model_work.data.batch_size
    options: Mapping[str, int] = case.model_work.model.options
    return 2.0 * float(options["m"]) * options["n"] * options["k"] * case.model_work.data.batch_size


def _step_s(case: Case) -> float:
    return _flops(case) / PRODUCTS_FLOPS_PER_S if _is_products(case) else STEP_S


def _setup(fleet: Fleet, case: Case, worker: _Rank) -> Setup:
    is_collective = _is_collective(case)
    return Setup(
        rank=worker.rank,
        device=worker.device,
        backend=fleet.planted.backend if case.placement.num_ranks > 1 else None,
        threads=1,
        num_parameters=0 if is_collective else PARAMETERS,
        items_per_step=1 if is_collective else case.model_work.data.batch_size,
        item="operations" if is_collective else "products" if _is_products(case) else "samples",
        flops_per_step=None if is_collective else _flops(case),
        precision="float32" if is_collective else case.model_work.training.precision,
        compiled=None,
        data="synthetic",
        pool_samples=1,
        not_applied=(),
        notes=(),
        monotonic_s=fleet.begins_monotonic_s - 1,
    )


def _trials(
    fleet: Fleet, case: Case, worker: _Rank, num_ranks: int, rng: np.random.Generator
) -> Iterator[CollectiveTrial]:
    spec = case.work.collective  # type: ignore[union-attr]  # its kind was asked for
    for operation in spec.operations:
        for size in spec.sizes_bytes:
            count = size // ELEMENT_BYTES[spec.dtype]
            middle_s = (OPERATION_S + size / LINK_BYTES_PER_S) * _all_slower(fleet)
            if fleet.planted.slow_link and set(fleet.planted.slow_link) <= set(case.placement.hosts):
                middle_s *= SLOWER_LINK
            yield CollectiveTrial(
                rank=worker.rank,
                operation=operation,
                asked_bytes=size,
                size_bytes=size,
                num_elements=count,
                durations_s=tuple(_noisy(rng, middle_s, spec.iterations)),
                num_checked=count,
                num_wrong=int(fleet.planted.wrong_on == worker.rank and num_ranks > 1),
            )


def _window(fleet: Fleet, case: Case, worker: _Rank, times_s: Sequence[float]) -> Window:
    items = 1 if _is_collective(case) else case.model_work.data.batch_size
    total_s = sum(times_s)
    return Window(
        rank=worker.rank,
        host=worker.host,
        num_steps=len(times_s),
        requested_steps=None,
        requested_s=None,
        items=len(times_s) * items,
        wall_s=total_s,
        steps_s=total_s,
        clock="device_event",
        stop_reason=f"{len(times_s)} steps",
        begin_monotonic_s=fleet.begins_monotonic_s,
        end_monotonic_s=fleet.begins_monotonic_s + total_s,
        load=HostLoad(
            num_cpus=64,
            busy_cpu_s=total_s,
            own_cpu_s=total_s,
            run_queue_wait_s=0.0,
            steal_cpu_s=0.0,
            missing=None,
        ),
        neighbours=ALONE,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        peak_with_warmup_bytes=None,
    )
