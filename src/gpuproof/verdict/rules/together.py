"""Rules that hold subjects against each other: nobody stands apart, or all are the same.

Peers are subjects of one type of GPU and of the same work; who stands apart is found by `analysis.apart`,
with one error rate over all of them. Peers say nothing of a fleet that is slow as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from gpuproof.analysis.apart import ERROR_RATE, Apart, HostRate, HostsJudged, judge_hosts
from gpuproof.records.outcome import Outcome, kind_of
from gpuproof.records.result import Measure
from gpuproof.units import share
from gpuproof.verdict.baseline import entry_key
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.model import Rule
from gpuproof.verdict.rules.outcomes import not_judged
from gpuproof.verdict.rules.refusals import device_of, with_unit

Found = Iterator[tuple[Measure, Outcome]]
NEAR = 9.0
"""How much more often than accused a healthy peer may be left undecided: 4.5 % of fleets beside 0.5 %."""
MOST_NEEDED = 0.5
"""Where so much would not stand apart, nobody passes."""
TOO_DIFFERENT = "they differ too much from each other"
UNDECIDED_STEP = (
    "Record a baseline on machines that are known to be good, or give a rule with a figure; measure longer"
)
PEERS = "the other subjects of the same run: they cannot tell a fleet that is slow as a whole"


def judge_peers(rule: Rule, measures: Sequence[Measure], facts: FleetFacts, *, error_rate: float) -> Found:
    """Judge who stands apart from the others of its type; all groups share the error rate."""
    groups: dict[object, list[Measure]] = {}
    for measure in measures:
        work = entry_key(measure.name, measure.labels, kind_of(measure.subject))
        groups.setdefault((work, measure.unit, device_of(measure, facts)), []).append(measure)
    for group in groups.values():
        yield from _judge_group(rule, group, error_rate=error_rate / len(groups))


def _judge_group(rule: Rule, group: Sequence[Measure], *, error_rate: float) -> Found:
    if len(group) == 1:
        reason = f"{group[0].subject} is the only one of its type: it has no peer"
        yield group[0], Outcome(status="NOT-APPLICABLE", subject=group[0].subject, reason=reason)
        return
    values = [measure.value or 0.0 for measure in group]
    if median(values) <= 0:
        for measure in group:
            yield measure, not_judged(measure.subject, "half of its peers measured 0", "Look at all of them")
        return
    rates = [_rate(measure) for measure in group]
    judged = judge_hosts(rates, error_rate=error_rate)
    if judged.slower is not None:
        slower = judged.slower
        reason = (
            f"{slower.host} is {share(slower.relative_difference)} behind {slower.than}; {judged.missing}"
        )
        step = "Add a third of the same type, or record a baseline"
        yield from ((measure, not_judged(measure.subject, reason, step)) for measure in group)
        return
    near_rate = min(ERROR_RATE, NEAR * error_rate) if rule.is_required else error_rate
    near = judge_hosts(rates, error_rate=near_rate)
    peers = _Peers(num=len(group), middle=median(values), judged=judged, near=near)
    for measure in group:
        undecided = peers.why_undecided(measure)
        if undecided is not None:
            yield measure, not_judged(measure.subject, undecided, UNDECIDED_STEP)
        else:
            yield measure, _outcome(rule, measure, peers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peers:
    """What is the same for all subjects of a group."""

    num: int
    middle: float
    judged: HostsJudged
    """Who surely stands apart."""
    near: HostsJudged
    """Who stands apart by a limit that healthy ones are beyond more often: nobody passes who does."""

    def apart(self, measure: Measure) -> Apart | None:
        """Return how far a subject stands apart; None where it does not."""
        return _found(self.judged.apart, measure)

    def why_undecided(self, measure: Measure) -> str | None:
        """Say why it can neither pass nor be accused; None where it can."""
        if self.apart(measure) is not None:
            return None
        found = _found(self.judged.undecided, measure)
        if found is not None:
            return f"{_off(measure, found)}, and {TOO_DIFFERENT} to say who is at fault"
        found = _found(self.near.apart, measure)
        if found is not None and _is_worse(measure, found):
            return f"{_off(measure, found)}: more than healthy peers mostly are, and too little to be sure"
        if self.near.needed[measure.subject] > MOST_NEEDED:
            return f"{self.num} of its type: {TOO_DIFFERENT} for one at half their speed to stand apart"
        return None


def _found(hosts: Sequence[Apart], measure: Measure) -> Apart | None:
    return next((found for found in hosts if found.host == measure.subject), None)


def _is_worse(measure: Measure, apart: Apart) -> bool:
    return (apart.relative_difference < 0) == (measure.better != "lower")


def _off(measure: Measure, apart: Apart) -> str:
    return f"{measure.text} is {share(abs(apart.relative_difference))} off its peers"


def _rate(measure: Measure) -> HostRate:
    assert measure.value is not None
    interval, reach = measure.interval, None
    if interval is not None and measure.value:
        reach = max(interval.high - measure.value, measure.value - interval.low) / abs(measure.value)
    return HostRate(host=measure.subject, rate=measure.value, reach=reach)


def _outcome(rule: Rule, measure: Measure, peers: _Peers) -> Outcome:
    apart = peers.apart(measure)
    is_worse = apart is not None and _is_worse(measure, apart)
    failing = "FAIL" if rule.is_required else "WARN"
    status = "PASS" if apart is None else failing if is_worse else "WARN"
    unit, middle = measure.unit, with_unit(peers.middle, measure.unit, beside=measure.text)
    off = "" if apart is None else f", {share(abs(apart.relative_difference))} off its peers"
    return Outcome(
        status=status,  # type: ignore[arg-type]  # of three words that are all statuses
        subject=measure.subject,
        measured=f"{measure.text}{off}",
        expected=f"about {middle}, as {peers.num} of its type have in the middle",
        source=PEERS,
        next_step=None if status == "PASS" else rule.next_step,
        responsible=None if status == "PASS" else rule.responsible,
        measured_value=measure.value,
        expected_value=peers.middle,
        unit=unit,
        minimum_detectable=peers.near.needed[measure.subject],
    )


def judge_equal(rule: Rule, measures: Sequence[Measure]) -> Found:
    """Judge whether all measures of the same work say the same: their digest, else their value."""
    groups: dict[object, list[Measure]] = {}
    for measure in measures:
        groups.setdefault(_work(measure), []).append(measure)
    for group in groups.values():
        yield from _judge_same(rule, group)


def _work(measure: Measure) -> object:
    name, labels, kind = entry_key(measure.name, measure.labels, kind_of(measure.subject))
    return name, labels, kind, str(measure.labels.get("round"))


def _said(measure: Measure) -> str | None:
    digest = measure.labels.get("digest")
    return str(digest) if digest is not None else None if measure.value is None else repr(measure.value)


def _judge_same(rule: Rule, group: Sequence[Measure]) -> Found:
    times = Counter(said for measure in group if (said := _said(measure)) is not None)
    common, most = times.most_common(1)[0] if times else ("", 0)
    has_majority = most > len(group) / 2 and len(group) > 2
    for measure in group:
        said = _said(measure)
        if said is None:
            yield measure, not_judged(measure.subject, measure.missing or "it gave no value", "Run it again")
        elif len(times) > 1 and not has_majority:
            reason = f"{len(group)} subjects give {len(times)} different values, none of them most often"
            yield measure, not_judged(measure.subject, reason, "Compare with more subjects of the same type")
        elif len(group) == 1:
            reason = f"{measure.subject} is the only one: there is nothing to compare it with"
            yield measure, not_judged(measure.subject, reason, "Compare with others of the same type")
        else:
            yield measure, _sameness(rule, measure, said, (common, most, len(group)))


def _sameness(rule: Rule, measure: Measure, said: str, majority: tuple[str, int, int]) -> Outcome:
    common, most, num = majority
    is_same = said == common
    return Outcome(
        status="PASS" if is_same else "FAIL",
        subject=measure.subject,
        measured=said,
        expected=f"{common}, as {most} of {num} give",
        source="the other subjects of the same run",
        next_step=None if is_same else rule.next_step,
        responsible=None if is_same else rule.responsible,
    )
