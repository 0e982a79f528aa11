"""Check a value against a limit, and evaluate rules with a stated or published limit.

A value passes if its whole interval is on the good side of the limit, fails if none of it is, and is
undecided if the limit lies within the interval. Without an interval, the value itself decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from gpuproof.base.units import share
from gpuproof.records.outcome import Judged, Outcome, not_judged, pass_or_fail, skipped
from gpuproof.records.result import Measure
from gpuproof.statistics.prediction import one_sided_t
from gpuproof.verdict.expectations import (
    PUBLISHED,
    PublishedValue,
    published_for,
    reason_not_comparable,
    shown_condition,
)
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.bounds import dense_rate
from gpuproof.verdict.rules.model import Form, MeasureOutcomes, Rule, edge_of
from gpuproof.verdict.rules.refusals import (
    EDGES,
    MOST_MEASURED,
    healthy_reference,
    measured_conditions,
    published_values,
    reason_vacuous,
    with_unit,
)

RELATIVE_ROUNDING = 1e-9
MISSED = 0.05
"""Probability of missing a loss that is reported as detectable."""
FAR_UNDER_PEAK = "matrix products, a third of the board's peak"
FAR_UNDER = 1 / 3
"""Fraction of the dense rate below which a matmul is far too slow. The slowest published matmul on any known
board reaches 0.51 of the dense rate (bf16, MI300X)."""
COMPARE_WITH_OURS = "Compare with cards measured by gpuproof: record a baseline (gpuproof baseline record)"
LARGE_EDGE = 4096
"""Minimum matrix size; matmuls of this size saturate any board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The expected value, in the measure's unit."""

    expected: float
    slack: float
    """Tolerated deviation in the worse direction."""
    better: Literal["higher", "lower"]
    source: str
    how: str
    """Where the slack comes from, as text."""
    healthy: float | None = None
    """The value of a healthy subject, if known; losses are relative to it."""

    @property
    def edge(self) -> float:
        """The worst value that still passes."""
        return self.expected - self.slack if self.better == "higher" else self.expected + self.slack


def judged_by(rule: Rule, measure: Measure, limit: Limit, *, reach: float | None = None) -> Outcome:
    """Judge one value; `reach` is its possible random error, or None to use its interval.

    With a reach, the slack already covers the random error of a single value, so the value itself is
    compared.
    """
    assert measure.value is not None
    ends = _ends(measure) if reach is None else (measure.value, measure.value)
    if any(_is_good(end, limit) for end in ends) and not all(_is_good(end, limit) for end in ends):
        edge = with_unit(limit.edge, measure.unit, beside=measure.text)
        cause = f"its interval contains the limit of {edge}: undecided"
        step = "Measure longer, or with more repeats, so that the interval excludes the limit"
        return not_judged(measure.subject, f"{measure.text}; {cause}", step)
    passed = _is_good(measure.value, limit)
    return pass_or_fail(
        measure.subject,
        passed,
        measure.text,
        expected=_expected_text(limit, measure),
        source=limit.source,
        next_step=rule.next_step,
        responsible=rule.responsible,
        measured_value=measure.value,
        measured_low=None if measure.interval is None else min(measure.interval.low, measure.value),
        measured_high=None if measure.interval is None else max(measure.interval.high, measure.value),
        expected_value=limit.expected,
        tolerance=limit.slack,
        unit=measure.unit,
        minimum_detectable=detectable_loss(limit, measure, reach),
    )


def _ends(measure: Measure) -> tuple[float, float]:
    assert measure.value is not None
    interval = measure.interval
    return (measure.value, measure.value) if interval is None else (interval.low, interval.high)


def _is_good(value: float, limit: Limit) -> bool:
    room = abs(limit.edge) * RELATIVE_ROUNDING
    return value >= limit.edge - room if limit.better == "higher" else value <= limit.edge + room


def detectable_loss(limit: Limit, measure: Measure, reach: float | None) -> float | None:
    """Return the smallest loss that fails in 95 % of cases, as a fraction of the healthy value.

    A value with an interval fails if the whole interval is on the wrong side of the limit. So a loss has to
    exceed the limit by half the interval plus the random error that is exceeded in one case in twenty. None
    if the healthy value or the value's scatter is unknown.
    """
    margin = _scatter(measure) if reach is None else reach
    if not limit.healthy or margin is None:
        return None
    worst = limit.edge - margin if limit.better == "higher" else limit.edge + margin
    return max(0.0, (1 - worst / limit.healthy) * (1 if limit.better == "higher" else -1))


def _scatter(measure: Measure) -> float | None:
    """Return how far past a limit a mean must lie for its interval to be past it in 95 % of cases."""
    interval = measure.interval
    if interval is None:
        return None
    degrees = len(measure.launches) - 1 if interval.kind == "between_launches" else inf
    half = (interval.high - interval.low) / 2
    if degrees < 1 or not 0 < interval.level < 1:
        return None
    return half * (1 + one_sided_t(MISSED, degrees) / one_sided_t((1 - interval.level) / 2, degrees))


def _expected_text(limit: Limit, measure: Measure) -> str:
    sign = "≥" if limit.better == "higher" else "≤"
    edge, expected = (
        with_unit(value, measure.unit, beside=measure.text) for value in (limit.edge, limit.expected)
    )
    bound = f"{sign} {edge}"
    if not limit.slack or not limit.expected:
        return bound
    sign = "less" if limit.better == "higher" else "plus"
    return f"{bound}: {expected} {sign} {share(limit.slack / limit.expected)} ({limit.how})"


def reason_no_value(measure: Measure) -> str | None:
    """Report why a measure has no value to evaluate."""
    if measure.value is None:
        return measure.missing or "nothing was measured, and no reason was given"
    if not isfinite(measure.value):
        return f"{measure.value} is not a valid value"
    return "the measurement is INVALID" if measure.validity == "INVALID" else None


def judge_values(
    rule: Rule, measures: Sequence[Measure], facts: FleetFacts, *, error_rate: float
) -> MeasureOutcomes:
    """Evaluate each measure separately; `error_rate` covers all of them together."""
    rate = error_rate / max(1, len(measures))
    for measure in measures:
        expected = _stated(rule) if rule.expect.reference is None else _published(rule, measure, facts)
        if isinstance(expected, Outcome):
            yield measure, expected
        elif (vacuous := _reason_vacuous(rule, measure, expected[0], facts)) is not None:
            yield measure, not_judged(measure.subject, f"{rule.place}: {vacuous}", "Take another figure")
        else:
            reference = healthy_reference(measure, facts) if rule.expect.reference is None else expected
            healthy = None if reference is None else reference[0]
            outcome = _held_against(rule, measure, *expected, error_rate=rate, healthy=healthy)
            yield measure, outcome if rule.expect.reference is None else _not_failed(outcome, *expected)


def _not_failed(outcome: Outcome, expected: float, source: str) -> Outcome:
    """Return the outcome for a published result; no subject fails because of it."""
    if outcome.status != "FAIL":
        return outcome
    figure = with_unit(expected, outcome.unit or "")
    reason = (
        f"{outcome.measured}; the published result is from another tool: {figure} ({source}), and "
        "its input data, duration and power are unknown"
    )
    return skipped(reason, COMPARE_WITH_OURS, outcome.subject)


def _reason_vacuous(rule: Rule, measure: Measure, expected: float, facts: FleetFacts) -> str | None:
    """Report why a published result cannot be used here; stated numbers are checked beforehand."""
    if rule.expect.reference is None:
        return None
    form: Form = "at_most" if measure.better == "lower" else "at_least"
    return reason_vacuous(form, edge_of(form, expected, rule.tolerated), [measure], facts)


def _stated(rule: Rule) -> tuple[float, str]:
    assert rule.expect.number is not None
    return rule.expect.number, rule.place


def _published(rule: Rule, measure: Measure, facts: FleetFacts) -> tuple[float, str] | Outcome:
    assert rule.expect.reference is not None
    if rule.expect.reference == PUBLISHED:
        return _lowest_published(rule, measure, facts)
    figure, ignoring = facts.expectations.find(rule.expect.reference), rule.expect.ignored
    unlike = reason_not_comparable(figure, measured_conditions(measure, facts), ignoring=ignoring)
    if unlike is None and figure.unit != measure.unit:
        unlike = f"it is in {figure.unit}, but the measure is in {measure.unit}"
    if unlike is None:
        return figure.value, f"{figure.provenance}{_left_out(ignoring)}"
    step = "Use a result from this machine, record a baseline, or list in the rule which conditions to ignore"
    return not_judged(measure.subject, f"{figure.key} is for something else: {unlike}", step)


def _lowest_published(rule: Rule, measure: Measure, facts: FleetFacts) -> tuple[float, str] | Outcome:
    """Return the lowest result for the same workload; its value is uncertain if sources differ."""
    figures = _published_of(rule, measure, facts)
    if not figures:
        reason = reason_none_published(rule, measure, facts) or ""
        step = "Give your own floor (at_least), or record a baseline"
        return not_judged(measure.subject, reason, step)
    among = f"; the lowest of {len(figures)}" if len(figures) > 1 else ""
    return figures[0].value, f"{figures[0].provenance}{among}{_left_out(rule.expect.ignored)}"


def _published_of(rule: Rule, measure: Measure, facts: FleetFacts) -> tuple[PublishedValue, ...]:
    return published_for(
        measured_conditions(measure, facts),
        facts.expectations.figures.values(),
        unit=measure.unit,
        ignoring=rule.expect.ignored,
    )


def reason_none_published(rule: Rule, measure: Measure, facts: FleetFacts) -> str | None:
    """Report that no published result matches a measure; None if one does."""
    if _published_of(rule, measure, facts):
        return None
    conditions = measured_conditions(measure, facts)
    device, names = conditions.get("device"), ("dtype", "operation", "shape")
    shown = {name: conditions[name] for name in names if name in conditions}
    shown_text = ", ".join(f"{name} {shown_condition(value)}" for name, value in shown.items())
    board = "an unknown device" if device is None else device
    return f"unknown: no published result matches {conditions.get('quantity')} of {board}" + (
        f" ({shown_text})" if shown_text else ""
    )


def published_to_show(measure: Measure, facts: FleetFacts) -> str:
    """Return the lowest published result for the same workload, from any tool or source, if any.

    It is shown next to the measurement, and does not affect the outcome.
    """
    figure = next(iter(published_values(measure, facts)), None)
    if figure is None:
        return ""
    return f"{figure.tool or figure.source.split()[0]}: {with_unit(figure.value, measure.unit)}"


def _left_out(ignoring: Sequence[str]) -> str:
    return f"; ignoring its {', '.join(ignoring)}" if ignoring else ""


def _held_against(
    rule: Rule,
    measure: Measure,
    expected: float,
    source: str,
    *,
    error_rate: float,
    healthy: float | None,
) -> Outcome:
    better: Literal["higher", "lower"] = "lower" if rule.expect.form == "at_most" else "higher"
    if rule.expect.reference is not None and measure.better == "lower":
        better = "lower"
    if rule.tolerated is not None:
        slack, how = abs(expected) * rule.tolerated, "stated tolerance" if rule.tolerated else ""
        limit = Limit(expected=expected, slack=slack, better=better, source=source, how=how, healthy=healthy)
        return judged_by(rule, measure, limit)
    reach = _interval_reach(measure, error_rate=error_rate)
    if reach is None or reach > MOST_MEASURED * abs(expected):
        lacks = "it has no interval" if reach is None else f"that is {share(reach / abs(expected or inf))}"
        reason = f"its tolerance was to be taken from the measured spread, but {lacks}"
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


def _interval_reach(measure: Measure, *, error_rate: float) -> float | None:
    """Return a value's possible random error, based on its interval; a smaller error rate widens it."""
    interval = measure.interval
    if interval is None or measure.value is None:
        return None
    degrees = len(measure.launches) - 1 if interval.kind == "between_launches" else inf
    if degrees < 1:
        return None
    reach = max(interval.high - measure.value, measure.value - interval.low)
    return reach * max(1.0, one_sided_t(error_rate, degrees) / one_sided_t((1 - interval.level) / 2, degrees))


def judge_far_under_peak(facts: FleetFacts) -> list[Judged]:
    """Return a required FAIL for each device that multiplies large matrices far too slowly for its board.

    No rule is needed: the dense rate comes from the board's data sheet (for a simulated device, from its
    declaration).
    """
    return [
        Judged(name=FAR_UNDER_PEAK, outcome=outcome, basis="absolute")
        for measure in facts.measures
        if _is_large_product(measure) and (outcome := _far_under(measure, facts)) is not None
    ]


def _is_large_product(measure: Measure) -> bool:
    edges = [measure.labels.get(edge) for edge in EDGES]
    is_large = all(isinstance(edge, int) and edge >= LARGE_EDGE for edge in edges)
    return is_large and measure.labels.get("workload") == "gemm" and measure.name == "throughput"


def _far_under(measure: Measure, facts: FleetFacts) -> Outcome | None:
    rate = dense_rate(measure, facts)
    highest = measure.value if measure.interval is None else measure.interval.high
    if rate is None or highest is None or reason_no_value(measure) or highest >= rate[0] * FAR_UNDER:
        return None
    return pass_or_fail(
        measure.subject,
        False,
        f"{measure.text} in {measure.labels.get('dtype')}",
        expected=f"a third of {with_unit(rate[0], measure.unit)} or more",
        source=rate[1],
        next_step="Check the device's clocks, power and temperature, and whether it is the claimed model",
        measured_value=measure.value,
        expected_value=rate[0] * FAR_UNDER,
        unit=measure.unit,
        records=tuple(f"{measure.case}/{launch.replicate}" for launch in measure.launches),
    )
