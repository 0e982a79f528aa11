"""The faults that are planted: each with the layer that carries it, the word it turns to, and its cause.

A fault is found where the word is one of those expected and what speaks against a better one names the cause:
all of `names`. Its healthy twin is the same without the fault, and has to be READY.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from gpuproof.errors import UsageError
from gpuproof.selftest.devices import LAST, judge_devices
from gpuproof.selftest.fleet import Fleet, with_fault
from gpuproof.selftest.judging import FIGURES, Turned, judge_fleet, judge_links
from gpuproof.selftest.past import judge_past
from gpuproof.selftest.worker import judge_copies, judge_fingerprints, judge_products, judge_training

Layer = Literal["worker", "device", "records", "rules"]
Twin = Literal[
    "fleet", "devices", "links", "products", "training", "fingerprints", "copies", "past", "pod", "alone"
]
REFUSED = "REFUSED"
"""Rules that cannot judge are a mistake in use: nothing is judged by them."""
BAD = ("NOT-READY", "READY-WITH-EXCLUSIONS")
OPEN = ("INCONCLUSIVE",)
SLOWER = 1.3
THROTTLED = 1.6
"""As far as the clock of the device that is too hot goes down, and a little less."""
AHEAD_S = 45.0
FIGURES_OF_LINKS = "bus bandwidth"
ONE_COPY = 9
"""In the middle of those that are timed one way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of the catalogue."""

    name: str
    layer: Layer
    twin: Twin
    expected: tuple[str, ...]
    """Words that are right."""
    names: tuple[str, ...]
    """What has to stand in one line of what speaks against a better word."""
    judge: Callable[[Path, int], Turned]
    """Plants it and judges, in a folder, with a seed."""
    is_quick: bool = True
    """Whether it stands for its class in the quick test."""


def healthy_fleet(folder: Path, seed: int) -> Turned:
    """Judge a fleet of three hosts in which nothing is wrong."""
    return judge_fleet(Fleet(seed=seed), folder)


def _fleet(name: str, names: tuple[str, ...], expected: tuple[str, ...] = BAD, **planted: Any) -> Fault:
    def judge(folder: Path, seed: int) -> Turned:
        return judge_fleet(with_fault(Fleet(seed=seed), **planted), folder)

    return Fault(name=name, layer="records", twin="fleet", expected=expected, names=names, judge=judge)


def _device(
    name: str, scenario: str, names: tuple[str, ...], expected: tuple[str, ...] = BAD, **planted: Any
) -> Fault:
    def judge(folder: Path, seed: int) -> Turned:
        return judge_devices(scenario, folder, seed=seed, **planted)

    return Fault(name=name, layer="device", twin="devices", expected=expected, names=names, judge=judge)


def _worker(name: str, twin: Twin, names: tuple[str, ...], judge: Callable[[Path], Turned]) -> Fault:
    return Fault(
        name=name, layer="worker", twin=twin, expected=BAD, names=names, judge=lambda folder, _: judge(folder)
    )


def _past(name: str, names: tuple[str, ...], *, num_hosts: int = 1, num_slow: int, percent: int) -> Fault:
    """Make the last devices of a fleet slower than their own past; in the quick test one among eight."""

    def judge(folder: Path, seed: int) -> Turned:
        slower = 1 / (1 - percent / 100)
        return judge_past(folder, seed, num_hosts=num_hosts, num_slow=num_slow, slower=slower)

    twin: Twin = "past" if num_hosts == 1 else "pod"
    is_quick = (num_hosts, num_slow, percent) == (1, 1, 10)
    return Fault(
        name=name, layer="records", twin=twin, expected=BAD, names=names, judge=judge, is_quick=is_quick
    )


def _figure(
    name: str,
    names: tuple[str, ...],
    expectation: str,
    measure: str = "throughput",
    *,
    board: str = "NVIDIA H200",
    is_quick: bool = False,
) -> Fault:
    """Judge a healthy fleet by another rule of its products, or links, which cannot judge."""
    among = "each: whole" if measure == FIGURES_OF_LINKS else "each: gpu"
    labels = "" if measure == FIGURES_OF_LINKS else "workload: gemm, at_once: false, m: 4096"
    text = (
        f"rules:\n- name: one more\n  {among}\n  measure: {{name: {measure}, labels: {{{labels}}}}}\n"
        f"  expect: {expectation}\n"
    )
    figures = FIGURES[:2] if measure == FIGURES_OF_LINKS else FIGURES[1:]

    def judge(folder: Path, seed: int) -> Turned:
        fleet = Fleet(seed=seed, device_name=board)
        return judge_fleet(fleet, folder, more_rules=text, figures=figures)

    return Fault(
        name=name, layer="rules", twin="fleet", expected=OPEN, names=names, judge=judge, is_quick=is_quick
    )


def _with_rules_of(figures: tuple[str, ...], name: str, names: tuple[str, ...], **planted: Any) -> Fault:
    """Judge a fleet by some of its rules alone."""

    def judge(folder: Path, seed: int) -> Turned:
        return judge_fleet(with_fault(Fleet(seed=seed), **planted), folder, figures=figures)

    return Fault(name=name, layer="rules", twin="fleet", expected=OPEN, names=names, judge=judge)


def _two_gpus(folder: Path, seed: int, *, num_listed: int = 2) -> Turned:
    """Judge two GPUs of a host whose driver lists so many, where nobody says how many there should be."""
    listed = [
        {"physical_index": index, "framework_index": index if index < 2 else None, "static": _STATIC}
        | {"uuid": f"GPU-node1-{index}", "name": "Seeded GPU", "state": _STATE}
        for index in range(num_listed)
    ]
    fleet = Fleet(hosts=("node1",), seed=seed, is_counted=False, listed=listed)
    return judge_fleet(fleet, folder)


def _refused(name: str, names: tuple[str, ...], text: str) -> Fault:
    def judge(folder: Path, seed: int) -> Turned:
        try:
            return judge_fleet(Fleet(seed=seed), folder, more_rules=text)
        except UsageError as error:
            return Turned(word=REFUSED, against=(str(error),))

    return Fault(name=name, layer="rules", twin="fleet", expected=(REFUSED,), names=names, judge=judge)


_STATIC = {"power_limit_w": 700.0, "power_limit_default_w": 700.0}
_STATE = {"remapped_rows_failed": 0.0, "remapped_rows_pending": 0.0, "ecc_uncorrected_count": 0.0}
_DRIVER = {"accelerators": {"devices": [], "drivers": {"seeded": {"version": "570.9"}}, "absent": {}}}
_NODE3 = "GPU-node3-1"
FAULTS: tuple[Fault, ...] = (
    _worker(
        "one wrong element of a product",
        "products",
        ("wrong", "element (0, 0)"),
        partial(judge_products, wrong_products_from=1),
    ),
    _worker(
        "consistently wrong GPU",
        "fingerprints",
        ("SIM-0001", "always wrong"),
        partial(judge_fingerprints, wrong_products_from=1),
    ),
    _worker(
        "slow GPU",
        "products",
        ("matrix products are fast FAIL", "SIM-0000"),
        partial(judge_products, slower_percent=30),
    ),
    _worker(
        "kernel that never ends",
        "products",
        ("hang (rank 0",),
        partial(judge_products, hang_in_kernel=60),
    ),
    _worker(
        "NaN loss",
        "training",
        ("loss of rank 0", "not a finite number"),
        lambda folder: judge_training(folder, "--learning-rate=1000"),
    ),
    _device("throttled GPU", "thermal", (LAST, "thermal slowdown"), slower=THROTTLED),
    _device("capped power", "power_cap", (LAST, "power limit 150 W of 300 W"), slower=SLOWER),
    _device("ECC growth", "ecc", (LAST, "ecc_uncorrected")),
    _device("XID", "xid", (LAST, "xid 79")),
    _device("GPU that falls off the bus", "lost", (LAST, "lost")),
    _device("missing metric", "na", (LAST, "does not report"), OPEN),
    _device("driver lost between cases", "normal", ("devices are busy ERROR",), OPEN, is_lost_later=True),
    _worker(
        "bad copy that comes and goes",
        "copies",
        ("links, wrong values FAIL", "1 came out wrong"),
        partial(judge_copies, wrong_copy=ONE_COPY),
    ),
    _past("GPU slower than its own past", ("products as before FAIL", "GPU-node1-7"), num_slow=1, percent=10),
    _past("two of 8 slower by 10 %", ("products as before FAIL", "GPU-node1-6"), num_slow=2, percent=10),
    _past("one of 8 slower by 5 %", ("GPU-node1-7",), num_slow=1, percent=5),
    _past("two of 8 slower by 5 %", ("GPU-node1-6",), num_slow=2, percent=5),
    _past(
        "one of 64 slower by 10 %",
        ("products as before FAIL", "node8-7"),
        num_hosts=8,
        num_slow=1,
        percent=10,
    ),
    _past("two of 64 slower by 10 %", ("products", "GPU-node8-6"), num_hosts=8, num_slow=2, percent=10),
    _past("one of 64 slower by 5 %", ("products", "GPU-node8-7"), num_hosts=8, num_slow=1, percent=5),
    _past("two of 64 slower by 5 %", ("products", "GPU-node8-6"), num_hosts=8, num_slow=2, percent=5),
    _past("slow host", ("products as before FAIL", "GPU-node8-0"), num_hosts=8, num_slow=8, percent=10),
    _fleet("slow rank", (_NODE3, "slower than the median of the other ranks"), slower={_NODE3: SLOWER}),
    _fleet("corrupted collective result", ("elements of all_reduce", "rank 3"), wrong_on=3),
    Fault(
        name="slow link",
        layer="records",
        twin="links",
        expected=BAD,
        names=("link/node2>node5",),
        judge=lambda folder, seed: judge_links(folder, slow=frozenset(("node2", "node5")), seed=seed),
    ),
    _fleet("lossy link", ("lost packets FAIL, link/node2>node3",), lossy=("node2", "node3")),
    _fleet("lost host", ("host answers FAIL", "host/node3"), lost="node3"),
    _fleet("hung rank", ("hang (rank 4 on node3",), hung=4),
    _fleet("rank stopped on another host", ("who stops training FAIL, host/node3",), stopped=5),
    _fleet("mute host", ("every GPU is there ERROR, host/node3", "nothing of itself"), OPEN, mute="node3"),
    _fleet(
        "one machine under two names",
        ("every GPU is there ERROR, host/node3", "node2 has its GPU"),
        OPEN,
        doubled={"node3": "node2"},
    ),
    Fault(
        name="2 of 8 GPUs visible",
        layer="records",
        twin="alone",
        expected=OPEN,
        names=("every device is tested SKIP", "2 of 8"),
        judge=partial(_two_gpus, num_listed=8),
    ),
    _fleet("driver mismatch", ("same driver FAIL", "host/node3"), facts={"node3": _DRIVER}),
    _fleet("clock skew", ("clocks FAIL, host/node3", "ahead"), clock_ahead_s={"node3": AHEAD_S}),
    _fleet("one-rank job", ("all ranks FAIL", "one rank alone"), is_split=True),
    _fleet("gloo on GPUs", ("backend FAIL", "gloo"), backend="gloo"),
    _fleet("uniformly slow fleet", ("matrix products are fast FAIL", "GPU-node1-0"), all_slower=SLOWER),
    _fleet("NaN loss of one rank of many", ("loss of rank 5 on node3",), without_loss=5),
    _fleet("skipped test", ("training was measured SKIP",), OPEN, stops_before="training"),
    _fleet("torn record file", ("rank-5.jsonl: the last line is torn",), OPEN, torn="training"),
    Fault(
        name="host that nobody named to it",
        layer="records",
        twin="fleet",
        expected=BAD,
        names=("missing: node4",),
        judge=lambda folder, seed: judge_fleet(
            Fleet(seed=seed), folder, expected_hosts=["node1", "node2", "node3", "node4"]
        ),
    ),
    _refused("empty rules", ("there is no rule",), "rules: []\n"),
    _refused(
        "floor that all pass",
        ("the rule could never fail",),
        (
            "rules:\n- name: all pass\n  each: gpu\n  measure: {name: throughput}\n"
            "  expect: {at_least: 0, unit: FLOP/s}\n"
        ),
    ),
    _refused(
        "ceiling that nothing exceeds",
        ("says nothing of wrong values",),
        "rules:\n- name: all pass\n  each: gpu\n  measure: {name: wrong values}\n"
        "  expect: {at_most: 1.0e9, unit: '1'}\n",
    ),
    _figure(
        "impossible threshold", ("a floor of", "is over"), "{at_least: 5.0e16, unit: FLOP/s}", is_quick=True
    ),
    _figure("vacuous threshold", ("is no floor",), "{at_least: 1.0e9, unit: FLOP/s}", is_quick=True),
    _figure("vacuous contract", ("is no floor",), "{at_least: 1.0e9, unit: FLOP/s}\n  contract: true"),
    _figure(
        "floor of an unknown board over the best one",
        ("over", "the best board that is known"),
        "{at_least: 1.0e18, unit: FLOP/s}",
        board="Seeded GPU",
    ),
    _figure(
        "floor of an unknown board under half of what it does",
        ("is no floor where",),
        "{at_least: 2.0e14, unit: FLOP/s}",
        board="Seeded GPU",
    ),
    _figure(
        "bandwidth that no link has",
        ("over", "the best board that is known"),
        "{at_least: 4.0e15, unit: B/s}",
        FIGURES_OF_LINKS,
        board="Seeded GPU",
    ),
    _figure("unit of another quantity", ("it is in B/s",), "{at_least: 5.0e14, unit: B/s}", is_quick=True),
    _figure(
        "rule that matches nothing",
        ("it matches nothing",),
        "{at_least: 1.0e9, unit: FLOP/s}",
        "thruput",
        is_quick=True,
    ),
    _with_rules_of(
        FIGURES[:1],
        "slow link and a rule on products alone",
        ("open: an all-reduce",),
        slow_link=frozenset(("node1", "node2")),
    ),
    _with_rules_of((), "rules that say nothing of speed", ("open: a GPU",)),
)
TWINS: dict[Twin, Callable[[Path, int], Turned]] = {
    "fleet": healthy_fleet,
    "devices": lambda folder, seed: judge_devices("normal", folder, seed=seed),
    "links": lambda folder, seed: judge_links(folder, seed=seed),
    "products": lambda folder, _: judge_products(folder),
    "training": lambda folder, _: judge_training(folder),
    "fingerprints": lambda folder, _: judge_fingerprints(folder),
    "copies": lambda folder, _: judge_copies(folder),
    "past": judge_past,
    "pod": partial(judge_past, num_hosts=8),
    "alone": _two_gpus,
}
