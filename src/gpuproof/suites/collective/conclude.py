"""What collective operations come to: bandwidth by size, right or wrong, and every doubt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gpuproof import units
from gpuproof.analysis.collectives import CollectiveFigures, CollectiveLaunch, summarize_collectives
from gpuproof.analysis.explanations import LaunchExplanation, explain_launch
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Doubt, LaunchValue, Measure
from gpuproof.records.work.collective import REDUCING, ROOTED
from gpuproof.statistics.launches import interval_of_rates
from gpuproof.suites.base import Conclusion, Export, LaunchKey, launch_key
from gpuproof.suites.exports import csv_text
from gpuproof.suites.measures import positions_in_time, with_interval
from gpuproof.suites.results import benchmark_result
from gpuproof.suites.sections import Common, notes_of_setup, read_during, torn_notes, without_effect
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import doubts_about, doubts_about_readings, invalid_first, said_once

CSV_FILE = "collectives.csv"
LATENCIES = (50.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """One operation at one size, all launches together: a row of the table."""

    operation: str
    size_bytes: int
    num_elements: int
    dtype: str
    reduction: str | None
    """None where nothing is reduced."""
    root: int | None
    """None where no rank stands out."""
    time_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float | None
    p50_s: float | None
    p99_s: float | None
    """None with too few iterations."""
    longest_s: float
    rank_spread: float
    """The slowest rank's mean time over the fastest one's, less 1."""
    num_wrong: int | None
    """None where nothing was compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveDetail:
    """What the page of collectives needs beyond the result."""

    common: Common
    rows: tuple[SizeRow, ...]
    num_headlines: int
    """Of the measures, one an operation: they come first."""


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of a run of collectives and its files."""
    config = evidence.config
    launches = [found for one in evidence.launches if (found := summarize_collectives(one)) is not None]
    explanations = [
        explain_launch(found.launch, evidence) for found in launches if found.launch.case.monitor is not None
    ]
    doubts = _doubts(launches, doubts_about_readings(explanations))
    headlines, curves = _bandwidth_measures(evidence.launches, launches)
    rows = tuple(_row(found, config) for found in _points(launches))
    failures = tuple(f for one in evidence.launches if one.status != "done" and (f := one.primary_failure))
    detail = CollectiveDetail(
        common=_common(evidence, launches, explanations), rows=rows, num_headlines=len(headlines)
    )
    result = benchmark_result(
        "collective",
        evidence,
        measures=[*headlines, *curves],
        doubts=doubts,
        failures=failures,
        num_launches=len(launches),
        num_planned=config.run.repeats,
        conditions=_conditions(launches, config),
        detail=to_json(detail),
        headline_text=None if headlines else "",
    )
    exports = (Export(name=CSV_FILE, content=csv_text([to_json(row) for row in rows])),)
    return Conclusion(result=result, exports=exports)


def collective_measures(records: Sequence[CaseRecords]) -> list[Measure]:
    """Return the bandwidths that launches come to: the best of each operation, then every size."""
    launches = [found for one in records if (found := summarize_collectives(one)) is not None]
    headlines, curves = _bandwidth_measures(records, launches)
    return [*headlines, *curves]


def _bandwidth_measures(
    records: Sequence[CaseRecords], launches: Sequence[CollectiveLaunch]
) -> tuple[list[Measure], list[Measure]]:
    positions = positions_in_time(records)
    curves = [_bandwidth_measure(found, positions) for found in _points(launches)]
    return list(_headlines(curves)), curves


def _doubts(launches: Sequence[CollectiveLaunch], observed: Sequence[Doubt]) -> tuple[Doubt, ...]:
    judged = [doubts_about(Measured(launch=found.launch, collectives=found)) for found in launches]
    return invalid_first([*said_once(judged), *observed])


Point = list[tuple[CollectiveLaunch, CollectiveFigures]]
"""One operation at one size in every launch."""


def _points(launches: Sequence[CollectiveLaunch]) -> list[Point]:
    points: dict[tuple[str, int], Point] = {}
    for launch in launches:
        for found in launch.figures:
            points.setdefault((found.operation, found.asked_bytes), []).append((launch, found))
    return list(points.values())


def _bandwidth_measure(point: Point, positions: Mapping[LaunchKey, int]) -> Measure:
    """Return the bus bandwidth of one operation at one size, over launches."""
    first = point[0][1]
    rates = [found.bus_bytes_per_s or 0.0 for _, found in point]
    launches = tuple(
        LaunchValue(
            replicate=launch.launch.case.replicate,
            order=positions[launch_key(launch.launch.case)],
            value=rate,
        )
        for (launch, _), rate in zip(point, rates, strict=True)
    )
    size, value = units.memory(first.size_bytes), fmean(rates)
    measure = with_interval(
        f"{first.operation} of {size}",
        value,
        "B/s",
        units.bandwidth(value),
        interval_of_rates(rates),
        better="higher",
        launches=launches,
    )
    labels = {
        "operation": first.operation,
        "size_bytes": first.size_bytes,
        "num_ranks": first.num_ranks,
        "dtype": point[0][0].launch.setup.precision,
        "quantity": "bus bandwidth",
    }
    return replace(measure, statistic="mean", labels=labels, num_samples=len(first.iterations_s) * len(point))


def _headlines(curves: Sequence[Measure]) -> Iterator[Measure]:
    """Yield the highest bandwidth of each operation, with the size at which it was reached."""
    operations = dict.fromkeys(curve.labels["operation"] for curve in curves)
    for operation in operations:
        best = max((c for c in curves if c.labels["operation"] == operation), key=lambda c: c.value or 0.0)
        size = units.memory(best.labels["size_bytes"])
        yield replace(
            best,
            name="bus bandwidth",
            text=f"{best.text} busbw, {operation} of {size}",
            statistic="highest of all sizes",
        )


def _row(point: Point, config: RunConfig) -> SizeRow:
    first = point[0][1]
    asked = config.collective
    figures = [found for _, found in point]
    pooled = replace(first, iterations_s=tuple(time for found in figures for time in found.iterations_s))
    p50, p99 = (pooled.latency(q).value for q in LATENCIES)
    bus = [found.bus_bytes_per_s for found in figures if found.bus_bytes_per_s is not None]
    return SizeRow(
        operation=first.operation,
        size_bytes=first.size_bytes,
        num_elements=first.num_elements,
        dtype=asked.dtype,
        reduction=asked.reduction if first.operation in REDUCING else None,
        root=asked.root if first.operation in ROOTED else None,
        time_s=fmean(found.time_s for found in figures),
        algorithm_bytes_per_s=fmean(found.algorithm_bytes_per_s for found in figures),
        bus_bytes_per_s=fmean(bus) if bus else None,
        p50_s=p50,
        p99_s=p99,
        longest_s=max(pooled.iterations_s),
        rank_spread=max(found.rank_spread for found in figures),
        num_wrong=sum(found.num_wrong for found in figures) if first.num_checked else None,
    )


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
        title = f"{work} over {ranks} ranks{over}, {setup.device.name}, {setup.backend}"
    return Common(
        title=title,
        work=work,
        not_applied=without_effect(
            [found.launch.setup for found in launches], evidence.description["origins"]
        ),
        notes=(*_notes(launches), *torn_notes(evidence.launches)),
        **read_during(explanations),
    )


def _notes(launches: Sequence[CollectiveLaunch]) -> Iterator[str]:
    yield from notes_of_setup([found.launch for found in launches])
    if not launches:
        return
    yield (
        "sizes, times and bandwidths are counted as nccl-tests does; busbw is the one to compare with the "
        "bandwidth of the links"
    )
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
