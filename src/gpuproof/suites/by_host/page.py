"""Lay out the page for several hosts: hosts in rows, their points, GPU types, and outliers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.records.codec import from_json
from gpuproof.records.page import Cell, MeasureCell, Page, Pivot, Section, Text
from gpuproof.records.page.tables import Column, measure_cell, measure_column, pivot, pivot_of_rows
from gpuproof.records.result import WHOLE, Measure, Result
from gpuproof.suites.by_host.conclude import HostsDetail
from gpuproof.suites.by_host.host import titled
from gpuproof.suites.by_host.report import (
    COST,
    DEVICE,
    ENERGY,
    HIGHEST,
    LOWEST,
    MAD,
    MEDIAN,
    OF_FASTEST,
    OF_TYPE,
    TOTAL,
    HostState,
)
from gpuproof.suites.sections import DURING, TONES, benchmark_page
from gpuproof.verdict.page import bars

FAILED = "failed"
APART = "Outlier hosts"
MAIN = "main"
Find = Callable[..., Measure | None]
"""Measures of one quantity, by subject, case and GPU type."""


def page(result: Result) -> Page:
    """Lay out hosts, GPU types, and outliers."""
    detail = from_json(HostsDetail, result.detail, place="result.json: detail")
    compared = result.measures[detail.num_headlines :][: detail.num_compared]
    sections = _values(detail, compared) if detail.what == "figures" else _points(detail, compared)
    during = (f"{state.host}: {sentence}" for state in detail.hosts for sentence in state.sentences)
    return benchmark_page(
        result,
        detail.common,
        *sections,
        Text(title=DURING, lines=tuple(during)),
        num_measures=detail.num_headlines,
    )


def _values(detail: HostsDetail, measures: Sequence[Measure]) -> Iterator[Section]:
    """Lay out each host's own results."""
    yield _hosts(detail, lambda *_, **__: None)
    of_hosts = grouped((measure.subject, measure) for measure in measures)
    titles = {id(m): title for of_host in of_hosts.values() for title, m in titled(of_host).items()}
    for group, columns in grouped((column.group, column) for column in detail.columns).items():
        yield pivot(
            f"{group} of each host",
            [m for m in measures if titles[id(m)] in {column.name for column in columns}],
            [Column.of("host", lambda m: m.subject.removeprefix("host/"), align="left", folds=True)],
            *(measure_column(column.label, column.name) for column in columns),
            key=lambda m: titles[id(m)],
        )
    yield Text(title=APART, lines=detail.apart)


def _points(detail: HostsDetail, measures: Sequence[Measure]) -> Iterator[Section]:
    """Lay out hosts that ran one recipe, or hosts with shared points."""
    by_key = {(m.labels["quantity"], m.subject, m.case, m.labels.get("gpu_type")): m for m in measures}

    def find(
        quantity: str, *, subject: str = WHOLE, case: str = MAIN, gpu_type: str | None = None
    ) -> Measure | None:
        return by_key.get((quantity, subject, case, gpu_type))

    rate = DEVICE if detail.what == "launches" else OF_TYPE
    of_hosts = [(state.host, find(rate, subject=f"host/{state.host}")) for state in detail.hosts]
    if chart := bars("Hosts side by side", of_hosts, rate):
        yield chart
    yield _hosts(detail, find)
    types = [m for m in measures if m.labels["quantity"] == OF_FASTEST and "num_hosts" in m.labels]
    if types and detail.what == "launches":
        yield _types_of_recipe(detail, types, find)
    elif any(m.labels["quantity"] == DEVICE for m in measures):
        for group in dict.fromkeys(column.group for column in detail.columns):
            yield _grid(detail, group, find)
        what = detail.what.removesuffix("s")
        if len(types) > 1:
            yield _types(detail, types)
            yield from _by_point(f"All hosts, by {what} and device", detail, None, find)
        for kind in types:
            gpu_type = kind.labels["gpu_type"]
            title = f"{gpu_type}, by {what} and device"
            yield from _by_point(title, detail, gpu_type, find, fastest=len(types) > 1)
    if detail.apart:
        yield Text(title=APART, lines=detail.apart)


def _hosts(detail: HostsDetail, find: Find) -> Pivot:
    """Lay out one host per row: its description, its progress and results, and how it ended."""

    def column(title: str, quantity: str, *, is_shown: bool = True) -> Column:
        return Column.of(
            title,
            lambda state: _number(find(quantity, subject=f"host/{state.host}")),
            is_optional=not is_shown,
        )

    is_single, has_points = detail.what == "launches", detail.what in ("tests", "points")
    middle = [
        Column.of(FAILED, _num_failed),
        column("of its type", OF_TYPE, is_shown=has_points),
        column(detail.energy_title, ENERGY, is_shown=has_points),
        column(detail.cost_title, COST, is_shown=has_points),
    ]
    if is_single:
        middle = [
            column(f"{detail.columns[0].item}/s", TOTAL),
            column("a device", DEVICE),
            column("J", ENERGY),
            column("cost", COST),
        ]
    return pivot_of_rows(
        "Hosts",
        detail.hosts,
        Column.of("host", lambda state: state.host, align="left", folds=True),
        Column.of("GPUs", _gpus, align="left", folds=True),
        Column.of(detail.what if has_points else "launches", _progress),
        *middle,
        Column.of("state", _how, align="left", folds=not is_single),
        Column.of(
            "best", lambda state: state.best or units.MISSING, align="left", folds=True, is_optional=True
        ),
    )


def _gpus(state: HostState) -> str:
    """Format the number and type of a host's GPUs."""
    if state.gpu_type is None:
        return units.MISSING
    return f"{state.num_devices} × {state.gpu_type}" if state.num_devices else state.gpu_type


def _progress(state: HostState) -> str:
    return f"{state.num_successful}/{state.num_successful + state.num_failed + state.num_not_run}"


def _num_failed(state: HostState) -> str:
    """Count failures; tests that a host never reached are neither failed nor successful."""
    if not state.num_not_run:
        return str(state.num_failed)
    not_run = f"{state.num_not_run} not run"
    return f"{state.num_failed}, {not_run}" if state.num_failed else not_run


def _how(state: HostState) -> Cell:
    if state.stage is not None:
        return Cell(f"failed at {state.stage}", "bad")
    if state.failure is not None:
        return Cell(state.failure, "bad")
    return Cell(state.validity or units.MISSING, TONES.get(state.validity or "", "plain"))


def _number(measure: Measure | None) -> MeasureCell | str:
    """Return the cell for a value with its unit in the column title; percentages include the unit."""
    if measure is None or measure.value is None or measure.unit == "1":
        return measure_cell(measure)
    return measure_cell(measure, units.significant(measure.value))


def _types_of_recipe(detail: HostsDetail, types: Sequence[Measure], find: Find) -> Pivot:
    (column,) = detail.columns
    return pivot_of_rows(
        f"Types of GPU, {column.item}/s of a device",
        [(kind.labels["gpu_type"], column.name, kind.labels["gpu_type"]) for kind in types],
        Column.of("type", lambda row: row[0], align="left", folds=True),
        *_spread_columns(detail, find, fastest=True),
    )


def _spread_columns(detail: HostsDetail, find: Find, *, fastest: bool) -> list[Column]:
    """Return columns for rows with a name, a case and a type: number of hosts, median and spread."""

    def column(title: str, quantity: str) -> Column:
        return Column.of(title, lambda row: _number(find(quantity, case=row[1], gpu_type=row[2])))

    def num_hosts(row: tuple[str, str, str | None]) -> str:
        median = find(MEDIAN, case=row[1], gpu_type=row[2])
        return "0" if median is None else str(median.num_samples)

    return [
        Column.of("hosts", num_hosts),
        column("median", MEDIAN),
        column("MAD", MAD),
        column("lowest", LOWEST),
        column("highest", HIGHEST),
        *([column("of the fastest", OF_FASTEST)] if fastest else []),
        column(detail.energy_title, ENERGY),
        column(detail.cost_title, COST),
    ]


def _grid(detail: HostsDetail, group: str, find: Find) -> Pivot:
    """Lay out hosts by point."""
    columns = [column for column in detail.columns if column.group == group]
    items = {column.item for column in columns}
    unit = f"{items.pop()}/s" if len(items) == 1 else "items/s"

    def cell(state: HostState, name: str) -> Cell | MeasureCell | str:
        if name in state.failed:
            return Cell(FAILED, "bad")
        number = _number(find(DEVICE, subject=f"host/{state.host}", case=name))
        if isinstance(number, MeasureCell) and (state.host, name) in detail.outlying:
            return replace(number, tone="warn")
        return number

    def point(name: str, label: str) -> Column:
        return Column.of(label, lambda state: cell(state, name))

    return pivot_of_rows(
        f"{group}, {unit} of a device",
        detail.hosts,
        Column.of("host", lambda state: state.host, align="left", folds=True),
        *(point(column.name, column.label) for column in columns),
    )


def _types(detail: HostsDetail, types: Sequence[Measure]) -> Pivot:
    return pivot_of_rows(
        "Types of GPU",
        types,
        Column.of("type", lambda kind: kind.labels["gpu_type"], align="left", folds=True),
        Column.of("hosts", lambda kind: str(kind.labels["num_hosts"])),
        Column.of("of the fastest", measure_cell),
        Column.of(detail.what, lambda kind: str(kind.labels["num_tests"])),
    )


def _by_point(
    title: str, detail: HostsDetail, gpu_type: str | None, find: Find, *, fastest: bool = False
) -> Iterator[Section]:
    """Lay out measured points: median and spread over the hosts of one type, or over all hosts."""
    rows = [
        (column.name if detail.what == "tests" else f"{column.label}  {column.name}", column.name, gpu_type)
        for column in detail.columns
        if find(MEDIAN, case=column.name, gpu_type=gpu_type) is not None
    ]
    yield pivot_of_rows(
        title,
        rows,
        Column.of(detail.what.removesuffix("s"), lambda row: row[0], align="left", folds=True),
        *_spread_columns(detail, find, fastest=fastest),
    )
    if missing := len(detail.columns) - len(rows):
        yield Text(
            title="" if rows else title,
            lines=(f"{missing} of {len(detail.columns)} {detail.what} not measured",),
        )
