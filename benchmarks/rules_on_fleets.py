"""How often do rules accuse a healthy fleet, is a slow GPU found, and what does judging 4,096 GPUs cost?

Each fleet is judged by `judge_rules`, as a validation does: eight GPUs, six tests, each held against the
fleet's own baseline (required) and against its peers (advisory). GPUs differ by chance with a spread of
0.5 %, runs of one by 0.1 %; the baseline is of other GPUs of the same kind, three runs of each. Shapes:
normal, heavier tails (Student's t with 4 degrees of freedom), a long slow tail, a GPU that is alike in all
tests, figures rounded to 0.5 %, every test of another spread.
Prints shares of fleets with their 95 % upper bound; asserts nothing.
Promise: required rules accuse in 0.5 % of healthy fleets (bound 1 %), advisory ones in 5 %; one GPU of eight
5 % slow is found in 99 %; 4,096 GPUs are judged in 10 s and 1 GB.
Usage: python benchmarks/rules_on_fleets.py [FLEETS]; 2,000 take a processor a quarter of an hour.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

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
    slow: float = 0.0
    """By how much the first GPU is slower in all tests."""


SHAPES = ("normal", "t4", "slow tail", "alike", "rounded", "unlike spreads")


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
    size = (gpus, TESTS)
    normal = rng.standard_normal(size)
    if fleet.shape == "t4":
        normal = rng.standard_t(4, size) / 2**0.5
    elif fleet.shape == "slow tail":
        normal = 1 - rng.exponential(size=size)
    elif fleet.shape == "alike":
        normal = 0.3 * normal + (1 - 0.3**2) ** 0.5 * rng.standard_normal((gpus, 1))
    elif fleet.shape == "unlike spreads":
        normal *= np.geomspace(0.2, 4, TESTS)
    return normal * fleet.spread


def figures(fleet: HealthyFleet, off: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw what one run measures of GPUs that are `off`."""
    rates = RATE * (1 + off + fleet.within * rng.standard_normal(off.shape))
    step = 0.005 * RATE
    return np.round(rates / step) * step if fleet.shape == "rounded" else rates


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
        RunFigures(run_id=f"run{run}", measures=measures_of(figures(fleet, off, rng), "b"), stack=stack)
        for run in range(RUNS)
    ]
    return record_baseline("fleet", runs, recorded="2026-11-22", gpuproof_version="0")


def judge_fleet(fleet: HealthyFleet, rules: Rules, rng: np.random.Generator) -> list[Judged]:
    """Draw a baseline and a fleet, and judge it."""
    off = deviations(fleet, fleet.gpus, rng)
    off[0] -= fleet.slow
    facts = FleetFacts(
        measures=measures_of(figures(fleet, off, rng), "g"),
        hosts=hosts_of(fleet.gpus, "g"),
        baseline=baseline_of(fleet, rng),
    )
    return judge_rules(rules, facts)


def accused(judged: list[Judged], *, required: bool) -> set[str]:
    """Return the subjects that rules of a kind do not pass."""
    return {
        item.outcome.subject
        for item in judged
        if item.is_required == required and item.outcome.status != "PASS"
    }


def shares(fleet: HealthyFleet, num_fleets: int, *, seed: int) -> tuple[int, int, int]:
    """Count fleets with somebody accused by required and by advisory rules, and with the first GPU found."""
    rng, rules = np.random.default_rng(seed), rules_of(TESTS)
    required = advisory = found = 0
    for _ in range(num_fleets):
        judged = judge_fleet(fleet, rules, rng)
        by_required = accused(judged, required=True)
        required += bool(by_required)
        advisory += bool(accused(judged, required=False))
        found += "host/g0/gpu/GPU-g0" in by_required
    return required, advisory, found


def upper_bound(count: int, num: int) -> float:
    """Return the one-sided 95 % upper bound of a share."""
    return float(beta.ppf(0.95, count + 1, num - count)) if count < num else 1.0


def report_healthy(num_fleets: int) -> Iterator[str]:
    """Yield a line a shape and size of baseline."""
    for shape in SHAPES:
        for of_baseline in (8, 16, 64):
            fleet = HealthyFleet(shape=shape, of_baseline=of_baseline)
            required, advisory, _ = shares(fleet, num_fleets, seed=1)
            yield (
                f"healthy, {shape:14} baseline of {of_baseline:2}: required {required / num_fleets:7.2%} "
                f"(bound {upper_bound(required, num_fleets):.2%}), advisory {advisory / num_fleets:7.2%} "
                f"(bound {upper_bound(advisory, num_fleets):.2%})"
            )


def report_slow(num_fleets: int) -> Iterator[str]:
    """Yield a line for each slowness and size of baseline."""
    for slow in (0.02, 0.03, 0.05):
        for of_baseline in (8, 16, 64):
            fleet = HealthyFleet(of_baseline=of_baseline, slow=slow)
            _, _, found = shares(fleet, num_fleets, seed=2)
            what = f"one of 8 slow by {slow:.0%}, baseline of {of_baseline:2}"
            yield f"{what}: found in {found / num_fleets:7.2%}"


def report_cost() -> str:
    """Judge 4,096 GPUs once and say what it took."""
    fleet = HealthyFleet(gpus=4096, of_baseline=64)
    rng, rules = np.random.default_rng(3), rules_of(TESTS)
    facts = FleetFacts(
        measures=measures_of(figures(fleet, deviations(fleet, fleet.gpus, rng), rng), "g"),
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
    print(report_cost())
    print(f"{num_fleets:,} fleets each, {TESTS} tests, spread 0.5 %")
    for line in (*report_healthy(num_fleets), *report_slow(num_fleets)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
