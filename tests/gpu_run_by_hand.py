"""A run on GPUs written down by hand, of any length: steps, readings, a throttled stretch, an XID, ceilings.

The figures are made up, but lie as those of real runs do. One host, `gpus` ranks, `launches` launches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import recordings as r
from gpuproof.records.breakdown import StepPhases
from gpuproof.records.case import Case
from gpuproof.records.journal import encode
from gpuproof.records.readings import DriverEvent
from gpuproof.records.run import Ceilings, CeilingTrial, Environment, Start
from gpuproof.records.what_ran import Memory, MemoryParts
from gpuproof.records.work.window import MonitorSpec
from gpuproof.store.layout import recording_name
from gpuproof.store.run import RunDirectory
from records_by_hand import H200, Story, case, setup, window, write_run

HOST = "node7"
STEP_S = 0.1
PAUSE_S = 12.0
"""Between two launches, in which the next one starts up."""


def gpu_run(
    save_dir: Path,
    *,
    gpus: int = 2,
    launches: int = 3,
    seconds: float = 20.0,
    interval_s: float = 0.5,
    seed: int = 7,
) -> RunDirectory:
    """Write the run as a campaign leaves it."""
    chance = random.Random(seed)
    stories = [
        _story(number, gpus, seconds, begin_s=r.MONOTONIC_S + 5 + number * (seconds + PAUSE_S), chance=chance)
        for number in range(launches)
    ]
    records = [story.records() for story in stories]
    moved = [
        replace(one, records=tuple(_started(record, story) for record in one.records))
        for one, story in zip(records, stories, strict=True)
    ]
    run = write_run(save_dir, moved, run={"repeats": launches}, distributed={"nproc": gpus})
    for story, one in zip(stories, moved, strict=True):
        begin_s = story.windows[0].begin_monotonic_s - r.MONOTONIC_S - 5
        lines = _recording(begin_s, gpus, seconds, interval_s, random.Random(story.replicate))
        path = run.case_folder(one.case) / recording_name(HOST)
        path.write_text("".join(encode(line) + "\n" for line in lines), encoding="utf-8")
    return run


def recorded(
    path: Path,
    *,
    gpus: int,
    seconds: float = 40.0,
    interval_s: float = 0.5,
    name: str = "NVIDIA H200",
    phase: str = "train",
    event: str = "xid",
) -> Path:
    """Write a recording by itself, with a phase from its tenth second on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = list(_recording(0.0, gpus, seconds, interval_s, random.Random(3), name=name, event=event))
    lines[3:3] = [r.mark(3, phase="warm-up"), r.mark(10, phase=phase), r.mark(seconds, phase=None)]
    return r.write(path, lines)


def _started(record: Any, story: Story) -> Any:
    """A rank begins five seconds before its window, at the date of that."""
    if not isinstance(record, Start):
        return record
    begin_s = story.windows[0].begin_monotonic_s - 5
    return replace(record, monotonic_s=begin_s, unix_s=r.UNIX_S + begin_s - r.MONOTONIC_S, host=HOST)


def _case(number: int, gpus: int) -> Case:
    made = case(replicate=number, nproc=gpus, precision="bf16", data={"name": "synthetic", "file": None})
    return replace(made, monitor=MonitorSpec(interval_s=0.5))


def _story(number: int, gpus: int, seconds: float, *, begin_s: float, chance: random.Random) -> Story:
    mean_s = STEP_S * (1 + 0.01 * number)
    times_s = [
        mean_s * (1 + 0.01 * chance.gauss(0, 1)) * (1.6 if chance.random() < 0.004 else 1.0)
        for _ in range(int(seconds / mean_s))
    ]
    total_s = sum(times_s)
    windows = [
        window(
            rank,
            host=HOST,
            num_steps=len(times_s),
            items=len(times_s) * 256,
            wall_s=total_s + 0.001 * (rank == 0),
            steps_s=total_s,
            begin_monotonic_s=begin_s,
            end_monotonic_s=begin_s + total_s + 0.001,
            clock="device_event",
            peak_allocated_bytes=31 * r.GIB,
            peak_reserved_bytes=33 * r.GIB,
        )
        for rank in range(gpus)
    ]
    setups = [
        setup(
            rank,
            device=replace(H200, index=rank, uuid=f"GPU-{rank:04d}"),
            items_per_step=256,
            item="samples",
            flops_per_step=3.1e13,
            bytes_per_step=2.2e11,
            precision="bf16",
            backend="nccl",
        )
        for rank in range(gpus)
    ]
    extra: list[Any] = [Environment(host=HOST, facts={"torch": "2.6.0", "driver": "570.1"})]
    for rank in range(gpus):
        extra += _after_window(rank)
    return Story(
        windows=windows,
        setups=setups,
        times_s=times_s,
        case=_case(number, gpus),
        replicate=number,
        extra=extra,
    )


def _after_window(rank: int) -> list[Any]:
    gemm = CeilingTrial(
        what="gemm", size=(8192, 8192, 8192), dtype="bfloat16", work=1.1e12, durations_s=(1.6e-3, 1.62e-3)
    )
    triad = CeilingTrial(
        what="triad", size=(10**9,), dtype="float32", work=3e9, durations_s=(0.75e-3, 0.76e-3)
    )
    parts = MemoryParts(
        parameters_bytes=4 * r.GIB,
        gradients_bytes=4 * r.GIB,
        optimizer_bytes=8 * r.GIB,
        communication_bytes=r.GIB,
    )
    memory = Memory(
        rank=rank,
        estimate=parts,
        counted=parts,
        activations_bytes=12 * r.GIB,
        activations_missing=None,
        device_used_bytes=36 * r.GIB,
        device_used_missing=None,
    )
    phases = StepPhases(
        rank=rank,
        clock="device_event",
        is_queued=True,
        data_s=(0.002,) * 6,
        forward_s=(0.031,) * 6,
        backward_s=(0.058,) * 6,
        optimizer_s=(0.005,) * 6,
        backward_without_sync_s=(0.052,) * 6,
        plain_step_s=(0.099,) * 3,
        marked_step_s=(0.1,) * 3,
    )
    ceilings = Ceilings(rank=rank, clock="device_event", trials=(gemm, triad), missing=None)
    return [ceilings, memory, phases]


def _recording(
    begin_s: float,
    gpus: int,
    seconds: float,
    interval_s: float,
    chance: random.Random,
    *,
    name: str = "NVIDIA H200",
    event: str = "xid",
) -> Iterator[Any]:
    """Ten seconds more than the window; the first GPU is throttled by heat in the last third of it."""
    devices = [r.identity(gpu, name=name) for gpu in range(gpus)]
    yield r.header(devices, fast_interval_s=interval_s, host=HOST)
    num = int((seconds + 10) / interval_s)
    for tick in range(num):
        at_s = tick * interval_s
        share = min(1.0, max(0.0, (at_s - 4) / 3)) * (at_s < seconds + 6)
        is_hot = at_s > 5 + seconds * 2 / 3 and share > 0
        yield r.sample(
            begin_s + at_s,
            {gpu: _reading(gpu, at_s, share, chance, is_hot=is_hot and gpu == 0) for gpu in range(gpus)},
            reasons={gpu: ("thermal_software",) if is_hot and gpu == 0 else () for gpu in range(gpus)},
            host={"cpu_percent": 20 + 5 * chance.random(), "mem_used_bytes": 2e10},
        )
    yield DriverEvent(
        monotonic_s=r.MONOTONIC_S + begin_s + 5 + seconds / 2,
        physical_index=gpus - 1,
        event=event,
        code=63,
        message="row remapping recorded",
    )
    yield r.end(begin_s + num * interval_s, samples=num)


def _reading(gpu: int, at_s: float, share: float, chance: random.Random, *, is_hot: bool) -> dict[str, float]:
    heat = 1 - math.exp(-at_s / 30)
    return {
        "util_gpu_percent": float(round(97 * share + 2 * chance.random())),
        "mem_used_bytes": float(int((2 + 34 * share) * r.GIB)),
        "power_w": round(90 + (540 + 12 * gpu) * share + 9 * chance.gauss(0, 1), 1),
        "power_limit_w": 700.0,
        "temp_gpu_c": float(round(38 + 40 * share * heat + (7 if is_hot else 0))),
        "clock_sm_mhz": 1500.0 if is_hot else float(round(1980 - 15 * (share > 0) * chance.random())),
    }
