"""Rules that hold each figure against a number: stated, published, or the fleet's own past."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Literal

from gpuproof.analysis.apart import LEAST_DIFFERENCE
from gpuproof.records.outcome import Outcome, kind_of
from gpuproof.records.result import Measure
from gpuproof.statistics.prediction import one_sided_t, prediction_reach
from gpuproof.units import share
from gpuproof.verdict.baseline import BaselineEntry, EntryKey, entry_key, stack_of, unlike_keys
from gpuproof.verdict.expectations import why_unlike
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.model import Rule
from gpuproof.verdict.rules.outcomes import Limit, judged_by, not_judged
from gpuproof.verdict.rules.refusals import device_of

MOST_MEASURED = 0.25
"""A spread that lets a quarter be missing measures nothing that a tolerance could be taken from."""
MEMORY_OPERATIONS = ("copy", "triad")
Found = Iterator[tuple[Measure, Outcome]]


def judge_figures(rule: Rule, measures: Sequence[Measure], facts: FleetFacts, *, error_rate: float) -> Found:
    """Judge each measure by itself; `error_rate` is for all of them together."""
    each = error_rate / max(1, len(measures))
    if rule.expected.form == "baseline":
        yield from _by_baseline(rule, measures, facts, error_rate=each)
        return
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


def _by_baseline(rule: Rule, measures: Sequence[Measure], facts: FleetFacts, *, error_rate: float) -> Found:
    refused = _why_no_baseline(facts)
    entries: dict[EntryKey, BaselineEntry] = {}
    limits: dict[EntryKey, Limit | str] = {}
    if refused is None and facts.baseline is not None:
        entries = facts.baseline.by_key()
    for measure in measures:
        key = entry_key(measure.name, measure.labels, kind_of(measure.subject))
        if refused is None and key not in limits:
            limits[key] = _limit_of(rule, measure, entries.get(key), facts, error_rate=error_rate)
        limit = refused or limits[key]
        if isinstance(limit, str):
            yield measure, not_judged(measure.subject, limit, "Record a baseline of this very stack and work")
        elif rule.expected.number is not None:
            yield measure, judged_by(rule, measure, limit)
        else:
            yield measure, judged_by(rule, measure, limit, reach=limit.slack)


def _why_no_baseline(facts: FleetFacts) -> str | None:
    if facts.baseline is None:
        return "no baseline was given"
    unlike = unlike_keys(stack_of(facts.hosts), facts.baseline.stack)
    return f"the baseline {facts.baseline.name} is of another stack: {'; '.join(unlike)}" if unlike else None


def _limit_of(
    rule: Rule, measure: Measure, entry: BaselineEntry | None, facts: FleetFacts, *, error_rate: float
) -> Limit | str:
    """Return the limit that a baseline sets, or why it sets none."""
    assert facts.baseline is not None
    name, better = facts.baseline.name, measure.better or "higher"
    if entry is None or entry.unit != measure.unit:
        return f"the baseline {name} has no figure of this work in {measure.unit}"
    source = f"baseline {name} of {facts.baseline.recorded}, {len(entry.figures)} figures"
    if rule.expected.number is not None:
        slack = abs(entry.centre) * (1 - rule.expected.number)
        return Limit(expected=entry.centre, slack=slack, better=better, source=source, how="stated share")
    if rule.tolerance is not None:
        slack = abs(entry.centre) * rule.tolerance
        return Limit(expected=entry.centre, slack=slack, better=better, source=source, how="stated tolerance")
    spread = entry.spread()
    if spread is None:
        return f"the baseline {name} has too few figures of it to know their spread: record more runs"
    reach = prediction_reach(spread, error_rate=error_rate)
    if reach > MOST_MEASURED * abs(spread.centre):
        off = share(reach / spread.centre)
        return f"the figures of the baseline {name} scatter too much: one may be off by {off}"
    slack = max(reach, LEAST_DIFFERENCE * abs(spread.centre))
    return Limit(expected=spread.centre, slack=slack, better=better, source=source, how="its spread")
