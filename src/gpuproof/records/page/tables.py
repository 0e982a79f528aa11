"""Builds the tables of a page: columns computed from rows, and pivots of measures.

>>> table("Hosts", [("a", 1.0), ("b", 2.0)], Column.of("host", lambda row: row[0], align="left"),
...       Column.of("rate", lambda row: f"{row[1]:.1f}")).rows[1]
(Cell(text='b', tone='plain'), Cell(text='2.0', tone='plain'))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuproof.base.groups import grouped
from gpuproof.base.units import MISSING, SCALED, in_one_unit
from gpuproof.records.page import Align, Cell, Header, MeasureCell, Pivot, Table
from gpuproof.records.result import Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, and how to derive its cell from a row: as text, or as a cell with a tone."""

    header: Header
    text: Callable[[Any], str | Cell | MeasureCell]
    is_optional: bool = False
    """Whether the column is omitted if it is empty in every row."""

    @classmethod
    def of(
        cls,
        title: str,
        text: Callable[[Any], str | Cell | MeasureCell],
        *,
        align: Align = "right",
        folds: bool = False,
        is_optional: bool = False,
    ) -> Column:
        """Return a column."""
        return cls(header=Header(title=title, align=align, folds=folds), text=text, is_optional=is_optional)


def table(title: str, rows: Sequence[Any], *columns: Column) -> Table:
    """Build a table from rows of any type; numbers in it are plain text."""
    headers, cells = _laid_out(rows, columns)
    return Table(
        title=title,
        headers=headers,
        rows=tuple(tuple(Cell(cell.text, cell.tone) for cell in row) for row in cells),
    )


def pivot(
    title: str,
    measures: Iterable[Measure],
    names: Sequence[Column],
    *figures: Column,
    key: Callable[[Measure], Hashable] = lambda measure: measure.labels.get("quantity", measure.name),
) -> Pivot:
    """Pivot measures: one row per combination of values of `names`, and one `figure` per column.

    `key` distinguishes the measures within one row.
    """
    rows = grouped((tuple(_cell(name.text(measure)) for name in names), measure) for measure in measures)
    headers, cells = _laid_out([{key(measure): measure for measure in row} for row in rows.values()], figures)
    return Pivot(
        title=title,
        headers=(*(name.header for name in names), *headers),
        rows=tuple((*named, *of_row) for named, of_row in zip(rows, cells, strict=True)),
    )


def measure_column(
    title: str,
    key: Hashable,
    text: Callable[[Measure], str | Cell] = lambda measure: measure.text,
    *,
    is_optional: bool = False,
) -> Column:
    """Return the pivot column with each row's measure for a key; `text` formats the measure."""

    def cell(row: Mapping[Hashable, Measure]) -> str | MeasureCell:
        if key not in row:
            return ""
        shown = _cell(text(row[key]))
        return MeasureCell(row[key], shown.text, shown.tone)

    return Column.of(title, cell, is_optional=is_optional)


figure = measure_column
"""The name in version 0.2, which third-party suites may still import."""


def pivot_of_rows(title: str, rows: Sequence[Any], *columns: Column) -> Pivot:
    """Arrange rows of any type; if a column returns a value, the cell contains its measure."""
    headers, cells = _laid_out(rows, columns)
    return Pivot(title=title, headers=headers, rows=cells)


def measure_cell(measure: Measure | None, text: str | None = None) -> MeasureCell | str:
    """Return the table cell for a measure, with its text; "–" if there is no measure."""
    return MISSING if measure is None else MeasureCell(measure, measure.text if text is None else text)


def by_launch(title: str, figures: Sequence[tuple[str, Measure, Callable[[float], str]]]) -> Pivot:
    """Arrange results by launch: a row per launch, a column per measure, each with its own format."""
    replicates = dict.fromkeys(launch.replicate for _, measure, _ in figures for launch in measure.launches)

    def column(name: str, measure: Measure, text: Callable[[float], str]) -> Column:
        values = {launch.replicate: launch.value for launch in measure.launches}
        return Column.of(name, lambda row: measure_cell(measure, text(values[row])) if row in values else "")

    number = Column.of("launch", lambda row: str(row + 1))
    return pivot_of_rows(title, list(replicates), number, *(column(*figure) for figure in figures))


def _laid_out(
    rows: Sequence[Any], columns: Sequence[Column]
) -> tuple[tuple[Header, ...], tuple[tuple[Cell | MeasureCell, ...], ...]]:
    """Return the headers and each row's cells, without optional columns that are empty."""
    cells = [_in_one_unit([_cell(column.text(row)) for row in rows]) for column in columns]
    shown = [
        (column.header, texts)
        for column, texts in zip(columns, cells, strict=True)
        if not column.is_optional or any(cell.text not in ("", MISSING) for cell in texts)
    ]
    return tuple(header for header, _ in shown), tuple(zip(*(texts for _, texts in shown), strict=True))


def _in_one_unit(cells: list[Cell | MeasureCell]) -> list[Cell | MeasureCell]:
    """Return a column with one common unit prefix for values that are formatted in the default way."""
    plain = [cell for cell in cells if isinstance(cell, MeasureCell) and cell.text == cell.measure.text]
    scaled = [(cell, cell.measure.value) for cell in plain if cell.measure.value is not None]
    shared, *others = {cell.measure.unit for cell, _ in scaled} or {""}
    if others or shared not in SCALED or len({cell.text.rpartition(" ")[2] for cell, _ in scaled}) < 2:
        return cells
    texts = in_one_unit([value for _, value in scaled], shared)
    rewritten = {id(cell): replace(cell, text=text) for (cell, _), text in zip(scaled, texts, strict=True)}
    return [rewritten.get(id(cell), cell) for cell in cells]


def _cell(value: str | Cell | MeasureCell) -> Cell | MeasureCell:
    return Cell(value) if isinstance(value, str) else value
