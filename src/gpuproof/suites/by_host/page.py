"""The page of several hosts: hosts in rows, their points, the types of GPU, and who stands apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gpuproof import units
from gpuproof.analysis.hosts import FleetSummary, Spread, TypeSummary
from gpuproof.groups import grouped
from gpuproof.records.codec import from_json
from gpuproof.records.page import Cell, Column, Page, Section, Table, Text, figure, pivot, table
from gpuproof.records.result import Measure, Result
from gpuproof.suites.by_host.conclude import HostsDetail
from gpuproof.suites.by_host.host import titled
from gpuproof.suites.by_host.page_apart import apart_of_points, apart_of_recipe
from gpuproof.suites.by_host.rows import FleetReport, FleetSuite, HostRow, SuiteCell, SuiteHost
from gpuproof.suites.sections import TONES, benchmark_page

FAILED = "failed"
APART = "Outlier hosts"


def page(result: Result) -> Page:
    """Lay out hosts, types of GPU, and who stands apart."""
    detail = from_json(HostsDetail, result.detail, place="result.json: detail")
    sections: Iterable[Section] = ()
    if detail.recipe is not None:
        sections = _recipe(detail.recipe)
    elif detail.points is not None and detail.points.what == "figures":
        compared = result.measures[detail.num_headlines :][: detail.num_compared]
        sections = _figures(detail.points, compared, detail.unjudged)
    elif detail.points is not None:
        sections = _points(detail.points)
    return benchmark_page(result, detail.common, *sections, num_measures=detail.num_headlines)


def _recipe(report: FleetReport) -> Iterator[Section]:
    yield table(
        "Hosts",
        report.hosts,
        *_host_columns(),
        Column.of("launches", lambda row: f"{row.num_launches}/{row.num_planned}"),
        Column.of(f"{report.item}/s", lambda row: _number(row.items_per_s_total)),
        Column.of("a device", lambda row: _number(row.items_per_s_per_device)),
        Column.of("J", lambda row: _number(row.energy_j_per_item)),
        Column.of("cost", lambda row: _number(row.cost_per_million_items)),
        Column.of("state", _how, align="left"),
    )
    if report.summary.types:
        yield _types_of_recipe(report)
        yield Text(title=APART, lines=tuple(apart_of_recipe(report.summary, report.item)))
    yield _during(report.hosts)


def _host_columns() -> tuple[Column, Column]:
    return (
        Column.of("host", lambda row: row.host, align="left", folds=True),
        Column.of("GPUs", lambda row: _gpus(row.num_devices, row.gpu_type), align="left", folds=True),
    )


def _gpus(num_devices: int | None, gpu_type: str | None) -> str:
    """Write how many GPUs of which type a host has."""
    if gpu_type is None:
        return units.MISSING
    return f"{num_devices} × {gpu_type}" if num_devices else gpu_type


def _number(value: float | None) -> str:
    return units.MISSING if value is None else units.significant(value)


def _how(row: HostRow | SuiteHost) -> Cell:
    if row.stage is not None:
        return Cell(f"failed at {row.stage}", "bad")
    if row.failure is not None:
        return Cell(row.failure, "bad")
    return Cell(row.validity or units.MISSING, TONES.get(row.validity or "", "plain"))


def _spread_columns(fastest: bool) -> list[Column]:
    def mad(spread: Spread) -> str:
        return units.share(spread.mad / spread.median) if spread.num_hosts > 1 else units.MISSING

    def column(title: str, text: Callable[[Spread], str]) -> Column:
        return Column.of(
            title, lambda row: units.MISSING if row[1] is None else text(row[1].items_per_s_per_device)
        )

    return [
        Column.of(
            "hosts", lambda row: "0" if row[1] is None else str(row[1].items_per_s_per_device.num_hosts)
        ),
        column("median", lambda spread: units.significant(spread.median)),
        column("MAD", mad),
        column("lowest", lambda spread: units.significant(spread.lowest)),
        column("highest", lambda spread: units.significant(spread.highest)),
        *(
            [
                Column.of(
                    "of the fastest", lambda row: units.share(row[1].relative_to_fastest if row[1] else None)
                )
            ]
            if fastest
            else []
        ),
    ]


def _price_columns(items: Iterable[str], currency: str) -> tuple[Column, Column]:
    """Name what an item takes, and what a million of them cost."""
    singles = {item.removesuffix("s") for item in items}
    return (
        Column.of(
            f"J/{singles.pop() if len(singles) == 1 else 'item'}",
            lambda row: _number(row[1].energy_j_per_item if row[1] else None),
        ),
        Column.of(
            f"{currency}/million", lambda row: _number(row[1].cost_per_million_items if row[1] else None)
        ),
    )


def _types_of_recipe(report: FleetReport) -> Table:
    return table(
        f"Types of GPU, {report.item}/s of a device",
        [(kind.gpu_type, kind) for kind in report.summary.types],
        Column.of("type", lambda row: row[0], align="left", folds=True),
        *_spread_columns(fastest=True),
        *_price_columns([report.item], report.currency),
    )


def _during(rows: Sequence[HostRow | SuiteHost]) -> Text:
    lines = tuple(f"{row.host}: {sentence}" for row in rows for sentence in row.sentences)
    return Text(title="Host and devices during the run", lines=lines)


def _figures(suite: FleetSuite, measures: Sequence[Measure], unjudged: Sequence[str]) -> Iterator[Section]:
    yield _hosts(suite)
    of_hosts = grouped((measure.subject, measure) for measure in measures)
    titles = {id(m): title for of_host in of_hosts.values() for title, m in titled(of_host).items()}
    for group, columns in grouped((column.group, column) for column in suite.columns).items():
        yield pivot(
            f"{group} of each host",
            [m for m in measures if titles[id(m)] in {column.name for column in columns}],
            [Column.of("host", lambda m: m.subject.removeprefix("host/"), align="left", folds=True)],
            *(figure(column.label, column.name) for column in columns),
            key=lambda m: titles[id(m)],
        )
    yield Text(title=APART, lines=(*unjudged, *apart_of_points(suite)))
    yield _during(suite.hosts)


def _points(suite: FleetSuite) -> Iterator[Section]:
    yield _hosts(suite)
    if suite.summary.num_measured:
        for group in dict.fromkeys(column.group for column in suite.columns):
            yield _grid(suite, group)
        what = suite.what.removesuffix("s")
        if len(suite.summary.types) > 1:
            yield _types(suite)
            yield _by_point(f"All hosts, by {what} and device", suite, None)
        for kind in suite.summary.types:
            yield _by_point(f"{kind.gpu_type}, by {what} and device", suite, kind.gpu_type)
        yield Text(title=APART, lines=tuple(apart_of_points(suite)))
    yield _during(suite.hosts)


def _hosts(suite: FleetSuite) -> Table:
    energy, cost = _price_columns((column.item for column in suite.columns), suite.currency)
    has_points = suite.what != "figures"
    return table(
        "Hosts",
        suite.hosts,
        *_host_columns(),
        Column.of(
            suite.what if has_points else "launches",
            lambda row: f"{row.num_successful}/{row.num_successful + row.num_failed + row.num_not_run}",
        ),
        Column.of(FAILED, _num_failed),
        Column.of("of its type", lambda row: units.share(row.relative_to_type), is_optional=not has_points),
        Column.of(
            energy.header.title, lambda row: _number(row.energy_j_per_item), is_optional=not has_points
        ),
        Column.of(
            cost.header.title, lambda row: _number(row.cost_per_million_items), is_optional=not has_points
        ),
        Column.of("state", _how, align="left", folds=True),
        Column.of("best", lambda row: row.best or units.MISSING, align="left", folds=True, is_optional=True),
    )


def _num_failed(row: SuiteHost) -> str:
    """Count what failed; what a host never came to has not failed, and is not fine either."""
    if not row.num_not_run:
        return str(row.num_failed)
    not_run = f"{row.num_not_run} not run"
    return f"{row.num_failed}, {not_run}" if row.num_failed else not_run


def _grid(suite: FleetSuite, group: str) -> Table:
    """Make a table of hosts by points."""
    items = {column.item for column in suite.columns if column.group == group}
    unit = f"{items.pop()}/s" if len(items) == 1 else "items/s"
    apart = {(host.host, name) for host in suite.summary.apart for name, _ in host.tests}

    def cell(place: int) -> Column:
        column = suite.columns[place]
        return Column.of(
            column.label,
            lambda row: _cell(row.cells[place], stands_apart=(row.host, column.name) in apart),
        )

    places = [place for place, column in enumerate(suite.columns) if column.group == group]
    return table(
        f"{group}, {unit} of a device",
        suite.hosts,
        Column.of("host", lambda row: row.host, align="left", folds=True),
        *map(cell, places),
    )


def _cell(cell: SuiteCell, *, stands_apart: bool) -> Cell:
    if cell.success is False:
        return Cell(FAILED, "bad")
    return Cell(_number(cell.items_per_s_per_device), "warn" if stands_apart else "plain")


def _types(suite: FleetSuite) -> Table:
    return table(
        "Types of GPU",
        suite.summary.types,
        Column.of("type", lambda kind: kind.gpu_type, align="left", folds=True),
        Column.of("hosts", lambda kind: str(kind.num_hosts)),
        Column.of("of the fastest", lambda kind: units.share(kind.relative_to_fastest)),
        Column.of(suite.what, lambda kind: str(kind.num_tests)),
    )


def _by_point(title: str, suite: FleetSuite, gpu_type: str | None) -> Table:
    """Make a table of points: middle and spread over the hosts of a type, or over all."""
    rows = []
    for column, test in zip(suite.columns, suite.summary.tests, strict=True):
        found = _of_type(test.summary, gpu_type)
        name = column.name if suite.what == "tests" else f"{column.label}  {column.name}"
        rows.append((name, None if found is None or found.items_per_s_per_device is None else found))
    return table(
        title,
        rows,
        Column.of(suite.what.removesuffix("s"), lambda row: row[0], align="left", folds=True),
        *_spread_columns(fastest=gpu_type is not None and len(suite.summary.types) > 1),
        *_price_columns((column.item for column in suite.columns), suite.currency),
    )


def _of_type(summary: FleetSummary, gpu_type: str | None) -> FleetSummary | TypeSummary | None:
    if gpu_type is None:
        return summary
    return next((kind for kind in summary.types if kind.gpu_type == gpu_type), None)
