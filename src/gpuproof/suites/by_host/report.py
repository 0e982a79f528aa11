"""Compare hosts: how each ended, results per device and per item, and median and spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.records.result import WHOLE, Measure, Validity
from gpuproof.statistics.outliers import ENOUGH_HOSTS
from gpuproof.suites.by_host.host import HostConclusion, failure_stage, is_bounded
from gpuproof.suites.by_host.hosts import FleetSummary, HostMeasured, TypeSummary
from gpuproof.suites.by_host.hosts_suite import SuiteSummary, summarize_suite

PER_TABLE = 6
"""Maximum number of points shown in one table: the number of tests of one kind in the load suite."""


What = Literal["launches", "tests", "points", "figures"]
"""The kind of item that host columns represent. "launches" means launches of one recipe. "figures" are each
host's own results rather than points that hosts share."""
TOTAL, DEVICE = "rate", "rate of a device"
ENERGY, COST = "energy of an item", "cost of a million"
OF_TYPE, OF_FASTEST = "of its type's median", "of the fastest type"
MEDIAN, MAD, LOWEST, HIGHEST = "median of hosts", "MAD of hosts", "lowest of hosts", "highest of hosts"
SHARES = (OF_TYPE, OF_FASTEST, MAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteColumn:
    """A column for one test, one point, or the only recipe."""

    name: str
    """The case name of its launches."""
    group: str
    """Title of the table that the column belongs to."""
    label: str
    """Short title of the column."""
    item: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """A host's description, and how its launches ended."""

    host: str
    gpu_type: str | None
    """The host's GPU type; None if nothing was measured and the inventory does not list it."""
    num_devices: int | None
    num_successful: int
    """Number of tests, points or launches that succeeded."""
    num_failed: int
    num_not_run: int
    failed: tuple[str, ...]
    """Points that failed individually."""
    best: str | None
    """The point with the highest throughput; None for tests, because they are not ranked."""
    validity: Validity | None
    stage: str | None
    """Stage at which the host failed: setup, deploy, execute, download, parse or exception; None if it did
    not fail."""
    failure: str | None
    sentences: tuple[str, ...]
    """Anomalies in the readings during the host's launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsReport:
    """The results of every test on every host."""

    what: What
    currency: str
    columns: tuple[SuiteColumn, ...]
    states: tuple[HostState, ...]
    """The states of all hosts, in inventory order."""
    summary: SuiteSummary
    reaches: Mapping[str, float] = field(default_factory=dict)
    """Median of the hosts' relative uncertainty between launches, for each of the hosts' own results."""

    @property
    def item(self) -> str:
        """The item counted in all columns; "items" if they count different things."""
        items = {column.item for column in self.columns}
        return items.pop() if len(items) == 1 else "items"


def report_of(hosts: Sequence[HostConclusion], *, currency: str) -> HostsReport:
    """Compare hosts by one recipe, by shared points, or by their own results."""
    if not any(host.points for host in hosts):
        return _of_headlines(hosts, currency)
    names = list(hosts[0].points)
    compared = {name: [x for host in hosts if (x := host.comparable(name)) is not None] for name in names}
    num_measured = sum(any(host.measured(name) for name in names) for host in hosts)
    is_single = all(host.is_single for host in hosts)
    shared: What = "points" if hosts[0].common.is_ranked else "tests"
    return HostsReport(
        what="launches" if is_single else shared,
        currency=currency,
        columns=tuple(_columns(hosts)),
        states=tuple(map(_of_launches if is_single else _of_points, hosts)),
        summary=replace(summarize_suite(compared, num_hosts=len(hosts)), num_measured=num_measured),
    )


def _of_headlines(hosts: Sequence[HostConclusion], currency: str) -> HostsReport:
    """Compare each host's own results; no mean is computed over different results."""
    measures = {name: measure for host in reversed(hosts) for name, measure in host.headlines.items()}
    rates = {
        name: with_reach_of_others([rate for host in hosts if (rate := host.rate(name)) is not None])
        for name in measures
    }
    # Results that a search narrowed to a range are compared by their bounds; the others were measured at the
    # point where each host's search ended.
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
            group=_group("Results", place, len(measures)) if is_many else "Results",
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
    """Return rates with intervals widened by their type's median reach, because launches may vary.

    If some launches stall, a host without stalls has the narrowest interval of all, far from the median. If
    there are too few hosts to estimate a spread, nothing is added, because the comparison uses the reach of
    both sides.
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
    """Return the title of the table that a column belongs to."""
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
    """Return the state of a host that ran one recipe: if any launch fails, the host has failed."""
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


def headlines_of_hosts(report: HostsReport) -> Iterator[Measure]:
    """Yield the combined results of all hosts for one recipe; yield nothing if nothing was measured."""
    if report.what != "launches" or not report.summary.tests[0].summary.num_measured:
        return
    summary, item = report.summary.tests[0].summary, report.item
    spread = summary.items_per_s_per_device
    assert spread is not None
    reach = f"{units.significant(spread.lowest)} – {units.significant(spread.highest)} {item}/s"
    yield Measure(
        name="median device",
        value=spread.median,
        unit=f"{item}/s",
        text=units.rate(spread.median, item),
        detail=f"of {spread.num_hosts} hosts, {reach}",
        uncertainty=f"MAD {units.share(spread.mad / spread.median)}" if spread.num_hosts > 1 else None,
        statistic="median",
        better="higher",
        num_samples=spread.num_hosts,
    )
    yield Measure(
        name="all hosts",
        value=summary.items_per_s_total,
        unit=f"{item}/s",
        text=units.rate(summary.items_per_s_total, item),
        detail=f"{summary.num_devices} devices of {summary.num_measured} hosts, each measured separately",
        statistic="total",
        better="higher",
    )
    for name, value, unit, missing in (
        ("energy", summary.energy_j_per_item, energy_unit(item), summary.energy_missing),
        ("cost", summary.cost_per_million_items, cost_unit(report, item), summary.cost_missing),
    ):
        text = units.MISSING if value is None else f"{units.significant(value)} {unit}"
        detail = missing or "of all hosts"
        yield Measure(
            name=name, value=value, unit=unit, text=text, detail=detail, better="lower", missing=missing
        )


def energy_unit(item: str) -> str:
    """Return the unit of energy per item."""
    return f"J/{item.removesuffix('s')}"


def cost_unit(report: HostsReport, item: str) -> str:
    """Return the unit of cost per million items."""
    return f"{report.currency}/million {item}"


def measures_side_by_side(hosts: Sequence[HostConclusion], report: HostsReport) -> Iterator[Measure]:
    """Yield table values for hosts that share points: per host, then per type, then for all hosts."""
    speeds = {speed.host: speed.relative_to_type for speed in report.summary.hosts}
    for host in hosts:
        energy, cost = host.energy_and_cost
        of_host = {ENERGY: energy, COST: cost, OF_TYPE: speeds.get(host.name)}
        for name, value in of_host.items():
            if value is not None:
                yield _value(name, value, report, report.item, subject=f"host/{host.name}")
        yield from _rates(host, report)
    for speed in report.summary.types:
        yield _value(
            OF_FASTEST,
            speed.relative_to_fastest,
            report,
            report.item,
            labels={"gpu_type": speed.gpu_type, "num_hosts": speed.num_hosts, "num_tests": speed.num_tests},
            missing=report.summary.types_missing,
        )
    for column, test in zip(report.columns, report.summary.tests, strict=True):
        kinds: list[FleetSummary | TypeSummary] = [test.summary, *test.summary.types]
        for kind in kinds:
            yield from _spread(kind, report, column.item, case=column.name)


def _rates(host: HostConclusion, report: HostsReport) -> Iterator[Measure]:
    """Yield the rates for each point."""
    subject = f"host/{host.name}"
    for column in report.columns:
        measured = host.measured(column.name)
        if measured is not None:
            rates = {TOTAL: measured.items_per_s_total, DEVICE: measured.items_per_s_per_device}
            for name, value in rates.items():
                yield _value(name, value, report, column.item, subject=subject, case=column.name)


def _spread(
    kind: FleetSummary | TypeSummary, report: HostsReport, item: str, *, case: str
) -> Iterator[Measure]:
    """Yield the median and spread of a type's hosts, or of all hosts, with energy and cost per item."""
    spread = kind.items_per_s_per_device
    if spread is None:
        return
    labels = {"gpu_type": kind.gpu_type} if isinstance(kind, TypeSummary) else {}
    values = {
        MEDIAN: spread.median,
        MAD: spread.mad / spread.median if spread.num_hosts > 1 else None,
        LOWEST: spread.lowest,
        HIGHEST: spread.highest,
        OF_FASTEST: kind.relative_to_fastest if isinstance(kind, TypeSummary) else None,
        ENERGY: kind.energy_j_per_item,
        COST: kind.cost_per_million_items,
    }
    for name, value in values.items():
        if value is not None:
            figure = _value(name, value, report, item, case=case, labels=labels)
            yield replace(figure, num_samples=spread.num_hosts)


def _value(
    name: str,
    value: float | None,
    report: HostsReport,
    item: str,
    *,
    subject: str = WHOLE,
    case: str = "main",
    labels: dict[str, Any] | None = None,
    missing: str | None = None,
) -> Measure:
    unit = {ENERGY: energy_unit(item), COST: cost_unit(report, item)}.get(name, f"{item}/s")
    text = units.share(value) if name in SHARES else units.amount(value, unit)
    return Measure(
        name=name,
        value=value,
        unit="1" if name in SHARES else unit,
        text=text,
        case=case,
        subject=subject,
        labels={"quantity": name, **(labels or {})},
        missing=missing if value is None else None,
    )
