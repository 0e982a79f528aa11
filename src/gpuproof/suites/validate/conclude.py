"""Conclude a validation: stages, all outcomes together, and the verdict.

For each device used in training, there is one utilisation (the lowest mean) and one temperature (the highest)
over all launches of a stage, from readings taken during the launches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from gpuproof.launches.explanations import explain_launch
from gpuproof.launches.subjects import device_indices
from gpuproof.readings.evidence import DeviceWindow, Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.outcome import Judged, Outcome, skipped
from gpuproof.records.result import Doubt, Measure, Result, worst
from gpuproof.records.subject_names import named
from gpuproof.suites.base import Conclusion, read_places
from gpuproof.suites.results import exit_code_for
from gpuproof.suites.sections import ON_CPU, Common, at_point, torn_notes
from gpuproof.suites.validate.blamed import blame_measures, blame_outcomes, conclude_without, substitute
from gpuproof.suites.validate.cells import first_line, judge_readiness, rules_to_fill
from gpuproof.suites.validate.exports import drain_exports, notes_of_training, validation_export
from gpuproof.suites.validate.judging import fleet_facts, judge_all, rules_of
from gpuproof.suites.validate.measured import StageResult, conclude_case, efficiency, measures_of
from gpuproof.suites.validate.nodes import (
    ChosenHosts,
    NodeToDrain,
    choose_hosts,
    chosen_exports,
    nodes_to_drain,
    without_shared,
)
from gpuproof.suites.validate.options import NAME, ValidateOptions, read_options
from gpuproof.suites.validate.outcomes import host_outcomes, stage_outcomes, wrong_outcomes
from gpuproof.suites.validate.placing import lost_of, of_devices
from gpuproof.suites.validate.plan import StageOrder, planned_order
from gpuproof.suites.validate.rates import RateRow, rate_rows
from gpuproof.suites.validate.stages import Recipes
from gpuproof.verdict.checks.ports import port_findings
from gpuproof.verdict.doubts.base import SHORT_AT_POWER_CAP
from gpuproof.verdict.doubts.rules import invalid_first
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.references import name_of_run
from gpuproof.verdict.rollup import Readiness, exit_code_of
from gpuproof.verdict.rules.model import Rule
from gpuproof.verdict.simulated import MEANING, is_simulated

WITHOUT_LAUNCHER = "Run gpuproof validate on its own: it starts its own ranks"
NO_GPU = "no GPU was tested: a CPU is never ready for production (--allow-cpu is for trying it out)"
STAGES = ("training", "soak")
FIGURES = (
    ("utilisation", "util_gpu_percent", "%", min, "higher", "lowest of the means of launches"),
    ("temperature", "temp_gpu_max_c", "°C", max, "lower", "highest in any window"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """A row in the table of stages."""

    name: str
    is_required: bool
    num_done: int
    num_planned: int
    minutes: float
    """The expected duration on one host."""
    left_out: tuple[str, ...]
    """Number of launches that were skipped, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateDetail:
    """Data for the validation page that is not part of the result."""

    common: Common
    readiness: Readiness
    rates: tuple[RateRow, ...] = ()
    """The measured values, their references, and what limited them."""
    stages: tuple[StageRow, ...]
    rules_source: str
    num_rules: int
    rules_to_fill: str | None = None
    """Rules for measurements that were not checked (--write-rules); None if all were checked."""
    drain: tuple[NodeToDrain, ...] = ()
    """The nodes that failed; gpuproof itself does not drain them."""
    chosen: ChosenHosts | None = None
    """Which hosts to run on, if there are spare hosts."""


def conclude(evidence: Evidence) -> Conclusion:
    """Return a validation's verdict and files."""
    options, order = read_options(evidence.config), settle_order(evidence)
    recipes = Recipes(evidence.config)
    results = [
        conclude_case(evidence, stage, case, recipes) for stage in order.stages for case in stage.cases
    ]
    results = [one for one in results if one.launches or order.can_be_placed(one.case)]
    results += conclude_without(order, evidence, recipes)
    left_out = dict(_left_out(order, results))
    measures = [measure for one in results for measure in measures_of(one)]
    measures += [*efficiency(results), *device_measures(results, evidence)]
    facts = fleet_facts(order, evidence, measures)
    judged = [
        *stage_outcomes(order, results, left_out),
        *host_outcomes(facts, options),
        *judge_all(results, facts, options, run=name_of_run(evidence.description)),
        *wrong_outcomes(results),
        *blame_outcomes(order, evidence.launches),
    ]
    judged = without_shared(substitute(_without_lost(judged, evidence), order, results), results)
    judged += port_findings(facts, judged)
    cap, indices = _cap(evidence), device_indices(evidence.launches)
    readiness = judge_readiness(order, facts, judged, unsettled=_unsettled(results), capped=cap)
    detail = ValidateDetail(
        common=_common(facts.hosts_there, results, evidence, options),
        readiness=readiness,
        rates=rate_rows(readiness.cells, measures, judged, facts),
        stages=tuple(_rows(order, results, left_out)),
        rules_source=_sources(options),
        num_rules=sum(isinstance(rule, Rule) for rule in chain(*rules_of(options))),
        rules_to_fill=rules_to_fill(readiness.cells, measures, facts),
        drain=nodes_to_drain(judged, indices),
        chosen=_choose_hosts(facts, readiness, num_spares=options.spares),
    )
    result = _result(evidence, results, [*measures, *blame_measures(order)], judged, detail)
    exports = [validation_export(results), *drain_exports(detail.drain, no_hardware=cap)]
    if detail.chosen is not None:
        exports += chosen_exports(detail.chosen, evidence.description)
    return Conclusion(result=result, exports=tuple(filter(None, exports)))


def _unsettled(results: Sequence[StageResult]) -> dict[str, Doubt]:
    """Return the cases with a window that ended before the controller settled at the power cap."""
    return {
        one.case.case_id: doubt
        for one in results
        for doubt in (() if one.result is None else one.result.doubts)
        if doubt.code == SHORT_AT_POWER_CAP
    }


def _choose_hosts(facts: FleetFacts, readiness: Readiness, *, num_spares: int) -> ChosenHosts | None:
    """Choose the hosts to run on, if some are spares."""
    if not num_spares:
        return None
    return choose_hosts(facts.hosts_there, readiness.tree, facts.measures, num_spares=num_spares)


def _sources(options: ValidateOptions) -> str:
    return options.rules_source + ("" if options.file_rules is None else f" and {options.file_source}")


def settle_order(evidence: Evidence) -> StageOrder:
    """Return the plan with all launches settled."""
    config = evidence.config
    order = planned_order(config, read_places(evidence.description), read_options(config))
    for launch in evidence.launches:
        order = order.settle(launch)
    return order


def _result(
    evidence: Evidence,
    results: Sequence[StageResult],
    measures: Sequence[Measure],
    judged: Sequence[Judged],
    detail: ValidateDetail,
) -> Result:
    doubts = invalid_first([doubt for one in results for doubt in _doubts(one)])
    num_launches = sum(_num_done(one) for one in results)
    failures = tuple(
        at_point(failure, one.case.case_id)
        for one in results
        for failure in (() if one.result is None else one.result.failures)
    )
    readiness = detail.readiness
    has_enough = detail.chosen is not None and detail.chosen.is_enough
    allow = read_options(evidence.config).allow_exclusions or has_enough
    code = exit_code_of(readiness, allow_exclusions=allow)
    # nothing could be measured: the exit code depends on the cause, as in any run
    if not num_launches and failures:
        code = exit_code_for(failures, None, is_complete=False, has_points=False)
    return Result(
        suite=NAME,
        run_id=str(evidence.description["run_id"]),
        gpuproof_version=str(evidence.description["gpuproof_version"]),
        validity=worst(doubts) if num_launches else None,
        verdict=readiness.word,
        headline=named(
            first_line(readiness, read_options(evidence.config).ready_for), device_indices(evidence.launches)
        ),
        exit_code=code,
        num_launches=num_launches,
        num_planned=sum(row.num_planned for row in detail.stages),
        conditions=_conditions(evidence, results, readiness),
        doubts=doubts,
        failures=failures,
        measures=tuple(measures),
        outcomes=tuple(judged),
        detail=to_json(detail),
    )


def _doubts(concluded: StageResult) -> Iterator[Doubt]:
    for doubt in () if concluded.result is None or not concluded.summaries else concluded.result.doubts:
        yield replace(doubt, reason=f"{doubt.reason} (at {concluded.case.case_id})")


def _num_done(concluded: StageResult) -> int:
    return sum(launch.status == "done" for launch in concluded.launches)


def _left_out(order: StageOrder, results: Sequence[StageResult]) -> Iterator[tuple[str, Outcome]]:
    """Yield the cases with launches skipped because of the user's own launcher or the time budget."""
    for one in results:
        if one.case.is_part_of_launch:
            whole = one.case.places[0].num_devices
            reason = (
                f"skipped: it needs {one.case.ranks_per_host} of the {whole} ranks, but your own "
                "launcher gives each launch all of them"
            )
            yield one.case.case_id, skipped(reason, WITHOUT_LAUNCHER, one.subject)
            continue
        is_missing = len(one.launches) < one.case.repeats
        if is_missing and order.options.time_budget_s is not None and not order.fits(one.case):
            spent = max(order.spent_ms.values(), default=0) / 60_000
            budget_s = order.options.time_budget_s
            budget = f"{budget_s:.0f}s" if budget_s < 60 else f"{budget_s / 60:g}m"
            reason = (
                f"skipped: a launch of about {one.case.seconds / 60:.1f} min did not fit into "
                f"--time-budget {budget}, of which {spent:.1f} min were used"
            )
            more = "Measure again with a longer --time-budget, or without one"
            yield one.case.case_id, skipped(reason, more, one.subject)


def _without_lost(judged: Sequence[Judged], evidence: Evidence) -> list[Judged]:
    """Skip missing measurements from lost hosts: the loss of a host is counted only once."""
    lost = [f"host/{host}" for host in lost_of(evidence.launches)]
    return [
        item
        for item in judged
        if item.outcome.status not in ("ERROR", "SKIP")
        or not any(item.outcome.subject == of or item.outcome.subject.startswith(f"{of}/") for of in lost)
    ]


def _cap(evidence: Evidence) -> str | None:
    """Report why the verdict is INCONCLUSIVE at best: the tested hardware cannot be ready."""
    if is_simulated(evidence.launches):
        return MEANING
    launches = of_devices(evidence.launches) or evidence.launches
    kinds = {setup.device.kind for launch in launches for setup in launch.setups}
    return NO_GPU if "cpu" in kinds else None


def _common(
    hosts: Sequence[str], results: Sequence[StageResult], evidence: Evidence, options: ValidateOptions
) -> Common:
    devices = {setup.device for launch in of_devices(evidence.launches) for setup in launch.setups}
    where = f"{len(hosts)} hosts" if len(hosts) > 1 else hosts[0] if hosts else "this machine"
    title = f"validation of {where}"
    on_cpu = any(device.kind == "cpu" for device in devices)
    trained = notes_of_training(results, options.stages, evidence.description["origins"])
    return Common(
        title=", ".join([title, *sorted({device.name for device in devices})]),
        work=title,
        names_cases=True,
        notes=tuple(
            filter(
                None,
                (
                    options.data_replaced,
                    *([ON_CPU] if on_cpu else []),
                    *trained,
                    *torn_notes(evidence.launches),
                ),
            )
        ),
    )


def _rows(
    order: StageOrder, results: Sequence[StageResult], left_out: Mapping[str, Outcome]
) -> Iterator[StageRow]:
    for stage in order.stages:
        part = [one for one in results if one.stage.name == stage.name]
        yield StageRow(
            name=stage.name,
            is_required=stage.is_required,
            num_done=sum(_num_done(one) for one in part),
            num_planned=sum(one.case.repeats for one in part),
            minutes=stage.minutes,
            left_out=tuple(
                f"{name}: {left_out[name].reason}" for one in part if (name := one.case.case_id) in left_out
            ),
        )


def _conditions(evidence: Evidence, results: Sequence[StageResult], readiness: Readiness) -> dict[str, Any]:
    trained = next((one.config for one in results if one.case.name == "training"), evidence.config)
    tested = of_devices(evidence.launches)
    setups = [setup for launch in tested for setup in launch.setups]
    devices = sorted({setup.device.name for setup in setups})
    return {
        "kind": NAME,
        "model": trained.model.name,
        "precision": trained.training.precision,
        "batch_size": trained.data.batch_size,
        "device": ", ".join(devices) or None,
        "num_devices": max((launch.world_size for launch in tested if launch.setups), default=None),
        "is_capped": readiness.capped is not None,
    }


def device_measures(results: Iterable[StageResult], evidence: Evidence) -> Iterator[Measure]:
    """Yield utilisation and temperature of each device used in training, if they were read."""
    windows: dict[tuple[str, str], list[DeviceWindow]] = {}
    for result in results:
        if result.stage.name in STAGES:
            for name, window in _windows(result, evidence):
                windows.setdefault((result.stage.name, name), []).append(window)
    for (stage, subject), read in windows.items():
        for name, field, unit, choose, better, statistic in FIGURES:
            values = [value for window in read if (value := getattr(window, field)) is not None]
            value = choose(values) if values else None
            yield Measure(
                name=name,
                value=value,
                unit=unit,
                text="–" if value is None else f"{value:,.0f} {unit}",
                subject=subject,
                case=stage,
                statistic=statistic,
                labels={"stage": stage, "device": read[0].name},
                better="higher" if better == "higher" else "lower",
                num_samples=len(values),
                missing=None if values else "not reported by the device",
            )


def _windows(concluded: StageResult, evidence: Evidence) -> Iterator[tuple[str, DeviceWindow]]:
    for launch in concluded.summaries:
        if launch.case.monitor is None:
            continue
        for read in explain_launch(launch, evidence).readings:
            host = launch.case.placement.host or read.host
            for device in read.readings.devices:
                yield f"host/{host}/gpu/{device.uuid or device.physical_index}", device
