"""The figures of hosts side by side: each by device, what an item takes, and their middle and spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gpuproof.base import units
from gpuproof.records.result import WHOLE, Measure
from gpuproof.suites.by_host.host import HostConclusion
from gpuproof.suites.by_host.hosts import FleetSummary, TypeSummary
from gpuproof.suites.by_host.report import HostsReport

TOTAL, DEVICE = "rate", "rate of a device"
ENERGY, COST = "energy of an item", "cost of a million"
OF_TYPE, OF_FASTEST = "of its type's median", "of the fastest type"
MEDIAN, MAD, LOWEST, HIGHEST = "median of hosts", "MAD of hosts", "lowest of hosts", "highest of hosts"
SHARES = (OF_TYPE, OF_FASTEST, MAD)


def headlines_of_hosts(report: HostsReport) -> Iterator[Measure]:
    """Yield the figures of all hosts of one recipe together; none where nothing was measured."""
    if report.what != "launches" or not report.summary.num_measured:
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
        detail=f"{summary.num_devices} devices of {summary.num_measured} hosts, each measured by itself",
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
    """Return the unit of what an item takes."""
    return f"J/{item.removesuffix('s')}"


def cost_unit(report: HostsReport, item: str) -> str:
    """Return the unit of what a million items cost."""
    return f"{report.currency}/million {item}"


def measures_side_by_side(hosts: Sequence[HostConclusion], report: HostsReport) -> Iterator[Measure]:
    """Yield what tables of hosts that share points show: of each host, then of each type and of all."""
    speeds = {speed.host: speed.relative_to_type for speed in report.summary.hosts}
    for host in hosts:
        energy, cost = host.energy_and_cost
        of_host = {ENERGY: energy, COST: cost, OF_TYPE: speeds.get(host.name)}
        for name, value in of_host.items():
            if value is not None:
                yield _figure(name, value, report, report.item, subject=f"host/{host.name}")
        yield from _rates(host, report)
    for speed in report.summary.types:
        yield _figure(
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
    """Yield the rates of each point."""
    subject = f"host/{host.name}"
    for column in report.columns:
        measured = host.measured(column.name)
        if measured is not None:
            rates = {TOTAL: measured.items_per_s_total, DEVICE: measured.items_per_s_per_device}
            for name, value in rates.items():
                yield _figure(name, value, report, column.item, subject=subject, case=column.name)


def _spread(
    kind: FleetSummary | TypeSummary, report: HostsReport, item: str, *, case: str
) -> Iterator[Measure]:
    """Yield middle and spread of the hosts of a type, or of all, and what an item takes there."""
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
            figure = _figure(name, value, report, item, case=case, labels=labels)
            yield replace(figure, num_samples=spread.num_hosts)


def _figure(
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
