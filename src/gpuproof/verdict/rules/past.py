"""Rules that hold figures against the fleet's own past: a stated share of it, or what its spread allows.

Healthy GPUs may scatter with heavy tails, and a rule that takes them for normal accuses the slowest of them.
By spread a figure therefore fails at one of two limits. The near one holds for subjects of which two figures
at least are short of theirs: a GPU that is slow is mostly slow in more than one test. The far one holds for
a figure by itself, and allows for tails of Student's t with 4 degrees of freedom. Both grow where healthy
figures have their longer tail on the bad side. How long it is cannot be told from few figures: one that is
past its near limit, and not past every tail that they leave possible, is an error, and nobody is accused.
All figures of a kind of rule share one error rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from gpuproof.analysis.apart import LEAST_DIFFERENCE
from gpuproof.records.outcome import Outcome, kind_of
from gpuproof.records.result import Measure
from gpuproof.statistics.prediction import (
    HealthySpread,
    heavy_reach,
    num_independent,
    sure_reach,
    tail_reach,
)
from gpuproof.units import share
from gpuproof.verdict.baseline import BaselineEntry, EntryKey, entry_key, stack_of, unlike_keys
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.model import Rule
from gpuproof.verdict.rules.outcomes import Limit, judged_by, not_judged
from gpuproof.verdict.rules.refusals import MOST_MEASURED, with_unit

NEAR_SHARE = 0.8
"""Of the error rate, what near limits may use."""
MOST_ALONE = 0.5
"""A single figure that may be off by half says nothing; one that is off by more is so whatever the shape."""
BORNE_OUT = 2
"""Figures of a subject that are short of their near limits, and so bear each other out."""
Better = Literal["higher", "lower"]
Found = Iterator[tuple[Measure, Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaches:
    """How far off its past a healthy figure may be, in its unit."""

    near: float
    """Where another figure of the subject is short as well."""
    sure: float
    """The same, whatever tail the baseline leaves possible."""
    lone: float
    """By itself."""
    only: float
    """By itself, of a subject of which there is no other figure: none could bear it out."""
    only_sure: float
    """The same, whatever tail the baseline leaves possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The fleet's past, and what all figures that are held against its spread come to together."""

    refused: str | None
    """Why no figure can be held against it."""
    entries: Mapping[EntryKey, BaselineEntry] = field(default_factory=dict)
    spreads: Mapping[EntryKey, HealthySpread] = field(default_factory=dict)
    reaches: Mapping[EntryKey, Reaches] = field(default_factory=dict)
    num_figures: Mapping[str, int] = field(default_factory=dict)
    """Held against a spread, by subject."""
    num_short: Mapping[str, int] = field(default_factory=dict)
    """Of these, those that are short of their near limit."""

    def limit(self, measure: Measure, expected: float, source: str) -> tuple[Limit, float]:
        """Return the limit of a figure that has reaches, and from where on it is off for certain."""
        reaches, subject = self.reaches[_key(measure)], measure.subject
        slack, sure, how = reaches.lone, reaches.lone, "its spread, of one figure alone"
        if self.num_short.get(subject, 0) >= BORNE_OUT and _is_short(measure, expected, reaches.near):
            how = f"its spread; {self.num_short[subject]} figures of it are short"
            slack, sure = reaches.near, reaches.sure
        elif self.num_figures[subject] < BORNE_OUT:
            slack, sure, how = reaches.only, reaches.only_sure, "its spread"
        limit = Limit(expected=expected, slack=slack, better=_better(measure), source=source, how=how)
        return limit, sure


def is_by_spread(rule: Rule) -> bool:
    """Say whether a rule holds figures against the spread of a baseline."""
    return rule.expected.form == "baseline" and rule.expected.number is None and rule.tolerance is None


def past_of(measures: Sequence[Measure], facts: FleetFacts, *, error_rate: float) -> Past:
    """Put together what all measures that rules of one kind hold against the baseline's spread come to.

    `error_rate` is for all of them together.
    """
    refused = _why_none(facts)
    if refused is not None or facts.baseline is None:
        return Past(refused=refused)
    entries = facts.baseline.by_key()
    figures = {(measure.subject, measure.case, _key(measure)): measure for measure in measures}
    spreads = _spreads(figures.values(), entries)
    judged = [measure for measure in figures.values() if _key(measure) in spreads]
    num_known = num_independent([entries[key].groups() for key in spreads])
    reaches = _reaches(judged, spreads, num_known, error_rate=error_rate)
    short = Counter(
        measure.subject
        for measure in judged
        if _is_short(measure, spreads[_key(measure)].centre, reaches[_key(measure)].near)
    )
    return Past(
        refused=None,
        entries=entries,
        spreads=spreads,
        reaches=reaches,
        num_figures=Counter(measure.subject for measure in judged),
        num_short=short,
    )


def _spreads(
    measures: Iterable[Measure], entries: Mapping[EntryKey, BaselineEntry]
) -> dict[EntryKey, HealthySpread]:
    wanted = {_key(measure): measure.unit for measure in measures}
    known = {
        key: entries[key] for key, unit in wanted.items() if key in entries and entries[key].unit == unit
    }
    found = {key: entry.spread() for key, entry in known.items()}
    return {key: spread for key, spread in found.items() if spread is not None}


def _reaches(
    measures: Sequence[Measure],
    spreads: Mapping[EntryKey, HealthySpread],
    num_known: float,
    *,
    error_rate: float,
) -> dict[EntryKey, Reaches]:
    """Share the error rate: near limits by subjects, those of single figures by figures."""
    of_better = {_key(measure): _better(measure) for measure in measures}
    skewness = _skewness(spreads, of_better)
    near = NEAR_SHARE * error_rate / max(1, len({measure.subject for measure in measures}))
    lone = (1 - NEAR_SHARE) * error_rate / max(1, len(measures))
    return {
        key: _reaches_of(spread, near=near, lone=lone, skewness=skewness, num_known=num_known)
        for key, spread in spreads.items()
    }


def _reaches_of(
    spread: HealthySpread, *, near: float, lone: float, skewness: float, num_known: float
) -> Reaches:
    """Return the reaches of one test; `near` and `lone` are error rates of one subject and one figure."""

    def heavy(error_rate: float) -> float:
        return heavy_reach(spread, error_rate=error_rate)

    def tail(error_rate: float) -> float:
        return tail_reach(spread, error_rate=error_rate, skewness=skewness)

    def sure(error_rate: float) -> float:
        reach = sure_reach(spread, error_rate=error_rate, skewness=skewness, num_known=num_known)
        return max(tail(error_rate), min(reach, MOST_ALONE * abs(spread.centre)))

    least, only = LEAST_DIFFERENCE * abs(spread.centre), near + lone
    return Reaches(
        near=max(least, tail(near)),
        sure=max(least, sure(near)),
        lone=max(least, heavy(lone), sure(lone)),
        only=max(least, heavy(only), tail(only)),
        only_sure=max(least, heavy(only), sure(only)),
    )


def _skewness(spreads: Mapping[EntryKey, HealthySpread], of_better: Mapping[EntryKey, Better]) -> float:
    """Return how much longer the tail on the bad side is, in the mean over all tests; 0 where it is not."""
    towards_bad = [
        -spread.skewness if of_better[key] == "higher" else spread.skewness for key, spread in spreads.items()
    ]
    return max(0.0, fmean(towards_bad)) if towards_bad else 0.0


def _is_short(measure: Measure, centre: float, reach: float) -> bool:
    value = centre if measure.value is None else measure.value
    return (centre - value if _better(measure) == "higher" else value - centre) > reach


def _better(measure: Measure) -> Better:
    return measure.better or "higher"


def _key(measure: Measure) -> EntryKey:
    return entry_key(measure.name, measure.labels, kind_of(measure.subject))


def judge_by_past(rule: Rule, measures: Sequence[Measure], facts: FleetFacts, past: Past) -> Found:
    """Judge each measure by the baseline; `past` is of all figures that are held against its spread."""
    for measure in measures:
        found = past.refused or _limit_of(rule, measure, past, facts)
        if isinstance(found, str):
            yield measure, not_judged(measure.subject, found, "Record a baseline of this very stack and work")
            continue
        limit, sure = found
        if rule.expected.number is not None:
            yield measure, judged_by(rule, measure, limit)
        elif _is_short(measure, limit.expected, limit.slack) and not _is_short(measure, limit.expected, sure):
            yield measure, _doubtful(measure, limit, sure)
        else:
            yield measure, judged_by(rule, measure, limit, reach=limit.slack)


def _doubtful(measure: Measure, limit: Limit, sure: float) -> Outcome:
    """Say that a figure is short, and that the baseline is too small to tell a fault from a long tail."""
    assert measure.value is not None
    far = abs(measure.value - limit.expected)
    off, usual, may = (_worse(by, limit, measure.unit) for by in (far, limit.slack, sure))
    reason = f"{measure.text}; {off} worse than expected by {limit.source}, where "
    reason += f"{usual} is usual; should healthy ones have a long tail, which "
    reason += f"so few figures do not exclude, {may} could be one of them: undecided"
    step = "Record the baseline on more of them, or state what is allowed (baseline: 0.95)"
    return not_judged(measure.subject, reason, step)


def _worse(by: float, limit: Limit, unit: str) -> str:
    """Write how far a figure is off: as a share of what is expected, unless that is nothing."""
    return share(by / abs(limit.expected)) if limit.expected else with_unit(by, unit)


def _why_none(facts: FleetFacts) -> str | None:
    if facts.baseline is None:
        return "no baseline was given"
    unlike = unlike_keys(stack_of(facts.hosts), facts.baseline.stack)
    return f"the baseline {facts.baseline.name} is of another stack: {'; '.join(unlike)}" if unlike else None


def _limit_of(rule: Rule, measure: Measure, past: Past, facts: FleetFacts) -> tuple[Limit, float] | str:
    """Return the limit that a baseline sets, and how far off is so for certain; or why it sets none."""
    assert facts.baseline is not None
    name, key = facts.baseline.name, _key(measure)
    entry = past.entries.get(key)
    if entry is None or entry.unit != measure.unit:
        return f"the baseline {name} has no figure of this work in {measure.unit}"
    source = f"baseline {name} of {facts.baseline.recorded}, {len(entry.figures)} figures"
    if not is_by_spread(rule):
        stated = _stated(rule, measure, entry.centre, source)
        return stated, stated.slack
    spread, reaches = past.spreads.get(key), past.reaches.get(key)
    if spread is None or reaches is None:
        return f"the baseline {name} has too few figures of it to know their spread: record more runs"
    limit, sure = past.limit(measure, spread.centre, source)
    if reaches.near > MOST_MEASURED * abs(spread.centre) or limit.slack > MOST_ALONE * abs(spread.centre):
        off = share(max(reaches.near, limit.slack) / spread.centre)
        return f"the figures of the baseline {name} scatter too much: one may be off by {off}"
    return limit, sure


def _stated(rule: Rule, measure: Measure, centre: float, source: str) -> Limit:
    of_share = rule.expected.number is not None
    tolerance = 1 - rule.expected.number if rule.expected.number is not None else rule.tolerance or 0.0
    return Limit(
        expected=centre,
        slack=abs(centre) * tolerance,
        better=_better(measure),
        source=source,
        how="stated share" if of_share else "stated tolerance",
    )
