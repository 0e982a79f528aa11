"""Up to which rate are requests issued on time? Goal: 5,000 one-chunk responses/s on four cores.

Increases the rate, with a few launches each, until the launches' median p99 lateness (from schedule to issue)
exceeds 0.2 ms. Does so for responses of 1 and of 32 chunks that a twin endpoint sends at once. Half of the
CPUs are assigned to the clients, the rest to their twins, one each. Before each launch, a bare loop sleeps a
thousand times for 1 ms: its wake-up lateness is what this machine imposes on any client. A rate at which that
alone exceeds 0.2 ms shows nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from time import monotonic

from gpuproof.base.units import rate, seconds
from gpuproof.records.work.serving import EndpointSpec, ServingSpec
from gpuproof.worker.serving.clients import clients
from gpuproof.worker.serving.endpoint import EndpointLoad
from gpuproof.worker.serving.generator import TrafficPlan
from gpuproof.worker.serving.prompts import Prompts
from gpuproof.worker.serving.twin import TwinAnswer, twin
from pairing import machine_line
from serving_generator import bare_lateness_s

RATES_PER_S = tuple(round(125 * 2 ** (step / 2)) for step in range(15))
LATE_S = 0.2e-3
WINDOW_S, QUICK_WINDOW_S, LAUNCHES = 10.0, 2.0, 3
LEAD_S = 0.5


def main() -> None:
    """Increase the rate for responses of both lengths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="windows of 2 s")
    parser.add_argument(
        "--clients", type=int, help="number of processes that send [default: half of the CPUs]"
    )
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise SystemExit("only one CPU: the twin has no CPU of its own")
    ours, theirs = cpus[: len(cpus) // 2], cpus[len(cpus) // 2 :]
    num = options.clients or len(ours)
    window_s = QUICK_WINDOW_S if options.quick else WINDOW_S
    print(machine_line())
    print(f"{num} client processes on CPUs {ours}, as many twins on {theirs}")
    for chunks in (1, 32):
        print("\n".join(climb(chunks, num=num, ours=ours, theirs=theirs, window_s=window_s)), flush=True)


def climb(
    chunks: int, *, num: int, ours: Sequence[int], theirs: Sequence[int], window_s: float
) -> Iterator[str]:
    """Yield a line for each rate, and the highest rate that was issued on time."""
    highest, ended = 0, "there are no higher rates"
    for rate_per_s in RATES_PER_S:
        late_s, bare_s = [], []
        for seed in range(LAUNCHES):
            os.sched_setaffinity(0, ours)
            bare_s.append(bare_lateness_s())
            late_s.append(p99_late_s(chunks, rate_per_s, num, (ours, theirs), window_s=window_s, seed=seed))
        launches = ", ".join(map(seconds, late_s))
        named = f"  {chunks} chunks, {rate(rate_per_s, 'requests')}"
        yield f"{named}: p99 lateness {launches}; floor {seconds(median(bare_s))}"
        if median(late_s) > LATE_S:
            is_floor = median(bare_s) > LATE_S
            ended = (
                "above it, a bare loop is just as late: not measurable here"
                if is_floor
                else "above it, requests are later"
            )
            break
        highest = rate_per_s
    rates = f"up to {rate(highest, 'requests')}" if highest else "at none of the rates"
    yield f"responses of {chunks} chunks: p99 lateness below {seconds(LATE_S)} {rates} ({ended})"


def p99_late_s(
    chunks: int,
    rate_per_s: float,
    num: int,
    cpus: tuple[Sequence[int], Sequence[int]],
    *,
    window_s: float,
    seed: int,
) -> float:
    """Load fresh twins at a rate; return the p99 of issue time minus schedule, over all clients' requests.

    Raises:
        SystemExit: a request failed.
    """
    ours, theirs = cpus
    prompts = Prompts(ServingSpec(new_tokens=chunks), seed)
    with ExitStack() as stack:
        os.sched_setaffinity(0, theirs)
        urls = [stack.enter_context(twin(TwinAnswer(chunks=chunks))) for _ in range(num)]
        os.sched_setaffinity(0, ours)
        loads = [
            EndpointLoad(EndpointSpec(url=url, model="twin", max_connections=4096), prompts) for url in urls
        ]
        run = stack.enter_context(clients(loads))
        plan = TrafficPlan(
            begin_monotonic_s=monotonic() + LEAD_S,
            seed=seed,
            arrivals="poisson",
            rate_per_s=rate_per_s,
            num_requests=round(rate_per_s * window_s),
        )
        rows = run(plan, lambda _: None)
    failures = {row.failure for row in rows if row.failure}
    if failures:
        raise SystemExit(f"requests failed: {failures}")
    late_s = sorted(row.issued_s - row.scheduled_s for row in rows)
    return late_s[int(0.99 * len(late_s))]


if __name__ == "__main__":
    main()
