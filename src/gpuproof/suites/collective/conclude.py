"""Results of collective operations: values per size over launches, correctness, and all warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.config.models import RunConfig
from gpuproof.launches.collectives import CollectiveLaunch, CollectiveValues, summarize_collectives
from gpuproof.launches.explanations import LaunchExplanation, explain_launch, readings_by_launch
from gpuproof.launches.limits import communication_limit
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.limits import LaunchLimits, with_readings
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Better, Doubt, LaunchValue, Measure
from gpuproof.records.work.collective import REDUCING, ROOTED
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.launches import interval_of_rates
from gpuproof.suites.base import Conclusion, Export, LaunchKey, launch_key
from gpuproof.suites.results import benchmark_result, csv_text, positions_in_time, with_interval
from gpuproof.suites.sections import Common, notes_of_setup, read_during, torn_notes, without_effect
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import doubts_about, doubts_about_readings, invalid_first, joined_doubts
from gpuproof.verdict.rules.model import COUNTS_OF_WRONG

CSV_FILE = "collectives.csv"
Point = list[tuple[CollectiveLaunch, CollectiveValues]]
"""The results of one operation at one size, in every launch."""
BUS_BANDWIDTH = "bus bandwidth"
WRONG_VALUES = COUNTS_OF_WRONG[0]
OfLaunch = Callable[[CollectiveValues], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveDetail:
    """Data for the page of collectives that is not part of the result."""

    common: Common
    num_headlines: int
    """Number of per-operation measures, which come first."""


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result and the files of a collectives run."""
    config = evidence.config
    launches = [launch for one in evidence.launches if (launch := summarize_collectives(one)) is not None]
    explanations = [
        explain_launch(one.launch, evidence) for one in launches if one.launch.case.monitor is not None
    ]
    doubts = _doubts(launches, doubts_about_readings(explanations))
    points = _points(launches)
    curves = [_measures_at(point, positions_in_time(evidence.launches)) for point in points]
    headlines = list(_headlines(curves))
    failures = tuple(f for one in evidence.launches if one.status != "done" and (f := one.primary_failure))
    detail = CollectiveDetail(common=_common(evidence, launches, explanations), num_headlines=len(headlines))
    result = benchmark_result(
        "collective",
        evidence,
        measures=[*headlines, *chain.from_iterable(curves)],
        doubts=doubts,
        failures=failures,
        num_launches=len(launches),
        num_planned=config.run.repeats,
        conditions=_conditions(launches, config),
        detail=to_json(detail),
        headline_text=None if headlines else "",
        limits=_limits(launches, explanations),
    )
    rows = [_csv_row(point, at, config) for point, at in zip(points, curves, strict=True)]
    return Conclusion(result=result, exports=(Export(name=CSV_FILE, content=csv_text(rows)),))


def _limits(
    launches: Sequence[CollectiveLaunch], explanations: Sequence[LaunchExplanation]
) -> list[LaunchLimits]:
    read, by_design = (
        readings_by_launch(explanations),
        communication_limit("its steps do nothing but communicate"),
    )
    return [with_readings(by_design, read.get(launch_key(one.launch.case), ())) for one in launches]


def collective_measures(records: Sequence[CaseRecords]) -> list[Measure]:
    """Return the results over launches: the best of each operation, then every size."""
    launches = [launch for one in records if (launch := summarize_collectives(one)) is not None]
    curves = [_measures_at(point, positions_in_time(records)) for point in _points(launches)]
    return [*_headlines(curves), *chain.from_iterable(curves)]


def _doubts(launches: Sequence[CollectiveLaunch], observed: Sequence[Doubt]) -> tuple[Doubt, ...]:
    judged = [doubts_about(Measured(launch=launch.launch, collectives=launch)) for launch in launches]
    return invalid_first([*joined_doubts(judged), *observed])


def _points(launches: Sequence[CollectiveLaunch]) -> list[Point]:
    points: dict[tuple[str, int], Point] = {}
    for launch in launches:
        for figures in launch.figures:
            points.setdefault((figures.operation, figures.asked_bytes), []).append((launch, figures))
    return list(points.values())


def _measures_at(point: Point, positions: Mapping[LaunchKey, int]) -> list[Measure]:
    """Return the combined results of all launches for one operation at one size."""
    return [_measure(quantity, point, positions) for quantity in QUANTITIES]


def _measure(quantity: CollectiveQuantity, point: Point, positions: Mapping[LaunchKey, int]) -> Measure:
    first, figures = point[0][1], [figures for _, figures in point]
    launches = tuple(
        LaunchValue(
            replicate=launch.launch.case.replicate,
            order=positions[launch_key(launch.launch.case)],
            value=value,
            start=launch.launch.case.start,
        )
        for launch, of_launch in point
        if (value := quantity.of_launch(of_launch)) is not None
    )
    value = quantity.over(figures)
    labels = {
        "operation": first.operation,
        "size_bytes": first.size_bytes,
        "num_ranks": first.num_ranks,
        "dtype": point[0][0].launch.setup.precision,
        "quantity": quantity.name,
    }
    return with_interval(
        quantity.name_at(first),
        value,
        quantity.unit,
        units.MISSING if value is None else quantity.text(value),
        _interval(quantity, [launch.value for launch in launches]),
        better=quantity.better,
        launches=launches,
        statistic=quantity.statistic,
        labels=labels,
        num_samples=len(first.iterations_s) * len(point),
        missing=quantity.missing if value is None else None,
    )


def _headlines(curves: Sequence[Sequence[Measure]]) -> Iterator[Measure]:
    """Yield the highest bandwidth of each operation, with the size at which it was measured."""
    bandwidths = grouped(
        (measure.labels["operation"], measure)
        for measure in chain.from_iterable(curves)
        if measure.labels["quantity"] == BUS_BANDWIDTH
    )
    for operation, of_sizes in bandwidths.items():
        best = max(of_sizes, key=lambda measure: measure.value or 0.0)
        size = units.memory(best.labels["size_bytes"])
        yield replace(
            best,
            name=BUS_BANDWIDTH,
            text=f"{best.text} busbw, {operation} of {size}",
            statistic="highest of all sizes",
        )


def _interval(quantity: CollectiveQuantity, values: Sequence[float]) -> Interval | Unavailable:
    if quantity.statistic == "mean":
        return interval_of_rates(values)
    return Unavailable(reason=f"the value is the {quantity.statistic}")


def _csv_row(point: Point, measures: Sequence[Measure], config: RunConfig) -> dict[str, Any]:
    first, spec = point[0][1], config.collective
    values = {quantity.column: measure.value for quantity, measure in zip(QUANTITIES, measures, strict=True)}
    num_wrong = values["num_wrong"]
    return {
        "operation": first.operation,
        "size_bytes": first.size_bytes,
        "num_elements": first.num_elements,
        "dtype": spec.dtype,
        "reduction": spec.reduction if first.operation in REDUCING else None,
        "root": spec.root if first.operation in ROOTED else None,
        **values,
        "num_wrong": None if num_wrong is None else int(num_wrong),
    }


def _common(
    evidence: Evidence, launches: Sequence[CollectiveLaunch], explanations: Sequence[LaunchExplanation]
) -> Common:
    config = evidence.config
    operations = config.collective.operations
    named = ", ".join(operations) if len(operations) < 4 else f"{len(operations)} operations"
    work = f"{named} of {config.collective.dtype}"
    title = work
    if launches:
        setup, ranks = launches[0].launch.setup, launches[0].launch.world_size
        hosts = len({window.host for window in launches[0].launch.windows})
        over = f" on {hosts} hosts" if hosts > 1 else ""
        parts = f"{work} over {ranks} ranks{over}", setup.device.name, setup.backend
        title = ", ".join(filter(None, parts))
    return Common(
        title=title,
        work=work,
        not_applied=without_effect(
            [launch.launch.setup for launch in launches], evidence.description["origins"]
        ),
        notes=(*_notes(launches), *torn_notes(evidence.launches)),
        **read_during(explanations),
    )


def _notes(launches: Sequence[CollectiveLaunch]) -> Iterator[str]:
    yield from notes_of_setup([launch.launch for launch in launches])
    if not launches:
        return
    yield "sizes, times and bandwidths are counted as in nccl-tests; compare busbw with the link bandwidth"
    yield from launches[0].left_out
    if len(launches) == 1:
        yield "one launch: set run.repeats to 3 or more to see how much launches differ"


def _conditions(launches: Sequence[CollectiveLaunch], config: RunConfig) -> dict[str, object]:
    first = launches[0].launch if launches else None
    return {
        "kind": "collective",
        "dtype": config.collective.dtype,
        "num_ranks": None if first is None else first.world_size,
        "num_hosts": None if first is None else len({window.host for window in first.windows}),
        "device": None if first is None else first.setup.device.name,
        "backend": None if first is None else first.setup.backend,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveQuantity:
    """A metric of one operation at one size."""

    name: str
    column: str
    """Name of the metric's column in collectives.csv."""
    unit: str
    of_launch: OfLaunch
    over: Callable[[Sequence[CollectiveValues]], float | None]
    """The metric's value across all launches."""
    statistic: str
    text: Callable[[float], str]
    better: Better | None = None
    """Which direction is better; None if another metric expresses the same thing, so that it is compared only
    once."""
    missing: str = ""
    """Reason why a launch has no value, if some launches may not have one."""

    def name_at(self, point: CollectiveValues) -> str:
        """Return the name of the measure at a size; a name with only the size means bus bandwidth."""
        at = f"{point.operation} of {units.memory(point.size_bytes)}"
        return at if self.name == BUS_BANDWIDTH else f"{at}, {self.name}"


def _mean(of_launch: OfLaunch) -> Callable[[Sequence[CollectiveValues]], float | None]:
    def mean(launches: Sequence[CollectiveValues]) -> float | None:
        values = [value for launch in launches if (value := of_launch(launch)) is not None]
        return fmean(values) if values else None

    return mean


def _percentile(q: float) -> CollectiveQuantity:
    def of_launch(figures: CollectiveValues) -> float | None:
        return figures.latency(q).value

    def pooled(launches: Sequence[CollectiveValues]) -> float | None:
        times_s = tuple(time_s for launch in launches for time_s in launch.iterations_s)
        return of_launch(replace(launches[0], iterations_s=times_s))

    return CollectiveQuantity(
        name=f"p{q:g} latency",
        column=f"p{q:g}_s",
        unit="s",
        of_launch=of_launch,
        over=pooled,
        statistic=f"p{q:g} of all iterations",
        text=units.seconds,
        better="lower",
        missing="too few iterations",
    )


def _wrong(figures: CollectiveValues) -> float | None:
    return float(figures.num_wrong) if figures.num_checked else None


def _all_wrong(launches: Sequence[CollectiveValues]) -> float | None:
    return float(sum(launch.num_wrong for launch in launches)) if launches[0].num_checked else None


QUANTITIES = (
    CollectiveQuantity(
        name="mean latency",
        column="time_s",
        unit="s",
        of_launch=lambda figures: figures.time_s,
        over=_mean(lambda figures: figures.time_s),
        statistic="mean",
        text=units.seconds,
    ),
    CollectiveQuantity(
        name="algorithm bandwidth",
        column="algorithm_bytes_per_s",
        unit="B/s",
        of_launch=lambda figures: figures.algorithm_bytes_per_s,
        over=_mean(lambda figures: figures.algorithm_bytes_per_s),
        statistic="mean",
        text=units.bandwidth,
    ),
    CollectiveQuantity(
        name=BUS_BANDWIDTH,
        column="bus_bytes_per_s",
        unit="B/s",
        of_launch=lambda figures: figures.bus_bytes_per_s,
        over=_mean(lambda figures: figures.bus_bytes_per_s),
        statistic="mean",
        text=units.bandwidth,
        better="higher",
        missing="with one rank nothing moves",
    ),
    _percentile(50.0),
    _percentile(99.0),
    CollectiveQuantity(
        name="longest latency",
        column="longest_s",
        unit="s",
        of_launch=lambda figures: max(figures.iterations_s),
        over=lambda launches: max(max(launch.iterations_s) for launch in launches),
        statistic="max",
        text=units.seconds,
        better="lower",
    ),
    CollectiveQuantity(
        name="rank spread",
        column="rank_spread",
        unit="1",
        of_launch=lambda figures: figures.rank_spread,
        over=lambda launches: max(launch.rank_spread for launch in launches),
        statistic="max",
        text=units.share,
        better="lower",
    ),
    CollectiveQuantity(
        name=WRONG_VALUES,
        column="num_wrong",
        unit="1",
        of_launch=_wrong,
        over=_all_wrong,
        statistic="sum",
        text=lambda value: units.count(int(value)),
        better="lower",
        missing="not compared",
    ),
)
"""The metrics, in the order of the columns of collectives.csv."""
