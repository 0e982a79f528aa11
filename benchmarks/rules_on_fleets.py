"""How often do the shipped rules accuse a healthy fleet, find a slow GPU or host, and resolve enough?

Each fleet is judged by `judge_rules` with the recipes' rules (devices.yaml, jobs.yaml), as in a validation:
six tests of each GPU, seven of each host with eight GPUs, two of all hosts together. GPUs differ by chance;
runs in one session repeat to 0.1 %; sessions differ by 1 %, all results together ("shared") or each
separately ("apart"). The fleet is judged on a different day than its baseline was recorded on. Shapes:
normal, Student's t with 4 degrees of freedom, a long slow tail (exponential), a longer one (log-normal, sigma
0.8), results rounded to 0.5 %, and tests that share a GPU's deviation. "New": the baseline is from other GPUs
of the same kind. "Ready": every rule of the baseline passed, and would have detected a loss of 10 %. Prints
fractions of fleets with their 95 % upper bound, by kind of rule; asserts nothing. Promise: required rules
accuse in at most 1 % of healthy fleets; a GPU 10 % below its own history fails in 95 % and never passes all
tests; 95 % of healthy fleets are ready; 4,096 GPUs are judged in 10 s and 1 GB. "Events": healthy fleets
whose drivers report events caused by applications, also judged by the check `xid`. Usage: rules_on_fleets.py
[FLEETS [cost|repeats|rules|healthy|slow|events]]; 1,000 take an hour.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

import gpuproof
from gpuproof.records.outcome import Judged
from gpuproof.records.result import Measure
from gpuproof.statistics.estimate import FloatArray
from gpuproof.verdict.baseline import Baseline, RunValues, record_baseline, stack_of
from gpuproof.verdict.check import ask
from gpuproof.verdict.checks.events import advisory_events, judge_events
from gpuproof.verdict.facts import Announced, FleetFacts, Owner
from gpuproof.verdict.rules import judge_rules, read_rules
from gpuproof.verdict.rules.model import Rules

FLEETS = 1000
GPUS_A_HOST = 8
RATE = 1e12
"""Rate that is below what the board can do in any test, so that each result is plausible."""
BOARD = "NVIDIA H100 80GB HBM3"
DETECTS = 0.1
PRODUCTS, PATTERNS = ("fp32", "tf32", "bf16", "fp8"), ("copy", "triad")
DEVICE_TESTS: tuple[Mapping[str, object], ...] = (
    *({"stage": "gemm", "workload": "gemm", "dtype": dtype} for dtype in PRODUCTS),
    *({"stage": "memory", "workload": "memory", "pattern": pattern} for pattern in PATTERNS),
)
COLLECTIVE: Mapping[str, object] = {"stage": "collective", "quantity": "bus bandwidth"}
TRAINING: Mapping[str, object] = {"stage": "training", "workload": "model"}
TESTS = len(DEVICE_TESTS)
LOG_SIGMA = 0.8
APPLICATION_XIDS = (13, 31, 43, 45, 94)
FAULT_SHARE, CLEANUP_SHARE = 0.02, 0.1
"""Assumed fraction of GPUs with an application fault per hour of validation, and of fleets with a job
ending."""
RUN_S = 3600.0
FIRST_GPU, FIRST_HOST = "host/g0/gpu/GPU-g0", "host/g0"


@dataclass(frozen=True, kw_only=True)
class HealthyFleet:
    """The simulated fleet."""

    gpus: int = 8
    gpus_a_host: int = GPUS_A_HOST
    spread: float = 0.01
    within: float = 0.001
    day: float = 0.01
    """Standard deviation between sessions."""
    day_is_shared: bool = True
    runs: int = 3
    """Number of baseline runs on each of the baseline's days; 0: there is no baseline."""
    days: int = 2
    of_baseline: int = 0
    """Number of other GPUs that the baseline is from; 0: it is from the same GPUs."""
    shape: str = "normal"
    alike: float = 0.0
    """Correlation of a GPU's deviation between its tests."""
    alike_on_host: float = 0.0
    """Correlation of the deviations between the GPUs on a host."""
    slow: float = 0.0
    """Fraction by which the first GPUs are slower."""
    slow_gpus: int = 1
    slow_tests: int = TESTS
    """Number of tests in which these GPUs are slower."""

    def __str__(self) -> str:
        """Describe what differs from the defaults."""
        parts = [f"{self.gpus} GPUs, {self.shape} {self.spread:.1%}"]
        parts += [f"{self.gpus_a_host} a host"] * (self.gpus_a_host != GPUS_A_HOST)
        parts += [f"alike {self.alike:g}"] * bool(self.alike)
        parts += [f"hosts alike {self.alike_on_host:g}"] * bool(self.alike_on_host)
        parts += ["no baseline"] * (not self.runs)
        if self.runs:
            whose = f"of {self.of_baseline} new" if self.of_baseline else "own"
            parts.append(f"baseline {whose}, {self.runs} runs per day on {self.days}")
            parts.append(f"day {self.day:.1%} {'shared' if self.day_is_shared else 'apart'}")
        if self.slow:
            parts.append(f"{self.slow_gpus} slow by {self.slow:.0%} in {self.slow_tests} tests")
        return ", ".join(parts)


def shipped_rules() -> Rules:
    """Return the recipes' rules that judge results, except those for published values."""
    folder = Path(gpuproof.__file__).parent / "recipes" / "rules"
    both = [
        read_rules((folder / f"{name}.yaml").read_text(encoding="utf-8"), source=name)
        for name in ("devices", "jobs")
    ]
    unmeasured = ("published", "link", "copies between", "on one device", "scaling")
    return tuple(rule for rule in chain(*both) if not any(name in rule.name for name in unmeasured))


def drawn(shape: str, size: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Draw deviations of variance 1, with the long tail on the low side."""
    if shape == "t4":
        return np.asarray(rng.standard_t(4, size) / 2**0.5)
    if shape == "slow tail":
        return np.asarray(1 - rng.exponential(size=size))
    if shape == "longer tail":
        times = np.exp(LOG_SIGMA * rng.standard_normal(size))
        mean, variance = np.exp(LOG_SIGMA**2 / 2), np.exp(LOG_SIGMA**2) * (np.exp(LOG_SIGMA**2) - 1)
        return np.asarray((mean - times) / variance**0.5)
    return np.asarray(rng.standard_normal(size))


def deviations(fleet: HealthyFleet, gpus: int, rng: np.random.Generator) -> FloatArray:
    """Draw the relative deviation of each GPU in each test."""
    own, shared = (drawn(fleet.shape, (gpus, tests), rng) for tests in (TESTS, 1))
    of_host = np.repeat(drawn(fleet.shape, (gpus, 1), rng)[:: fleet.gpus_a_host], fleet.gpus_a_host, 0)[:gpus]
    shared = (1 - fleet.alike_on_host**2) ** 0.5 * shared + fleet.alike_on_host * of_host
    return np.asarray(((1 - fleet.alike**2) ** 0.5 * own + fleet.alike * shared) * fleet.spread)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Relative results of one run: for GPUs and hosts by test, and for all together."""

    gpus: FloatArray
    hosts: FloatArray
    whole: FloatArray

    def measures(self, prefix: str, gpus_a_host: int) -> list[Measure]:
        """Return the results as the measures that a run's result would contain."""
        together = [{**test, "at_once": True} for test in DEVICE_TESTS]
        alone = [{**test, "at_once": False} for test in DEVICE_TESTS]
        return [
            *(
                measure(f"host/{prefix}{gpu // gpus_a_host}/gpu/GPU-{prefix}{gpu}", test, rate)
                for gpu, rates in enumerate(self.gpus.tolist())
                for test, rate in zip(alone, rates, strict=True)
            ),
            *(
                measure(f"host/{prefix}{host}", test, rate)
                for host, rates in enumerate(self.hosts.tolist())
                for test, rate in zip((*together, COLLECTIVE), rates, strict=True)
            ),
            *(
                measure("whole", test, rate)
                for test, rate in zip((COLLECTIVE, TRAINING), self.whole.tolist(), strict=True)
            ),
        ]


def measure(subject: str, labels: Mapping[str, object], rate: float) -> Measure:
    """Return one result with the relative value `rate`."""
    is_bandwidth = labels["stage"] == "collective"
    return Measure(
        name="bus bandwidth" if is_bandwidth else "throughput",
        value=rate * RATE,
        unit="FLOP/s",
        text=f"{rate:.4f}",
        subject=subject,
        labels=labels,
        better="higher",
    )


def session(fleet: HealthyFleet, off: FloatArray, runs: int, rng: np.random.Generator) -> list[Figures]:
    """Draw the results of several runs in one session on GPUs that deviate by `off`."""
    num_hosts = -(-off.shape[0] // fleet.gpus_a_host)
    by_host = np.stack([part.mean(0) for part in np.array_split(off, num_hosts)])
    hosts = np.concatenate([by_host, by_host[:, :1]], axis=1)
    parts = [off, hosts, off[:, :2].mean(0)]
    if fleet.day_is_shared:
        effect = fleet.day * rng.standard_normal()
        days = [np.full(part.shape, effect) for part in parts]
    else:
        days = [fleet.day * rng.standard_normal(part.shape) for part in parts]
    figures = []
    for _ in range(runs):
        rates = [
            1 + part + day + fleet.within * rng.standard_normal(part.shape)
            for part, day in zip(parts, days, strict=True)
        ]
        if fleet.shape == "rounded":
            rates = [np.round(part / 0.005) * 0.005 for part in rates]
        figures.append(Figures(gpus=rates[0], hosts=rates[1], whole=rates[2]))
    return figures


def hosts_of(gpus: int, prefix: str, gpus_a_host: int) -> dict[str, dict[str, Any]]:
    """Return the facts reported by a fleet's hosts."""
    return {
        f"{prefix}{host}": {
            "torch": "2.9.1",
            "devices": [
                {"index": gpu, "uuid": f"GPU-{prefix}{gpus_a_host * host + gpu}", "name": BOARD}
                for gpu in range(min(gpus_a_host, gpus - gpus_a_host * host))
            ],
        }
        for host in range(-(-gpus // gpus_a_host))
    }


def baseline_of(fleet: HealthyFleet, off: FloatArray, rng: np.random.Generator) -> Baseline | None:
    """Record the baseline of a fleet that deviates by `off`, or of other GPUs; None if there is none."""
    if not fleet.runs:
        return None
    prefix, gpus = ("b", fleet.of_baseline) if fleet.of_baseline else ("g", fleet.gpus)
    off = deviations(fleet, gpus, rng) if fleet.of_baseline else off
    stack = stack_of(hosts_of(gpus, prefix, fleet.gpus_a_host))
    runs = [
        RunValues(
            run_id=f"run{day}-{number}",
            measures=figures.measures(prefix, fleet.gpus_a_host),
            stack=stack,
            day=f"2026-11-{day + 1:02}",
        )
        for day in range(fleet.days)
        for number, figures in enumerate(session(fleet, off, fleet.runs, rng))
    ]
    return record_baseline("fleet", runs, recorded="2026-11-22", gpuproof_version="0")


def judge_fleet(fleet: HealthyFleet, rules: Rules, rng: np.random.Generator) -> list[Judged]:
    """Draw a baseline and a fleet, and judge it."""
    off = deviations(fleet, fleet.gpus, rng)
    baseline = baseline_of(fleet, off, rng)
    off[: fleet.slow_gpus, : fleet.slow_tests] -= fleet.slow
    return judged_of(fleet, off, baseline, rules, rng)


def judged_of(
    fleet: HealthyFleet,
    off: FloatArray,
    baseline: Baseline | None,
    rules: Rules,
    rng: np.random.Generator,
) -> list[Judged]:
    """Draw a run on GPUs that deviate by `off`, in another session, and judge it."""
    (figures,) = session(fleet, off, 1, rng)
    facts = FleetFacts(
        measures=figures.measures("g", fleet.gpus_a_host),
        hosts=hosts_of(fleet.gpus, "g", fleet.gpus_a_host),
        baseline=baseline,
    )
    return judge_rules(rules, facts)


def announced(fleet: HealthyFleet, rng: np.random.Generator) -> dict[str, list[Announced]]:
    """Draw the driver events of a healthy fleet: user faults, and what ending jobs leave behind."""
    subjects = [f"host/g{gpu // fleet.gpus_a_host}/gpu/GPU-g{gpu}" for gpu in range(fleet.gpus)]
    events: dict[str, list[Announced]] = {subject: [] for subject in subjects}
    for subject in subjects:
        for process in (5001, 5002):
            if rng.random() < FAULT_SHARE:
                code, is_named = rng.choice(APPLICATION_XIDS), rng.random() < 0.5
                pid = process if is_named else None
                owner: Owner = "another's" if is_named else "unknown"
                at_s = rng.uniform(0, RUN_S)
                events[subject] += [
                    Announced(
                        title=f"xid {code}", unix_s=at_s + number, pid=pid, owner=owner, launch="gemm/0"
                    )
                    for number in range(rng.integers(1, 6))
                ]
        if rng.random() < FAULT_SHARE:
            events[subject].append(Announced(title="ecc_corrected_count", growth=1.0, launch="gemm/0"))
    if rng.random() < CLEANUP_SHARE:
        at_s = rng.uniform(0, RUN_S)
        for subject in subjects:
            events[subject] += [
                Announced(title="xid 45", unix_s=at_s + n, launch="gemm/0") for n in range(40)
            ]
    return events


def with_listed(hosts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return hosts whose driver also lists their GPUs."""
    return {
        host: {
            **told,
            "accelerators": {
                "devices": [{**gpu, "framework_index": gpu["index"]} for gpu in told["devices"]]
            },
        }
        for host, told in hosts.items()
    }


def with_events(most: int) -> Iterator[str]:
    """Yield how many healthy fleets a required rule accuses though all events are from applications."""
    rules, everything = shipped_rules(), Counter[str]()
    for shape in ("normal", "t4", "slow tail", "longer tail"):
        rng, seen = np.random.default_rng(8), Counter[str]()
        fleet = HealthyFleet(shape=shape, gpus_a_host=4)
        for _ in range(most):
            off = deviations(fleet, fleet.gpus, rng)
            judged = judged_of(fleet, off, baseline_of(fleet, off, rng), rules, rng)
            hosts = with_listed(hosts_of(fleet.gpus, "g", fleet.gpus_a_host))
            facts = FleetFacts(hosts=hosts, events=announced(fleet, rng))
            of_events = ask([judge_events], facts)
            failed = any(item.outcome.status != "PASS" for item in of_events)
            accused = any(x.is_required and x.outcome.status == "FAIL" for x in judged)
            seen += Counter(
                fleets=1,
                events=failed,
                rules=accused,
                any=failed or accused,
                advisory=bool(advisory_events(facts)),
            )
        everything += seen
        yield f"{fleet}: {_shares(seen)}"
    yield f"all shapes: {_shares(everything)}"


def _shares(seen: Counter[str]) -> str:
    num = seen["fleets"]
    shown = [
        f"{kind} {seen[kind] / num:.2%} (bound {upper_bound(seen[kind], num):.2%})"
        for kind in ("events", "rules", "any")
    ]
    return f"{num:,} fleets, {seen['advisory'] / num:.0%} with advisory events: {', '.join(shown)}"


def happened(judged: list[Judged], fleet: HealthyFleet) -> Iterator[str]:
    """Yield what is counted for one fleet."""
    slow = {f"host/g{gpu // fleet.gpus_a_host}/gpu/GPU-g{gpu}" for gpu in range(fleet.slow_gpus)}
    slow_host = {FIRST_HOST} if fleet.slow_gpus >= fleet.gpus_a_host else set()
    for basis in ("baseline", "peers"):
        items = [item for item in judged if item.basis == basis]
        failed = {item.outcome.subject for item in items if item.outcome.status == "FAIL"}
        if failed:
            yield f"{basis} accuses"
        if fleet.slow and (slow <= failed or (slow_host and slow_host <= failed)):
            yield f"{basis} names"
        if any(item.outcome.status in ("ERROR", "WARN") for item in items):
            yield f"{basis} undecided"
        of_slow = [item.outcome.status for item in items if item.outcome.subject == FIRST_GPU]
        if fleet.slow and set(of_slow) == {"PASS"}:
            yield f"{basis} passes"
        resolutions = [item.outcome.minimum_detectable for item in items if item.outcome.status == "PASS"]
        is_fine = all(one is not None and one <= DETECTS for one in resolutions)
        if basis == "baseline" and is_fine and len(resolutions) == len(items):
            yield "ready"
    if any(item.outcome.status == "FAIL" for item in judged):
        yield "accused"


def count(fleet: HealthyFleet, num_fleets: int, *, seed: int) -> Counter[str]:
    """Judge this many fleets and count the outcomes."""
    rng, rules = np.random.default_rng(seed), shipped_rules()
    if not fleet.runs:
        rules = tuple(rule for rule in rules if "baseline" not in rule.name)
    counted: Counter[str] = Counter()
    for _ in range(num_fleets):
        counted.update(set(happened(judge_fleet(fleet, rules, rng), fleet)))
    return counted


def upper_bound(count: int, num: int) -> float:
    """Return the one-sided 95 % upper bound of a proportion."""
    return float(beta.ppf(0.95, count + 1, num - count)) if count < num else 1.0


def fleets_of(fleet: HealthyFleet, most: int) -> int:
    """Return how many fleets of a kind to simulate: fewer if they have many GPUs."""
    return max(1, most * 16 // fleet.gpus) if fleet.gpus > 16 else most


def report(fleet: HealthyFleet, most: int) -> str:
    """Return a line: alarms or power for each kind of rule, and how many fleets are ready."""
    num = fleets_of(fleet, most)
    seen = count(fleet, num, seed=1)
    if fleet.slow:
        shown = [f"{basis} names {seen[f'{basis} names'] / num:.1%}" for basis in ("baseline", "peers")]
        shown.append(f"passes all its tests {seen['baseline passes']} times")
    else:
        kinds = ("accused", "baseline accuses", "peers accuses", "peers undecided")
        shown = [
            f"{kind} {seen[kind] / num:.2%} (bound {upper_bound(seen[kind], num):.2%})" for kind in kinds
        ]
        shown.append(f"ready {seen['ready'] / num:.1%}")
    return f"{fleet}, {num:,} fleets: {', '.join(shown)}"


def healthy() -> Iterator[HealthyFleet]:
    """Yield the fleets in which nothing should be accused."""
    shapes = ("normal", "t4")
    sizes = ((1, 8), (2, 8), (4, 8), (4, 1), (8, 8), (8, 4), (64, 8))
    for (gpus, a_host), spread, shape in product(sizes, (0.005, 0.01), shapes):
        for day_is_shared in (True, False):
            yield HealthyFleet(
                gpus=gpus, gpus_a_host=a_host, spread=spread, shape=shape, day_is_shared=day_is_shared
            )
    tails = ("normal", "t4", "slow tail", "longer tail")
    for shape, alike, gpus in product((*tails, "rounded"), (0.0, 0.95), (8, 64, 256)):
        yield HealthyFleet(shape=shape, alike=alike, gpus=gpus, spread=0.02, runs=0)
    for shape, alike in product(tails, (0.0, 0.95)):
        yield HealthyFleet(shape=shape, alike=alike, gpus=64, spread=0.02, runs=0, alike_on_host=0.9)
        for gpus, of_baseline in ((8, 8), (8, 64), (64, 64), (256, 64)):
            yield HealthyFleet(shape=shape, alike=alike, gpus=gpus, of_baseline=of_baseline, spread=0.005)


def slow() -> Iterator[HealthyFleet]:
    """Yield the fleets in which something is slow."""
    for loss, tests, shared in product((0.05, 0.1), (TESTS, 1), (True, False)):
        yield HealthyFleet(slow=loss, slow_tests=tests, day_is_shared=shared)
    for loss, of_baseline in product((0.05, 0.1, 0.2), (8, 64)):
        yield HealthyFleet(slow=loss, of_baseline=of_baseline, spread=0.005)
    no_baseline = HealthyFleet(spread=0.005, runs=0)
    for num, gpus in ((1, 8), (1, 64), (2, 64), (8, 64)):
        for loss, alike, of_hosts in (
            (0.05, 0.0, 0.0),
            (0.05, 0.95, 0.0),
            (0.05, 0.95, 0.9),
            (0.1, 0.95, 0.0),
        ):
            fleet = replace(no_baseline, gpus=gpus, slow_gpus=num, slow=loss)
            yield replace(fleet, alike=alike, alike_on_host=of_hosts)


def repeats() -> Iterator[str]:
    """Yield the resolution of a baseline by number of GPUs, runs and days."""
    rng = np.random.default_rng(4)
    for gpus, runs, days in product((1, 8), (2, 3, 5), (1, 2, 5)):
        fleet = HealthyFleet(gpus=gpus, runs=runs, days=days)
        judged = judge_fleet(fleet, shipped_rules(), rng)
        shown = [
            max(
                i.outcome.minimum_detectable or 1.0
                for i in judged
                if i.basis == "baseline" and kind in i.name
            )
            for kind in ("of each device", "")
        ]
        yield f"{fleet}: resolves {shown[0]:.1%} for a GPU, {shown[1]:.1%} for all"


def by_rule(num_fleets: int) -> Iterator[str]:
    """Yield for each shipped rule its alarms, its power and how often its resolution suffices for READY."""
    healthy_fleet = HealthyFleet()
    slow_fleet = replace(healthy_fleet, slow=0.1)
    alarms, ready, power = (Counter[str]() for _ in range(3))
    for fleet, seed in ((healthy_fleet, 6), (slow_fleet, 7)):
        rng = np.random.default_rng(seed)
        for _ in range(num_fleets):
            outcomes: dict[str, list[Judged]] = {}
            for item in judge_fleet(fleet, shipped_rules(), rng):
                rule = f"{item.name.partition(',')[0]}, by {item.basis}"
                outcomes.setdefault(rule, []).append(item)
            for name, items in outcomes.items():
                is_failed = any(item.outcome.status == "FAIL" for item in items)
                (power if fleet.slow else alarms)[name] += is_failed
                ready[name] += not fleet.slow and all(map(_closes, items))
    yield f"{healthy_fleet}; power: the first GPU 10 % slow in all tests; {num_fleets} fleets each"
    for name in {**alarms, **power}:
        bound = upper_bound(alarms[name], num_fleets)
        shares = f"alarms {alarms[name] / num_fleets:.2%} (bound {bound:.2%})"
        yield (
            f"{name}: {shares}, power {power[name] / num_fleets:.1%}, suffices for READY in "
            f"{ready[name] / num_fleets:.1%}"
        )


def _closes(item: Judged) -> bool:
    """Return whether an outcome decides its cell at the required resolution; peer rules never do."""
    loss = item.outcome.minimum_detectable
    is_absolute = item.basis != "peers"
    return is_absolute and item.outcome.status == "PASS" and loss is not None and loss <= DETECTS


def report_cost() -> str:
    """Judge 4,096 GPUs once and report the cost."""
    fleet = HealthyFleet(gpus=4096)
    rng, rules = np.random.default_rng(3), shipped_rules()
    off = deviations(fleet, fleet.gpus, rng)
    (figures,) = session(fleet, off, 1, rng)
    facts = FleetFacts(
        measures=figures.measures("g", GPUS_A_HOST),
        hosts=hosts_of(fleet.gpus, "g", GPUS_A_HOST),
        baseline=baseline_of(fleet, off, rng),
    )
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    judged = judge_rules(rules, facts)
    took_s, took_cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    took = f"{took_s:.1f} s ({took_cpu_s:.1f} s of CPU time)"
    return f"4,096 GPUs, {len(judged):,} outcomes: {took}, process peak {peak_gb:.2f} GB"


def main() -> None:
    """Print all results."""
    num_fleets = int(sys.argv[1]) if len(sys.argv) > 1 else FLEETS
    wanted = sys.argv[2:] or ["cost", "repeats", "rules", "healthy", "slow"]
    if "cost" in wanted:
        print(report_cost(), flush=True)
    for line in repeats() if "repeats" in wanted else ():
        print(line, flush=True)
    for line in by_rule(num_fleets) if "rules" in wanted else ():
        print(line, flush=True)
    for line in with_events(num_fleets) if "events" in wanted else ():
        print(line, flush=True)
    fleets = chain(healthy() if "healthy" in wanted else (), slow() if "slow" in wanted else ())
    for fleet in fleets:
        print(report(fleet, num_fleets), flush=True)


if __name__ == "__main__":
    main()
