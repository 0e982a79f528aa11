"""A fleet as a person reads it: every host in a row, then the types, then who stands apart."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from gpuproof import units
from gpuproof.analysis.fleet import Outlier, TypeSummary
from gpuproof.report.fleet_model import FleetReport
from gpuproof.report.fleet_suite_model import FleetSuite
from gpuproof.report.fleet_suite_terminal import suite_sections
from gpuproof.report.fleet_tables import Section, devices, number, table_of


def fleet_sections(fleet: FleetReport | FleetSuite) -> Iterator[Section]:
    """Yield title and body of each section."""
    if isinstance(fleet, FleetSuite):
        yield from suite_sections(fleet)
        return
    yield "Hosts", [_hosts(fleet)]
    if fleet.summary.types:
        yield "Types of GPU, by device", [_types(fleet)]
        yield "Hosts that stand apart", _apart(fleet)
    stood_out = [f"{row.host}: {sentence}" for row in fleet.hosts for sentence in row.sentences]
    if stood_out:
        yield "Meanwhile", [escape(line) for line in stood_out]


def _hosts(fleet: FleetReport) -> Table:
    table = table_of(("host", "GPUs"), ("launches", f"{fleet.item}/s", "a device", "J", "cost"))
    table.add_column("how")
    for row in fleet.hosts:
        table.add_row(
            escape(row.host),
            escape(devices(row.num_devices, row.gpu_type)),
            f"{row.num_launches}/{row.num_planned}",
            number(row.items_per_s_total),
            number(row.items_per_s_per_device),
            number(row.energy_j_per_item),
            number(row.cost_per_million_items),
            f"[bold red]failed at {row.stage}[/]" if row.stage else str(row.validity or units.MISSING),
        )
    return table


def _types(fleet: FleetReport) -> Table:
    columns = ("hosts", f"median {fleet.item}/s", "MAD", "lowest", "highest", "of the fastest")
    table = table_of(("type",), (*columns, f"J/{fleet.item.removesuffix('s')}", f"{fleet.currency}/million"))
    for kind in fleet.summary.types:
        spread = kind.items_per_s_per_device
        table.add_row(
            escape(kind.gpu_type),
            str(spread.num_hosts),
            units.significant(spread.median),
            units.share(spread.mad / spread.median) if spread.num_hosts > 1 else units.MISSING,
            units.significant(spread.lowest),
            units.significant(spread.highest),
            units.share(kind.relative_to_fastest),
            number(kind.energy_j_per_item),
            number(kind.cost_per_million_items),
        )
    return table


def _apart(fleet: FleetReport) -> list[RenderableType]:
    lines: list[RenderableType] = [_outlier(outlier, fleet) for outlier in fleet.summary.outliers]
    lines += [
        escape(f"{kind.gpu_type}: {kind.outliers_missing or _none(kind)}")
        for kind in fleet.summary.types
        if not kind.outliers
    ]
    return lines


def _outlier(outlier: Outlier, fleet: FleetReport) -> str:
    rate = units.rate(outlier.items_per_s_per_device, fleet.item)
    side = "faster" if outlier.relative_difference > 0 else "slower"
    apart = f"{units.share(abs(outlier.relative_difference))} {side} than the median of {outlier.gpu_type}"
    return f"[bold yellow]{escape(outlier.host)}[/]: {rate} a device, {escape(apart)}, " + (
        f"modified Z {outlier.modified_z:.1f}"
    )


def _none(kind: TypeSummary) -> str:
    return f"none of {kind.items_per_s_per_device.num_hosts} hosts"
