"""Does gpuproof measure the same collective times as a bare loop over torch.distributed?

Runs two ranks over gloo, with one pair of processes per launch. Three sides alternate in palindromic order:
the loop of the kind `collective`, a hand-written loop with two clock readings per iteration, and the
hand-written loop again for the noise floor. Each result is the ratio of the median iteration times, for the
slower rank. Prints the results and asserts nothing. Usage: python benchmarks/collective_times.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from pairing import judge_ratios, launch_ratios, machine_line, palindromes

RANKS = 2
SIDES = ("by hand", "gpuproof", "by hand again")
SIZES = (4096, 2**20)
BUDGET = 1.05
AS_RANK = "COLLECTIVE_TIMES_RANK"


def main() -> None:
    """Launch pairs of ranks, and compare the sides."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 launches of 2 blocks instead of 8 of 10")
    options = parser.parse_args()
    num_launches, num_blocks = (2, 2) if options.quick else (8, 10)
    print(machine_line())
    launches = [_launch(num_blocks, number) for number in range(num_launches)]
    for size in SIZES:
        blocks = [launch[str(size)] for launch in launches]
        found = judge_ratios(
            f"all_reduce of {size:,} bytes over {RANKS} ranks, gpuproof relative to a hand-written loop",
            launch_ratios(blocks, "gpuproof", base="by hand"),
            noise_values=launch_ratios(blocks, "by hand again", base="by hand"),
            budget=BUDGET,
        )
        print("\n".join(found.lines()))


def _launch(num_blocks: int, number: int) -> dict[str, Any]:
    """Run both ranks in fresh processes; return the blocks for each size."""
    with TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__],
                env={
                    **os.environ,
                    AS_RANK: f"{rank} {num_blocks} {folder}",
                    "OMP_NUM_THREADS": "1",
                    "MASTER_PORT": str(29_600 + number),
                },
                stdout=subprocess.PIPE,
            )
            for rank in range(RANKS)
        ]
        first = json.loads(ranks[0].communicate()[0])
        ranks[1].communicate()
    blocks: dict[str, Any] = first
    return blocks


def _run_rank(rank: int, num_blocks: int, folder: str) -> None:
    """Time the three sides on one rank; the first rank prints the slower rank's times."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    found: dict[int, list[list[tuple[str, float]]]] = {size: [] for size in SIZES}
    for size in SIZES:
        sides = {name: _side(name, rank, size) for name in SIDES}
        for block in palindromes(SIDES, num_blocks=num_blocks):
            found[size].append([(name, _of_the_slower(sides[name]())) for name in block])
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def _side(name: str, rank: int, size_bytes: int) -> Any:
    import torch
    import torch.distributed as dist

    if name == "gpuproof":
        return _ours(rank, size_bytes)
    buffer, source = torch.empty(size_bytes // 4), torch.ones(size_bytes // 4)

    def by_hand() -> list[float]:
        times = []
        dist.barrier()
        for _ in range(30):
            buffer.copy_(source)
            begin = perf_counter()
            dist.all_reduce(buffer)
            times.append(perf_counter() - begin)
        return times

    return by_hand


def _ours(rank: int, size_bytes: int) -> Any:
    import torch

    from gpuproof.records.work.collective import CollectiveSpec
    from gpuproof.worker.collectives.operations import OPERATIONS, CollectiveTask, pattern_for
    from gpuproof.worker.engine.clocks import time_repeats
    from gpuproof.worker.engine.host_clock import HostClock

    spec = CollectiveSpec(
        operations=("all_reduce",),
        min_bytes=size_bytes,
        max_bytes=size_bytes,
        warmup_iterations=0,
        iterations=30,
        check_iterations=0,
    )
    task = CollectiveTask(
        operation="all_reduce",
        num_elements=size_bytes // 4,
        rank=rank,
        num_ranks=RANKS,
        pattern=pattern_for("float32", "sum", RANKS),
        spec=spec,
        device=torch.device("cpu"),
    )
    collective = OPERATIONS["all_reduce"](task)
    return lambda: time_repeats(
        collective.run,
        clock=HostClock(),
        iterations=spec.iterations,
        warmup_iterations=spec.warmup_iterations,
        before=collective.refill,
        meet=torch.distributed.barrier,
        is_blocking=spec.blocking,
    )


def _of_the_slower(times_s: list[float]) -> float:
    import torch
    import torch.distributed as dist

    own = torch.tensor(median(times_s), dtype=torch.float64)
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    return float(own)


if __name__ == "__main__":
    if AS_RANK in os.environ:
        as_rank, as_blocks, in_folder = os.environ[AS_RANK].split(" ", 2)
        _run_rank(int(as_rank), int(as_blocks), in_folder)
    else:
        main()
