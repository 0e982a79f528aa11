"""Compare measures with rules: one outcome per subject, or an error if a rule cannot be applied.

In: rules and all known facts about a fleet. Out: outcomes by rule name. Nothing passes unmeasured: a rule
that matches nothing, a subject without its measure, a missing or impossible value, and a published result or
baseline for something else are all errors. All required rules share one error rate, and so do all advisory
rules: required rules wrongly flag a subject in at most `REQUIRED_ERROR_RATE` of healthy fleets, advisory ones
in at most `statistics.outliers.ERROR_RATE`. Rules of form `equal` compare subjects' digests or values here;
every other form has its own module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuproof.base.groups import grouped, majority
from gpuproof.records.outcome import Basis, Judged, Outcome, kind_of, not_judged, pass_or_fail
from gpuproof.records.result import Measure
from gpuproof.statistics.outliers import ERROR_RATE
from gpuproof.verdict.baseline import UNCOMPARED, key_of
from gpuproof.verdict.check import ask
from gpuproof.verdict.checks.registry import find_check
from gpuproof.verdict.facts import FleetFacts, gpu_subjects
from gpuproof.verdict.rules.model import REQUIRED_ERROR_RATE, CheckRule, MeasureOutcomes, Rule, Rules
from gpuproof.verdict.rules.outcomes import judge_values, reason_no_value
from gpuproof.verdict.rules.past import Past, is_by_spread, judge_by_past, past_of
from gpuproof.verdict.rules.peers import PeerGroup, Sides, judge_peers, peer_groups, sides_of
from gpuproof.verdict.rules.refusals import reason_implausible, reason_unjudged, same_work

RATES = {True: REQUIRED_ERROR_RATE, False: ERROR_RATE}
"""Error rates for all required rules together (True), and for all advisory rules together (False)."""
BASES: Mapping[str, Basis] = {
    "at_least": "absolute",
    "at_most": "absolute",
    "reference": "absolute",
    "baseline": "baseline",
    "peers": "peers",
    "equal": "none",
}
FINISH = "Find the launch that failed, and finish the run with --resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standards:
    """The data shared by all rules of a file when they are evaluated."""

    facts: FleetFacts
    named: Mapping[str, Sequence[Measure]]
    """All measures, by name."""
    error_rates: Mapping[bool, float]
    """Error rate for a single rule, keyed by whether the rule is required."""
    pasts: Mapping[bool, Past]
    peers: Mapping[str, Sequence[PeerGroup]] = field(default_factory=dict)
    """Peer groups, keyed by rule name."""
    sides: Mapping[bool, Sides] = field(default_factory=dict)

    def matched(self, rule: Rule) -> list[Measure]:
        """Return the measures that a rule applies to."""
        named = self.named.get(rule.measure.name, ())
        return [measure for measure in named if rule.speaks_of(measure)]


def judge_rules(rules: Rules, facts: FleetFacts) -> list[Judged]:
    """Evaluate all rules in order."""
    standards = _standards(rules, facts)
    judged: list[Judged] = []
    for rule in rules:
        if isinstance(rule, CheckRule):
            asked = ask([find_check(rule.name)], facts)
            judged += (replace(item, is_required=rule.required) for item in asked)
        else:
            judged += [item for _, item in _judged(rule, standards)]
    return judged


def judge_measures(rules: Rules, facts: FleetFacts) -> Iterator[tuple[Measure, Judged]]:
    """Yield each measure with the outcomes of all rules that apply to it, using the same error rates."""
    standards = _standards(rules, facts)
    for rule in (rule for rule in rules if isinstance(rule, Rule)):
        for measure, item in _judged(rule, standards):
            if measure is not None:
                yield measure, item


def _standards(rules: Rules, facts: FleetFacts) -> _Standards:
    named = grouped((measure.name, measure) for measure in facts.measures)
    standards = _Standards(facts=facts, named=named, error_rates=_error_rates(rules), pasts={})
    kinds = (True, False)
    by_kind = {
        kind: [rule for rule in rules if isinstance(rule, Rule) and rule.required == kind] for kind in kinds
    }
    peers = {kind: _peers(by_kind[kind], standards) for kind in kinds}
    return replace(
        standards,
        pasts={kind: _past(by_kind[kind], standards, is_required=kind) for kind in kinds},
        peers={**peers[True], **peers[False]},
        sides={
            kind: sides_of(group for groups in peers[kind].values() for group in groups) for kind in kinds
        },
    )


def _peers(rules: Sequence[Rule], standards: _Standards) -> dict[str, list[PeerGroup]]:
    """Compare peers for each rule that requests it; all rules are required, or all are advisory."""
    return {
        rule.name: peer_groups(
            [m for m, fault in _with_faults(standards.matched(rule), standards.facts) if fault is None],
            standards.facts,
            error_rate=standards.error_rates[rule.required],
            of_all=RATES[rule.required],
        )
        for rule in rules
        if rule.expect.form == "peers"
    }


def _past(rules: Sequence[Rule], standards: _Standards, *, is_required: bool) -> Past:
    """Return the baseline's predictions for the measures one kind of rule compares with its spread."""
    by_spread = [rule for rule in rules if is_by_spread(rule)]
    measures = [m for rule in by_spread for m in standards.matched(rule) if reason_no_value(m) is None]
    return past_of(measures, standards.facts, error_rate=len(by_spread) * standards.error_rates[is_required])


def _error_rates(rules: Rules) -> dict[bool, float]:
    """Return each rule's equal share of the error rate, for required and for advisory rules."""
    num = Counter(rule.required for rule in rules if isinstance(rule, Rule))
    return {kind: rate / max(1, num[kind]) for kind, rate in RATES.items()}


def _judged(rule: Rule, standards: _Standards) -> Iterator[tuple[Measure | None, Judged]]:
    facts, named = standards.facts, standards.named.get(rule.measure.name, ())
    matched = standards.matched(rule)
    refused = _reason_refused(rule, named, matched, facts)
    if refused is not None:
        outcome = not_judged("whole", f"{rule.place}: {refused}", _advice(facts))
        yield None, _as_judged(rule, None, outcome)
        return
    for subject in _without_measure(rule, matched, facts):
        reason = f"{rule.measure} was not measured"
        yield None, _as_judged(rule, None, not_judged(subject, reason, FINISH))
    telling = _telling_labels(matched)
    good = []
    for measure, fault in _with_faults(matched, facts):
        if fault is None or rule.expect.form == "equal":
            good.append(measure)
        else:
            yield measure, _as_judged(rule, measure, not_judged(measure.subject, *fault), telling)
    for measure, outcome in _outcomes(rule, good, standards):
        yield measure, _as_judged(rule, measure, outcome, telling)


def _with_faults(
    matched: Sequence[Measure], facts: FleetFacts
) -> list[tuple[Measure, tuple[str, str] | None]]:
    """Pair each measure with the reason why its value cannot be evaluated, if any, and what to do."""
    groups = {id(measure): group for group in same_work(matched, facts) for measure in group}
    return [(measure, _fault(measure, groups[id(measure)], facts)) for measure in matched]


def _fault(measure: Measure, group: Sequence[Measure], facts: FleetFacts) -> tuple[str, str] | None:
    if (reason := reason_no_value(measure)) is not None:
        return reason, FINISH
    if (reason := reason_implausible(measure, group, facts)) is not None:
        return (
            reason,
            "Check the sizes, data types and clocks of the measurement: an impossible value is meaningless",
        )
    return None


def _outcomes(
    rule: Rule, measures: Sequence[Measure], standards: _Standards
) -> Iterator[tuple[Measure, Outcome]]:
    facts, error_rate = standards.facts, standards.error_rates[rule.required]
    match rule.expect.form:
        case "peers":
            return judge_peers(rule, standards.peers[rule.name], standards.sides[rule.required])
        case "equal":
            return judge_equal(rule, measures)
        case "baseline":
            return judge_by_past(rule, measures, facts, standards.pasts[rule.required])
        case _:
            return judge_values(rule, measures, facts, error_rate=error_rate)


def _as_judged(rule: Rule, measure: Measure | None, outcome: Outcome, telling: Sequence[str] = ()) -> Judged:
    return Judged(
        name=rule.name if measure is None else _name(rule, measure, telling),
        outcome=outcome
        if measure is None
        else replace(
            outcome,
            records=tuple(
                f"{measure.case}/{launch.replicate}" for launch in measure.launches if measure.case
            ),
        ),
        is_required=rule.required,
        basis=rule.basis or BASES[rule.expect.form],
        measure=None if measure is None else measure.name,
        labels={} if measure is None else {"case": measure.case, **measure.labels},
        is_contract=rule.contract,
    )


def _reason_refused(
    rule: Rule, named: Sequence[Measure], matched: Sequence[Measure], facts: FleetFacts
) -> str | None:
    if matched:
        return reason_unjudged(rule, matched, facts)
    if not facts.measures:
        return "nothing was measured"
    if not named:
        names = ", ".join(sorted({measure.name for measure in facts.measures})[:8])
        return f"it matches nothing: no measure is called {rule.measure.name!r} (available: {names})"
    subjects = sorted({kind_of(measure.subject) for measure in named})
    if not any(rule.measure.picks(measure) for measure in named):
        labels = "; ".join(sorted({_labels(measure) for measure in named})[:4])
        return f"it matches nothing: no measure is {rule.measure} (available: {labels})"
    return f"it matches nothing: {rule.measure} was measured only for {', '.join(subjects)}"


def _advice(facts: FleetFacts) -> str:
    """Distinguish a rule that is wrong from a rule for a measure that was lost with a failed launch."""
    if any(launch.primary_failure is not None for launch in facts.launches):
        return f"{FINISH}; correct the rule if a different measure was intended"
    return "Correct the rule" if facts.measures else FINISH


def _labels(measure: Measure) -> str:
    return ", ".join(f"{name}={value}" for name, value in measure.labels.items()) or "no labels"


def _without_measure(rule: Rule, matched: Sequence[Measure], facts: FleetFacts) -> list[str]:
    """Return the subjects that should have the rule's measure but do not."""
    have = {measure.subject for measure in matched}
    if rule.each == "host":
        wanted = [f"host/{host}" for host in facts.hosts]
    elif rule.each == "gpu":
        wanted = [subject for host, node in facts.hosts.items() for subject in gpu_subjects(host, node)]
    else:
        wanted = []
    return [subject for subject in wanted if subject not in have]


def _telling_labels(matched: Sequence[Measure]) -> list[str]:
    """Return the labels that distinguish a subject's measures; none if it has only one measure."""
    if max(Counter(measure.subject for measure in matched).values(), default=0) < 2:
        return []
    names = dict.fromkeys(name for measure in matched for name in measure.labels)
    return [
        name
        for name in names
        if name not in UNCOMPARED and len({str(measure.labels.get(name)) for measure in matched}) > 1
    ]


def _name(rule: Rule, measure: Measure, telling: Sequence[str]) -> str:
    labels = ", ".join(f"{name}={measure.labels.get(name)}" for name in telling)
    return f"{rule.name} [{labels}]" if labels else rule.name


def judge_equal(rule: Rule, measures: Sequence[Measure]) -> MeasureOutcomes:
    """Check if all measures of one workload have the same digest or, without one, the same value."""
    groups: dict[object, list[Measure]] = {}
    for measure in measures:
        work = key_of(measure), str(measure.labels.get("round"))
        groups.setdefault(work, []).append(measure)
    for group in groups.values():
        yield from _judge_same(rule, group)


def _value(measure: Measure) -> str | None:
    digest = measure.labels.get("digest")
    return str(digest) if digest is not None else None if measure.value is None else repr(measure.value)


def _judge_same(rule: Rule, group: Sequence[Measure]) -> MeasureOutcomes:
    values = [_value(measure) for measure in group]
    different = {value for value in values if value is not None}
    common = majority(values) if len(different) > 1 and len(group) > 2 else None
    for measure in group:
        value = _value(measure)
        if value is None:
            yield measure, not_judged(measure.subject, measure.missing or "it gave no value", "Run it again")
        elif len(different) > 1 and common is None:
            reason = f"{len(group)} subjects give {len(different)} different values, with no clear majority"
            yield measure, not_judged(measure.subject, reason, "Compare with more subjects of the same type")
        elif len(values) - values.count(None) == 1:
            only = "the only one" if len(group) == 1 else "the only one with a value"
            reason = f"{measure.subject} is {only}: there is nothing to compare it with"
            yield measure, not_judged(measure.subject, reason, "Compare with others of the same type")
        else:
            yield measure, _sameness(rule, measure, value, common or value, values)


def _sameness(rule: Rule, measure: Measure, value: str, common: str, values: Sequence[str | None]) -> Outcome:
    return pass_or_fail(
        measure.subject,
        value == common,
        value,
        expected=f"{common}, as reported by {values.count(common)} of {len(values)}",
        source="the other subjects in the same run",
        next_step=rule.next_step,
        responsible=rule.responsible,
    )
