"""Rules that hold each figure against a number, stated or published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Literal

from gpuproof.records.outcome import Outcome
from gpuproof.records.result import Measure
from gpuproof.statistics.prediction import one_sided_t
from gpuproof.units import share
from gpuproof.verdict.expectations import (
    PUBLISHED,
    PublishedFigure,
    figures_of,
    shown_condition,
    why_unlike,
)
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.healthy import healthy_reference, measured_conditions
from gpuproof.verdict.rules.model import Rule
from gpuproof.verdict.rules.outcomes import Limit, judged_by, not_judged
from gpuproof.verdict.rules.refusals import MOST_MEASURED

Found = Iterator[tuple[Measure, Outcome]]


def judge_figures(rule: Rule, measures: Sequence[Measure], facts: FleetFacts, *, error_rate: float) -> Found:
    """Judge each measure by itself; `error_rate` is for all of them together."""
    each = error_rate / max(1, len(measures))
    for measure in measures:
        expected = _stated(rule) if rule.expected.key is None else _published(rule, measure, facts)
        if isinstance(expected, Outcome):
            yield measure, expected
        else:
            reference = healthy_reference(measure, facts) if rule.expected.key is None else expected
            healthy = None if reference is None else reference[0]
            yield measure, _held_against(rule, measure, *expected, error_rate=each, healthy=healthy)


def _stated(rule: Rule) -> tuple[float, str]:
    assert rule.expected.number is not None
    return rule.expected.number, rule.place


def _published(rule: Rule, measure: Measure, facts: FleetFacts) -> tuple[float, str] | Outcome:
    assert rule.expected.key is not None
    if rule.expected.key == PUBLISHED:
        return _lowest_published(rule, measure, facts)
    figure, ignoring = facts.expectations.find(rule.expected.key), rule.expected.ignoring
    unlike = why_unlike(figure, measured_conditions(measure, facts), ignoring=ignoring)
    if unlike is None and figure.unit != measure.unit:
        unlike = f"it is in {figure.unit}, and the measure is in {measure.unit}"
    if unlike is None:
        return figure.value, f"{figure.provenance}{_left_out(ignoring)}"
    step = "Take a figure of this machine, record a baseline, or say in the rule which conditions to ignore"
    return not_judged(measure.subject, f"{figure.key} is of something else: {unlike}", step)


def _lowest_published(rule: Rule, measure: Measure, facts: FleetFacts) -> tuple[float, str] | Outcome:
    """Return the lowest of the figures that are of the same thing: where sources differ it is in doubt."""
    figures = _published_of(rule, measure, facts)
    if not figures:
        reason = why_none_published(rule, measure, facts) or ""
        step = "Give a floor of your own (at_least), or record a baseline"
        return not_judged(measure.subject, reason, step)
    among = f"; the lowest of {len(figures)}" if len(figures) > 1 else ""
    return figures[0].value, f"{figures[0].provenance}{among}{_left_out(rule.expected.ignoring)}"


def _published_of(rule: Rule, measure: Measure, facts: FleetFacts) -> tuple[PublishedFigure, ...]:
    return figures_of(
        measured_conditions(measure, facts),
        facts.expectations.figures.values(),
        unit=measure.unit,
        ignoring=rule.expected.ignoring,
    )


def why_none_published(rule: Rule, measure: Measure, facts: FleetFacts) -> str | None:
    """Say that no published figure is of what a measure is of; None where one is."""
    if _published_of(rule, measure, facts):
        return None
    known = measured_conditions(measure, facts)
    device, names = known.get("device"), ("dtype", "operation", "shape")
    shown = {name: known[name] for name in names if name in known}
    said = ", ".join(f"{name} {shown_condition(value)}" for name, value in shown.items())
    board = "an unknown device" if device is None else device
    return f"unknown: no published figure matches {known.get('quantity')} of {board}" + (
        f" ({said})" if said else ""
    )


def _left_out(ignoring: Sequence[str]) -> str:
    return f"; not held to its {', '.join(ignoring)}" if ignoring else ""


def _held_against(
    rule: Rule,
    measure: Measure,
    expected: float,
    source: str,
    *,
    error_rate: float,
    healthy: float | None,
) -> Outcome:
    better: Literal["higher", "lower"] = "lower" if rule.expected.form == "at_most" else "higher"
    if rule.expected.key is not None and measure.better == "lower":
        better = "lower"
    if rule.tolerance is not None:
        slack, how = abs(expected) * rule.tolerance, "stated tolerance" if rule.tolerance else ""
        limit = Limit(expected=expected, slack=slack, better=better, source=source, how=how, healthy=healthy)
        return judged_by(rule, measure, limit)
    reach = _own_reach(measure, error_rate=error_rate)
    if reach is None or reach > MOST_MEASURED * abs(expected):
        lacks = (
            "it has no interval" if reach is None else f"its spread is {share(reach / abs(expected or inf))}"
        )
        reason = f"its tolerance was to be taken from the measured spread, and {lacks}"
        return not_judged(measure.subject, reason, "Measure with more repeats, or state a tolerance")
    limit = Limit(
        expected=expected,
        slack=reach,
        better=better,
        source=source,
        how="measured spread",
        healthy=healthy,
    )
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
