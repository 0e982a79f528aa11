"""What does communication cost during compute? Times matmuls, an all-reduce, and both together.

The time of both together, minus the time of the matmuls alone, is exposed, i.e. not hidden by compute. The
message consists of zeros that are summed in place repeatedly, so an error in any sum remains in the message
until the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import torch
import torch.distributed as dist

from gpuproof.records.work.probe import OverlapSpec, ProbeReading
from gpuproof.worker.engine.clocks import time_repeats
from gpuproof.worker.probes.fingerprint import fitting_edge
from gpuproof.worker.rank.bench import Bench
from gpuproof.worker.rank.recorder import rounded
from gpuproof.workloads.torch.gemm import MatrixProduct

ELEMENT_BYTES = 4


def measure_overlap(spec: OverlapSpec, bench: Bench) -> Iterator[ProbeReading]:
    """Yield the times of compute alone, of communication alone, and of both."""
    edge = _edge(spec, bench)
    product = _product(edge, bench)
    message = torch.zeros(max(1, spec.message_bytes // ELEMENT_BYTES), device=bench.device)

    @torch.inference_mode()
    def compute() -> None:
        for _ in range(spec.products):
            product.multiply()

    def communicate() -> None:
        dist.all_reduce(message)

    def both() -> None:
        under_way = dist.all_reduce(message, async_op=True)
        compute()
        assert under_way is not None
        under_way.wait()

    for name, run in (("compute", compute), ("communication", communicate), ("both", both)):
        yield _timed(name, run, spec, bench, edge=edge)
    yield ProbeReading(
        rank=bench.identity.rank,
        quantity="wrong values",
        unit="1",
        labels={"pattern": "sums of zeros", "message_bytes": spec.message_bytes},
        value=float(int((message != 0).sum())),
        evidence=("the message after all in-place sums of zeros",),
    )


def _product(edge: int, bench: Bench) -> MatrixProduct:
    with torch.device(bench.device):
        return MatrixProduct(edge, edge, edge)


def _edge(spec: OverlapSpec, bench: Bench) -> int:
    """Return the width at which the matmuls of all iterations fit in the time limit."""
    # once alone, and once together with the message
    products = 2 * (spec.iterations + spec.warmup_iterations) * spec.products
    latest = lru_cache(maxsize=1)(partial(_product, bench=bench))

    @torch.inference_mode()
    def attempt(edge: int) -> None:
        latest(edge).multiply()

    limit_s = None if spec.time_limit_s is None else spec.time_limit_s / products
    return fitting_edge(spec.edge, limit_s, attempt, bench)


def _timed(name: str, run: Callable[[], None], spec: OverlapSpec, bench: Bench, *, edge: int) -> ProbeReading:
    times_s = time_repeats(
        run,
        clock=bench.clock,
        iterations=spec.iterations,
        warmup_iterations=spec.warmup_iterations,
        meet=bench.ranks.barrier,
        is_blocking=True,
    )
    bench.count(times_s)
    return ProbeReading(
        rank=bench.identity.rank,
        quantity="time",
        unit="s",
        labels={
            "of": name,
            "edge": edge,
            "products": spec.products,
            "message_bytes": spec.message_bytes,
        },
        durations_s=rounded(times_s),
    )
