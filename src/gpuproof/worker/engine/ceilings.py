"""This device's current limits, measured with matmuls and memory passes at full speed.

No real device reaches its data sheet's peak: power, clocks and cooling keep it below. So the ceilings of a
roofline (Williams, Waterman and Patterson 2009, https://doi.org/10.1145/1498765.1498785) are measured on the
device itself, in the run's precision, after the window and separately from every result. The output is the
time of each repeat.

Matmul sizes increase in a few steps until a matmul would take too long or need too much memory. Before each
repeat, a buffer larger than any cache is written, so that operands come from memory, as in a real step. A
memory pass needs no such buffer, since its size far exceeds the caches anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import torch

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.records.run import CeilingTrial
from gpuproof.records.work.probe import CACHE_BANDWIDTH, LAUNCH_LATENCY, ProbeReading
from gpuproof.worker.engine.loop import StepClock
from gpuproof.workloads.info.catalogue.gemm import gemm_bytes, gemm_flops
from gpuproof.workloads.info.catalogue.memory import BUFFERS, memory_bytes
from gpuproof.workloads.torch.gemm import MatrixProduct
from gpuproof.workloads.torch.memory_pass import MemoryPass

GEMM_TYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "amp": torch.float16,
    "bf16": torch.bfloat16,
}
"""Operand type for each precision; TF32 is switched on or off as in the run."""
BACK_TO_BACK = 100
"""Number of kernels between two events; with a single kernel, the overhead of the events dominates."""
LEAST_LAUNCHES = 2.0
"""A pass shorter than this many launch times measures only launch overhead, not the cache."""
IN_CACHE = 8
"""Ratio of the cache size to the size of each of three buffers; this leaves room in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingPlan:
    """The sizes and repeats to try; the same on every rank."""

    gemm_sizes: tuple[int, ...]
    """Edge lengths of square matrices to multiply."""
    buffer_bytes: int
    flush_bytes: int
    repeats: int
    longest_s: float
    """A size is not tried if its repeats are expected to take longer than this in total."""
    memory_share: float = 0.5
    """The fraction of free memory that operands and buffers may use."""


GPU_PLAN = CeilingPlan(
    gemm_sizes=(1024, 2048, 4096, 8192, 16_384),
    buffer_bytes=2**30,
    flush_bytes=2**29,
    repeats=20,
    longest_s=5.0,
)
"""Buffers are four times as large as the largest known cache, 256 MB on an MI300X."""
CPU_PLAN = CeilingPlan(
    gemm_sizes=(256, 512, 1024, 2048, 4096),
    buffer_bytes=2**28,
    flush_bytes=2**27,
    repeats=7,
    longest_s=2.0,
)


def plan_for(device: torch.device) -> CeilingPlan:
    """Choose the plan for a device type: the large one, unless the computation runs on the CPU."""
    accelerator = accelerator_of(device)
    return CPU_PLAN if accelerator.in_software or accelerator.simulated else GPU_PLAN


def try_ceilings(
    precision: str, *, device: torch.device, clock: StepClock, plan: CeilingPlan, beat: Callable[[], None]
) -> Iterator[CeilingTrial]:
    """Yield the trials one by one; `beat` is called after each repeat, since some repeats are slow."""
    room = _room_bytes(device, plan)
    bench = _Bench(device=device, clock=clock, plan=plan, beat=beat)
    dtype = GEMM_TYPES.get(precision)
    if dtype is not None:
        yield from _products(dtype, bench, room_bytes=room)
    for pattern, buffers in BUFFERS.items():
        buffer_bytes = min(plan.buffer_bytes, room // buffers // 4 * 4)
        with torch.device(device):
            memory_pass = MemoryPass(pattern, buffer_bytes)
        yield CeilingTrial(
            what=pattern,
            size=(buffer_bytes,),
            dtype="float32",
            work=float(memory_bytes(pattern, buffer_bytes)),
            durations_s=bench.time(memory_pass.run_once, caches="any"),
        )


def try_costs(
    rank: int, *, device: torch.device, cache_bytes: int | None, clock: StepClock, beat: Callable[[], None]
) -> Iterator[ProbeReading]:
    """Yield the time of a nearly empty kernel, and the rate of triads that stay within the cache."""
    bench = _Bench(device=device, clock=clock, plan=replace(plan_for(device), flush_bytes=1), beat=beat)
    one = torch.zeros(1, device=device)
    launch_s = median(bench.time(lambda: _repeat(lambda: one.add_(1)), caches="any")) / BACK_TO_BACK
    yield ProbeReading(rank=rank, quantity=LAUNCH_LATENCY, unit="s", value=launch_s)
    figure = ProbeReading(rank=rank, quantity=CACHE_BANDWIDTH, unit="B/s")
    if cache_bytes is None:
        yield replace(figure, missing="its cache size is not known")
        return
    buffer_bytes = cache_bytes // IN_CACHE // 4 * 4
    with torch.device(device):
        buffers = MemoryPass("triad", buffer_bytes)
    pass_s = median(bench.time(lambda: _repeat(buffers.run_once), caches="any")) / BACK_TO_BACK
    labels = {"buffer_bytes": buffer_bytes}
    if pass_s < LEAST_LAUNCHES * launch_s:
        yield replace(figure, labels=labels, missing="a pass ends before the host can launch the next one")
        return
    yield replace(figure, labels=labels, value=memory_bytes("triad", buffer_bytes) / pass_s)


def _repeat(work: Callable[[], object]) -> None:
    for _ in range(BACK_TO_BACK):
        work()


def reason_no_product(precision: str) -> str | None:
    """Return the reason why matmuls in `precision` are not tried; None if they are."""
    if precision in GEMM_TYPES:
        return None
    return f"{precision} products need scale factors: a plain product does not show their limit"


def _room_bytes(device: torch.device, plan: CeilingPlan) -> int:
    """Return how much memory operands may use; if free memory is unknown, the plan is small anyway."""
    memory = accelerator_of(device).free_and_total_bytes(device)
    if memory is None:
        return BUFFERS["triad"] * plan.buffer_bytes
    free_bytes, _ = memory
    return max(2**24, int(free_bytes * plan.memory_share) - plan.flush_bytes)


def _products(dtype: torch.dtype, bench: _Bench, *, room_bytes: int) -> Iterator[CeilingTrial]:
    rate_per_s = 0.0
    for edge in bench.plan.gemm_sizes:
        flops = gemm_flops(edge, edge, edge)
        if gemm_bytes(edge, edge, edge, element_bytes=dtype.itemsize) > room_bytes:
            return
        if rate_per_s and flops * bench.plan.repeats / rate_per_s > bench.plan.longest_s:
            return
        with torch.device(bench.device):
            product = MatrixProduct(edge, edge, edge).in_type(dtype)
        durations_s = bench.time(product.multiply, caches="cold")
        rate_per_s = flops / min(durations_s)
        yield CeilingTrial(
            what="gemm",
            size=(edge, edge, edge),
            dtype=str(dtype).removeprefix("torch."),
            work=float(flops),
            durations_s=durations_s,
        )


class _Bench:
    """Times one kind of operation repeatedly."""

    def __init__(
        self, *, device: torch.device, clock: StepClock, plan: CeilingPlan, beat: Callable[[], None]
    ) -> None:
        self.device, self.plan = device, plan
        self._clock, self._beat = clock, beat
        self._flush = torch.empty(plan.flush_bytes, dtype=torch.uint8, device=device)

    @torch.inference_mode()
    def time(self, work: Callable[[], None], *, caches: Literal["cold", "any"]) -> tuple[float, ...]:
        """Return each repeat's time in seconds; an untimed one runs first, so that algorithms are chosen."""
        work()
        self._clock.synchronize()
        for _ in range(self.plan.repeats):
            if caches == "cold":
                self._flush.zero_()
            self._clock.begin()
            work()
            self._clock.end()
            self._beat()
        return tuple(self._clock.drain(in_flight=0))
