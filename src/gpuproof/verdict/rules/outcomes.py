"""From a figure, a limit and what is known of both to an outcome.

A figure passes where all of its interval is on the good side of the limit, fails where none of it is, and
says nothing where the limit lies inside. Without an interval the figure itself decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from gpuproof.base.units import share
from gpuproof.records.outcome import Outcome, not_judged, pass_or_fail
from gpuproof.records.result import Measure
from gpuproof.statistics.prediction import one_sided_t
from gpuproof.verdict.rules.model import Rule
from gpuproof.verdict.rules.refusals import with_unit

RELATIVE_ROUNDING = 1e-9
MISSED = 0.05
"""Of the losses that are said to be detectable, those that may go unseen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What is expected of a figure, in its unit."""

    expected: float
    slack: float
    """How far on the bad side it may be."""
    better: Literal["higher", "lower"]
    source: str
    how: str
    """Where the slack comes from, as people read it."""
    healthy: float | None = None
    """What a healthy subject does, where that is known: losses are counted from it."""

    @property
    def edge(self) -> float:
        """The last good value."""
        return self.expected - self.slack if self.better == "higher" else self.expected + self.slack


def judged_by(rule: Rule, measure: Measure, limit: Limit, *, reach: float | None = None) -> Outcome:
    """Judge one figure; `reach` is how far off it may be by chance, None: as far as its interval says.

    With a reach the slack is for what chance does to a single figure, and the figure itself decides.
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
    """Return the smallest loss that a limit fails in 95 % of cases, as a share of what a healthy one does.

    A figure with an interval fails where all of it is on the bad side, so that a loss has to reach past the
    limit by what chance does in one case of twenty, and by half of the interval besides. None where nobody
    knows what a healthy subject does, or how much the figure scatters.
    """
    margin = _scatter(measure) if reach is None else reach
    if not limit.healthy or margin is None:
        return None
    worst = limit.edge - margin if limit.better == "higher" else limit.edge + margin
    return max(0.0, (1 - worst / limit.healthy) * (1 if limit.better == "higher" else -1))


def _scatter(measure: Measure) -> float | None:
    """Return how far past a limit a mean has to lie for its interval to be past it in 95 % of cases."""
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
    return f"{bound}: {expected} less {share(limit.slack / limit.expected)} ({limit.how})"


def reason_no_figure(measure: Measure) -> str | None:
    """Say why a measure has no figure to judge."""
    if measure.value is None:
        return measure.missing or "nothing was measured, and no reason was given"
    if not isfinite(measure.value):
        return f"{measure.value} is no figure"
    return "the measurement is INVALID" if measure.validity == "INVALID" else None
