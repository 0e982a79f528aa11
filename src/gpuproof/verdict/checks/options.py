"""Did the chosen options make the expected difference? If not, they were likely inactive.

Measures that differ in only one label are compared, e.g. fp8 with bf16, or results with a fabric switched on
and off. An option had no effect if the difference is within the spread of both measures. The published case
is a rack that measured the same with its NVLink fabric disabled, and still passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuproof.base.units import share
from gpuproof.records.outcome import Outcome, kind_of, not_applicable, pass_or_fail
from gpuproof.records.result import Measure
from gpuproof.verdict.baseline import entry_key
from gpuproof.verdict.check import check
from gpuproof.verdict.facts import FleetFacts

FASTER: tuple[tuple[str, Any, Any], ...] = (
    ("dtype", "fp8", "bf16"),
    ("dtype", "bf16", "fp32"),
    ("dtype", "fp16", "fp32"),
    ("dtype", "tf32", "fp32"),
    ("fabric", "on", "off"),
    ("peer_to_peer", "on", "off"),
    ("gpudirect", "on", "off"),
)
"""A label, the value that should be faster, and the value it is compared with."""
TRANSPORTS = frozenset({"fabric", "peer_to_peer", "gpudirect"})
LEAST_EFFECT = 0.02
"""Minimum relative difference; one that is no larger than this, or than the intervals of both measures, does
not count."""
SOURCE = "the same work without the option, in the same run"


@check("options have an effect", "the chosen options made a difference")
def judge_options(facts: FleetFacts) -> Sequence[Outcome]:
    """Evaluate each pair of measures that differ in one option."""
    outcomes = list(_pairs(facts.measures))
    return outcomes or [not_applicable("no two measures differ only in an option that should matter")]


def _pairs(measures: Sequence[Measure]) -> Iterator[Outcome]:
    by_work = {(_key(measure, measure.labels), measure.subject): measure for measure in measures}
    seen: set[object] = set()
    for measure in measures:
        for label, faster, slower in FASTER:
            if measure.labels.get(label) == faster and measure.better == "higher":
                other = by_work.get((_key(measure, {**measure.labels, label: slower}), measure.subject))
                same = measure.subject, label, measure.value, measure.unit
                if other is not None and other.value and measure.value and same not in seen:
                    # a value may occur twice: once for its size, and once as the highest of all sizes
                    seen.add(same)
                    yield _compared(measure, other, label, f"{label} {faster} against {slower}")


def _key(measure: Measure, labels: Mapping[str, Any]) -> object:
    return entry_key(measure.name, labels, kind_of(measure.subject)), measure.unit


def _compared(measure: Measure, other: Measure, label: str, what: str) -> Outcome:
    assert measure.value is not None
    assert other.value is not None
    gain = measure.value / other.value - 1
    needed = max(LEAST_EFFECT, _reach(measure) + _reach(other))
    return pass_or_fail(
        measure.subject,
        gain > needed,
        f"{measure.name}: {what} is {share(abs(gain))} {'faster' if gain > 0 else 'slower'}",
        expected=f"over {share(needed)} faster",
        source=SOURCE,
        next_step="NCCL_DEBUG=INFO lists the transports that NCCL uses"
        if label in TRANSPORTS
        else "Check whether the option was active: the run's report lists what was passed to kernels",
        responsible="user",
        warns=True,
    )


def _reach(measure: Measure) -> float:
    interval = measure.interval
    return (
        0.0 if interval is None or not measure.value else (interval.high - interval.low) / 2 / measure.value
    )
