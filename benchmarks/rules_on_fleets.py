"""How often do rules accuse a healthy fleet, is a slow GPU found, and what does judging 4,096 GPUs cost?

Each fleet is judged by `judge_rules`, as a validation does: eight GPUs, six tests, each held against the
fleet's own baseline (required) and against its peers (advisory). GPUs differ by chance with a spread of
0.5 %, runs of one by 0.1 %; the baseline is of other GPUs of the same kind, three runs of each. Shapes:
normal, heavier tails (Student's t with 4 degrees of freedom), a long slow tail (exponential), a longer one
(log-normal, sigma 0.8), these where a GPU is alike in all tests, every test of another spread, figures
rounded to 0.5 %, runs of a GPU that wander together (AR(1) of 0.97, as much as GPUs differ), figures of three
iterations with log-normal noise of 1 %; spreads of 2 %; fleets of 64 and 256 GPUs.
Prints shares of fleets with their 95 % upper bound; asserts nothing.
Promise: required rules accuse in 0.5 % of healthy fleets (bound 1 %), advisory ones in 5 %; one GPU of eight
5 % slow is found in 99 %; 4,096 GPUs are judged in 10 s and 1 GB.
Usage: python benchmarks/rules_on_fleets.py [FLEETS [healthy|slow|cost]]; 2,000 take a processor 25 minutes.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import chain, product

import numpy as np
from scipy.stats import beta

from gpuproof.records.outcome import Judged
from gpuproof.records.result import Measure
from gpuproof.statistics.estimate import FloatArray
from gpuproof.verdict.baseline import Baseline, RunFigures, record_baseline, stack_of
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules import Rules, judge_rules, read_rules

FLEETS = 2000
TESTS = 6
RUNS = 3
RATE = 7e14
BOARD = "NVIDIA H100 80GB HBM3"
RULE = """\
  - name: {form} {test}
    required: {required}
    each: gpu
    measure: {{name: throughput, labels: {{workload: test{test}}}}}
    expect: {{{expect}}}
"""


@dataclass(frozen=True, kw_only=True)
class HealthyFleet:
    """What is simulated."""

    gpus: int = 8
    of_baseline: int = 16
    """GPUs that the baseline was recorded on."""
    spread: float = 0.005
    within: float = 0.001
    shape: str = "normal"
    alike: float = 0.0
    """Correlation of a GPU's deviation between its tests."""
    slow: float = 0.0
    """By how much the first GPU is slower …"""
    slow_tests: int = TESTS
    """… in so many tests."""


SHAPES = (
    *("normal", "t4", "slow tail", "longer tail", "rounded", "wandering", "unlike spreads"),
    "few iterations",
)
ITERATIONS = 3
ITERATION_SPREAD = 0.01
TAILS = ("t4", "slow tail", "longer tail")
ALIKE = 0.95
SLOW = ((0.05, TESTS, 0.0), (0.05, TESTS, ALIKE), (0.05, 2, 0.0), (0.05, 1, 0.0), (0.08, 1, 0.0))
"""By how much, in how many tests, and how alike the tests of a GPU are."""
FIRST = "host/g0/gpu/GPU-g0"
LOG_SIGMA = 0.8
WANDERING = 0.97
"""Autocorrelation of one run's figure with the next."""


def rules_of(num_tests: int) -> Rules:
    """Return a required rule and an advisory one for each test."""
    forms = (("baseline", "true", "baseline: measured"), ("peers", "false", "peers: true"))
    entries = [
        RULE.format(form=form, test=test, required=required, expect=expect)
        for test in range(num_tests)
        for form, required, expect in forms
    ]
    return read_rules("rules:\n" + "".join(entries), source="rules.yaml")


def deviations(fleet: HealthyFleet, gpus: int, rng: np.random.Generator) -> FloatArray:
    """Draw how far each GPU is off in each test, relative."""
    own, shared = (drawn(fleet.shape, (gpus, tests), rng) for tests in (TESTS, 1))
    off = (1 - fleet.alike**2) ** 0.5 * own + fleet.alike * shared
    if fleet.shape == "unlike spreads":
        off *= np.geomspace(0.2, 4, TESTS)
    return np.asarray(off * fleet.spread)


def drawn(shape: str, size: tuple[int, int], rng: np.random.Generator) -> FloatArray:
    """Draw deviations of variance 1."""
    if shape == "t4":
        return np.asarray(rng.standard_t(4, size) / 2**0.5)
    if shape == "slow tail":
        return np.asarray(1 - rng.exponential(size=size))
    if shape == "longer tail":
        times = np.exp(LOG_SIGMA * rng.standard_normal(size))
        mean, variance = np.exp(LOG_SIGMA**2 / 2), np.exp(LOG_SIGMA**2) * (np.exp(LOG_SIGMA**2) - 1)
        return np.asarray((mean - times) / variance**0.5)
    return np.asarray(rng.standard_normal(size))


def runs_of(
    fleet: HealthyFleet, off: FloatArray, num_runs: int, rng: np.random.Generator
) -> list[FloatArray]:
    """Draw what runs measure of GPUs that are `off`."""
    wander = fleet.spread * rng.standard_normal(off.shape) if fleet.shape == "wandering" else 0 * off
    found, step = [], 0.005 * RATE
    for _ in range(num_runs):
        noise = fleet.within * rng.standard_normal(off.shape)
        if fleet.shape == "few iterations":
            iterations = [drawn("longer tail", off.shape, rng) for _ in range(ITERATIONS)]
            noise = ITERATION_SPREAD * np.mean(iterations, axis=0)
        rates = RATE * (1 + off + wander + noise)
        found.append(np.round(rates / step) * step if fleet.shape == "rounded" else rates)
        wander = WANDERING * wander + (1 - WANDERING**2) ** 0.5 * fleet.spread * rng.standard_normal(
            off.shape
        ) * (fleet.shape == "wandering")
    return found


def measures_of(rates: FloatArray, prefix: str) -> list[Measure]:
    """Return what a run of these rates has, eight GPUs a host."""
    return [
        Measure(
            name="throughput",
            value=float(rates[gpu, test]),
            unit="FLOP/s",
            text="",
            subject=f"host/{prefix}{gpu // 8}/gpu/GPU-{prefix}{gpu}",
            labels={"workload": f"test{test}"},
            better="higher",
        )
        for gpu in range(rates.shape[0])
        for test in range(rates.shape[1])
    ]


def hosts_of(gpus: int, prefix: str) -> dict[str, dict[str, object]]:
    """Return what the hosts of a fleet tell."""
    return {
        f"{prefix}{host}": {
            "torch": "2.9.1",
            "devices": [
                {"index": gpu, "uuid": f"GPU-{prefix}{8 * host + gpu}", "name": BOARD}
                for gpu in range(min(8, gpus - 8 * host))
            ],
        }
        for host in range((gpus + 7) // 8)
    }


def baseline_of(fleet: HealthyFleet, rng: np.random.Generator) -> Baseline:
    """Record a baseline of other GPUs of the same kind."""
    off = deviations(fleet, fleet.of_baseline, rng)
    stack = stack_of(hosts_of(fleet.of_baseline, "b"))
    runs = [
        RunFigures(run_id=f"run{run}", measures=measures_of(rates, "b"), stack=stack)
        for run, rates in enumerate(runs_of(fleet, off, RUNS, rng))
    ]
    return record_baseline("fleet", runs, recorded="2026-11-22", gpuproof_version="0")


def judge_fleet(fleet: HealthyFleet, rules: Rules, rng: np.random.Generator) -> list[Judged]:
    """Draw a baseline and a fleet, and judge it."""
    off = deviations(fleet, fleet.gpus, rng)
    off[0, : fleet.slow_tests] -= fleet.slow
    (rates,) = runs_of(fleet, off, 1, rng)
    facts = FleetFacts(
        measures=measures_of(rates, "g"),
        hosts=hosts_of(fleet.gpus, "g"),
        baseline=baseline_of(fleet, rng),
    )
    return judge_rules(rules, facts)


def named(judged: list[Judged], *statuses: str, required: bool) -> set[str]:
    """Return the subjects of which rules of a kind say this."""
    return {
        item.outcome.subject
        for item in judged
        if item.is_required == required and item.outcome.status in statuses
    }


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Fleets of so many."""

    required: int
    """With somebody failed by a required rule."""
    undecided: int
    """With somebody whom a required rule could not judge."""
    advisory: int
    """With somebody of whom an advisory rule says that it stands apart."""
    doubtful: int
    """With somebody whom an advisory rule could not judge."""
    advised: int
    """With the first GPU said to stand apart by an advisory rule."""
    found: int
    """With the first GPU failed by a required rule …"""
    doubted: int
    """… and with it failed, or not judged."""


def count(fleet: HealthyFleet, num_fleets: int, *, seed: int) -> Counted:
    """Judge so many fleets."""
    rng, rules = np.random.default_rng(seed), rules_of(TESTS)
    counted: Counter[str] = Counter()
    for _ in range(num_fleets):
        judged = judge_fleet(fleet, rules, rng)
        failed = named(judged, "FAIL", required=True)
        errors = named(judged, "ERROR", required=True)
        apart = named(judged, "WARN", "FAIL", required=False)
        happened = {
            "required": failed,
            "undecided": errors,
            "advisory": apart,
            "doubtful": named(judged, "ERROR", required=False),
            "found": failed & {FIRST},
            "doubted": (failed | errors) & {FIRST},
            "advised": apart & {FIRST},
        }
        counted.update(what for what, subjects in happened.items() if subjects)
    return Counted(**{each.name: counted[each.name] for each in fields(Counted)})


def upper_bound(count: int, num: int) -> float:
    """Return the one-sided 95 % upper bound of a share."""
    return float(beta.ppf(0.95, count + 1, num - count)) if count < num else 1.0


def fleets_of(fleet: HealthyFleet, most: int) -> int:
    """Return how many fleets of a kind are simulated: fewer of many GPUs."""
    return max(1, most * 16 // fleet.gpus) if fleet.gpus > 8 else most


def report_healthy(most: int) -> Iterator[str]:
    """Yield a line a shape; of those with tails also where tests are alike, and of a larger baseline."""
    fleets = [HealthyFleet(shape=shape) for shape in SHAPES]
    for shape in TAILS:
        fleets.append(HealthyFleet(shape=shape, of_baseline=64))
        fleets += [HealthyFleet(shape=shape, of_baseline=num, alike=ALIKE) for num in (8, 16, 64)]
        fleets.append(HealthyFleet(shape=shape, spread=0.02))
    for shape, gpus in product(("t4", "longer tail"), (64, 256)):
        for alike in (0.0, ALIKE):
            fleets += [HealthyFleet(shape=shape, gpus=gpus, of_baseline=64, alike=alike)]
    for fleet in fleets:
        num_fleets = fleets_of(fleet, most)
        seen = count(fleet, num_fleets, seed=1)
        said = ", ".join(
            f"{what} {number / num_fleets:.2%} (bound {upper_bound(number, num_fleets):.2%})"
            for what, number in (
                ("required", seen.required),
                ("undecided", seen.undecided),
                ("advisory", seen.advisory),
                ("doubtful", seen.doubtful),
            )
        )
        what = f"{fleet.gpus} GPUs, {fleet.shape}, spread {fleet.spread:.1%}, alike {fleet.alike:g}"
        yield f"healthy, {what}, baseline of {fleet.of_baseline}, {num_fleets:,} fleets: {said}"


def report_slow(num_fleets: int) -> Iterator[str]:
    """Yield a line for each slowness, in so many tests, and size of baseline."""
    for slow, tests, alike in SLOW:
        for of_baseline in (8, 16, 64):
            fleet = HealthyFleet(of_baseline=of_baseline, slow=slow, slow_tests=tests, alike=alike)
            seen = count(fleet, num_fleets, seed=2)
            what = f"one of 8 slow by {slow:.0%} in {tests} of {TESTS} tests, alike {alike:g}"
            found, doubted = seen.found / num_fleets, seen.doubted / num_fleets
            said = f"failed in {found:.2%}, not passed in {doubted:.2%}"
            yield f"{what}, baseline of {of_baseline}: {said}, advised in {seen.advised / num_fleets:.2%}"


def report_cost() -> str:
    """Judge 4,096 GPUs once and say what it took."""
    fleet = HealthyFleet(gpus=4096, of_baseline=64)
    rng, rules = np.random.default_rng(3), rules_of(TESTS)
    (rates,) = runs_of(fleet, deviations(fleet, fleet.gpus, rng), 1, rng)
    facts = FleetFacts(
        measures=measures_of(rates, "g"),
        hosts=hosts_of(fleet.gpus, "g"),
        baseline=baseline_of(fleet, rng),
    )
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    judged = judge_rules(rules, facts)
    took_s, took_cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    took = f"{took_s:.1f} s ({took_cpu_s:.1f} s of one processor)"
    return f"4,096 GPUs, {len(judged):,} outcomes: {took}, {peak_gb:.2f} GB at most of the process"


def main() -> None:
    """Print every figure."""
    num_fleets = int(sys.argv[1]) if len(sys.argv) > 1 else FLEETS
    wanted = sys.argv[2:] or ["cost", "healthy", "slow"]
    if "cost" in wanted:
        print(report_cost(), flush=True)
    print(f"{num_fleets:,} fleets each, {TESTS} tests, spread 0.5 % if nothing else is said")
    healthy = report_healthy(num_fleets) if "healthy" in wanted else ()
    for line in chain(healthy, report_slow(num_fleets // 4) if "slow" in wanted else ()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
