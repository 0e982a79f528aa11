"""A suite on a fleet as a person reads it: hosts in rows, their tests, the types, and who stands apart."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from gpuproof import units
from gpuproof.analysis.fleet import FleetSummary, Spread, TypeSummary
from gpuproof.analysis.fleet_suite import HostApart
from gpuproof.report.fleet_suite_model import FleetSuite, SuiteCell, SuiteHost
from gpuproof.report.fleet_tables import Section, devices, number, table_of

TOLD_TESTS = 3
"""In which a host stands apart, by name; of the others the number is told."""
FAILED = "failed"


def suite_sections(suite: FleetSuite) -> Iterator[Section]:
    """Yield title and body of each section."""
    yield "Hosts", [_hosts(suite)]
    if not suite.summary.num_measured:
        return
    for group in dict.fromkeys(column.group for column in suite.columns):
        items = {column.item for column in suite.columns if column.group == group}
        unit = f"{items.pop()}/s" if len(items) == 1 else "items/s"
        yield f"{group}, {unit} of a device", [_grid(suite, group)]
    if len(suite.summary.types) > 1:
        yield "Types of GPU", [_types(suite)]
        yield f"All hosts, by {suite.what.removesuffix('s')} and device", [_together(suite, None)]
    for kind in suite.summary.types:
        title = f"{kind.gpu_type}, by {suite.what.removesuffix('s')} and device"
        yield escape(title), [_together(suite, kind.gpu_type)]
    yield "Hosts that stand apart", _apart(suite)
    stood_out = [f"{row.host}: {sentence}" for row in suite.hosts for sentence in row.sentences]
    if stood_out:
        yield "Meanwhile", [escape(line) for line in stood_out]


def _hosts(suite: FleetSuite) -> Table:
    right = (suite.what, FAILED, "of its type", *_prices(suite))
    table = table_of(("host", "GPUs"), right)
    ranked = any(row.best for row in suite.hosts)
    for name in ("how", *(("best",) if ranked else ())):
        table.add_column(name, overflow="fold")
    for row in suite.hosts:
        table.add_row(
            escape(row.host),
            escape(devices(row.num_devices, row.gpu_type)),
            f"{row.num_successful}/{len(row.cells)}",
            str(row.num_failed),
            units.share(row.relative_to_type),
            number(row.energy_j_per_item),
            number(row.cost_per_million_items),
            _how(row),
            *((escape(row.best or units.MISSING),) if ranked else ()),
        )
    return table


def _prices(suite: FleetSuite) -> tuple[str, str]:
    """Name what an item takes, and what a million of them cost."""
    items = {column.item.removesuffix("s") for column in suite.columns}
    return f"J/{items.pop() if len(items) == 1 else 'item'}", f"{escape(suite.currency)}/million"


def _how(row: SuiteHost) -> str:
    if row.stage is not None:
        return f"[bold red]failed at {row.stage}[/]"
    if row.failure is not None:
        return f"[bold red]{escape(row.failure)}[/]"
    return str(row.validity or units.MISSING)


def _grid(suite: FleetSuite, group: str) -> Table:
    """Make a table of hosts by tests."""
    places = [place for place, column in enumerate(suite.columns) if column.group == group]
    table = table_of(("host",), [escape(suite.columns[place].label) for place in places])
    apart = {(host.host, name) for host in suite.summary.apart for name, _ in host.tests}
    for row in suite.hosts:
        cells = [
            _cell(row.cells[place], stands_apart=(row.host, suite.columns[place].name) in apart)
            for place in places
        ]
        table.add_row(escape(row.host), *cells)
    return table


def _cell(cell: SuiteCell, *, stands_apart: bool) -> str:
    if cell.success is False:
        return f"[bold red]{FAILED}[/]"
    text = number(cell.items_per_s_per_device)
    return f"[bold yellow]{text}[/]" if stands_apart else text


def _types(suite: FleetSuite) -> Table:
    table = table_of(("type",), ("hosts", "of the fastest", suite.what))
    for kind in suite.summary.types:
        table.add_row(
            escape(kind.gpu_type),
            str(kind.num_hosts),
            units.share(kind.relative_to_fastest),
            str(kind.num_tests),
        )
    return table


def _together(suite: FleetSuite, gpu_type: str | None) -> Table:
    """Make a table of tests: middle and spread over the hosts of a type, or over all."""
    columns = ["hosts", "median", "MAD", "lowest", "highest"]
    columns += ["of the fastest"] if gpu_type and len(suite.summary.types) > 1 else []
    table = table_of((suite.what.removesuffix("s"),), (*columns, *_prices(suite)))
    for column, test in zip(suite.columns, suite.summary.tests, strict=True):
        found = _of_type(test.summary, gpu_type)
        name = column.name if suite.what == "tests" else f"{column.label}  {column.name}"
        if found is None or found.items_per_s_per_device is None:
            table.add_row(escape(name), "0", *[units.MISSING] * (len(table.columns) - 2))
            continue
        fastest = (
            [units.share(found.relative_to_fastest)]
            if isinstance(found, TypeSummary) and len(suite.summary.types) > 1
            else []
        )
        table.add_row(
            escape(name),
            *_spread(found.items_per_s_per_device),
            *fastest,
            number(found.energy_j_per_item),
            number(found.cost_per_million_items),
        )
    return table


def _of_type(summary: FleetSummary, gpu_type: str | None) -> FleetSummary | TypeSummary | None:
    if gpu_type is None:
        return summary
    return next((kind for kind in summary.types if kind.gpu_type == gpu_type), None)


def _spread(spread: Spread) -> list[str]:
    return [
        str(spread.num_hosts),
        units.significant(spread.median),
        units.share(spread.mad / spread.median) if spread.num_hosts > 1 else units.MISSING,
        units.significant(spread.lowest),
        units.significant(spread.highest),
    ]


def _apart(suite: FleetSuite) -> list[RenderableType]:
    lines: list[RenderableType] = [_host_apart(host, suite) for host in suite.summary.apart]
    named = {host.gpu_type for host in suite.summary.apart}
    for speed in suite.summary.types:
        kinds = [_of_type(test.summary, speed.gpu_type) for test in suite.summary.tests]
        missing = [kind.outliers_missing for kind in kinds if isinstance(kind, TypeSummary)]
        if speed.gpu_type not in named:
            reason = missing[0] if all(missing) else f"none of {speed.num_hosts} hosts"
            lines.append(escape(f"{speed.gpu_type}: {reason}"))
    return lines


def _host_apart(apart: HostApart, suite: FleetSuite) -> str:
    told = [
        f"{name} {units.share(abs(outlier.relative_difference))} "
        f"{'faster' if outlier.relative_difference > 0 else 'slower'} (modified Z {outlier.modified_z:.1f})"
        for name, outlier in apart.tests[:TOLD_TESTS]
    ]
    more = len(apart.tests) - len(told)
    text = ", ".join(told) + (f", and {more} more" if more else "")
    of = f"{len(apart.tests)} of {len(suite.columns)} {suite.what}"
    return f"[bold yellow]{escape(apart.host)}[/]: in {of} apart from the median of " + escape(
        f"{apart.gpu_type}: {text}"
    )
