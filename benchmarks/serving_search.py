"""How often is the rate that the serving search confirms too high, and what does a search cost?

Runs whole searches, as in `gpuproof run serving`, on one server with a known queue: Poisson arrivals, first
come, first served, with service times constant (M/D/1), exponential (M/M/1) or lognormal with a coefficient
of variation of 2. The bound is the true percentile at a load, so that every higher rate violates it, however
slightly. Waiting times follow from Lindley's recursion, for all requests of a launch at once: w(n) = S(n) −
min S(k ≤ n), where S is the sum of service minus gap. Then other kinds of servers: stalls, slow first
requests, two kinds of requests, many failures, too few requests.

The promise: a rate reported as met violates the true percentile in at most 5 % of searches.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log, sqrt
from statistics import median

import numpy as np

from gpuproof.base.units import seconds
from gpuproof.launches.bounds import Bound, RequestSeries, judge_rate
from gpuproof.statistics.estimate import FloatArray
from gpuproof.suites.serving.search import Effort, Rates, RateSearch
from pairing import machine_line

Draw = Callable[[np.random.Generator, int], FloatArray]
SPREAD = sqrt(log(1 + 2.0**2))
"""Standard deviation of a lognormal time's logarithm, for a coefficient of variation of 2."""
SERVICES: dict[str, Draw] = {
    "M/D/1": lambda _, number: np.ones(number),
    "M/M/1": lambda rng, number: rng.exponential(size=number),
    "M/G/1 lognormal": lambda rng, number: rng.lognormal(-(SPREAD**2) / 2, SPREAD, number),
    "M/G/1 bimodal": lambda rng, number: np.where(rng.random(number) < 0.05, 10.5, 0.5),
}
LOADS = (0.7, 0.8, 0.9, 0.95)
EFFORT = Effort(confirmations=3, min_requests=1000, window_s=10.0, time_at_a_rate_s=300.0)
"""Search settings: the recipe's defaults."""
SHORT = Effort(confirmations=3, min_requests=30, window_s=0.5, time_at_a_rate_s=2.0)
PRECISION = 0.05
TRUTH_REQUESTS = 4_000_000
INSIDE = 0.8
"""Fraction of the true highest rate that is comfortably within the limit."""
LAUNCH_S = 5.0
"""Cost of a launch in addition to its arrivals, as a round number."""
SEED = 20261122


Disturb = Callable[[np.random.Generator, FloatArray, FloatArray], FloatArray]
"""(generator, arrivals, services in seconds) → services; infinite means a request that fails at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server whose latencies can be drawn: its service times, and other effects on its requests."""

    service: Draw
    capacity_per_s: float = 1000.0
    disturb: Disturb = lambda _, __, service_s: service_s

    def latencies(self, rng: np.random.Generator, rate_per_s: float, number: int) -> FloatArray:
        """Return the latency in seconds of each request of a launch that starts idle."""
        gaps = rng.exponential(1 / rate_per_s, number)
        service = self.disturb(rng, np.cumsum(gaps), self.service(rng, number) / self.capacity_per_s)
        failed = ~np.isfinite(service)
        busy = np.where(failed, 0.0, service)
        steps = np.concatenate([[0.0], np.cumsum(busy[:-1] - gaps[1:])])
        latency: FloatArray = steps - np.minimum.accumulate(steps) + busy
        latency[failed] = inf
        return latency


def stalls(rng: np.random.Generator, arrivals_s: FloatArray, service_s: FloatArray) -> FloatArray:
    """Make the server stall for 0.5 s at random, every 50 s on average."""
    moments_s = np.cumsum(rng.exponential(50.0, 10 + int(arrivals_s[-1] / 25)))
    hit = np.searchsorted(arrivals_s, moments_s[moments_s < arrivals_s[-1]])
    stalled = service_s.copy()
    np.add.at(stalled, hit, 0.5)
    return stalled


def slow_start(_: np.random.Generator, arrivals_s: FloatArray, service_s: FloatArray) -> FloatArray:
    """Make the first half second of every launch take ten times as long."""
    return np.where(arrivals_s < 0.5, 10 * service_s, service_s)


def failures(rng: np.random.Generator, _: FloatArray, service_s: FloatArray) -> FloatArray:
    """Make 1 % of requests fail."""
    return np.where(rng.random(len(service_s)) < 0.01, inf, service_s)


HOSTILE: dict[str, tuple[Disturb, Effort]] = {
    "stalls of 0.5 s": (stalls, EFFORT),
    "slow start": (slow_start, EFFORT),
    "1 % fail": (failures, EFFORT),
    "too few requests": (lambda _, __, service_s: service_s, SHORT),
}


def true_percentile_s(name: str, load: float, q: float) -> float:
    """Return the latency percentile at a load, for at most 1,000 requests/s; M/M/1 in closed form."""
    if name == "M/M/1":
        return -log(1 - q / 100) / (1 - load) / Server(service=SERVICES[name]).capacity_per_s
    return float(np.quantile(_long_run(Server(service=SERVICES[name]), load), q / 100))


@lru_cache(maxsize=2)
def _long_run(server: Server, load: float) -> FloatArray:
    """Return the latencies of eight long windows, each without its initial part."""
    rng, rate_per_s = np.random.default_rng(SEED), load * server.capacity_per_s
    windows = [server.latencies(rng, rate_per_s, TRUTH_REQUESTS) for _ in range(8)]
    return np.concatenate([window[TRUTH_REQUESTS // 50 :] for window in windows])


def true_share_over(server: Server, load: float, limit_s: float) -> float:
    """Return the fraction of all requests at a load that exceed a limit."""
    return float((_long_run(server, load) > limit_s).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of one search."""

    met: float | None
    """Highest rate that met the bound, as a fraction of the capacity."""
    refuted: float | None
    num_launches: int
    arrivals_s: float


def search(rng: np.random.Generator, server: Server, bound: Bound, *, effort: Effort = EFFORT) -> Found:
    """Run a whole search; launches are drawn instead of run."""
    ceiling_per_s, launches, arrivals_s = server.capacity_per_s, 1, 0.0
    rates: dict[float, list[RequestSeries]] = {}
    found: Rates = {}
    while True:
        known = RateSearch(ceiling_per_s=ceiling_per_s, rates=found, precision=PRECISION, effort=effort)
        if known.next_launch is None:
            break
        rate, num_requests = known.next_launch
        latency_s = server.latencies(rng, rate, num_requests)
        at_rate = rates.setdefault(rate, [])
        at_rate.append(RequestSeries(latency_s, latency_s, latency_s))
        judgement = judge_rate(at_rate, [bound], confirmations=effort.confirmations)
        found = dict(sorted({**found, rate: judgement}.items()))
        launches, arrivals_s = launches + 1, arrivals_s + len(latency_s) / rate
    return Found(
        met=None if known.met_per_s is None else known.met_per_s / ceiling_per_s,
        refuted=None if known.not_met_per_s is None else known.not_met_per_s / ceiling_per_s,
        num_launches=launches,
        arrivals_s=arrivals_s,
    )


def searches(
    name: str, load: float, q: float, *, number: int, capacity_per_s: float = 1000.0, seed: int = SEED
) -> list[Found]:
    """Run this many searches on a server whose highest rate is `load`."""
    limit_s = true_percentile_s(name, load, q) * 1000.0 / capacity_per_s
    bound = Bound(name="latency", limit=limit_s, q=q)
    server, rng = Server(service=SERVICES[name], capacity_per_s=capacity_per_s), np.random.default_rng(seed)
    return [search(rng, server, bound) for _ in range(number)]


def hostile_searches(name: str, *, number: int, seed: int = SEED) -> tuple[list[Found], int]:
    """Search a disturbed M/M/1 with a p99 limit of 50 ms; return the results, and how many are too high."""
    disturb, effort = HOSTILE[name]
    server, bound = (
        Server(service=SERVICES["M/M/1"], disturb=disturb),
        Bound(name="latency", limit=0.05, q=99),
    )
    rng = np.random.default_rng(seed)
    found = [search(rng, server, bound, effort=effort) for _ in range(number)]
    shares = [true_share_over(server, one.met, bound.limit) for one in found if one.met is not None]
    return found, sum(share > bound.allowed for share in shares)


def num_violating(found: Sequence[Found], load: float) -> int:
    """Count the searches that confirmed a rate above the true highest one."""
    return sum(one.met is not None and one.met > load for one in found)


def line_of(name: str, load: float, q: float, found: Sequence[Found]) -> str:
    """Return the results of searches on one server."""
    number = len(found)
    low = sum(one.refuted is not None and one.refuted < load for one in found)
    inside = sum(one.met is not None and one.met >= INSIDE * load for one in found)
    met = sorted(one.met / load if one.met else 0.0 for one in found)
    return (
        f"{name:>15} load {load:g} p{q:g}: too high {num_violating(found, load)}/{number}, wrongly "
        f"rejected {low}/{number}; met at {INSIDE:.0%} of the true rate or more {inside / number:.0%}, "
        f"median {median(met):.0%} of it (5th of 100: {met[number // 20]:.0%}); {cost_of(found)}"
    )


def cost_of(found: Sequence[Found]) -> str:
    """Return the launches and seconds of a search."""
    cost_s = [one.arrivals_s + LAUNCH_S * one.num_launches for one in found]
    return (
        f"launches {median(one.num_launches for one in found):.0f}, arrivals "
        f"{seconds(median(one.arrivals_s for one in found))}, total {seconds(median(cost_s))} "
        f"(longest {seconds(max(cost_s))})"
    )


def hostile_line(name: str, found: Sequence[Found], too_high: int) -> str:
    """Return the results of searches on a disturbed server."""
    met = [one.met for one in found if one.met is not None]
    at = f", median at load {median(met):.2f}" if met else ""
    return f"{name:>18}: too high {too_high}/{len(found)}; a rate met in {len(met)}{at}; {cost_of(found)}"


def main() -> None:
    """Run the searches and compare them with the promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=100, help="number per server (default 100)")
    parser.add_argument("--quick", action="store_true", help="3 of each")
    options = parser.parse_args()
    number, wrong, total = 3 if options.quick else options.searches, 0, 0
    print(machine_line())
    for capacity_per_s in (100.0, 1000.0):
        print(f"a server with at most {capacity_per_s:g} requests/s")
        for name in SERVICES:
            for load in LOADS:
                found = searches(name, load, 99.0, number=number, capacity_per_s=capacity_per_s)
                wrong, total = wrong + num_violating(found, load), total + number
                print(line_of(name, load, 99.0, found), flush=True)
    print(f"too high: {wrong} of {total}, promised at most 5 %")
    for name in HOSTILE:
        print(hostile_line(name, *hostile_searches(name, number=number)), flush=True)


if __name__ == "__main__":
    main()
