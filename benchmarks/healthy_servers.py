"""How often is a host named among equal servers, and how slow must one be to be named?

    python benchmarks/healthy_servers.py [FLEETS]

Servers are queues in front of one worker: arrivals at random, a service time of 5 ms on average, of several
shapes. Hosts are judged as at a named rate without a bound: by requests answered, p50 and p99.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
from numpy.random import Generator

from gpuproof.analysis.hosts import HostMeasured
from gpuproof.analysis.hosts_suite import summarize_suite
from gpuproof.records.result import Better, Result
from gpuproof.statistics.estimate import FloatArray
from gpuproof.statistics.launches import interval_of_rates
from gpuproof.statistics.percentiles import percentile
from gpuproof.suites.base import Conclusion
from gpuproof.suites.by_host.host import HostConclusion
from gpuproof.suites.measures import with_interval
from gpuproof.suites.sections import Common

SERVICE_S, NUM_REQUESTS = 0.005, 600
Draw = Callable[[Generator], FloatArray]


def heavy(rng: Generator) -> FloatArray:
    """Service times whose logarithm is normal, with a long tail."""
    return rng.lognormal(-0.5 * 0.8**2, 0.8, NUM_REQUESTS) * SERVICE_S


def autocorrelated(rng: Generator) -> FloatArray:
    """Service times that are long together for some hundred requests."""
    noise = rng.standard_normal(NUM_REQUESTS) * 0.1
    for place in range(1, NUM_REQUESTS):
        noise[place] += 0.98 * noise[place - 1]
    return np.exp(noise - 0.5 * 0.1**2 / (1 - 0.98**2)) * SERVICE_S


def quantised(rng: Generator) -> FloatArray:
    """Service times in whole milliseconds."""
    return np.maximum(1.0, np.round(rng.normal(5.0, 1.0, NUM_REQUESTS))) * 1e-3


def stalled(rng: Generator) -> FloatArray:
    """In a tenth of the windows one request takes 0.2 s."""
    times = rng.normal(SERVICE_S, 0.1 * SERVICE_S, NUM_REQUESTS)
    if rng.random() < 0.1:
        times[rng.integers(NUM_REQUESTS)] = 0.2
    return times


SHAPES: dict[str, Draw] = {f.__name__: f for f in (heavy, autocorrelated, quantised, stalled)}


def window(rng: Generator, draw: Draw, load: float, slower: float) -> tuple[float, FloatArray]:
    """Return the requests answered a second, and their latencies; the worker takes one after another."""
    arrivals = np.cumsum(rng.exponential(SERVICE_S / load, NUM_REQUESTS))
    service, done, free = draw(rng) * slower, np.empty(NUM_REQUESTS), 0.0
    for place in range(NUM_REQUESTS):
        free = max(free, arrivals[place]) + service[place]
        done[place] = free
    return NUM_REQUESTS / done[-1], done - arrivals


def figure(name: str, host: str, pooled: float, launches: list[float], better: Better) -> HostMeasured | None:
    """Return a figure of a host as it is judged; None where it is not."""
    unit = "requests/s" if better == "higher" else "s"
    measure = with_interval(name, pooled, unit, "", interval_of_rates(launches), better=better, launches=())
    result = Result(
        suite="serving",
        run_id="",
        gpuproof_version="",
        validity="VALID",
        verdict="VALID",
        headline="",
        exit_code=0,
        num_launches=len(launches),
        num_planned=len(launches),
        conditions={"device": "GPU"},
        doubts=(),
        failures=(),
        measures=(measure,),
    )
    common = Common(title="", work="")
    concluded = Conclusion(result=result)
    return HostConclusion(
        host={"name": host}, conclusion=concluded, common=common, points={}, unreached=None
    ).rate(name)


def figures_of(host: str, windows: list[tuple[float, FloatArray]]) -> Iterator[tuple[str, HostMeasured]]:
    """Yield the figures of a host by which it is judged."""
    rates = [rate for rate, _ in windows]
    figures = {"answered": figure("answered", host, float(np.mean(rates)), rates, "higher")}
    for name, q in (("p50", 50.0), ("p99", 99.0)):
        values = [percentile(latencies, q).value or 0.0 for _, latencies in windows]
        pooled = percentile(np.concatenate([x for _, x in windows]), q).value or 0.0
        figures[name] = figure(name, host, pooled, values, "lower")
    yield from ((name, measured) for name, measured in figures.items() if measured is not None)


def named(rng: Generator, draw: Draw, load: float, *, size: tuple[int, int], slower: float) -> set[str]:
    """Return who is named in one fleet of so many hosts and launches; the first of the servers is slower."""
    hosts, launches = size
    tests: dict[str, list[HostMeasured]] = {}
    for number in range(hosts):
        windows = [window(rng, draw, load, slower if number == 0 else 1.0) for _ in range(launches)]
        for name, measured in figures_of(str(number), windows):
            tests.setdefault(name, []).append(measured)
    return {apart.host for apart in summarize_suite(tests, num_hosts=hosts, whole_share=0.0).apart}


def main() -> None:
    """Print the share of fleets in which a healthy host is named, and in which the slow one is."""
    fleets = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"{fleets} fleets each; healthy: share in which anybody is named; slower: in which that one is")
    for name, draw in SHAPES.items():
        for load in (0.3, 0.7):
            for size in ((3, 1), (3, 3), (4, 3), (8, 3), (8, 5)):
                shares = []
                for slower in (1.0, 1.2, 2.0, 10.0):
                    rng = np.random.default_rng(7)
                    ahead = [named(rng, draw, load, size=size, slower=slower) for _ in range(fleets)]
                    hits = [bool(who) if slower == 1.0 else "0" in who for who in ahead]
                    shares.append(f"{np.mean(hits):6.1%}")
                at = f"{name:15} load {load:.0%}  {size[0]} hosts × {size[1]}"
                healthy, *slow = shares
                found = "  ".join(f"{x}×{y}" for x, y in zip((1.2, 2, 10), slow, strict=True))
                print(f"{at}: healthy {healthy}  {found}", flush=True)


if __name__ == "__main__":
    main()
