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
from typing import Literal

from gpuproof.analysis.apart import LEAST_DIFFERENCE
from gpuproof.records.outcome import Outcome, kind_of
from gpuproof.records.result import Measure
from gpuproof.statistics.prediction import (
    HealthyShape,
    HealthySpread,
    alike_reach,
    heavy_reach,
    shape_of,
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
LEADING = 8
"""Subjects of a baseline; as many as it has beyond these tell of the shape beside them, from the run."""
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
    near = _near_reaches(judged, spreads, entries, error_rate=error_rate)
    short = Counter(
        measure.subject
        for measure in judged
        if _is_short(measure, spreads[_key(measure)].centre, near[_key(measure)])
    )
    shape = _shape([m for m in judged if m.subject not in short], entries, _sides(judged))
    reaches = _reaches(judged, spreads, near, shape, error_rate=error_rate)
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


def _near_reaches(
    measures: Sequence[Measure],
    spreads: Mapping[EntryKey, HealthySpread],
    entries: Mapping[EntryKey, BaselineEntry],
    *,
    error_rate: float,
) -> dict[EntryKey, float]:
    """Return how far off a figure may be of which another one of its subject is short, too."""
    near = _near_rate(measures, error_rate)
    skewness = _shape((), {key: entries[key] for key in spreads}, _sides(measures)).skewness
    return {
        key: max(
            LEAST_DIFFERENCE * abs(spread.centre), tail_reach(spread, error_rate=near, skewness=skewness)
        )
        for key, spread in spreads.items()
    }


def _near_rate(measures: Sequence[Measure], error_rate: float) -> float:
    return NEAR_SHARE * error_rate / max(1, len({measure.subject for measure in measures}))


def _reaches(
    measures: Sequence[Measure],
    spreads: Mapping[EntryKey, HealthySpread],
    near: Mapping[EntryKey, float],
    shape: HealthyShape,
    *,
    error_rate: float,
) -> dict[EntryKey, Reaches]:
    """Share the error rate: near limits by subjects, those of single figures by figures."""
    of_near = _near_rate(measures, error_rate)
    of_lone = (1 - NEAR_SHARE) * error_rate / max(1, len(measures))
    return {
        key: _reaches_of(spread, shape, near[key], of_near=of_near, of_lone=of_lone)
        for key, spread in spreads.items()
    }


def _reaches_of(
    spread: HealthySpread, shape: HealthyShape, near: float, *, of_near: float, of_lone: float
) -> Reaches:
    """Return the reaches of one test; `of_near` and `of_lone` are error rates of a subject and a figure."""

    def heavy(error_rate: float) -> float:
        return heavy_reach(spread, error_rate=error_rate)

    def sure(error_rate: float) -> float:
        reach = sure_reach(spread, error_rate=error_rate, shape=shape)
        return min(reach, MOST_ALONE * abs(spread.centre))

    least, of_only = LEAST_DIFFERENCE * abs(spread.centre), of_near + of_lone
    only = max(near, heavy(of_only))
    return Reaches(
        near=near,
        sure=max(near, sure(of_near), alike_reach(spread, error_rate=of_near, shape=shape)),
        lone=max(least, heavy(of_lone), sure(of_lone)),
        only=only,
        only_sure=max(only, sure(of_only), alike_reach(spread, error_rate=of_only, shape=shape)),
    )


def _shape(
    healthy: Sequence[Measure], entries: Mapping[EntryKey, BaselineEntry], sides: Mapping[EntryKey, int]
) -> HealthyShape:
    """Return what the baseline tells of the shape, and figures of this run with it, of other subjects.

    The baseline leads: a small one says too little of which subjects of the run are healthy.
    """
    groups = {key: entries[key].groups() for key in sides}
    known = {key: set(of_key) for key, of_key in groups.items()}
    most = {key: len(of_key) + max(0, len(of_key) - LEADING) for key, of_key in groups.items()}
    for measure in healthy:
        key, subject = _key(measure), measure.subject
        is_counted = subject in groups[key] or len(groups[key]) < most[key]
        if measure.value is not None and subject not in known[key] and is_counted:
            groups[key].setdefault(subject, []).append(measure.value)
    return shape_of(list(groups.values()), bad_sides=[sides[key] for key in groups])


def _sides(measures: Sequence[Measure]) -> dict[EntryKey, int]:
    """Return the bad side of each test: −1 where low figures are bad, 1 where high ones are."""
    return {_key(measure): -1 if _better(measure) == "higher" else 1 for measure in measures}


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
