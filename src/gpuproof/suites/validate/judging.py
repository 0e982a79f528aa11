"""Rules: what figures are held against. The one place where the suite meets them.

A rule names a measure (by name, labels and kind of subject) and what is expected of it. Rules that cannot
judge are refused when they are read; a measure that is not there is an ERROR, never a PASS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from gpuproof import units
from gpuproof.config.entries import open_document
from gpuproof.errors import GpuproofError, UsageError
from gpuproof.records.codec import from_json
from gpuproof.records.outcome import Actor, Basis, Judged, Outcome, Status
from gpuproof.records.result import WHOLE, Measure
from gpuproof.suites.validate.options import ValidateOptions

Each = Literal["gpu", "host", "link", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureNamed:
    """Which measures a rule is about."""

    name: str
    labels: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureExpected:
    """What is expected of each: one of the two ends."""

    at_least: float | None = None
    at_most: float | None = None
    unit: str

    def __post_init__(self) -> None:
        given = [end for end in (self.at_least, self.at_most) if end is not None]
        if len(given) != 1 or not isfinite(given[0]):
            raise ValueError("expect needs at_least or at_most, one of them, and a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRule:
    """One figure and its bound."""

    name: str
    measure: MeasureNamed
    each: Each
    expect: FigureExpected
    required: bool = True
    tolerance: float = 0.0
    """Share of the bound by which a figure may miss it."""
    next_step: str = "Find out what differs from a machine that meets it: gpuproof monitor, gpuproof doctor"
    responsible: Actor = "administrator"

    @property
    def bound(self) -> float:
        """The bound with its tolerance."""
        low, high = self.expect.at_least, self.expect.at_most
        return low * (1 - self.tolerance) if low is not None else (high or 0.0) * (1 + self.tolerance)


def read_rules(rules: Sequence[Mapping[str, Any]], *, source: str) -> tuple[FigureRule, ...]:
    """Read rules as a recipe or a file of rules has them.

    Raises:
        UsageError: one cannot judge.
    """
    read = []
    for place, rule in enumerate(rules, 1):
        at = f"{source}: rule {place} ({rule.get('name', 'without a name')})"
        try:
            read.append(from_json(FigureRule, dict(rule), place=at))
        except (GpuproofError, ValueError, TypeError) as error:
            raise UsageError(f"cannot judge: {error}", place=at, next_step="See docs/validate.md") from error
    names = [rule.name for rule in read]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two rules are called {twice!r}", place=source, next_step="Name each once")
    return tuple(read)


def rules_of_file(path: Path) -> list[dict[str, Any]]:
    """Return the rules of a YAML file, checked: a list, or a mapping with the key `rules`.

    Raises:
        UsageError: it cannot be read, holds no rule, or one that cannot judge.
    """
    document = open_document(str(path), what="rules")
    found = document.data
    found = found.get("rules") if isinstance(found, Mapping) else found
    if not isinstance(found, list) or not found or not all(isinstance(rule, Mapping) for rule in found):
        raise UsageError(
            "it holds no rules, so that nothing could be judged",
            place=str(path),
            next_step="Write a list of rules under the key rules; see docs/validate.md",
        )
    rules = [dict(rule) for rule in found]
    read_rules(rules, source=str(path))
    return rules


def judge_figures(
    rules: Sequence[FigureRule], measures: Sequence[Measure], *, source: str, basis: Basis = "absolute"
) -> list[Judged]:
    """Hold the measures against the rules: an outcome a rule and subject."""
    return [replace(item, basis=basis) for rule in rules for item in _judged(rule, measures, source)]


def judge_steadiness_of(measures: Sequence[Measure], options: ValidateOptions) -> list[Judged]:
    """Judge whether training kept its pace, within launches and between them.

    That a machine is steady says nothing of how fast it is, so that none of this makes it READY.
    """
    bounds = (("step-time drift", options.max_drift), ("spread of launches", options.max_spread))
    found = [m for m in measures if m.subject == WHOLE and m.labels.get("stage") in ("training", "soak")]
    rules = [
        FigureRule(
            name=f"{name}, {measure.case}",
            measure=MeasureNamed(name=name, labels={"case": measure.case}),
            each="whole",
            expect=FigureExpected(at_most=bound, unit="1"),
            next_step="Look for heat, clocks, power and other users beside the run (gpuproof report RUN)",
        )
        for name, bound in bounds
        for measure in found
        if measure.name == name
    ]
    return judge_figures(rules, measures, source="validate.max_drift and max_spread", basis="none")


def judge_efficiency(measures: Sequence[Measure], options: ValidateOptions) -> list[Judged]:
    """Judge scaling by the contract of efficiency, if there is one."""
    if options.efficiency is None:
        return []
    found = next((measure for measure in measures if measure.name == "scaling efficiency"), None)
    count = 1 if found is None else int(found.labels["num_devices"])
    bounds = sorted((int(up_to), share) for up_to, share in options.efficiency.items())
    bound = next(((up_to, share) for up_to, share in bounds if up_to >= count), None)
    if found is None or bound is None:
        reason = (
            f"the contract says nothing of {count} devices" if found else "there is no efficiency to judge"
        )
        step = "Train over several devices, or add their number to validate.efficiency"
        return [
            Judged(name="scaling efficiency", outcome=Outcome(status="SKIP", reason=reason, next_step=step))
        ]
    rule = FigureRule(
        name=f"scaling efficiency of up to {bound[0]} devices",
        measure=MeasureNamed(name=found.name),
        each="whole",
        expect=FigureExpected(at_least=bound[1], unit="1"),
        next_step="Compare collectives within hosts and over them with the links' own speed",
    )
    return judge_figures([rule], [found], source=options.rules_source)


def _judged(rule: FigureRule, measures: Sequence[Measure], source: str) -> Iterator[Judged]:
    found = [measure for measure in measures if _is_meant(rule, measure)]
    metric = " ".join([rule.measure.name, *(f"{k}={v}" for k, v in sorted(rule.measure.labels.items()))])
    outcomes = [_outcome(rule, measure, source) for measure in found] or [
        Outcome(
            status="ERROR",
            reason=f"nothing was measured that the rule is about: {metric} of each {rule.each}",
            next_step="Run the stage that measures it, or correct the rule",
            responsible="user",
        )
    ]
    for outcome in outcomes:
        yield Judged(
            name=rule.name, outcome=outcome, is_required=rule.required, basis="absolute", metric=metric
        )


def _is_meant(rule: FigureRule, measure: Measure) -> bool:
    kind = "gpu" if "/gpu/" in measure.subject else measure.subject.split("/")[0]
    labels = {**measure.labels, "case": measure.case}
    return (
        measure.name == rule.measure.name
        and kind == rule.each
        and all(labels.get(key) == value for key, value in rule.measure.labels.items())
    )


def _outcome(rule: FigureRule, measure: Measure, source: str) -> Outcome:
    problem = _why_not_judged(rule, measure)
    if problem is not None or measure.value is None:
        return Outcome(
            status="ERROR",
            subject=measure.subject,
            reason=f"{measure.name} of {measure.case}: {problem}",
            next_step="Measure it again, or correct the rule",
            responsible="user",
        )
    interval = measure.interval
    status = _status(rule, measure)
    is_met = status == "PASS"
    return Outcome(
        status=status,
        subject=measure.subject,
        measured=measure.text + (_doubtful(measure) if status == "WARN" else ""),
        expected=_expected(rule),
        source=source,
        next_step=None if is_met else rule.next_step,
        responsible=None if is_met else rule.responsible,
        measured_value=measure.value,
        measured_low=None if interval is None else min(interval.low, measure.value),
        measured_high=None if interval is None else max(interval.high, measure.value),
        expected_value=rule.bound,
        minimum_detectable=_smallest_shown(measure),
        unit=measure.unit,
        records=(measure.case,),
    )


def _why_not_judged(rule: FigureRule, measure: Measure) -> str | None:
    if measure.value is None:
        return measure.missing or "it has no value"
    if measure.validity == "INVALID":
        return "it is INVALID: its figures contradict each other or what was asked"
    if measure.unit != rule.expect.unit:
        return f"it is in {measure.unit}, and the rule in {rule.expect.unit}"
    return None


def _status(rule: FigureRule, measure: Measure) -> Status:
    """PASS and FAIL are of the whole interval; where the bound lies within it, WARN: it cannot be told."""
    assert measure.value is not None
    ends = [measure.value]
    if measure.interval is not None:
        ends += [measure.interval.low, measure.interval.high]
    is_floor = rule.expect.at_least is not None
    met = [end >= rule.bound if is_floor else end <= rule.bound for end in ends]
    return "PASS" if all(met) else "WARN" if any(met) else "FAIL"


def _doubtful(measure: Measure) -> str:
    """Say why a figure neither meets its bound nor misses it."""
    assert measure.interval is not None
    ends = " – ".join(units.significant(end) for end in (measure.interval.low, measure.interval.high))
    return f" (known to {ends} only, and the bound lies within)"


def _expected(rule: FigureRule) -> str:
    word = "at least" if rule.expect.at_least is not None else "at most"
    given = rule.expect.at_least if rule.expect.at_least is not None else rule.expect.at_most
    text = units.significant(given or 0.0, 4) + ("" if rule.expect.unit == "1" else f" {rule.expect.unit}")
    return f"{word} {text}" + (f", tolerance {rule.tolerance:.1%}" if rule.tolerance else "")


def _smallest_shown(measure: Measure) -> float | None:
    """Return the smallest relative change that lies outside the interval, on the side that is worse."""
    interval, value = measure.interval, measure.value
    if interval is None or not value or measure.unit == "1":
        return None
    return abs(value - interval.low if measure.better == "higher" else interval.high - value) / abs(value)
