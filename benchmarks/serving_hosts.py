"""How often is one of several equal servers accused over its latencies, and a slow one found?

Simulates requests, 1,000 per launch at 100 per second, and judges them as in `suites/by_host`: p50 and p99
latency in addition to completed requests. Latencies are heavy-tailed, autocorrelated (queues at 60 and 80 %
of the server's capacity), in steps of 10 ms, or stalled (all requests that arrive within a second wait for
its end). Hosts differ by 1 % (standard deviation), launches on one host by 1 %. Prints percentages of fleets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gpuproof.statistics.estimate import Unavailable
from gpuproof.statistics.launches import interval_of_rates
from gpuproof.suites.by_host.hosts import HostMeasured
from gpuproof.suites.by_host.hosts_suite import summarize_suite
from gpuproof.suites.by_host.report import with_reach_of_others

Array = npt.NDArray[np.float64]
RATE_PER_S, NUM_REQUESTS, DIFFERENCE = 100.0, 1000, 0.01
rng = np.random.default_rng(20261126)


def arrivals(launches: int) -> Array:
    return np.cumsum(rng.exponential(1 / RATE_PER_S, (launches, NUM_REQUESTS)), axis=1)


def queued(service_s: Array) -> Array:
    due, free = arrivals(len(service_s)), np.zeros(len(service_s))
    latencies = np.empty_like(due)
    for request in range(NUM_REQUESTS):
        free = np.maximum(due[:, request], free) + service_s[:, request]
        latencies[:, request] = free - due[:, request]
    return latencies


def stalled(launches: int, a_launch: float) -> Array:
    due = arrivals(launches)
    latencies = 0.02 * (1 + 0.3 * rng.random(due.shape))
    for launch in range(launches):
        for begin in rng.uniform(0, due[launch, -1], rng.poisson(a_launch)):
            left_s = begin + 1.0 - due[launch]
            hit = (left_s > 0) & (left_s <= 1.0)
            latencies[launch, hit] = np.maximum(latencies[launch, hit], left_s[hit])
    return latencies


def in_steps(launches: int) -> Array:
    service_s = rng.gamma(4, 0.125 / RATE_PER_S, (launches, NUM_REQUESTS))
    return np.asarray(np.ceil(queued(service_s) / 0.01) * 0.01)


KINDS: dict[str, Callable[[int], Array]] = {
    "nearly constant": lambda n: 0.02 * (1 + 0.002 * rng.normal(size=(n, NUM_REQUESTS))),
    "lognormal": lambda n: 0.02 * np.exp(rng.normal(size=(n, NUM_REQUESTS))),
    "Pareto 1.5": lambda n: 0.005 * (1 + rng.pareto(1.5, (n, NUM_REQUESTS))),
    "queue at 80 %": lambda n: queued(rng.exponential(0.8 / RATE_PER_S, (n, NUM_REQUESTS))),
    "heavy queue at 60 %": lambda n: queued(
        0.6 / RATE_PER_S * np.exp(rng.normal(size=(n, NUM_REQUESTS)) - 0.5)
    ),
    "steps of 10 ms": in_steps,
    "a stall in 2 of 5": lambda n: stalled(n, 0.5),
    "a stall in 1 of 20": lambda n: stalled(n, 0.05),
}


def host(name: str, latencies: Array, q: float) -> HostMeasured:
    """Return the inverse of a host's percentile, by which hosts are compared."""
    pooled_s = float(np.percentile(latencies, q))
    interval = interval_of_rates(np.percentile(latencies, q, axis=1))
    assert not isinstance(interval, Unavailable)
    ends = [1 / end if end else np.inf for end in (interval.low, interval.high)]
    reach = max(abs(end * pooled_s - 1) for end in ends)
    return HostMeasured(
        host=name,
        gpu_type="GPU",
        num_devices=1,
        items_per_s_total=1 / pooled_s,
        items_total=1,
        relative_reach=reach,
    )


def named(pool: Array, hosts: int, launches: int, slower: float) -> set[str]:
    """Return which host is accused if the first host takes `slower` times as long as the others."""
    figures: dict[str, list[HostMeasured]] = {"p50": [], "p99": [], "answered": []}
    for place in range(hosts):
        latencies = pool[rng.integers(len(pool), size=launches)]
        latencies = latencies * np.exp(DIFFERENCE * (rng.normal() + rng.normal(size=(launches, 1))))
        latencies *= 1 if place else slower
        for q in (50, 99):
            figures[f"p{q}"].append(host(str(place), latencies, q))
        figures["answered"].append(
            HostMeasured(
                host=str(place),
                gpu_type="GPU",
                num_devices=1,
                items_per_s_total=RATE_PER_S * (1 - 1e-4 * rng.random()),
                items_total=1,
                relative_reach=1e-4,
            )
        )
    judged = {name: with_reach_of_others(rates) for name, rates in figures.items()}
    return {apart.host for apart in summarize_suite(judged, num_hosts=hosts, whole_share=0.0).apart}


def main() -> None:
    fleets, num_launches = (5, 60) if "--quick" in sys.argv else (200, 1500)
    print("hosts, launches: equal fleets in which one is accused; slow host found at 1.2, 2, 10 times")
    for name, latencies in KINDS.items():
        pool = latencies(num_launches)
        cells = []
        for hosts, launches in ((3, 3), (3, 5), (8, 3), (8, 5), (16, 3)):
            wrong = sum(bool(named(pool, hosts, launches, 1.0)) for _ in range(fleets)) / fleets
            found = [
                sum("0" in named(pool, hosts, launches, slower) for _ in range(fleets)) / fleets
                for slower in (1.2, 2.0, 10.0)
            ]
            cells.append(f"{hosts}×{launches} {wrong:.1%}; " + ", ".join(f"{share:.0%}" for share in found))
        print(f"{name}: " + " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
