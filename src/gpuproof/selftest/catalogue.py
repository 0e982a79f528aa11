"""The faults that are planted: each with the layer that carries it, the word it turns to, and its cause.

A fault is found where the word is one of those expected and what speaks against a better one names the cause:
all of `names`. Its healthy twin is the same without the fault, and has to be READY.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tomllib

from gpuproof.base.errors import UsageError
from gpuproof.base.files import packaged_text
from gpuproof.records.codec import from_json
from gpuproof.selftest.devices import judge_devices
from gpuproof.selftest.fleet import Fleet, Planted
from gpuproof.selftest.judging import FIGURES, Turned, judge_fleet, judge_links
from gpuproof.selftest.launch_records import listed_device
from gpuproof.selftest.past import judge_past
from gpuproof.selftest.worker import judge_copies, judge_fingerprints, judge_products, judge_training

Layer = Literal["worker", "device", "records", "rules"]
Twin = Literal[
    "fleet", "devices", "links", "products", "training", "fingerprints", "copies", "past", "pod", "alone"
]
REFUSED = "REFUSED"
"""Rules that cannot judge are a mistake in use: nothing is judged by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of the catalogue (`faults.toml`)."""

    name: str
    layer: Layer
    twin: Twin
    expected: tuple[str, ...] = ("NOT-READY", "READY-WITH-EXCLUSIONS")
    """Words that are right."""
    names: tuple[str, ...]
    """What has to stand in one line of what speaks against a better word."""
    planted: Mapping[str, Any] = field(default_factory=dict)
    """What the judge of its twin is told to plant."""
    is_quick: bool = True
    """Whether it stands for its class in the quick test."""

    def judge(self, folder: Path, seed: int) -> Turned:
        """Plant it and judge, in a folder, with a seed."""
        return TWINS[self.twin](folder, seed, **self.planted)


def judge_seeded(
    folder: Path,
    seed: int,
    *,
    board: str = "Seeded GPU",
    figures: Sequence[str] = FIGURES,
    expected_hosts: Sequence[str] = (),
    more_rules: str | None = None,
    **planted: Any,
) -> Turned:
    """Judge a fleet of three hosts with what is planted, by its rules for `figures` and by `more_rules`."""
    fleet = Fleet(seed=seed, device_name=board, planted=from_json(Planted, planted))
    try:
        return judge_fleet(
            fleet, folder, figures=figures, more_rules=more_rules, expected_hosts=list(expected_hosts)
        )
    except UsageError as error:
        return Turned(word=REFUSED, against=(str(error),))


def judge_ruled(
    folder: Path, seed: int, *, expect: str | None = None, measure: str = "throughput", **planted: Any
) -> Turned:
    """Judge such a fleet, by one more rule where `expect` says what it asks of its products or links."""
    if expect is None:
        return judge_seeded(folder, seed, **planted)
    is_of_links = measure == "bus bandwidth"
    labels = "" if is_of_links else "workload: gemm, at_once: false, m: 4096"
    text = (
        f"rules:\n- name: one more\n  each: {'whole' if is_of_links else 'gpu'}\n"
        f"  measure: {{name: {measure}, labels: {{{labels}}}}}\n  expect: {expect}\n"
    )
    figures = FIGURES[:2] if is_of_links else FIGURES[1:]
    return judge_seeded(folder, seed, more_rules=text, figures=figures, **planted)


def _two_gpus(folder: Path, seed: int, *, num_listed: int = 2) -> Turned:
    """Judge two GPUs of a host whose driver lists so many, where nobody says how many there should be."""
    fleet = Fleet(hosts=("node1",), seed=seed, is_counted=False)
    listed = [listed_device(fleet, "node1", index) for index in range(num_listed)]
    return judge_fleet(replace(fleet, listed=listed), folder)


TWINS: dict[Twin, Callable[..., Turned]] = {
    "fleet": judge_ruled,
    "devices": judge_devices,
    "links": judge_links,
    "products": judge_products,
    "training": judge_training,
    "fingerprints": judge_fingerprints,
    "copies": judge_copies,
    "past": judge_past,
    "pod": partial(judge_past, num_hosts=8),
    "alone": _two_gpus,
}
"""What judges each twin, in a folder and with a seed: nothing is wrong but what is planted."""
FAULTS = tuple(
    from_json(Fault, row, place="faults.toml")
    for row in tomllib.loads(packaged_text("selftest/faults.toml"))["faults"]
)
