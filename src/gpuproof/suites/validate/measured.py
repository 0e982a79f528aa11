"""Results of each stage's launches, evaluated by the recipe's suite and assigned to a subject.

Measures keep their names and get the labels by which rules find them (stage, workload, dtype, at_once); a
measure of a single device or host has that device or host as its subject. A few metrics belong to the
validation itself: whether step times rose during a launch, how much launches differ, and the fraction of its
devices' combined individual speed that a job over all of them achieves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from statistics import median
from typing import Any

from gpuproof.base import units
from gpuproof.config.models import RunConfig
from gpuproof.launches.launch import Launch, summarize_launch
from gpuproof.launches.point_measures import THROUGHPUT
from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import WHOLE, Doubt, Measure, MeasureInterval, Result, Validity
from gpuproof.records.run import Start
from gpuproof.records.work.probe import HOST_BANDWIDTH
from gpuproof.statistics.estimate import Interval, as_record
from gpuproof.statistics.series import TimeSeries, interval_between
from gpuproof.suites.collective.conclude import collective_measures
from gpuproof.suites.registry import find_suite
from gpuproof.suites.validate.placing import HOST_MEMORY, Stage, StageCase, begun_on, device_subject
from gpuproof.suites.validate.stages import Recipes
from gpuproof.suites.validate.trend import trend_measure
from gpuproof.verdict.rules.model import MORE_THAN_THERE_IS
from gpuproof.workloads.info.catalogue.gemm import gemm_flops

MIN_STEPS = 40
"""Minimum number of steps: with fewer, a quarter contains too few for a stable level."""
MIN_LAUNCHES = 3
FLOPS_PER_WATT = "FLOP/s per watt"
PARTS = 4
"""Number of parts to split a quarter of the steps into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """One case of a stage: its records, and its suite's conclusion."""

    stage: Stage
    case: StageCase
    config: RunConfig
    launches: tuple[CaseRecords, ...]
    summaries: tuple[Launch, ...]
    result: Result | None
    """The conclusion of its suite; None if there were no launches."""
    summary: Mapping[str, Any]
    """Contents of its run_summary.json; empty if its suite does not write one."""
    subject: str
    """The device or host that the result belongs to, or the entire run."""


OF_WINDOWS = (
    ("Warm up longer (benchmark.warmup_steps)", "Measure longer (validate.window_s)"),
    ("benchmark.measure_by=time and ", ""),
    ("benchmark.measure_seconds", "validate.window_s"),
    ("model.options.m, model.options.n and model.options.k", "validate.gemm_size"),
    ("model.options.buffer_bytes", "validate.memory_buffer_bytes"),
)
"""Phrases in remedies, each with the validation key to show instead; stages that use a model keep the
recipe's own keys."""


def _with_own_keys(result: Result | None, case: StageCase) -> Result | None:
    """Rewrite remedies so that they name keys that a validation uses."""
    if result is None:
        return None
    names = [] if case.of_model else [*OF_WINDOWS, ("collective.", "validate.collective.")]
    return replace(result, doubts=tuple(_renamed(doubt, names) for doubt in result.doubts))


def _renamed(doubt: Doubt, names: Iterable[tuple[str, str]]) -> Doubt:
    return replace(doubt, remedy=reduce(lambda text, pair: text.replace(*pair), names, doubt.remedy))


def conclude_case(evidence: Evidence, stage: Stage, case: StageCase, recipes: Recipes) -> StageResult:
    """Evaluate the launches of a case with its recipe's suite."""
    launched = _stage_result(stage, case, recipes, evidence.only(case_id=case.case_id).launches)
    if not launched.launches:
        return launched
    of_case = replace(evidence, config=launched.config, launches=launched.launches)
    conclusion = find_suite(launched.config).conclude(of_case)
    exported = (e.content for e in conclusion.exports if e.name == "run_summary.json")
    summaries = [one for records in of_case.launches if (one := summarize_launch(records)) is not None]
    return replace(
        launched,
        result=_with_own_keys(conclusion.result, case),
        summary=dict(getattr(next(exported, None), "value", {})),
        summaries=tuple(summaries),
    )


def _stage_result(
    stage: Stage, case: StageCase, recipes: Recipes, launches: Sequence[CaseRecords]
) -> StageResult:
    return StageResult(
        stage=stage,
        case=case,
        config=recipes.of(case),
        launches=tuple(launches),
        summaries=(),
        result=None,
        summary={},
        subject=_subject(case, launches),
    )


def measures_of_collectives(
    stage: Stage, case: StageCase, recipes: Recipes, launches: Sequence[CaseRecords]
) -> Iterator[Measure]:
    """Yield a collective case's measures, as in its conclusion, before the conclusion is written."""
    launched = _stage_result(stage, case, recipes, launches)
    yield from (_label(measure, launched, _labels(launched)) for measure in collective_measures(launches))


def _subject(case: StageCase, launches: Sequence[CaseRecords]) -> str:
    if case.is_over_all or (case.attached_hosts or 1) > 1:
        return WHOLE
    host = next(iter(begun_on(launches)), case.places[0].name)
    if not host:
        return WHOLE  # nothing started here, so this machine's name is unknown
    device = next((setup.device for launch in launches for setup in launch.setups), None)
    return device_subject(host, device) if case.is_of_one_device and device is not None else f"host/{host}"


def measures_of(concluded: StageResult) -> Iterator[Measure]:
    """Yield the measures of a case with their labels and subject."""
    if concluded.result is None:
        return
    labels = _labels(concluded)
    measures = (
        *_distinct(concluded.result.measures, concluded),
        *_drift(concluded, labels),
        *_spread(concluded),
        *_flops_per_watt(concluded.result.measures),
    )
    for measure in _host_bandwidth(concluded) if concluded.case.name == HOST_MEMORY else measures:
        yield _label(measure, concluded, labels, validity=concluded.result.validity)


def _label(
    measure: Measure, concluded: StageResult, labels: Mapping[str, Any], *, validity: Validity | None = None
) -> Measure:
    """Return a measure with its case, its subject, and the labels by which rules find it."""
    return replace(
        measure,
        name=f"{measure.name}, options compared"
        if concluded.case.labels
        else measure.name,  # no rule sets a minimum for them
        case=concluded.case.case_id,
        subject=concluded.subject if measure.subject == WHOLE else measure.subject,
        labels={**labels, **measure.labels},
        validity=measure.validity or validity,
    )


def _distinct(measures: Sequence[Measure], concluded: StageResult) -> Iterator[Measure]:
    """If a measure exists both for a single device and for the whole launch, yield only one of them.

    With the same unit, the launch's value is kept, since it has the interval; otherwise the device's value
    (FLOP/s) is.
    """
    whole = {m.name: m for m in measures if m.subject == WHOLE}
    of_subject = {m.name: m for m in measures if m.subject == concluded.subject}
    for measure in measures:
        other = of_subject.get(measure.name) if measure.subject == WHOLE else None
        if measure.subject == concluded.subject != WHOLE:
            other = whole.get(measure.name)
        is_first = other is None or (measure.unit == other.unit) == (measure.subject == WHOLE)
        if is_first:
            yield measure


def _labels(concluded: StageResult) -> dict[str, Any]:
    shared: dict[str, Any] = {"stage": concluded.stage.name, "num_devices": sum(1 for _ in _ranks(concluded))}
    shared["at_once"] = concluded.case.ranks_per_host > 1
    if concluded.config.kind in ("collective", "probe") or concluded.case.name == HOST_MEMORY:
        return {**shared, **(concluded.case.labels if _is_in_force(concluded) else {})}
    if concluded.case.of_model and concluded.case.case_id != concluded.case.name:
        shared["case"] = concluded.case.name  # rows and rules use this name, whichever host it was placed on
    return {
        **shared,
        "workload": concluded.config.model.name,
        "dtype": concluded.config.training.precision,
        "strategy": concluded.config.distributed.strategy,
    }


def _is_in_force(concluded: StageResult) -> bool:
    """Report whether each rank applied its case's profile: without NCCL, nothing was switched off."""
    key = "distributed.communication_profile"
    setups = (setup for launch in concluded.launches for setup in launch.setups)
    return all(item.key != key for setup in setups for item in setup.not_applied)


def _ranks(concluded: StageResult) -> Iterable[int]:
    return (start.rank for launch in concluded.launches[:1] for start in launch.of(Start))


def _drift(concluded: StageResult, labels: Mapping[str, Any]) -> Iterator[Measure]:
    """Yield how much longer steps were at a launch's end than at its start, for the worst launch."""
    if concluded.stage.name not in ("training", "soak"):
        return
    if concluded.stage.name == "soak":
        yield replace(trend_measure(concluded.summaries), labels=labels)
        return
    drifts = [drift for launch in concluded.summaries if (drift := drift_of(launch.step_times_s)) is not None]
    worst = max(drifts, key=lambda drift: drift[0], default=None)
    yield Measure(
        name="step-time drift",
        value=None if worst is None else worst[0],
        unit="1",
        text=units.change(None if worst is None else worst[0]),
        detail="median step of the last quarter divided by that of the first, minus 1; for the worst launch",
        statistic="highest of all launches",
        better="lower",
        labels=labels,
        interval=None if worst is None else worst[1],
        missing=f"fewer than {MIN_STEPS} step times were stored" if worst is None else None,
    )


def drift_of(times_s: Sequence[float]) -> tuple[float, MeasureInterval] | None:
    """Return the relative increase in step time, with its interval; None for too few steps.

    Uses medians of the first and the last quarter, so that stalls of single steps do not count as drift. If
    steps are so autocorrelated that a quarter amounts to fewer than ten independent pieces, there is no
    confidence interval. Instead, the range over parts of the two quarters is returned; it stays narrow for a
    ramp and becomes wide if times wander.

    >>> found = drift_of([1.0] * 100 + [1.3] * 100)
    >>> round(found[0], 3), round(found[1].low, 3)
    (0.3, 0.3)
    """
    if len(times_s) < MIN_STEPS:
        return None
    quarter = len(times_s) // 4
    first, last = times_s[:quarter], times_s[-quarter:]
    ratio = interval_between(TimeSeries(values=first), TimeSeries(values=last), what="ratio", centre="median")
    if isinstance(ratio, Interval):
        moved = replace(ratio, low=ratio.low - 1, high=ratio.high - 1, centre=ratio.centre - 1)
        return moved.centre, as_record(moved)
    levels, ends = _levels(first), _levels(last)
    reach = MeasureInterval(
        low=min(ends) / max(levels) - 1,
        high=max(ends) / min(levels) - 1,
        level=0.0,
        kind="bound",
        method=f"range over {PARTS} parts of each quarter, without a confidence level",
    )
    return median(last) / median(first) - 1, reach


def _levels(times_s: Sequence[float]) -> list[float]:
    """Return the median of each part."""
    cuts = [place * len(times_s) // PARTS for place in range(PARTS + 1)]
    return [median(times_s[begin:end]) for begin, end in pairwise(cuts)]


def _spread(concluded: StageResult) -> Iterator[Measure]:
    """Yield how much the launches of a case differ, relative to their mean."""
    rates = [launch.figures[THROUGHPUT] for launch in concluded.summaries]
    if concluded.case.repeats < MIN_LAUNCHES or concluded.config.kind in ("collective", "probe"):
        return
    value = None
    if len(rates) >= MIN_LAUNCHES:
        value = (max(rates) - min(rates)) * len(rates) / sum(rates)
    yield Measure(
        name="spread of launches",
        value=value,
        unit="1",
        text=units.MISSING if value is None else units.share(value),
        detail="highest minus lowest throughput, divided by the mean",
        statistic="range",
        better="lower",
        num_samples=len(rates),
        missing=None if value is not None else f"{len(rates)} launches, but {MIN_LAUNCHES} are needed",
    )


def _host_bandwidth(concluded: StageResult) -> Iterator[Measure]:
    """Yield the only measure of host memory; it belongs to the host, since no CPU is being tested."""
    threads = next((setup.threads for launch in concluded.launches for setup in launch.setups), None)
    for measure in () if concluded.result is None else concluded.result.measures:
        if measure.name == "throughput" and measure.unit == "B/s":
            detail = f"{measure.detail}; threads: {threads}"
            yield replace(measure, name=HOST_BANDWIDTH, subject=WHOLE, detail=detail)


def _flops_per_watt(measures: Sequence[Measure]) -> Iterator[Measure]:
    """Yield the FLOP/s of a matmul divided by its power draw, if both were measured."""
    product = next((m for m in measures if {"m", "n", "k"} <= m.labels.keys() and m.unit == "FLOP/s"), None)
    energy = next((m for m in measures if m.name == "energy" and m.value), None)
    if product is None or energy is None or energy.value is None:
        return
    value = gemm_flops(*(int(product.labels[edge]) for edge in "mnk")) / energy.value
    yield Measure(
        name=FLOPS_PER_WATT,
        value=value,
        unit="FLOP/J",
        text=f"{units.flops(value)}/W",
        detail=f"FLOPs of a product over {energy.text}",
        better="higher",
    )


def efficiency(results: Sequence[StageResult]) -> Iterator[Measure]:
    """Yield T_N ÷ (N · T_1) for training: launches on all devices compared with launches on one.

    The interval is the widest that the intervals of both sides allow.
    """
    by_name = {result.case.name: result for result in results if result.result is not None}
    one, everything = (_throughput(by_name.get(name)) for name in ("training-one", "training"))
    if one is None or everything is None or not one.value or everything.value is None:
        return
    num_devices = sum(1 for _ in _ranks(by_name["training"]))
    value = everything.value / (num_devices * one.value)
    interval = None
    if one.interval is not None and everything.interval is not None and one.interval.low > 0:
        interval = replace(
            everything.interval,
            low=everything.interval.low / (num_devices * one.interval.high),
            high=everything.interval.high / (num_devices * one.interval.low),
            method=f"ends of two intervals ({everything.interval.method})",
        )
    is_implausible = value > MORE_THAN_THERE_IS
    more = ": more than is possible, so the two sides did not do the same work" if is_implausible else ""
    yield Measure(
        name="scaling efficiency",
        value=value,
        unit="1",
        text=units.share(value),
        detail=f"throughput of {num_devices} devices divided by {num_devices} times that of one{more}",
        validity="INVALID" if is_implausible else None,
        case="training",
        statistic="ratio",
        labels=_labels(by_name["training"]),
        better="higher",
        interval=interval,
    )


def _throughput(result: StageResult | None) -> Measure | None:
    measures = [] if result is None or result.result is None else result.result.measures
    return next((measure for measure in measures if measure.name == "throughput"), None)
