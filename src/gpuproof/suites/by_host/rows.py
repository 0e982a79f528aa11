"""Hosts beside each other: of one recipe a row a host; of several points or tests, each on each host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from gpuproof.analysis.apart import ENOUGH_HOSTS
from gpuproof.analysis.hosts import FleetSummary, HostMeasured, cost_per_million, summarize_fleet
from gpuproof.analysis.hosts_suite import SuiteSummary, summarize_suite
from gpuproof.analysis.points import PointFigures
from gpuproof.groups import grouped
from gpuproof.records.result import Validity
from gpuproof.suites.by_host.host import HostConclusion, failure_stage, is_bounded

PER_TABLE = 6
"""Points beside each other; as many as there are tests of a kind in the load suite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """One host of a fleet that ran one recipe."""

    host: str
    gpu_type: str | None
    """None where nothing was measured and the inventory does not say."""
    num_devices: int | None
    num_launches: int
    num_planned: int
    items_per_s_total: float | None
    items_per_s_per_device: float | None
    energy_j_per_item: float | None
    cost_per_million_items: float | None
    validity: Validity | None
    stage: str | None
    """Where it failed: setup, deploy, execute, download, parse or exception; None where it did not."""
    failure: str | None
    sentences: tuple[str, ...]
    """What stood out in the readings beside its launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """One recipe host by host, and together."""

    item: str
    currency: str
    hosts: tuple[HostRow, ...]
    """In the order of the inventory."""
    summary: FleetSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteColumn:
    """One test, or one point."""

    name: str
    """As its launches are called."""
    group: str
    """Of columns that stand in one table."""
    label: str
    """Short, above its column."""
    item: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCell:
    """One test on one host."""

    success: bool | None
    """None where it was not run to an end."""
    items_per_s_total: float | None
    """Of all devices of the host."""
    items_per_s_per_device: float | None
    mean_step_s: float | None
    energy_j_per_item: float | None
    cost_per_million_items: float | None
    validity: Validity | None
    outcome: str
    """Why there are no figures; empty where there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteHost:
    """One host with all its tests."""

    host: str
    gpu_type: str | None
    """None where nothing was measured and the inventory does not say."""
    num_devices: int | None
    num_successful: int
    num_failed: int
    num_not_run: int
    relative_to_type: float | None
    """Its rate over the median of its type, as a mean over tests; None without others to compare with."""
    energy_j_per_item: float | None
    """Over all tests, which weigh as many items as they have; None unless every test succeeded."""
    cost_per_million_items: float | None
    """Likewise, of the time in the windows."""
    best: str | None
    """The point of the highest throughput; None for tests, which are not ranked."""
    validity: Validity | None
    stage: str | None
    """Where it failed: setup, deploy, execute, download, parse or exception; None where it did not."""
    failure: str | None
    cells: tuple[SuiteCell, ...]
    """In the order of the columns."""
    sentences: tuple[str, ...]
    """What stood out in the readings beside its launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSuite:
    """Every test on every host."""

    what: Literal["tests", "points", "figures"]
    """Figures are those that each host has of its own: they are no points that hosts share."""
    currency: str
    columns: tuple[SuiteColumn, ...]
    hosts: tuple[SuiteHost, ...]
    """In the order of the inventory."""
    summary: SuiteSummary


def report_of_recipe(hosts: Sequence[HostConclusion], *, currency: str) -> FleetReport:
    """Put one recipe's hosts in rows."""
    measured = [found for host in hosts for name in host.points if (found := host.measured(name))]
    items = [point.item for host in hosts for point in host.points.values() if point.launches]
    return FleetReport(
        item=items[0] if items else "samples",
        currency=currency,
        hosts=tuple(_host_row(host) for host in hosts),
        summary=summarize_fleet(measured, num_hosts=len(hosts)),
    )


def _host_row(host: HostConclusion) -> HostRow:
    (point,) = host.points.values()
    measured = host.figures(point)
    failure = host.unreached or next(iter(point.failures), None)
    return HostRow(
        host=host.name,
        gpu_type=measured.gpu_type if measured else host.host.get("gpu_type"),
        num_devices=measured.num_devices if measured else host.host.get("gpus"),
        num_launches=len(point.launches),
        num_planned=point.num_planned,
        items_per_s_total=measured.items_per_s_total if measured else None,
        items_per_s_per_device=measured.items_per_s_per_device if measured else None,
        energy_j_per_item=measured.energy_j_per_item if measured else None,
        cost_per_million_items=measured.cost_per_million_items if measured else None,
        validity=point.validity,
        stage=None if failure is None else failure_stage(failure),
        failure=None if failure is None else failure.message,
        sentences=tuple(host.sentences()),
    )


def report_of_points(hosts: Sequence[HostConclusion], *, currency: str) -> FleetSuite:
    """Put points or tests beside each other, host by host."""
    names = list(hosts[0].points)
    measured = {name: [x for host in hosts if (x := host.measured(name)) is not None] for name in names}
    summary = summarize_suite(measured, num_hosts=len(hosts))
    return FleetSuite(
        what="points" if hosts[0].common.is_ranked else "tests",
        currency=currency,
        columns=tuple(_columns(hosts)),
        hosts=tuple(_suite_host(host, summary) for host in hosts),
        summary=summary,
    )


def report_of_headlines(hosts: Sequence[HostConclusion], *, currency: str) -> FleetSuite:
    """Put beside each other what each host says of itself; no mean is taken over figures."""
    measures = {name: measure for host in reversed(hosts) for name, measure in host.headlines.items()}
    rates = {
        name: with_reach_of_others([rate for host in hosts if (rate := host.rate(name)) is not None])
        for name in measures
    }
    # What a search narrowed down is compared by its bounds; other figures were taken where each host ended.
    searched = {name for host in hosts for name, m in host.headlines.items() if is_bounded(m)}
    judged = {name: of for name, of in rates.items() if of and (name in searched or not searched)}
    summary = summarize_suite(judged, num_hosts=len(hosts), whole_share=0.0)
    summary = replace(summary, num_measured=sum(host.result.num_launches > 0 for host in hosts))
    columns = (
        SuiteColumn(
            name=name,
            group=_group("Figures", place, len(measures)) if len(measures) > PER_TABLE else "Figures",
            label=name,
            item=measure.unit,
        )
        for place, (name, measure) in enumerate(measures.items())
    )
    return FleetSuite(
        what="figures",
        currency=currency,
        columns=tuple(columns),
        hosts=tuple(map(_host_of_headlines, hosts)),
        summary=summary,
    )


def with_reach_of_others(rates: Sequence[HostMeasured]) -> list[HostMeasured]:
    """Return rates that reach farther by the middle reach of their type: there, launches may differ, too.

    A stall in some launches leaves a host without one the narrowest interval of all, far off the middle.
    Fewer hosts than show a spread are judged by the reaches of both sides anyway.
    """
    beside = []
    for of_type in grouped((rate.gpu_type, rate) for rate in rates).values():
        reaches = [rate.relative_reach for rate in of_type if rate.relative_reach is not None]
        middle = median(reaches) if reaches and len(of_type) >= ENOUGH_HOSTS else 0.0
        beside += [
            rate
            if rate.relative_reach is None
            else replace(rate, relative_reach=rate.relative_reach + middle)
            for rate in of_type
        ]
    return beside


def _host_of_headlines(host: HostConclusion) -> SuiteHost:
    result = host.result
    num_failed = len(host.told_failures())
    stage, failure = host.incomplete() or (None, None)
    return SuiteHost(
        host=host.name,
        gpu_type=host.gpu_type,
        num_devices=host.num_devices,
        num_successful=result.num_launches,
        num_failed=num_failed,
        num_not_run=max(0, result.num_planned - result.num_launches - num_failed),
        relative_to_type=None,
        energy_j_per_item=None,
        cost_per_million_items=None,
        best=None,
        validity=result.validity,
        stage=stage,
        failure=failure,
        cells=(),
        sentences=tuple(host.sentences()),
    )


def _group(what: str, place: int, count: int) -> str:
    """Name the table in which a column stands."""
    first = place - place % PER_TABLE
    return f"{what} {first + 1} to {min(first + PER_TABLE, count)}"


def _columns(hosts: Sequence[HostConclusion]) -> Iterator[SuiteColumn]:
    points = [point for host in hosts for point in host.points.values() if point.launches]
    items = {point.case_id: point.item for point in reversed(points)}
    labels = {label.case_id: label for label in hosts[0].common.labels}
    num_points = len(hosts[0].points)
    for place, name in enumerate(hosts[0].points):
        group, label = _group("Points", place, num_points), str(place + 1)
        if name in labels:
            group, label = labels[name].group, labels[name].label
        yield SuiteColumn(name=name, group=group, label=label, item=items.get(name, "samples"))


def _suite_host(host: HostConclusion, summary: SuiteSummary) -> SuiteHost:
    ended = [point.success for point in host.points.values()]
    validities = [point.validity for point in host.points.values() if point.validity is not None]
    speed = next((speed for speed in summary.hosts if speed.host == host.name), None)
    gravest: Validity | None = next((v for v in ("INVALID", "SUSPECT", "VALID") if v in validities), None)
    stage, failure = host.incomplete() or (None, None)
    energy, cost = _of_all_points(host) if all(ended) else (None, None)
    return SuiteHost(
        host=host.name,
        gpu_type=host.gpu_type,
        num_devices=host.num_devices,
        num_successful=ended.count(True),
        num_failed=ended.count(False),
        num_not_run=ended.count(None),
        relative_to_type=None if speed is None else speed.relative_to_type,
        energy_j_per_item=energy,
        cost_per_million_items=cost,
        best=host.best,
        validity=gravest,
        stage=stage,
        failure=failure,
        cells=tuple(_cell(host, point) for point in host.points.values()),
        sentences=tuple(host.sentences()),
    )


def _of_all_points(host: HostConclusion) -> tuple[float | None, float | None]:
    """Return energy of an item and cost of a million over all points; None of what is not known."""
    points = list(host.points.values())
    if len({point.item for point in points}) != 1:
        return None, None
    items, window_s = sum(p.items_total for p in points), sum(p.window_s for p in points)
    known_j = [point.energy_j for point in points if point.energy_j is not None]
    price = host.host.get("price_per_hour")
    return (
        sum(known_j) / items if len(known_j) == len(points) else None,
        None if price is None else cost_per_million(price, items / window_s),
    )


def _cell(host: HostConclusion, point: PointFigures) -> SuiteCell:
    measured = host.measured(point.case_id)
    outcome = "" if point.success else "not run"
    if point.success is False:
        outcome = f"failed: {point.failures[0].cause.replace('_', ' ')}"
    return SuiteCell(
        success=point.success,
        items_per_s_total=measured.items_per_s_total if measured else None,
        items_per_s_per_device=measured.items_per_s_per_device if measured else None,
        mean_step_s=point.mean_step_s if measured else None,
        energy_j_per_item=measured.energy_j_per_item if measured else None,
        cost_per_million_items=measured.cost_per_million_items if measured else None,
        validity=point.validity if measured else None,
        outcome=outcome,
    )
