"""Results of a scaling study: speed-up and efficiency of each point, and advice on what to use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from gpuproof.comparison.winners import ComparedSide, reason_unusable
from gpuproof.config.models import RunConfig
from gpuproof.launches.point_measures import PointMeasures
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import A_THROUGHPUT, Doubt, Result, worst
from gpuproof.statistics.dispersion import outliers
from gpuproof.statistics.launches import required_launches
from gpuproof.suites.base import Conclusion
from gpuproof.suites.points.ranking import side_of
from gpuproof.suites.points.results import PointResult, conclude_points, conclusion_of_points
from gpuproof.suites.scale.advice import AdviceDetail, advice_from, advice_lines
from gpuproof.suites.scale.breakdown import PointBreakdown, break_down
from gpuproof.suites.scale.curves import ScaleCurve, curves_of
from gpuproof.suites.scale.exports import scale_exports
from gpuproof.suites.scale.measures import (
    about_communication,
    about_learning,
    about_phases,
    average_lines,
    launch_lines,
    law_lines,
    study_measures,
    thumb_lines,
    topology_lines,
)
from gpuproof.suites.scale.plan import (
    NAME,
    Law,
    ScaleOptions,
    ScalePoint,
    plan,
    points_left_out,
    read_options,
    scale_points,
)
from gpuproof.suites.scale.speed_up import RuleOfThumb, SpeedUp, advise, conclusion_in_words, speed_up
from gpuproof.verdict.doubts.rules import invalid_first

CONFIDENCE = 0.95
"""Joint confidence for all speed-ups of a run, including those over all batch sizes (Bonferroni's
correction)."""
PRECISION = 0.01
"""The precision for which the required number of launches is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRow:
    """One point, compared with one device at the same batch size."""

    batch_size: int
    num_devices: int
    law: Law | None
    figures: PointMeasures
    speed_up: SpeedUp | None
    """Speed-up over one device; None on one device, or if either side measured nothing."""
    outlier_launches: tuple[int, ...]
    """Replicates with an outlier throughput (modified Z above 3.5); they are not excluded from any result."""
    rate_without_outliers: float | None
    launches_for_one_percent: int | None
    """Number of launches with this spread needed to determine the throughput within ±1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """All batch sizes combined, for one number of devices under one law."""

    num_devices: int
    law: Law
    speed_up: SpeedUp
    conclusion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleStudy:
    """The values computed from the points of a study."""

    rows: tuple[ScaleRow, ...]
    averages: tuple[Average, ...]
    rule_of_thumb: RuleOfThumb | None
    """The rule-of-thumb advice; None if nothing was measured, because the number of parameters is then
    unknown."""
    num_parameters: int | None
    apart: tuple[PointBreakdown, ...]
    """Points with a step breakdown, or with known memory and step times."""
    curves: tuple[ScaleCurve, ...]
    advice: AdviceDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class PointState:
    """A point's name, its conclusions, and its step time distribution."""

    case_id: str
    batch_size: int
    num_devices: int
    law: Law | None
    recommendation: str
    is_decided: bool
    is_apart: bool
    """Whether its curve breaks at this point and continues as a separate curve."""
    step_quantiles_s: tuple[float, ...]
    """Quantiles of the step times of all launches: minimum, each percentile, maximum; empty without step
    times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDetail:
    """Data for the scaling page that is not in the result: texts, and step time distributions."""

    rows: tuple[PointState, ...]
    averages: tuple[str, ...]
    advice: tuple[str, ...]
    laws: tuple[str, ...]
    about_communication: tuple[str, ...]
    about_phases: tuple[str, ...]
    about_learning: tuple[str, ...]
    launches: tuple[str, ...]
    rule_of_thumb: tuple[str, ...]
    topology: tuple[str, ...]
    """Lines on how devices are connected to each other, as far as the hosts reported it."""


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of a scaling study and its files."""
    config: RunConfig = evidence.config
    options = read_options(config)
    points = scale_points(options)
    concluded = list(conclude_points(evidence, plan(config).points.values()))
    study = _study(points, concluded, options)
    conclusion = conclusion_of_points(
        NAME,
        evidence,
        concluded,
        title=[f"{config.model.name} {config.kind} on {config.data.name}", _study_text(options)],
        num_planned=len(points) * config.run.repeats,
        notes=[*_notes(options, config), *_frameworks(concluded), *_hosts(evidence)],
        measures=list(study_measures(study)),
        is_ranked=False,
    )
    result = _add_doubts(conclusion.result, study)
    detail = _detail(study, topology=tuple(topology_lines(evidence.launches)))
    result = replace(
        result,
        detail={**result.detail, NAME: to_json(detail)},
        headline=_headline(study),
    )
    exports = (*conclusion.exports, *scale_exports(evidence, study, concluded, result))
    return Conclusion(result=result, exports=exports)


def _detail(study: ScaleStudy, *, topology: tuple[str, ...]) -> ScaleDetail:
    several = [point for point in study.apart if point.num_devices > 1]
    return ScaleDetail(
        rows=tuple(_state(row, study) for row in study.rows),
        averages=tuple(average_lines(study.averages)),
        advice=tuple(advice_lines(study.advice)),
        laws=tuple(line for curve in study.curves for line in law_lines(curve)),
        about_communication=tuple(about_communication(several)),
        about_phases=tuple(about_phases(study.apart)),
        about_learning=tuple(about_learning(several)),
        launches=tuple(launch_lines(study.rows)),
        rule_of_thumb=tuple(thumb_lines(study)),
        topology=topology,
    )


def _state(row: ScaleRow, study: ScaleStudy) -> PointState:
    without = "" if row.num_devices == 1 else "nothing to compare with"
    return PointState(
        case_id=row.figures.case_id,
        batch_size=row.batch_size,
        num_devices=row.num_devices,
        law=row.law,
        recommendation=without if row.speed_up is None else row.speed_up.recommendation,
        is_decided=row.speed_up is not None and row.speed_up.is_decided,
        is_apart=any(
            gap.after == row.num_devices
            for curve in study.curves
            for gap in curve.breaks
            if (curve.batch_size, curve.scaling) == (row.batch_size, row.law)
        ),
        step_quantiles_s=next(
            (x.step_quantiles_s for x in study.apart if x.case_id == row.figures.case_id), ()
        ),
    )


def _add_doubts(result: Result, study: ScaleStudy) -> Result:
    """Return the result, with warnings for impossible speed-ups and differing training results."""
    fast = [row for row in study.rows if row.speed_up is not None and row.speed_up.is_implausible]
    otherwise = [apart for apart in study.apart if apart.alike is not None and not apart.alike.is_alike]
    if result.validity is None or not (fast or otherwise):
        return result
    doubts = invalid_first(
        [*result.doubts, *([_too_fast(fast)] if fast else []), *map(_learns_otherwise, otherwise[:1])]
    )
    validity = worst(doubts)
    return replace(result, doubts=doubts, validity=validity, verdict=validity)


def _learns_otherwise(apart: PointBreakdown) -> Doubt:
    assert apart.alike is not None
    return Doubt(
        validity="SUSPECT",
        code="learns-otherwise",
        reason=f"{apart.num_devices} devices do not learn the same as one ({apart.case_id}): after "
        f"{apart.alike.num_steps} steps losses are {apart.alike.loss_difference:.1e} apart "
        f"and weights {apart.alike.weight_difference:.1e}",
        remedy="Check collectives and devices (gpuproof validate), and the model for differences by rank",
    )


def _too_fast(rows: Sequence[ScaleRow]) -> Doubt:
    most = max(rows, key=lambda row: row.speed_up.efficiency or 0.0 if row.speed_up else 0.0)
    assert most.speed_up is not None
    return Doubt(
        validity="SUSPECT",
        code="super-linear",
        reason=f"{most.num_devices} devices were {most.speed_up.ratio:.2f} times as fast as one at batch "
        f"{most.batch_size}: more than is possible, so the two sides did not do the same work",
        remedy=(
            "Check whether only the smaller batch fits in a cache, the threads per rank, and "
            "what else was running"
        ),
    )


def _study_text(options: ScaleOptions) -> str:
    devices = ", ".join(map(str, sorted(options.num_devices)))
    num = len(options.batch_sizes)
    return f"{num} batch size{'s' * (num > 1)} on {devices} devices"


def _study(
    points: Sequence[ScalePoint], concluded: Sequence[PointResult], options: ScaleOptions
) -> ScaleStudy:
    figures = {result.point.case_id: result.figures for result in concluded}
    several = [(point.num_devices, point.law) for point in points if point.num_devices > 1]
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(several) + len(set(several)))
    rows = tuple(_row(point, figures, confidence=confidence) for point in points)
    setups = [launch.setup for result in concluded for launch in result.launches]
    parameters = setups[0].num_parameters if setups else None
    thumb = None
    if parameters is not None:
        thumb = advise(parameters, max(options.batch_sizes), options)
    launches = {result.point.case_id: result.launches for result in concluded}
    averages = tuple(_averages(rows, confidence=confidence))
    apart = tuple(break_down(x, launches[x.case_id]) for x in points if launches[x.case_id])
    return ScaleStudy(
        rows=rows,
        averages=averages,
        rule_of_thumb=thumb,
        num_parameters=parameters,
        apart=apart,
        curves=tuple(curves_of(points, launches, dict(_unusable(points, figures)))),
        advice=advice_from(
            [(x.law, x.speed_up) for x in averages],
            concluded,
            apart,
            options,
            num_planned=len(set(several)),
        ),
    )


def _unusable(
    points: Sequence[ScalePoint], figures: Mapping[str, PointMeasures]
) -> Iterator[tuple[str, str]]:
    """Yield the points that cannot be compared with one device, with the reason, as for their speed-up."""
    for point in points:
        own, alone = figures[point.case_id], figures.get(_alone(point))
        reason = reason_unusable(side_of(own), beside=() if alone is None else alone.doubts)
        if reason is not None:
            yield point.case_id, reason


def _alone(point: ScalePoint) -> str:
    """Return the name of the point on one device."""
    return replace(point, num_devices=1, law=None).case_id


def _row(point: ScalePoint, figures: Mapping[str, PointMeasures], *, confidence: float) -> ScaleRow:
    entry = figures[point.case_id]
    alone = figures.get(_alone(point))
    rates = [launch.value for launch in entry.launches]
    outlying = outliers(rates)
    needed = required_launches(rates, relative_half_width=PRECISION) if rates else None
    compared = None
    if point.num_devices > 1 and alone is not None and alone.launches and rates:
        compared = speed_up(
            side_of(alone), side_of(entry), num_devices=point.num_devices, confidence=confidence
        )
    return ScaleRow(
        batch_size=point.batch_size,
        num_devices=point.num_devices,
        law=point.law,
        figures=entry,
        speed_up=compared,
        outlier_launches=tuple(entry.launches[place].replicate for place in outlying.indices),
        rate_without_outliers=outlying.mean_without if outlying.indices else None,
        launches_for_one_percent=needed if isinstance(needed, int) else None,
    )


def _averages(rows: Sequence[ScaleRow], *, confidence: float) -> Iterator[Average]:
    """Yield averages over batch sizes: the geometric mean per replicate, if it has all sizes."""
    several = dict.fromkeys((row.num_devices, row.law) for row in rows if row.law is not None)
    for num_devices, law in several:
        assert law is not None
        chosen = [row for row in rows if (row.num_devices, row.law) == (num_devices, law)]
        alone = [
            row
            for row in rows
            if row.num_devices == 1 and any(other.batch_size == row.batch_size for other in chosen)
        ]
        single, together = (
            ComparedSide(name=name, values=_replicate_means(side))
            for name, side in (("one device", alone), (f"{num_devices} devices", chosen))
        )
        if not single.values or not together.values or len(alone) != len(chosen):
            continue
        untold = (row.speed_up for row in chosen if row.speed_up and not row.speed_up.comparison.ratio)
        speed = next(untold, None) or speed_up(
            single, together, num_devices=num_devices, confidence=confidence
        )
        yield Average(num_devices=num_devices, law=law, speed_up=speed, conclusion=conclusion_in_words(speed))


def _replicate_means(rows: Sequence[ScaleRow]) -> list[float]:
    """Return a geometric mean over batch sizes for each replicate that exists at all sizes."""
    rates = [{launch.replicate: launch.value for launch in row.figures.launches} for row in rows]
    common = sorted(set.intersection(*map(set, rates))) if rates else []
    return [geometric_mean([of_row[replicate] for of_row in rates]) for replicate in common]


def _headline(study: ScaleStudy) -> str:
    """Return the speed-up on the most devices, else the fastest point or how many points had results."""
    if not study.averages:
        return _fastest(study.rows)
    best = max(study.averages, key=lambda average: (average.num_devices, average.law == "strong"))
    ratio = best.speed_up.comparison.ratio
    if ratio is None or best.speed_up.is_implausible:
        return f"{best.num_devices} devices: {best.speed_up.recommendation}"
    return (
        f"{ratio.centre:.2f} × on {best.num_devices} devices ({best.law}, {ratio.low:.2f} – {ratio.high:.2f})"
    )


def _fastest(rows: Sequence[ScaleRow]) -> str:
    measured = [row for row in rows if row.figures.rate_value is not None]
    if not measured:
        return f"0 of {len(rows)} points"
    best = max(measured, key=lambda row: row.figures.rate_value or 0.0)
    devices = f"{best.num_devices} device{'s' * (best.num_devices > 1)}"
    rate = best.figures.rate
    assert rate is not None
    return f"{rate.text} {rate.uncertainty or '(uncertainty unknown)'}, batch {best.batch_size} on {devices}"


def _frameworks(concluded: Sequence[PointResult]) -> Iterator[str]:
    """Yield how gradients were summed, for a framework that offers several ways."""
    replicas = [launch.setup.replicas for point in concluded for launch in point.launches]
    ways = dict.fromkeys((x.framework, x.reduction) for x in replicas if x is not None and x.reduction)
    yield from (f"{framework} summed the gradients of its replicas by {way}" for framework, way in ways)


def _hosts(evidence: Evidence) -> Iterator[str]:
    """Report which points ran on which hosts, if several were given."""
    most = max((launch.case.placement.hosts for launch in evidence.launches), key=len, default=())
    if len(most) > 1:
        yield f"points that fit on one host ran on {most[0]}, larger ones on whole hosts: {', '.join(most)}"


def _notes(options: ScaleOptions, config: RunConfig) -> Iterator[str]:
    yield (
        "strong: the batch is divided among all devices; weak: each device has a batch of that "
        "size; efficiency is the speed-up divided by the number of devices"
    )
    yield (
        "launches run in fresh processes, and all points are interleaved in an order shuffled by "
        f"run.order_seed={config.run.order_seed}"
    )
    yield f"a speed-up is the ratio of the geometric means of launches; {A_THROUGHPUT}"
    yield f"intervals of speed-ups hold at {CONFIDENCE:.0%} for all speed-ups together"
    for point in points_left_out(options):
        yield f"skipped: batch {point.batch_size} is not divisible by {point.num_devices} devices (strong)"
