"""Rules that compare with a baseline, within a stated fraction of it or within its own scatter.

A subject is compared with its own history and with the fleet's values, and fails if it is beyond either
limit. A subject with no history (new, replaced, renamed) is compared only with the fleet's values, and its
outcome says so. Both limits include the difference from one session to the next (`statistics/prediction.py`).
All values under required rules share one error rate, as do those under advisory rules. Every value is
evaluated, however coarse its limit: the outcome says how small a loss the limit detects, and the verdict
decides whether that is fine enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal

from gpuproof.records.outcome import Outcome, not_judged
from gpuproof.records.result import Measure
from gpuproof.statistics.prediction import HealthyValue, Repeatability, past_of_fleet, past_of_subject
from gpuproof.verdict.baseline import (
    Baseline,
    BaselineEntry,
    EntryKey,
    differing_keys,
    identity_of,
    key_of,
    stack_of_run,
)
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.model import REQUIRED_ERROR_RATE, MeasureOutcomes, Rule
from gpuproof.verdict.rules.outcomes import Limit, judged_by

FLEET_SHARE = 0.1
"""Portion of a value's error rate allotted to the fleet's limit if the subject also has a history, which
provides a finer limit."""
BASELINE_SHARE = 0.5
"""Portion of the required rules' error rate that baseline rules are assumed to get when a baseline is
recorded."""
NO_PAST = "it has no history of its own: compared only with the fleet's values"
Better = Literal["higher", "lower"]

SAME_STACK = "Record a baseline of exactly this stack and work"
MORE_RUNS = "Record it again from more runs: gpuproof baseline record NAME RUN RUN RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPast:
    """The prediction from one entry of a baseline."""

    entry: BaselineEntry
    of_subjects: Mapping[str, tuple[HealthyValue, str]]
    """Prediction per subject identity, with the number of runs it is based on, as text."""
    of_fleet: HealthyValue | None
    """Prediction from the fleet; None if there are too few subjects."""

    def limits(self, subject: str, error_rate: float) -> Iterator[tuple[HealthyValue, float, str]]:
        """Yield each limit for a subject's value, with its error rate and a description."""
        past = self.of_subjects.get(identity_of(subject))
        if past is not None:
            yield past[0], error_rate * (1 - FLEET_SHARE), past[1]
        if self.of_fleet is not None:
            how = "the fleet's spread" if past is not None else f"the fleet's spread; {NO_PAST}"
            yield self.of_fleet, error_rate * (FLEET_SHARE if past is not None else 1), how


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A baseline's predictions for all values that required, or advisory, rules compare with it."""

    refused: str | None
    """Reason why no value can be compared with it."""
    entries: Mapping[EntryKey, EntryPast] = field(default_factory=dict)
    error_rate: float = 0.0
    """Error rate for one value."""


def is_by_spread(rule: Rule) -> bool:
    """Report whether a rule compares values with the spread of a baseline."""
    return rule.expect.form == "baseline" and rule.expect.number is None and rule.tolerated is None


def past_of(measures: Sequence[Measure], facts: FleetFacts, *, error_rate: float) -> Past:
    """Collect the baseline's predictions for measures that one kind of rule compares with its spread.

    `error_rate` covers all of them together.
    """
    refused = _reason_for_none(facts)
    if refused is not None or facts.baseline is None:
        return Past(refused=refused)
    num = len({(measure.subject, measure.case, key_of(measure)) for measure in measures})
    return Past(refused=None, entries=_pasts(facts.baseline), error_rate=error_rate / max(1, num))


def _pasts(baseline: Baseline) -> dict[EntryKey, EntryPast]:
    return {key: _past_of_entry(entry, baseline.day_effect) for key, entry in baseline.by_key().items()}


def _past_of_entry(entry: BaselineEntry, day_effect: float) -> EntryPast:
    sessions, spread = entry.sessions(), entry.spread()
    repeats = entry.repeatability(day=day_effect)
    if repeats is None:
        of_subjects, day = {}, day_effect * abs(entry.centre)
    else:
        day = repeats.day
        of_subjects = {
            name: (past_of_subject(days, repeats), _past_text(days)) for name, days in sessions.items()
        }
    of_fleet = None if spread is None else past_of_fleet(spread, day=day)
    return EntryPast(entry=entry, of_subjects=of_subjects, of_fleet=of_fleet)


def _past_text(sessions: Mapping[str, Sequence[float]]) -> str:
    num, days = sum(map(len, sessions.values())), len(sessions)
    return f"its own history: {num} run{'s' * (num > 1)} on {days} day{'s' * (days > 1)}"


def _reason_for_none(facts: FleetFacts) -> str | None:
    if facts.baseline is None:
        return "no baseline was given"
    unlike = differing_keys(stack_of_run(facts.hosts, facts.launches), facts.baseline.stack)
    return (
        f"the baseline {facts.baseline.name} is for a different stack: {'; '.join(unlike)}"
        if unlike
        else None
    )


def judge_by_past(rule: Rule, measures: Sequence[Measure], facts: FleetFacts, past: Past) -> MeasureOutcomes:
    """Evaluate each measure against the baseline; `past` covers all values compared with its spread."""
    for measure in measures:
        against = (past.refused, SAME_STACK) if past.refused else _reason_against(rule, measure, past, facts)
        if against is not None:
            yield measure, not_judged(measure.subject, *against)
        else:
            yield measure, _judged(rule, measure, past, facts)


def _reason_against(rule: Rule, measure: Measure, past: Past, facts: FleetFacts) -> tuple[str, str] | None:
    """Report why the baseline sets no limit for a value, and the next step; None if it does."""
    assert facts.baseline is not None
    name, of_entry = facts.baseline.name, past.entries.get(key_of(measure))
    if of_entry is None or of_entry.entry.unit != measure.unit:
        return f"the baseline {name} has no value for this work in {measure.unit}", SAME_STACK
    if is_by_spread(rule) and not any(of_entry.limits(measure.subject, past.error_rate)):
        subjects = of_entry.entry.sessions()
        if identity_of(measure.subject) in subjects:
            return f"the baseline {name} has only one run of it, so how well it repeats is unknown", MORE_RUNS
        few = (
            f"the baseline {name} has no past runs of it, and values from only {len(subjects)} other subjects"
        )
        return f"{few}: too few", MORE_RUNS
    return None


def _judged(rule: Rule, measure: Measure, past: Past, facts: FleetFacts) -> Outcome:
    """Check one value against the stricter of its limits, or the stated fraction of its centre."""
    assert facts.baseline is not None
    of_entry, better = past.entries[key_of(measure)], measure.better or "higher"
    baseline, num = facts.baseline, len(of_entry.entry.figures)
    source = f"baseline {baseline.name} of {baseline.recorded}, {num} values"
    source += ", including SUSPECT runs" if baseline.suspect else ""
    limits = list(of_entry.limits(measure.subject, past.error_rate))
    expected = limits[0][0] if limits else None
    if not is_by_spread(rule):
        centre = of_entry.entry.centre if expected is None else expected.centre
        limit = _stated(rule, centre, better, source)
        outcome = judged_by(rule, measure, limit)
    else:
        allowed = [
            Limit(expected=by.centre, slack=by.reach(rate), better=better, source=source, how=how)
            for by, rate, how in limits
        ]
        limit = max(allowed, key=lambda one: one.edge if better == "higher" else -one.edge)
        outcome = judged_by(rule, measure, limit, reach=0.0)
    if outcome.status == "ERROR":
        return outcome
    return replace(outcome, minimum_detectable=_detectable(limit, expected))


def _detectable(limit: Limit, expected: HealthyValue | None) -> float | None:
    """Return the smallest loss that makes a healthy subject fail in 95 % of cases, as a fraction."""
    if expected is None or not expected.centre:
        return None
    side = 1 if limit.better == "higher" else -1
    return max(0.0, side * (expected.centre - limit.edge) + expected.noise) / abs(expected.centre)


def _stated(rule: Rule, centre: float, better: Better, source: str) -> Limit:
    of_share = rule.expect.number is not None
    tolerance = 1 - rule.expect.number if rule.expect.number is not None else rule.tolerated or 0.0
    return Limit(
        expected=centre,
        slack=abs(centre) * tolerance,
        better=better,
        source=source,
        how="stated share" if of_share else "stated tolerance",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The smallest loss that a baseline detects in the subjects of one entry."""

    entry: BaselineEntry
    detectable: float | None
    """The loss as a fraction; None if no loss is detectable, because nothing was repeated."""
    planned: tuple[int, int] | None
    """Minimum number of runs per subject, and of days, to detect the target loss; None if no number is
    enough."""


MOST_DAYS, MOST_RUNS = 5, 12
"""Maximum number of days, and of runs per day, in a plan. If a plan would need more, the values are not
repeatable enough."""


def coarsest(baseline: Baseline, wanted: float) -> Resolution | None:
    """Return the entry whose subjects' own history has the coarsest resolution; None if all centres are 0."""
    of_figure = BASELINE_SHARE * REQUIRED_ERROR_RATE * (1 - FLEET_SHARE)
    of_figure /= max(1, sum(len(entry.sessions()) for entry in baseline.entries))
    resolutions = [
        _resolution(entry, entry.repeatability(day=baseline.day_effect), of_figure, wanted)
        for entry in baseline.entries
        if entry.centre
    ]
    return max(resolutions, key=lambda one: one.detectable or float("inf"), default=None)


def _resolution(
    entry: BaselineEntry, repeats: Repeatability | None, error_rate: float, wanted: float
) -> Resolution:
    """Return an entry's resolution, and how many runs it needs if further ones are as repeatable."""
    if repeats is None:
        return Resolution(entry=entry, detectable=None, planned=None)
    subjects = entry.sessions().values()
    planned = []
    for days, runs in product(range(1, MOST_DAYS + 1), range(2, MOST_RUNS + 1)):
        better = replace(repeats, degrees=len(subjects) * days * (runs - 1))
        past = past_of_subject({str(day): [entry.centre] * runs for day in range(days)}, better)
        if (past.detectable(error_rate) or 0.0) <= wanted:
            planned.append((days * runs, days))
    return Resolution(
        entry=entry,
        detectable=max(past_of_subject(days, repeats).detectable(error_rate) or 0.0 for days in subjects),
        planned=min(planned, default=None),
    )
