"""Rules that compare subjects with their peers and flag outliers.

Peers are subjects with the same type of GPU that ran the same workload. With five or more peers, the
threshold is derived from their own scatter (`statistics.dispersion`). Each value is evaluated separately and
also jointly: a subject by its mean over all tests under rules of one kind, and a host by the mean of its
devices. Three or four peers are compared using the spread of their launches (`statistics.outliers`). If there
are only two and they differ, neither is flagged. No subject is flagged for a difference below
`LEAST_DIFFERENCE`. If there is no outlier, all pass, and the outcome says how small a loss would have been
detected. If a subject is off by more than a fifth and cannot be flagged, no subject passes: either its value
is wrong, or the values of the others are. Comparing peers cannot reveal that a whole fleet is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from gpuproof.base.groups import grouped
from gpuproof.base.units import loss_shown, share
from gpuproof.records.outcome import Outcome, kind_of, not_applicable, not_judged
from gpuproof.records.result import Measure
from gpuproof.statistics.dispersion import LEAST_FIGURES, NORMAL_MAD, low_outliers
from gpuproof.statistics.outliers import LEAST_DIFFERENCE, ROUNDING, HostRate, HostsJudged, judge_hosts
from gpuproof.verdict.baseline import entry_key
from gpuproof.verdict.facts import FleetFacts, host_of
from gpuproof.verdict.rules.bounds import device_of
from gpuproof.verdict.rules.model import MeasureOutcomes, Rule
from gpuproof.verdict.rules.refusals import with_unit

ALONE_SHARE, FAST_SHARE = 0.2, 0.05
"""Fractions of a rule's error rate allotted to single values that are worse than their peers, and to single
values that are better …"""
HOST_SHARE = 0.2
"""… and, of the error rate of the joint tests over all rules of one kind, the fraction allotted to tests of
hosts."""
MUCH = 0.2
"""If a peer is off by this much without being flagged, no subject passes."""
TOO_DIFFERENT = "they differ too much from each other"
AGAIN = "Measure it again, or compare it with a baseline of the fleet"
PEERS = "the other subjects in the same run: they cannot reveal that the whole fleet is slow"
Sides = Mapping[str, str]
"""Text for each subject that explains why several values together indicate that it is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGroup:
    """Measures of the same workload on one type of GPU, and how far each deviates from their median."""

    measures: tuple[Measure, ...]
    family: tuple[str, str | None]
    """Kind of subject and type of GPU; the groups of one family are evaluated jointly."""
    joint_rate: float
    """Portion of the error rate allotted to joint tests over all groups."""
    middle: float
    """Median of the measures, in their unit."""
    differences: Mapping[str, float]
    """Difference from the median for each subject, as a fraction; negative means worse."""
    scatter: float
    """Standard deviation of the differences, estimated from their median absolute value."""
    slow: frozenset[str]
    """Subjects shown to be worse by this value alone, and …"""
    fast: frozenset[str]
    """… subjects shown to be better."""
    detectable: Mapping[str, float | None]
    """The smallest loss detectable by this value alone."""
    launches: HostsJudged | None = None
    """Comparison based on the spread of launches, for four subjects or fewer."""


def peer_groups(
    measures: Sequence[Measure], facts: FleetFacts, *, error_rate: float, of_all: float
) -> list[PeerGroup]:
    """Compare the measures of one rule; `error_rate` is its portion of `of_all`, the rate for its kind."""
    families: dict[tuple[str, str | None], dict[object, list[Measure]]] = {}
    for measure in measures:
        kind = kind_of(measure.subject)
        works = families.setdefault((kind, device_of(measure, facts)), {})
        works.setdefault((entry_key(measure.name, measure.labels, kind), measure.unit), []).append(measure)
    of_group = error_rate / max(1, sum(map(len, families.values())))
    return [
        _compared(group, family, error_rate=of_group, of_all=of_all)
        for family, works in families.items()
        for group in works.values()
    ]


def _compared(
    group: Sequence[Measure], family: tuple[str, str | None], *, error_rate: float, of_all: float
) -> PeerGroup:
    """Compare the values of one test."""
    by_subject = grouped((measure.subject, measure.value or 0.0) for measure in group)
    values = {subject: fmean(figures) for subject, figures in by_subject.items()}
    middle, side = median(values.values()), -1 if group[0].better == "lower" else 1
    off = {subject: side * (value / middle - 1) if middle > 0 else 0.0 for subject, value in values.items()}
    distances = sorted(map(abs, off.values()))
    scatter = median(distances) or min(next(filter(None, distances), ROUNDING), ROUNDING) / 2
    launches, detectable = None, dict.fromkeys(values, None)
    slow: Iterable[str] = ()
    fast: Iterable[str] = ()
    if len(values) >= LEAST_FIGURES and middle > 0:
        slow, shown = _low(off, error_rate * ALONE_SHARE)
        fast, _ = _low({subject: -by for subject, by in off.items()}, error_rate * FAST_SHARE)
        detectable = dict.fromkeys(values, max(shown, LEAST_DIFFERENCE))
    elif len(values) > 1 and middle > 0:
        launches = judge_hosts([_rate(measure) for measure in group], error_rate=error_rate)
        slow = [apart.host for apart in launches.apart if off[apart.host] < 0]
        fast = [apart.host for apart in launches.apart if off[apart.host] > 0]
        detectable = {subject: launches.needed.get(subject) for subject in values}
    return PeerGroup(
        measures=tuple(group),
        family=family,
        joint_rate=of_all,
        middle=middle,
        differences=off,
        scatter=scatter / NORMAL_MAD,
        slow=frozenset(slow),
        fast=frozenset(fast),
        detectable=detectable,
        launches=launches,
    )


def _low(off: Mapping[str, float], error_rate: float) -> tuple[list[str], float]:
    """Return the subjects whose values are too low, and the smallest detectable loss."""
    subjects = list(off)
    outliers = low_outliers(list(off.values()), error_rate=error_rate, least_scatter=ROUNDING / 10)
    slow = [subjects[place] for place in outliers.places]
    return [subject for subject in slow if off[subject] < -LEAST_DIFFERENCE], outliers.detectable


def sides_of(groups: Iterable[PeerGroup]) -> Sides:
    """Return subjects that are slow on average over all groups of a kind, or slow as a whole host."""
    families = grouped((group.family, group) for group in groups if len(group.differences) >= LEAST_FIGURES)
    accused: dict[str, str] = {}
    for (kind, _), family in families.items():
        means, rate = _means(family), family[0].joint_rate / len(families)
        hosts = grouped((host_of(subject) or "", subject) for subject in means)
        if kind == "gpu":
            of_hosts = {host: fmean(means[gpu] for gpu in gpus) for host, gpus in hosts.items()}
            for host in _low(of_hosts, rate * HOST_SHARE)[0]:
                by, num = share(-of_hosts[host]), len(hosts[host])
                accused |= dict.fromkeys(hosts[host], f"host {host}: {by} on average over its {num} GPUs")
        for subject in _low(means, rate * (1 - HOST_SHARE))[0]:
            accused.setdefault(subject, f"{share(-means[subject])} on average over {len(family)} tests")
    return accused


def _means(family: Sequence[PeerGroup]) -> dict[str, float]:
    """Return how far off each subject is on average over tests; noisier tests get less weight.

    A subject that lacks one of the family's tests is evaluated only on single values.
    """
    weights = [1 / group.scatter for group in family]
    everywhere = set.intersection(*(set(group.differences) for group in family))
    return {
        subject: sum(
            weight * group.differences[subject] for weight, group in zip(weights, family, strict=True)
        )
        / sum(weights)
        for subject in family[0].differences
        if subject in everywhere
    }


def judge_peers(rule: Rule, groups: Sequence[PeerGroup], sides: Sides) -> MeasureOutcomes:
    """Judge outliers; `sides` covers all groups under rules of the same kind: required or advisory."""
    for group in groups:
        unclear = _reason_none_passes(group, sides)
        for measure in group.measures:
            yield measure, _judged(rule, measure, group, sides, unclear)


def _judged(rule: Rule, measure: Measure, group: PeerGroup, sides: Sides, unclear: str | None) -> Outcome:
    subject = measure.subject
    if len(group.differences) == 1:
        reason = f"{subject} is the only one of its type: it has no peers"
        return not_applicable(reason, subject)
    joint = sides.get(subject) if group.differences[subject] < -LEAST_DIFFERENCE else None
    if joint is not None or subject in group.slow:
        return _outcome(rule, measure, group, "FAIL" if rule.required else "WARN", joint)
    if subject in group.fast:
        return _outcome(rule, measure, group, "WARN", None)
    if unclear is not None:
        return not_judged(subject, unclear, AGAIN)
    return _outcome(rule, measure, group, "PASS", None)


def _reason_none_passes(group: PeerGroup, sides: Sides) -> str | None:
    """Report why the group's subjects that are not flagged still do not pass; None if they do."""
    if group.middle <= 0:
        return "half of its peers measured 0"
    launches = group.launches
    if launches is not None and launches.slower is not None:
        slower = launches.slower
        return (
            f"{slower.host} is {share(slower.relative_difference)} slower than {slower.than}; "
            f"{launches.missing}"
        )
    if launches is not None and launches.undecided:
        return f"{TOO_DIFFERENT} to tell which one is at fault"
    accused = {*group.slow, *sides}
    left = {subject: by for subject, by in group.differences.items() if subject not in accused}
    farthest = max(left, key=lambda subject: abs(left[subject]), default=None)
    if farthest is None or abs(left[farthest]) <= MUCH:
        return None
    off = share(abs(left[farthest]))
    if left[farthest] > 0:
        return f"{farthest} is better by {off}: either its value is wrong, or those of its peers are too low"
    return f"{farthest} is worse by {off}, but {TOO_DIFFERENT} to tell which one is at fault"


def _rate(measure: Measure) -> HostRate:
    assert measure.value is not None
    interval, reach = measure.interval, None
    if interval is not None and measure.value:
        reach = max(interval.high - measure.value, measure.value - interval.low) / abs(measure.value)
    return HostRate(host=measure.subject, rate=measure.value, reach=reach)


def _outcome(rule: Rule, measure: Measure, group: PeerGroup, status: str, joint: str | None) -> Outcome:
    expected = with_unit(group.middle, measure.unit, beside=measure.text)
    by, shown = group.differences[measure.subject], group.detectable[measure.subject]
    off = "" if status == "PASS" else f", {share(abs(by))} off its peers"
    off += "" if joint is None else f" ({joint})"
    shows = "" if shown is None else f"; {loss_shown(shown)}"
    return Outcome(
        status=status,  # type: ignore[arg-type]  # of three words that are all statuses
        subject=measure.subject,
        measured=f"{measure.text}{off}",
        expected=f"about {expected}, the median of {len(group.differences)} of its type{shows}",
        source=PEERS,
        next_step=None if status == "PASS" else rule.next_step,
        responsible=None if status == "PASS" else rule.responsible,
        measured_value=measure.value,
        expected_value=group.middle,
        unit=measure.unit,
        minimum_detectable=shown,
    )
