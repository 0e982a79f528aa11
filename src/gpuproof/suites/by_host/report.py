"""Hosts beside each other: what each is called and how it ended, and who stands apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from gpuproof.base.groups import grouped
from gpuproof.records.result import Validity
from gpuproof.statistics.outliers import ENOUGH_HOSTS
from gpuproof.suites.by_host.host import HostConclusion, failure_stage, is_bounded
from gpuproof.suites.by_host.hosts import HostMeasured
from gpuproof.suites.by_host.hosts_suite import SuiteSummary, summarize_suite

PER_TABLE = 6
"""Points beside each other; as many as there are tests of a kind in the load suite."""


What = Literal["launches", "tests", "points", "figures"]
"""What hosts have side by side. Launches are those of one recipe. Figures are those that each host has of its
own: they are no points that hosts share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteColumn:
    """One test, one point, or the one recipe."""

    name: str
    """As its launches are called."""
    group: str
    """Of columns that stand in one table."""
    label: str
    """Short, above its column."""
    item: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What one host is, and how it ended."""

    host: str
    gpu_type: str | None
    """None where nothing was measured and the inventory does not say."""
    num_devices: int | None
    num_successful: int
    """Of its tests, points or launches."""
    num_failed: int
    num_not_run: int
    failed: tuple[str, ...]
    """Points that failed by themselves."""
    best: str | None
    """The point of the highest throughput; None for tests, which are not ranked."""
    validity: Validity | None
    stage: str | None
    """Where it failed: setup, deploy, execute, download, parse or exception; None where it did not."""
    failure: str | None
    sentences: tuple[str, ...]
    """What stood out in the readings beside its launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsReport:
    """Every test on every host."""

    what: What
    currency: str
    columns: tuple[SuiteColumn, ...]
    states: tuple[HostState, ...]
    """In the order of the inventory."""
    summary: SuiteSummary
    reaches: Mapping[str, float] = field(default_factory=dict)
    """By figure of its own, how far the launches of the middle host leave it open, over itself."""

    @property
    def item(self) -> str:
        """What all columns count; "items" where they count different things."""
        items = {column.item for column in self.columns}
        return items.pop() if len(items) == 1 else "items"


def report_of(hosts: Sequence[HostConclusion], *, currency: str) -> HostsReport:
    """Put hosts side by side: of one recipe, of points that they share, or of figures of their own."""
    if not any(host.points for host in hosts):
        return _of_headlines(hosts, currency)
    names = list(hosts[0].points)
    measured = {name: [x for host in hosts if (x := host.measured(name)) is not None] for name in names}
    is_single = all(host.is_single for host in hosts)
    shared: What = "points" if hosts[0].common.is_ranked else "tests"
    return HostsReport(
        what="launches" if is_single else shared,
        currency=currency,
        columns=tuple(_columns(hosts)),
        states=tuple(map(_of_launches if is_single else _of_points, hosts)),
        summary=summarize_suite(measured, num_hosts=len(hosts)),
    )


def _of_headlines(hosts: Sequence[HostConclusion], currency: str) -> HostsReport:
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
    is_many = len(measures) > PER_TABLE
    states = (
        _state(host, of.num_launches, len(host.told_failures()), num_planned=of.num_planned)
        for host, of in ((host, host.result) for host in hosts)
    )
    columns = (
        SuiteColumn(
            name=name,
            group=_group("Figures", place, len(measures)) if is_many else "Figures",
            label=name,
            item=measure.unit,
        )
        for place, (name, measure) in enumerate(measures.items())
    )
    return HostsReport(
        what="figures",
        currency=currency,
        columns=tuple(columns),
        states=tuple(states),
        summary=replace(summary, num_measured=sum(host.result.num_launches > 0 for host in hosts)),
        reaches={name: median(reaches) for name, of in judged.items() if (reaches := _reaches(of))},
    )


def _reaches(rates: Sequence[HostMeasured]) -> list[float]:
    return [rate.relative_reach for rate in rates if rate.relative_reach is not None]


def with_reach_of_others(rates: Sequence[HostMeasured]) -> list[HostMeasured]:
    """Return rates that reach farther by the middle reach of their type: there, launches may differ, too.

    A stall in some launches leaves a host without one the narrowest interval of all, far off the middle.
    Fewer hosts than show a spread are judged by the reaches of both sides anyway.
    """
    beside = []
    for of_type in grouped((rate.gpu_type, rate) for rate in rates).values():
        reaches = _reaches(of_type)
        middle = median(reaches) if reaches and len(of_type) >= ENOUGH_HOSTS else 0.0
        beside += [
            rate
            if rate.relative_reach is None
            else replace(rate, relative_reach=rate.relative_reach + middle)
            for rate in of_type
        ]
    return beside


def _group(what: str, place: int, count: int) -> str:
    """Name the table in which a column stands."""
    first = place - place % PER_TABLE
    return f"{what} {first + 1} to {min(first + PER_TABLE, count)}"


def _columns(hosts: Sequence[HostConclusion]) -> Iterator[SuiteColumn]:
    points = [point for host in hosts for point in host.points.values() if point.num_launches]
    items = {point.case_id: point.item for point in reversed(points)}
    labels = {label.case_id: label for label in hosts[0].common.labels}
    num_points = len(hosts[0].points)
    for place, name in enumerate(hosts[0].points):
        group, label = _group("Points", place, num_points), str(place + 1)
        if name in labels:
            group, label = labels[name].group, labels[name].label
        yield SuiteColumn(name=name, group=group, label=label, item=items.get(name, "samples"))


def _of_launches(host: HostConclusion) -> HostState:
    """Return the state of a host that ran one recipe: any failure of a launch is the host's."""
    (point,) = host.points.values()
    failure = host.unreached or next(iter(point.failures), None)
    return replace(
        _state(host, point.num_launches, len(point.failures), num_planned=point.num_planned),
        stage=None if failure is None else failure_stage(failure),
        failure=None if failure is None else failure.message,
    )


def _of_points(host: HostConclusion) -> HostState:
    ended = [point.success for point in host.points.values()]
    validities = [point.validity for point in host.points.values() if point.validity is not None]
    gravest: Validity | None = next((v for v in ("INVALID", "SUSPECT", "VALID") if v in validities), None)
    state = _state(host, ended.count(True), ended.count(False), num_planned=len(ended))
    return replace(state, best=host.best, validity=gravest)


def _state(host: HostConclusion, num_successful: int, num_failed: int, *, num_planned: int) -> HostState:
    stage, failure = host.incomplete() or (None, None)
    return HostState(
        host=host.name,
        gpu_type=host.gpu_type,
        num_devices=host.num_devices,
        num_successful=num_successful,
        num_failed=num_failed,
        num_not_run=max(0, num_planned - num_successful - num_failed),
        failed=tuple(name for name, point in host.points.items() if point.success is False),
        best=None,
        validity=host.result.validity,
        stage=stage,
        failure=failure,
        sentences=tuple(host.sentences()),
    )
