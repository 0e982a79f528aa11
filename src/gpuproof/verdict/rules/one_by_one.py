"""Rules that hold each figure against a number, stated or published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Literal

from gpuproof.records.outcome import Outcome, kind_of
from gpuproof.records.result import Measure
from gpuproof.statistics.prediction import one_sided_t
from gpuproof.units import share
from gpuproof.verdict.expectations import why_unlike
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.model import Rule
from gpuproof.verdict.rules.outcomes import Limit, judged_by, not_judged
from gpuproof.verdict.rules.refusals import MOST_MEASURED, device_of

Found = Iterator[tuple[Measure, Outcome]]


def judge_figures(rule: Rule, measures: Sequence[Measure], facts: FleetFacts, *, error_rate: float) -> Found:
    """Judge each measure by itself; `error_rate` is for all of them together."""
    each = error_rate / max(1, len(measures))
    for measure in measures:
        expected = _stated(rule) if rule.expected.key is None else _published(rule, measure, facts)
        if isinstance(expected, Outcome):
            yield measure, expected
        else:
            yield measure, _held_against(rule, measure, *expected, error_rate=each)


def _stated(rule: Rule) -> tuple[float, str]:
    assert rule.expected.number is not None
    return rule.expected.number, rule.place


def _published(rule: Rule, measure: Measure, facts: FleetFacts) -> tuple[float, str] | Outcome:
    assert rule.expected.key is not None
    figure, ignoring = facts.expectations.find(rule.expected.key), rule.expected.ignoring
    unlike = why_unlike(figure, measured_conditions(measure, facts), ignoring=ignoring)
    if unlike is None and figure.unit != measure.unit:
        unlike = f"it is in {figure.unit}, and the measure is in {measure.unit}"
    if unlike is None:
        left_out = f"; not held to its {', '.join(ignoring)}" if ignoring else ""
        return figure.value, f"{figure.provenance}{left_out}"
    step = "Take a figure of this machine, record a baseline, or say in the rule which conditions to ignore"
    return not_judged(measure.subject, f"{figure.key} is of something else: {unlike}", step)


def measured_conditions(measure: Measure, facts: FleetFacts) -> dict[str, Any]:
    """Return under what a measure was taken, in the words of published figures; what is not known is absent.

    What gpuproof measures itself is of the tool `gpuproof`: no other tool's figure is quite its own.
    """
    labels = dict(measure.labels)
    known: dict[str, Any] = {"tool": "gpuproof", **labels, "device": device_of(measure, facts)}
    if "num_ranks" in labels:
        num_hosts = len(facts.hosts) if kind_of(measure.subject) == "whole" else 1
        known |= {"num_devices": labels["num_ranks"], "quantity": labels.get("operation")}
        known.setdefault("num_hosts", num_hosts)
    elif labels.get("workload") == "gemm":
        known["quantity"] = "matrix multiply"
    elif labels.get("workload") == "memory":
        known["quantity"] = "device memory"
    elif measure.name == "link bandwidth":
        known |= {"quantity": "device link" if labels.get("kind") == "d2d" else "host link"}
        known["direction"] = labels.get("kind")
    elif measure.unit == "samples/s":
        known |= {"quantity": "training", "operation": labels.get("workload")}
    return known


def _held_against(
    rule: Rule, measure: Measure, expected: float, source: str, *, error_rate: float
) -> Outcome:
    better: Literal["higher", "lower"] = "lower" if rule.expected.form == "at_most" else "higher"
    if rule.expected.key is not None and measure.better == "lower":
        better = "lower"
    if rule.tolerance is not None:
        slack, how = abs(expected) * rule.tolerance, "stated tolerance" if rule.tolerance else ""
        limit = Limit(expected=expected, slack=slack, better=better, source=source, how=how)
        return judged_by(rule, measure, limit)
    reach = _own_reach(measure, error_rate=error_rate)
    if reach is None or reach > MOST_MEASURED * abs(expected):
        lacks = (
            "it has no interval" if reach is None else f"its spread is {share(reach / abs(expected or inf))}"
        )
        reason = f"its tolerance was to be taken from the measured spread, and {lacks}"
        return not_judged(measure.subject, reason, "Measure with more repeats, or state a tolerance")
    limit = Limit(expected=expected, slack=reach, better=better, source=source, how="measured spread")
    return judged_by(rule, measure, limit, reach=reach)


def _own_reach(measure: Measure, *, error_rate: float) -> float | None:
    """Return how far chance may take a figure, from its own interval; wider for the smaller error rate."""
    interval = measure.interval
    if interval is None or measure.value is None:
        return None
    degrees = len(measure.launches) - 1 if interval.kind == "between_launches" else inf
    if degrees < 1:
        return None
    reach = max(interval.high - measure.value, measure.value - interval.low)
    return reach * max(1.0, one_sided_t(error_rate, degrees) / one_sided_t((1 - interval.level) / 2, degrees))
