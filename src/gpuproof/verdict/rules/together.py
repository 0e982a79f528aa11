"""Rules that hold subjects against each other for being the same: equal digests, or equal values."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.base.groups import majority
from gpuproof.records.outcome import Outcome, not_judged, pass_or_fail
from gpuproof.records.result import Measure
from gpuproof.verdict.baseline import key_of
from gpuproof.verdict.rules.model import MeasureOutcomes, Rule


def judge_equal(rule: Rule, measures: Sequence[Measure]) -> MeasureOutcomes:
    """Judge whether all measures of the same work say the same: their digest, else their value."""
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
            reason = f"{len(group)} subjects give {len(different)} different values, none of them most often"
            yield measure, not_judged(measure.subject, reason, "Compare with more subjects of the same type")
        elif len(values) - values.count(None) == 1:
            only = "the only one" if len(group) == 1 else "the only one that gave a value"
            reason = f"{measure.subject} is {only}: there is nothing to compare it with"
            yield measure, not_judged(measure.subject, reason, "Compare with others of the same type")
        else:
            yield measure, _sameness(rule, measure, value, common or value, values)


def _sameness(rule: Rule, measure: Measure, value: str, common: str, values: Sequence[str | None]) -> Outcome:
    return pass_or_fail(
        measure.subject,
        value == common,
        value,
        expected=f"{common}, as {values.count(common)} of {len(values)} give",
        source="the other subjects of the same run",
        next_step=rule.next_step,
        responsible=rule.responsible,
    )
