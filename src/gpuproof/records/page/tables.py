"""Making the tables of a page: columns of values or of words over rows, and pivots of measures.

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
    """A column and how it reads a row: its text, or a cell with a tone."""

    header: Header
    text: Callable[[Any], str | Cell | MeasureCell]
    is_optional: bool = False
    """Left out where no row has anything in it."""

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
    """Make a table from rows of any kind; a figure in it is no more than its text."""
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
    """Lay measures out: those that all columns of `names` read alike share a row, a `figure` each a column.

    `key` tells the measures of one row apart.
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
    """Return the column of a pivot in which each row's measure of a key stands; `text` is how it reads."""

    def cell(row: Mapping[Hashable, Measure]) -> str | MeasureCell:
        if key not in row:
            return ""
        shown = _cell(text(row[key]))
        return MeasureCell(row[key], shown.text, shown.tone)

    return Column.of(title, cell, is_optional=is_optional)


figure = measure_column
"""Its name in 0.2, which suites of others may import."""


def pivot_of_rows(title: str, rows: Sequence[Any], *columns: Column) -> Pivot:
    """Lay out rows of any kind; where a column gives a figure, the cell holds its measure."""
    headers, cells = _laid_out(rows, columns)
    return Pivot(title=title, headers=headers, rows=cells)


def measure_cell(measure: Measure | None, text: str | None = None) -> MeasureCell | str:
    """Return the cell of a measure, which reads as the measure does; "–" where there is none."""
    return MISSING if measure is None else MeasureCell(measure, measure.text if text is None else text)


def by_launch(title: str, figures: Sequence[tuple[str, Measure, Callable[[float], str]]]) -> Pivot:
    """Lay out what each launch says: a row a launch, and a column a measure with how its values read."""
    replicates = dict.fromkeys(launch.replicate for _, measure, _ in figures for launch in measure.launches)

    def column(name: str, measure: Measure, text: Callable[[float], str]) -> Column:
        values = {launch.replicate: launch.value for launch in measure.launches}
        return Column.of(name, lambda row: measure_cell(measure, text(values[row])) if row in values else "")

    number = Column.of("launch", lambda row: str(row + 1))
    return pivot_of_rows(title, list(replicates), number, *(column(*figure) for figure in figures))


def _laid_out(
    rows: Sequence[Any], columns: Sequence[Column]
) -> tuple[tuple[Header, ...], tuple[tuple[Cell | MeasureCell, ...], ...]]:
    """Return the headers and the cells of every row, less optional columns in which nothing stands."""
    cells = [_in_one_unit([_cell(column.text(row)) for row in rows]) for column in columns]
    shown = [
        (column.header, texts)
        for column, texts in zip(columns, cells, strict=True)
        if not column.is_optional or any(cell.text not in ("", MISSING) for cell in texts)
    ]
    return tuple(header for header, _ in shown), tuple(zip(*(texts for _, texts in shown), strict=True))


def _in_one_unit(cells: list[Cell | MeasureCell]) -> list[Cell | MeasureCell]:
    """Return a column with one prefix for all figures of one unit that read as they do by themselves."""
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
