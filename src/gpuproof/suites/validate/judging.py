"""Rules that metrics and hosts are checked against: from the recipe, a file, and options.

All of them are evaluated by `verdict.rules`. A rule in the file replaces the recipe's rule of the same name.
If this run has no data for one of the recipe's own rules, the rule is skipped, with that as the reason; the
unmeasured stage is evaluated separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

from gpuproof.base import units
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.pcie import pcie_under_load
from gpuproof.readings.ports import ports_in
from gpuproof.records.codec import from_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged, Outcome, SubjectKind, skipped
from gpuproof.records.result import WHOLE, Measure
from gpuproof.suites.validate.cells import ALONE, EACH, subjects_by_kind
from gpuproof.suites.validate.counted import facts_there, subjects_there
from gpuproof.suites.validate.measured import StageResult, measures_of_collectives
from gpuproof.suites.validate.options import ValidateOptions
from gpuproof.suites.validate.placing import Stage
from gpuproof.suites.validate.plan import StageOrder
from gpuproof.suites.validate.stages import Recipes
from gpuproof.suites.validate.suspicion import Shortfall
from gpuproof.verdict.announced import announced_in
from gpuproof.verdict.baseline import Baseline
from gpuproof.verdict.checks.events import advisory_events
from gpuproof.verdict.expectations import PUBLISHED
from gpuproof.verdict.facts import facts_by_host
from gpuproof.verdict.references import judge_by_references, references_with
from gpuproof.verdict.rules import (
    FleetFacts,
    Rules,
    judge_measures,
    judge_rules,
    read_rules,
    rules_of_entries,
)
from gpuproof.verdict.rules.model import CheckRule, Expected, MeasureMatch, Rule
from gpuproof.verdict.rules.outcomes import judge_far_under_peak, reason_none_published

STEADY_STEP = "Check temperature, clocks, power and other users during the run (gpuproof report RUN)"
EFFICIENCY_STEP = "Compare collectives within and across hosts with the links' own speed"


def rules_of(options: ValidateOptions) -> tuple[Rules, Rules]:
    """Read the recipe's rules, except those that the file replaces, followed by the file's rules.

    Raises:
        UsageError: a rule cannot be evaluated; every mistake is listed with its line number.
    """
    of_recipe = rules_of_entries(
        options.rules, source=options.rules_recipe or options.rules_source, lines=options.rules_lines
    )
    of_file: Rules = ()
    if options.file_rules is not None:
        of_file = read_rules(options.file_rules, source=options.file_source)
    names = {rule.name for rule in of_file}
    return tuple(rule for rule in of_recipe if rule.name not in names), of_file


def baseline_of(options: ValidateOptions) -> Baseline | None:
    """Return the baseline, if given."""
    return None if options.baseline is None else from_json(Baseline, options.baseline, place="baseline")


def fleet_facts(order: StageOrder, evidence: Evidence, measures: Sequence[Measure]) -> FleetFacts:
    """Return the data that rules and checks are applied to."""
    return replace(
        facts_there(order, evidence.launches),
        measures=measures,
        baseline=baseline_of(order.options),
        events=announced_in(evidence),
        ports=ports_in(evidence),
        pcie_under_load=pcie_under_load(evidence),
    )


def judge_all(
    results: Sequence[StageResult], facts: FleetFacts, options: ValidateOptions, *, run: str
) -> list[Judged]:
    """Evaluate against all existing rules, and gpuproof's own results on boards of the same name."""
    of_recipe, of_file = rules_of(options)
    unfit = {
        rule.name: why for rule in of_recipe if (why := _reason_left_out(rule, results, facts)) is not None
    }
    fit = (rule for rule in of_recipe if rule.name not in unfit)
    return [
        *judge_rules((*fit, *of_file, *_bounds(facts.measures, options)), facts),
        *(_left_out(name, why) for name, why in unfit.items()),
        *judge_far_under_peak(facts),
        *judge_by_references(
            _of_cells(facts, options), run=run, references=references_with(options.references)
        ),
        *advisory_events(facts),
        *_unused_baseline((*of_recipe, *of_file), facts),
        *_no_efficiency(facts, options),
    ]


def _of_cells(facts: FleetFacts, options: ValidateOptions) -> FleetFacts:
    """Keep only the measures that READY requires; the others do not need a reference."""

    def is_asked_for(measure: Measure) -> bool:
        of_name = (row.labels for row in options.aspects if row.measure == measure.name)
        return any(all(v in (EACH, measure.labels.get(k)) for k, v in labels.items()) for labels in of_name)

    return replace(facts, measures=tuple(filter(is_asked_for, facts.measures)))


def short_of_rules(
    stage: Stage, launches: Mapping[str, Sequence[CaseRecords]], config: RunConfig, options: ValidateOptions
) -> dict[str, Shortfall]:
    """Return, by case, the collective that misses a rule by the most; unevaluated ones do not count.

    It is evaluated the same way as at the end of the run, using only the launches of the collective stage.
    """
    cases = [case for case in stage.cases if launches.get(case.case_id)]
    recipes = Recipes(config)
    measures = [
        measure
        for case in cases
        for measure in measures_of_collectives(stage, case, recipes, launches[case.case_id])
    ]
    everything = [launch for case in cases for launch in launches[case.case_id]]
    facts = FleetFacts(
        measures=measures,
        hosts=facts_by_host(everything),
        baseline=baseline_of(options),
        launches=everything,
    )
    worst: dict[str, Shortfall] = {}
    for measure, item in judge_measures(tuple(chain(*rules_of(options))), facts):
        short = _short(measure, item)
        if short is not None and short.share > (worst[measure.case].share if measure.case in worst else 0):
            worst[measure.case] = short
    return worst


def _short(measure: Measure, item: Judged) -> Shortfall | None:
    outcome = item.outcome
    limits = (outcome.measured_value, outcome.expected_value, outcome.tolerance)
    if outcome.status != "FAIL" or None in limits or measure.better != "higher":
        return None
    value, expected, tolerance = (float(number or 0.0) for number in limits)
    operation, size_bytes = str(measure.labels["operation"]), int(measure.labels["size_bytes"])
    short = 1 - value / (expected - tolerance)
    under = f"{operation} of {size_bytes:,} bytes is {units.share(short)} below what"
    return Shortfall(
        why=f"{under} the rule {item.name!r} allows",
        share=short,
        operation=operation,
        size_bytes=size_bytes,
    )


def _unused_baseline(rules: Rules, facts: FleetFacts) -> Iterator[Judged]:
    """Yield an error if a baseline was given but is not used."""
    is_used = any(isinstance(rule, Rule) and rule.expect.form == "baseline" for rule in rules)
    if facts.baseline is not None and not is_used:
        reason = "a baseline was given, but no rule uses it (expect: {baseline: measured})"
        step = "Add such a rule (--rules FILE), or run gpuproof baseline use"
        yield Judged(name="baseline", outcome=Outcome(status="ERROR", reason=reason, next_step=step))


def _reason_left_out(rule: Rule | CheckRule, results: Sequence[StageResult], facts: FleetFacts) -> str | None:
    if isinstance(rule, CheckRule):
        return None
    if rule.expect.form == "baseline" and facts.baseline is None:
        return "no baseline was given (gpuproof baseline record NAME RUN…, then --baseline NAME)"
    stage = rule.measure.labels.get("stage")
    if stage is not None and rule.each not in _kinds_of(rule.measure.labels, results):
        return f"this plan does not measure {stage} on each {rule.each} alone"
    return _reason_not_planned(rule, results, facts) or _reason_none_published(rule, facts)


def _reason_not_planned(rule: Rule, results: Sequence[StageResult], facts: FleetFacts) -> str | None:
    """Report why a recipe's rule about several devices does not apply; the recipe's rows stay required."""
    labels = rule.measure.labels
    if labels.get("kind") == "d2d" and not subjects_by_kind(subjects_there(facts))["device_link"]:
        return "no host has several devices"
    is_of_both = rule.measure.name == "scaling efficiency" or labels.get("case") == ALONE
    if is_of_both and not any(one.case.name == ALONE for one in results):
        return "this plan does not train on one device and on several"
    return None


def _reason_none_published(rule: Rule, facts: FleetFacts) -> str | None:
    """Report why a rule about published results cannot be evaluated: no device has a match."""
    if rule.expect.reference != PUBLISHED:
        return None
    picked = filter(rule.speaks_of, facts.measures)
    first = None
    for measure in picked:
        reason = reason_none_published(rule, measure, facts)
        if reason is None:
            return None
        first = first or reason
    return first


def _kinds_of(
    labels: Mapping[str, object], results: Sequence[StageResult]
) -> set[SubjectKind | Literal["any"]]:
    """Return the kinds of subject a stage has launches for; every training launch monitors devices."""
    has_links = labels["stage"] == "links" and any(one.stage.name == "links" for one in results)
    kinds: set[SubjectKind | Literal["any"]] = {"link"} if has_links else set()
    at_once = (True, False) if "at_once" not in labels else (labels["at_once"],)
    for case in (one.case for one in results if one.stage.name == labels["stage"]):
        if (case.ranks_per_host > 1) not in at_once:
            continue
        kinds.add("gpu" if case.is_of_one_device else "whole" if case.is_over_all else "host")
        kinds |= {"any", "gpu"} if case.of_model or case.is_per_device else {"any"}
    return kinds


def _left_out(name: str, reason: str) -> Judged:
    step = "Provide what it needs, or ignore it"
    return Judged(name=name, outcome=skipped(reason, step), is_required=False)


def _bounds(measures: Sequence[Measure], options: ValidateOptions) -> Iterator[Rule]:
    """Yield the rules that options imply: whether training speed was stable, and how well it scales."""
    bounds = {"step-time drift": options.max_drift, "spread of launches": options.max_spread}
    for measure in measures:
        is_training = measure.labels.get("stage") in ("training", "soak")
        if measure.name in bounds and measure.subject == WHOLE and is_training:
            yield _steadiness(measure, bounds[measure.name])
    bound = _bound_of_efficiency(measures, options)
    if isinstance(bound, tuple):
        yield Rule.model_construct(
            name=f"scaling efficiency of up to {bound[0]} devices",
            place=options.rules_source,
            each="whole",
            measure=MeasureMatch.model_construct(name="scaling efficiency"),
            expect=Expected.model_construct(at_least=bound[1], unit="1"),
            contract=True,
            next_step=EFFICIENCY_STEP,
        )


def _steadiness(measure: Measure, bound: float) -> Rule:
    """Return the rule for a drift or spread; neither implies READY, as a steady machine may be slow."""
    return Rule.model_construct(
        name=f"{measure.name}, {measure.case}",
        place="validate.max_drift and max_spread",
        each="whole",
        measure=MeasureMatch.model_construct(name=measure.name, labels={"case": measure.case}),
        expect=Expected.model_construct(at_most=bound, unit="1"),
        next_step=STEADY_STEP,
        basis="none",
    )


def _bound_of_efficiency(
    measures: Sequence[Measure], options: ValidateOptions
) -> tuple[int, float] | str | None:
    """Return the contract's bound and maximum device count, or why it cannot be evaluated."""
    if options.efficiency is None:
        return None
    efficiency = next((measure for measure in measures if measure.name == "scaling efficiency"), None)
    if efficiency is None:
        return "there is no efficiency to judge"
    count = int(efficiency.labels["num_devices"])
    bounds = sorted((int(up_to), share) for up_to, share in options.efficiency.items())
    bound = next((bound_of for bound_of in bounds if bound_of[0] >= count), None)
    return bound or f"the contract does not cover {count} devices"


def _no_efficiency(facts: FleetFacts, options: ValidateOptions) -> Iterator[Judged]:
    reason = _bound_of_efficiency(facts.measures, options)
    if isinstance(reason, str):
        step = "Train over several devices, or add their number to validate.efficiency"
        yield Judged(name="scaling efficiency", outcome=skipped(reason, step))
