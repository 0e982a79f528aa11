"""Report which rules cannot evaluate the measured values, each with the reason and what to do.

A rule is meaningless, and its outcome an ERROR, if it has a floor that no working hardware could miss, a
floor above what hardware can do, a ceiling that nothing exceeds, a mismatched unit, or a link bandwidth
although nothing was transferred. The same test applies to every rule and measure, wherever they come from.
For a known board, the test is based on what that board can do; for any other, on what was measured and on the
best known board.

The smallest loss that a stated floor detects is relative to the healthy value (`healthy_reference`). This is
the machine's own history, else published results, else its data sheet, but never the current measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import median
from typing import Any

from gpuproof.base.groups import grouped
from gpuproof.base.units import bandwidth, flops, share, significant
from gpuproof.records.outcome import kind_of
from gpuproof.records.result import Measure
from gpuproof.verdict.baseline import key_of
from gpuproof.verdict.check import VACUOUS_OF_USUAL
from gpuproof.verdict.expectations import PublishedValue, published_for
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.bounds import BYTE_RATES, ceiling_of, dense_rate, device_of, most_of_any_board
from gpuproof.verdict.rules.model import (
    MOST,
    NUMBERS,
    RATIOS,
    Form,
    Rule,
    edge_of,
    reason_no_limit,
    speaks_of_speed,
)

VACUOUS_SHARE = 0.2
"""Minimum floor as a fraction of the board's data-sheet rate. Only plainly broken hardware misses a lower
floor, and that would be obvious anyway. Shipped floors are 0.25 to 0.98 of the measured value."""
VACUOUS_TIMES = 10.0
"""Maximum ratio of a ceiling to the measured value, for measures that are not about speed."""
FEWEST_PEERS = 3
"""Fewest values whose median is representative: of two values, either may be the wrong one."""
MOST_MEASURED = 0.25
"""Maximum spread, as a fraction of the expected value, from which a tolerance can be derived."""
EDGES = ("m", "n", "k")
"""Labels of a matrix multiplication, in the order used in published shapes."""


def with_unit(value: float, unit: str, *, beside: str = "") -> str:
    """Format a value for display; a fraction is shown in per cent if `beside` is a percentage.

    >>> with_unit(0.2, "1", beside="-35.9%"), with_unit(0.2, "1", beside="1.70 ×")
    ('20 %', '0.200')
    """
    if unit == "1" and "%" in beside:
        return share(value)
    if unit == "FLOP/s":
        return flops(value)
    if unit in BYTE_RATES:
        return bandwidth(value)
    return significant(value) if unit == "1" else f"{significant(value)} {unit}"


def reason_unjudged(rule: Rule, matched: Sequence[Measure], facts: FleetFacts) -> str | None:
    """Return the first reason why a stated number and its tolerance do not suit these measures."""
    expected = rule.expect
    if expected.form not in NUMBERS or expected.number is None:
        return None
    units = sorted({measure.unit for measure in matched} - {expected.unit})
    if units:
        return f"it is in {expected.unit}, but the measure is in {', '.join(units)}"
    # such a rule never passes anything, and options switch it off by setting a wide bound
    if rule.basis == "none":
        return None
    edge = edge_of(expected.form, expected.number, rule.tolerated)
    reasons = (reason_vacuous(expected.form, edge, alike, facts) for alike in same_work(matched, facts))
    return next((reason for reason in reasons if reason is not None), None)


def reason_vacuous(form: Form, edge: float, alike: Sequence[Measure], facts: FleetFacts) -> str | None:
    """Report why a limit would always pass or always fail, for one workload on one type of board."""
    measure = alike[0]
    if reason := reason_no_limit(form, edge, measure.name, measure.unit):
        return reason
    if speaks_of_speed(measure) and (measure.better == "lower") != (form == "at_most"):
        better = "less" if measure.better == "lower" else "more"
        return f"{form} for {measure.name} passes slow hardware: {better} is better"
    if form == "at_most":
        return _reason_no_ceiling(edge, alike, facts)
    return _reason_impossible(edge, alike, facts) or _reason_no_floor(edge, alike, facts)


def same_work(matched: Sequence[Measure], facts: FleetFacts) -> list[list[Measure]]:
    """Group measures of the same workload on boards of the same name."""
    groups = grouped(((key_of(measure), device_of(measure, facts)), measure) for measure in matched)
    return list(groups.values())


def _usual(alike: Sequence[Measure], facts: FleetFacts, *, is_ceiling: bool) -> tuple[float, str] | None:
    """Return the usual value, measured or from the baseline, whichever is better; None if unknown."""
    values = _valid_values(alike)
    usual = [(median(values), "is measured")] if values else []
    if (past := past_centre(alike[0], facts)) is not None:
        usual.append((past[0], f"is the value in {past[1]}"))
    return (min if is_ceiling else max)(usual, default=None)


def _reason_no_ceiling(edge: float, alike: Sequence[Measure], facts: FleetFacts) -> str | None:
    measure, usual = alike[0], _usual(alike, facts, is_ceiling=True)
    # the best value is 0, so any fraction is a valid limit
    is_bounded = measure.unit in MOST or measure.name in RATIOS
    times = 1 / VACUOUS_OF_USUAL if speaks_of_speed(measure) else VACUOUS_TIMES
    if is_bounded or usual is None or not 0 < usual[0] < edge / times:
        return None
    edge_text, beside = (with_unit(x, measure.unit, beside=measure.text) for x in (edge, usual[0]))
    return f"at most {edge_text} is meaningless when {beside} {usual[1]}"


def _reason_no_floor(edge: float, alike: Sequence[Measure], facts: FleetFacts) -> str | None:
    measure, usual = alike[0], _usual(alike, facts, is_ceiling=False)
    edge_text, rate = with_unit(edge, measure.unit, beside=measure.text), dense_rate(measure, facts)
    if rate is not None:
        if edge >= VACUOUS_SHARE * rate[0]:
            return None
        return (
            f"a floor of {edge_text} is meaningless: below {share(VACUOUS_SHARE)} of {_rate(measure, rate)}"
        )
    if usual is None or edge >= VACUOUS_OF_USUAL * usual[0]:
        return None
    beside = with_unit(usual[0], measure.unit, beside=measure.text)
    return f"a floor of {edge_text} is meaningless when {beside} {usual[1]}"


def _reason_impossible(edge: float, alike: Sequence[Measure], facts: FleetFacts) -> str | None:
    for measure in alike:
        bound = ceiling_of(measure, facts)
        if bound is None:
            bound = most_of_any_board(measure)
            usual = _usual([measure], facts, is_ceiling=False)
            if bound is None or (usual is not None and edge <= usual[0] / VACUOUS_OF_USUAL):
                continue  # if a board is better than all known boards, its results prove it
        if edge > bound[0]:
            return f"a floor of {with_unit(edge, measure.unit)} is above {_rate(measure, bound)}"
    return None


def _rate(measure: Measure, rate: tuple[float, str]) -> str:
    return f"{with_unit(rate[0], measure.unit)}, {rate[1]}"


def reason_implausible(measure: Measure, group: Sequence[Measure], facts: FleetFacts) -> str | None:
    """Report why a value is impossible.

    It is entirely above the hardware limit, a bandwidth with one rank, or, on a board without a known limit,
    far above the values of its `group`, which measured the same work on boards of the same name.
    """
    if measure.labels.get("quantity") == "bus bandwidth" and measure.labels.get("num_ranks") == 1:
        return "a single rank transfers nothing over any link: there is no bus bandwidth"
    bound = ceiling_of(measure, facts) or _twice_the_usual(group, facts)
    lowest = measure.value if measure.interval is None else measure.interval.low
    if bound is None or lowest is None or lowest <= bound[0]:
        return None
    return f"{with_unit(lowest, measure.unit)} is above {_rate(measure, bound)}"


def _twice_the_usual(group: Sequence[Measure], facts: FleetFacts) -> tuple[float, str] | None:
    """Return the highest plausible rate of a group's devices; None for too few, or unknown, devices."""
    rates = _valid_values(group)
    if group[0].unit != "FLOP/s" or len(rates) < FEWEST_PEERS or device_of(group[0], facts) is None:
        return None
    return median(rates) / VACUOUS_OF_USUAL, f"twice the median of {len(rates)} devices with the same name"


def _valid_values(group: Sequence[Measure]) -> list[float]:
    return [m.value for m in group if m.value is not None and isfinite(m.value) and m.validity != "INVALID"]


def healthy_reference(measure: Measure, facts: FleetFacts) -> tuple[float, str] | None:
    """Return the healthy value for this measure, in its unit, and the source; None if unknown.

    It is the centre of the measure's own baseline; else the lowest published result for its board, from any
    tool; else the dense rate from the board's data sheet or from the declaration of a simulated device.
    """
    return past_centre(measure, facts) or published_rate(measure, facts) or dense_rate(measure, facts)


def published_rate(measure: Measure, facts: FleetFacts) -> tuple[float, str] | None:
    """Return the lowest published measurement of a board, from any tool, and its source."""
    figures = published_values(measure, facts)
    return (figures[0].value, figures[0].provenance) if figures else None


def published_values(measure: Measure, facts: FleetFacts) -> tuple[PublishedValue, ...]:
    """Return published measurements of a board, from any tool, lowest first."""
    return published_for(
        measured_conditions(measure, facts),
        (figure for figure in facts.expectations.figures.values() if figure.kind == "measured"),
        unit=measure.unit,
        ignoring=("tool",),
    )


def past_centre(measure: Measure, facts: FleetFacts) -> tuple[float, str] | None:
    """Return the centre of a measure's baseline values and the baseline's name; None if there is none."""
    if facts.baseline is None:
        return None
    entry = facts.baseline.by_key().get(key_of(measure))
    if entry is None or entry.unit != measure.unit:
        return None
    return entry.centre, f"baseline {facts.baseline.name}"


def measured_conditions(measure: Measure, facts: FleetFacts) -> dict[str, Any]:
    """Return a measure's conditions as published results express them; unknown ones are omitted.

    For gpuproof's own measurements, the tool is `gpuproof`, since no other tool's result is quite equivalent.
    """
    labels = dict(measure.labels)
    conditions: dict[str, Any] = {"tool": "gpuproof", **labels, "device": device_of(measure, facts)}
    if "num_ranks" in labels:
        num_hosts = len(facts.hosts) if kind_of(measure.subject) == "whole" else 1
        conditions |= {"num_devices": labels["num_ranks"], "quantity": labels.get("operation")}
        conditions.setdefault("num_hosts", num_hosts)
    elif labels.get("workload") == "gemm":
        conditions["quantity"] = "matrix multiply"
        if labels.keys() >= set(EDGES):
            conditions["shape"] = tuple(labels[edge] for edge in EDGES)
    elif labels.get("workload") == "memory":
        conditions["quantity"] = "device memory"
        conditions.setdefault("operation", labels.get("pattern"))
    elif measure.name == "link bandwidth":
        conditions |= {"quantity": "device link" if labels.get("kind") == "d2d" else "host link"}
        conditions["direction"] = labels.get("kind")
    elif measure.unit == "samples/s":
        conditions |= {"quantity": "training", "operation": labels.get("workload")}
    return conditions
