"""A fleet as a person reads it: every host in a row, then the types, then who stands apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from gpuproof import units
from gpuproof.analysis.fleet import Outlier, TypeSummary
from gpuproof.report.fleet_model import FleetReport, HostRow

Section = tuple[str, list[RenderableType]]


def fleet_sections(fleet: FleetReport) -> Iterator[Section]:
    """Yield title and body of each section."""
    yield "Hosts", [_hosts(fleet)]
    if fleet.summary.types:
        yield "Types of GPU, by device", [_types(fleet)]
        yield "Hosts that stand apart", _apart(fleet)
    stood_out = [f"{row.host}: {sentence}" for row in fleet.hosts for sentence in row.sentences]
    if stood_out:
        yield "Meanwhile", [escape(line) for line in stood_out]


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    return table


def _hosts(fleet: FleetReport) -> Table:
    table = _table(("host", "GPUs"), ("launches", f"{fleet.item}/s", "a device", "J", "cost"))
    table.add_column("how")
    for row in fleet.hosts:
        table.add_row(
            escape(row.host),
            escape(_devices(row)),
            f"{row.num_launches}/{row.num_planned}",
            _number(row.items_per_s_total),
            _number(row.items_per_s_per_device),
            _number(row.energy_j_per_item),
            _number(row.cost_per_million_items),
            f"[bold red]failed at {row.stage}[/]" if row.stage else str(row.validity or units.MISSING),
        )
    return table


def _devices(row: HostRow) -> str:
    if row.gpu_type is None:
        return units.MISSING
    return f"{row.num_devices} × {row.gpu_type}" if row.num_devices else row.gpu_type


def _types(fleet: FleetReport) -> Table:
    columns = ("hosts", f"median {fleet.item}/s", "MAD", "lowest", "highest", "of the fastest")
    table = _table(("type",), (*columns, f"J/{fleet.item.removesuffix('s')}", f"{fleet.currency}/million"))
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
            _number(kind.energy_j_per_item),
            _number(kind.cost_per_million_items),
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


def _number(value: float | None) -> str:
    return units.MISSING if value is None else units.significant(value)
