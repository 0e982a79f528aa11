"""Rules that hold subjects against their peers: nobody stands apart.

Peers are subjects of one type of GPU and of the same work; `analysis.apart` finds who stands apart. Its
limits allow for Student's t with 4 degrees of freedom, and healthy subjects may have a longer tail on one
side, which a few peers do not show. So a figure stands apart by itself only where it is past a limit that is
wider by `LOPSIDED`, and nearer where another figure of its subject is off on the same side, too. Who is off
by less does not pass, either, but is an error, from where healthy peers mostly are on. Nobody passes where
one at half the speed of its peers would not stand apart, where three or four disagree about who is off, or
where a peer stands apart as much faster: what it does, the others could do as well.
Peers say nothing of a fleet that is slow as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gpuproof.analysis.apart import ERROR_RATE, Apart, HostRate, HostsJudged, judge_hosts
from gpuproof.records.outcome import Outcome, kind_of
from gpuproof.records.result import Measure
from gpuproof.units import share
from gpuproof.verdict.baseline import entry_key
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.bounds import device_of
from gpuproof.verdict.rules.model import Rule
from gpuproof.verdict.rules.outcomes import not_judged
from gpuproof.verdict.rules.refusals import with_unit

LOPSIDED = 1.9
"""Times the limit: of 5 to 64 peers of a log-normal distribution (sigma 0.8) it keeps the rate of errors."""
BORNE_OUT = 2
"""Figures of a subject that are off on the same side, and so bear each other out."""
PASSING = 9.0
"""How much more often than accused a healthy peer may be left undecided: 4.5 % of fleets beside 0.5 %."""
MOST_NEEDED = 0.5
"""Where so much would not stand apart, nobody passes."""
MUCH_FASTER = 0.2
"""Where a peer stands apart by so much on the better side, its figure is wrong or the others are slow."""
TOO_DIFFERENT = "they differ too much from each other"
AGAIN = "Measure it again, or hold it against a baseline of the fleet"
PEERS = "the other subjects of the same run: they cannot tell a fleet that is slow as a whole"
Found = Iterator[tuple[Measure, Outcome]]


Sides = Mapping[tuple[str, bool], int]
"""Figures of a subject that are past their near limits, by whether they are worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGroup:
    """Measures of one work on one type of GPU, and how far off each of them is."""

    measures: tuple[Measure, ...]
    middle: float
    """Their median, in their unit."""
    judged: HostsJudged | None
    """By the limit of `analysis.apart`; None where nothing was compared."""
    passing: HostsJudged | None
    """By a nearer limit: who is beyond it does not pass."""
    near: frozenset[str]
    """Subjects that stand apart where another figure of them does …"""
    alone: frozenset[str]
    """… and by this figure alone."""


def _groups(measures: Sequence[Measure], facts: FleetFacts) -> list[list[Measure]]:
    groups: dict[object, list[Measure]] = {}
    for measure in measures:
        work = entry_key(measure.name, measure.labels, kind_of(measure.subject))
        groups.setdefault((work, measure.unit, device_of(measure, facts)), []).append(measure)
    return list(groups.values())


def peer_groups(
    measures: Sequence[Measure], facts: FleetFacts, *, error_rate: float, of_all: float
) -> list[PeerGroup]:
    """Compare the measures of one rule, which may use `error_rate` of that of all rules of its kind."""
    groups = _groups(measures, facts)
    return [_compared(group, error_rate=error_rate / len(groups), of_all=of_all) for group in groups]


def _compared(group: Sequence[Measure], *, error_rate: float, of_all: float) -> PeerGroup:
    rates = [_rate(measure) for measure in group]
    middle = median(rate.rate for rate in rates)
    if len(group) < 2 or middle <= 0:
        none: frozenset[str] = frozenset()
        return PeerGroup(
            measures=tuple(group), middle=middle, judged=None, passing=None, near=none, alone=none
        )
    judged = judge_hosts(rates, error_rate=error_rate)
    passing = judge_hosts(rates, error_rate=min(ERROR_RATE, PASSING * of_all) * error_rate / of_all)

    def apart(error_rate: float) -> frozenset[str]:
        found = judge_hosts(rates, error_rate=error_rate, wider=LOPSIDED)
        return frozenset(each.host for each in found.apart)

    near = apart(of_all).intersection(each.host for each in judged.apart)
    return PeerGroup(
        measures=tuple(group),
        middle=middle,
        judged=judged,
        passing=passing,
        near=near,
        alone=apart(error_rate),
    )


def sides_of(groups: Iterable[PeerGroup]) -> Sides:
    """Count what is past its near limit, over the groups of all rules of a kind."""
    return Counter(
        (each.host, _is_worse(each, group.measures))
        for group in groups
        if group.judged is not None
        for each in group.judged.apart
        if each.host in group.near
    )


def _is_worse(apart: Apart, measures: Sequence[Measure]) -> bool:
    return (apart.relative_difference < 0) == (measures[0].better != "lower")


def judge_peers(rule: Rule, groups: Sequence[PeerGroup], sides: Sides) -> Found:
    """Judge who stands apart; `sides` is of all groups of rules of this kind."""
    for group in groups:
        yield from _judge_group(rule, group, sides)


def _judge_group(rule: Rule, group: PeerGroup, sides: Sides) -> Found:
    measures, judged = group.measures, group.judged
    if len(measures) == 1:
        reason = f"{measures[0].subject} is the only one of its type: it has no peer"
        yield measures[0], Outcome(status="NOT-APPLICABLE", subject=measures[0].subject, reason=reason)
        return
    if judged is None:
        for measure in measures:
            yield measure, not_judged(measure.subject, "half of its peers measured 0", "Look at all of them")
        return
    if judged.slower is not None:
        slower = judged.slower
        reason = (
            f"{slower.host} is {share(slower.relative_difference)} behind {slower.than}; {judged.missing}"
        )
        step = "Add a third of the same type, or record a baseline"
        yield from ((measure, not_judged(measure.subject, reason, step)) for measure in measures)
        return
    for measure in measures:
        yield measure, _judged_alone(rule, measure, group, sides)


def _judged_alone(rule: Rule, measure: Measure, group: PeerGroup, sides: Sides) -> Outcome:
    """Judge one of several that can be compared."""
    assert group.judged is not None
    found = _found(group.judged.apart, measure)
    if found is None:
        undecided = _why_undecided(measure, group)
        if undecided is not None:
            return not_judged(measure.subject, undecided, AGAIN)
    elif _is_worse(found, group.measures) and not _is_sure(found, group, sides):
        reason = (
            f"{_off(measure, found)}, and no other figure of it is; should healthy ones have a long tail, "
            "which so few do not exclude, it could be one of them: undecided"
        )
        return not_judged(measure.subject, reason, AGAIN)
    return _outcome(rule, measure, group, found)


def _is_sure(found: Apart, group: PeerGroup, sides: Sides) -> bool:
    """Say whether a figure accuses its subject: by itself, or since another one bears it out."""
    is_borne_out = sides[found.host, _is_worse(found, group.measures)] >= BORNE_OUT
    return found.host in group.alone or (found.host in group.near and is_borne_out)


def _why_undecided(measure: Measure, group: PeerGroup) -> str | None:
    """Say why a subject that nobody accuses does not pass; None where it does."""
    assert group.judged is not None
    assert group.passing is not None
    found = _found(group.judged.undecided, measure)
    if found is not None:
        return f"{_off(measure, found)}, and {TOO_DIFFERENT} to say who is at fault"
    found = _found(group.passing.apart, measure)
    if found is not None and _is_worse(found, group.measures):
        return f"{_off(measure, found)}: more than healthy peers mostly are, and too little to be sure"
    if group.passing.needed[measure.subject] > MOST_NEEDED:
        num = len(group.measures)
        return f"{num} of its type: {TOO_DIFFERENT} for one at half their speed to stand apart"
    return _outrun_by(group)


def _outrun_by(group: PeerGroup) -> str | None:
    """Name a peer that shows that the others could do much better; None where there is none."""
    assert group.judged is not None
    for found in group.judged.apart:
        if not _is_worse(found, group.measures) and abs(found.relative_difference) > MUCH_FASTER:
            off = share(abs(found.relative_difference))
            return f"{found.host} is better by {off}: its figure is wrong, or those of its peers are too low"
    return None


def _found(hosts: Iterable[Apart], measure: Measure) -> Apart | None:
    return next((found for found in hosts if found.host == measure.subject), None)


def _off(measure: Measure, apart: Apart) -> str:
    return f"{measure.text} is {share(abs(apart.relative_difference))} off its peers"


def _rate(measure: Measure) -> HostRate:
    assert measure.value is not None
    interval, reach = measure.interval, None
    if interval is not None and measure.value:
        reach = max(interval.high - measure.value, measure.value - interval.low) / abs(measure.value)
    return HostRate(host=measure.subject, rate=measure.value, reach=reach)


def _outcome(rule: Rule, measure: Measure, group: PeerGroup, apart: Apart | None) -> Outcome:
    assert group.passing is not None
    failing = "FAIL" if rule.is_required and apart is not None and _is_worse(apart, (measure,)) else "WARN"
    status = "PASS" if apart is None else failing
    expected = with_unit(group.middle, measure.unit, beside=measure.text)
    off = "" if apart is None else f", {share(abs(apart.relative_difference))} off its peers"
    return Outcome(
        status=status,  # type: ignore[arg-type]  # of three words that are all statuses
        subject=measure.subject,
        measured=f"{measure.text}{off}",
        expected=f"about {expected}, as {len(group.measures)} of its type have in the middle",
        source=PEERS,
        next_step=None if status == "PASS" else rule.next_step,
        responsible=None if status == "PASS" else rule.responsible,
        measured_value=measure.value,
        expected_value=group.middle,
        unit=measure.unit,
        minimum_detectable=group.passing.needed[measure.subject],
    )
