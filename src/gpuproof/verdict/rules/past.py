"""Rules that hold figures against a baseline: a stated share of it, or what its own scatter allows.

A subject is held against its own past and against the fleet's figures, and fails where it is beyond either
limit; one without a past (new, exchanged, under another name) is held against the fleet's figures alone, and
its outcome says so. What one session differs from the next is in both limits (`statistics/prediction.py`).
All figures of a kind of rule share one error rate. Nothing is too coarse to be judged: how small a loss a
limit shows is said beside the outcome, and the verdict decides whether that is fine enough.
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
"""Of a figure's error rate, what the fleet's limit uses where the subject has a past, the finer one."""
BASELINE_SHARE = 0.5
"""Of the error rate of required rules, what those of baselines are taken to use when one is recorded."""
NO_PAST = "it has no past of its own: held against the fleet's figures alone"
Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPast:
    """What one entry of a baseline lets expect."""

    entry: BaselineEntry
    of_subjects: Mapping[str, tuple[HealthyValue, str]]
    """By identity; with how many runs it rests on, in words."""
    of_fleet: HealthyValue | None
    """None where subjects are too few."""

    def limits(self, subject: str, error_rate: float) -> Iterator[tuple[HealthyValue, float, str]]:
        """Yield what a figure of a subject is held against, at which error rate, in words."""
        past = self.of_subjects.get(identity_of(subject))
        if past is not None:
            yield past[0], error_rate * (1 - FLEET_SHARE), past[1]
        if self.of_fleet is not None:
            how = "the fleet's spread" if past is not None else f"the fleet's spread; {NO_PAST}"
            yield self.of_fleet, error_rate * (FLEET_SHARE if past is not None else 1), how


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a baseline lets expect of all figures that rules of one kind hold against it."""

    refused: str | None
    """Why no figure can be held against it."""
    entries: Mapping[EntryKey, EntryPast] = field(default_factory=dict)
    error_rate: float = 0.0
    """Of one figure."""


def is_by_spread(rule: Rule) -> bool:
    """Say whether a rule holds figures against the spread of a baseline."""
    return rule.expect.form == "baseline" and rule.expect.number is None and rule.tolerated is None


def past_of(measures: Sequence[Measure], facts: FleetFacts, *, error_rate: float) -> Past:
    """Put together what the baseline lets expect of measures that rules of one kind hold against its spread.

    `error_rate` is for all of them together.
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
    return f"its own past: {num} run{'s' * (num > 1)} on {days} day{'s' * (days > 1)}"


def _reason_for_none(facts: FleetFacts) -> str | None:
    if facts.baseline is None:
        return "no baseline was given"
    unlike = differing_keys(stack_of_run(facts.hosts, facts.launches), facts.baseline.stack)
    return f"the baseline {facts.baseline.name} is of another stack: {'; '.join(unlike)}" if unlike else None


def judge_by_past(rule: Rule, measures: Sequence[Measure], facts: FleetFacts, past: Past) -> MeasureOutcomes:
    """Judge each measure by the baseline; `past` is of all figures that are held against its spread."""
    for measure in measures:
        reason = past.refused or _reason_against(rule, measure, past, facts)
        if reason is not None:
            yield (
                measure,
                not_judged(measure.subject, reason, "Record a baseline of this very stack and work"),
            )
        else:
            yield measure, _judged(rule, measure, past, facts)


def _reason_against(rule: Rule, measure: Measure, past: Past, facts: FleetFacts) -> str | None:
    """Say why the baseline sets no limit for a figure; None where it does."""
    assert facts.baseline is not None
    name, of_entry = facts.baseline.name, past.entries.get(key_of(measure))
    if of_entry is None or of_entry.entry.unit != measure.unit:
        return f"the baseline {name} has no figure of this work in {measure.unit}"
    if is_by_spread(rule) and not any(of_entry.limits(measure.subject, past.error_rate)):
        subjects = of_entry.entry.sessions()
        if identity_of(measure.subject) in subjects:
            return f"the baseline {name} has one run of it: record more, to know how it repeats"
        return f"the baseline {name} has no past of it, and figures of {len(subjects)} others: too few"
    return None


def _judged(rule: Rule, measure: Measure, past: Past, facts: FleetFacts) -> Outcome:
    """Judge one figure by the sharper one of its limits, or by the stated share of its centre."""
    assert facts.baseline is not None
    of_entry, better = past.entries[key_of(measure)], measure.better or "higher"
    baseline, num = facts.baseline, len(of_entry.entry.figures)
    source = f"baseline {baseline.name} of {baseline.recorded}, {num} figures"
    source += ", SUSPECT runs among them" if baseline.suspect else ""
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
    """Return the smallest loss of a healthy subject that a limit fails in 95 % of cases, as a share."""
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
    """How small a loss a baseline shows in a subject of one entry."""

    entry: BaselineEntry
    detectable: float | None
    """As a share; None: it shows none, since nothing was repeated."""
    planned: tuple[int, int] | None
    """Fewest runs of each subject, and on how many days, for the wanted share; None: no number would do."""


MOST_DAYS, MOST_RUNS = 5, 12
"""Of a plan, and on each of its days: who needs more has figures that do not repeat."""


def coarsest(baseline: Baseline, wanted: float) -> Resolution | None:
    """Return the entry that resolves least, by its subjects' own past; None where every centre is 0."""
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
    """Return what an entry resolves, and what would do, should further runs repeat as the present ones."""
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
