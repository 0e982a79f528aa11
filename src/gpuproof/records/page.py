"""A page: what a suite has to say, in sections that any renderer can draw and that know no suite.

>>> table("Hosts", [("a", 1.0), ("b", 2.0)], Column.of("host", lambda row: row[0], align="left"),
...       Column.of("rate", lambda row: f"{row[1]:.1f}")).rows[1]
(Cell(text='b', tone='plain'), Cell(text='2.0', tone='plain'))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpuproof.groups import grouped
from gpuproof.records.result import Doubt, Measure
from gpuproof.units import MISSING, SCALED, in_one_unit

Tone = Literal["plain", "strong", "faint", "good", "warn", "bad"]
"""How a text is set off; each renderer has its own way."""
Align = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its tone."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The head of a column; figures stand to the right, words to the left."""

    title: str
    align: Align = "right"
    folds: bool = False
    """Whether long texts may be broken over lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a page opens with: the word, why, the figure and how certain it is, and what to do."""

    word: str
    tone: Tone
    reason: str
    """In one line; empty where the word says all."""
    headline: str = ""
    """The figure as people read it; empty where there is none."""
    uncertainty: str = ""
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is known of where figures come from; its text is None where it is not known."""

    name: str
    text: str | None
    missing: str = ""
    """Why it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """When, where, on which devices and by which versions figures were measured, and how to repeat it."""

    facts: tuple[Fact, ...]
    command: Fact
    details: tuple[Fact, ...] = ()
    """Hashes of the recipe and the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Figures, a row each: name, text, detail."""

    title: str
    measures: tuple[Measure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under headers; headers without any title are not shown."""

    title: str
    headers: tuple[Header, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_folded: bool = False
    """Whether it is closed until somebody asks for it: what is right, or says nothing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measure, and how it reads in a cell."""

    measure: Measure
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivot:
    """Measures side by side: cells with what a row's measures have in common, then a figure a column."""

    title: str
    headers: tuple[Header, ...]
    rows: tuple[tuple[Cell | Figure, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What is along one side of a chart."""

    label: str
    unit: str = ""
    is_logarithmic: bool = False
    names: tuple[str, ...] = ()
    """Of the places 0, 1, 2 …, where no numbers stand there; of the vertical axis rows, from the top."""
    reach: tuple[float, ...] = ()
    """Values that the axis has at least; the horizontal one ends with them."""
    ticks: tuple[float, ...] = ()
    """Where ticks stand, if not at round numbers: at all that was measured, where that is few."""


Form = Literal["marked", "line", "dashed", "step", "band", "points", "bar", "tick", "range"]
"""A line with a mark a point, without, dashed, or level until the next point; the area between the ranges;
marks; bars; a short line across; and a broad bar from one end of a range to the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one name, in order; in a line, one that is no number is a gap."""

    name: str
    """Series of the same name have one colour, and one place in the legend."""
    points: tuple[tuple[float, float], ...]
    ranges: tuple[tuple[float, float], ...] = ()
    """Of each point the lowest and highest that it may be; empty where that is not known. Along x in rows."""
    form: Form | None = None
    """None is as the chart's kind says."""
    colour: str = ""
    """As #c0392b, or `ink` or `axis` for what is no series of its own; empty is the next one of the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A straight line across a chart: a bound, a limit, a value that was found; without a label, an event."""

    label: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """A stretch along the horizontal axis, such as a phase; of those that touch, every other is shaded."""

    name: str
    begin: float
    end: float
    colour: str = ""
    """As #c0392b; empty is the one of all stretches that have a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture of few series. A renderer without pictures writes the points as a table."""

    title: str
    kind: Literal["line", "scatter", "bar"]
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    references: tuple[Reference, ...] = ()
    shades: tuple[Shade, ...] = ()
    is_stacked: bool = False
    """Whether the bars at one place stand on one another: parts of a whole, none of them below 0."""
    is_in_a_table: bool = False
    """Whether a table of the page has the points already, so that nobody needs to write them as another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Charts that stand together, in a file or in a page; those below each other share an axis."""

    title: str
    subtitle: str
    charts: tuple[Chart, ...]
    widths: tuple[float, ...] = (1.0,)
    """Of the columns, to each other."""

    @property
    def is_timeline(self) -> bool:
        """Whether all charts are over the same time, so that people look into a part of it."""
        return len(self.widths) == 1 and all(chart.x.unit == "s" for chart in self.charts)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """How one thing ended for one subject, as a word, and all there is to say of it."""

    word: str
    tone: Tone
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Words by row and column, each of which opens to what it stands for; in words, other sections say it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell | None, ...]], ...]
    """A name, and a cell a column; None where there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One doubt, failure or outcome: its word, what it is, and what to do."""

    word: str
    tone: Tone
    text: str
    advice: str | None = None
    code: str = ""
    """Of a doubt, by which docs/verdicts.md explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    """Doubts, failures or outcomes, the gravest first."""

    title: str
    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Sentences, a line each."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What may be typed next, as it can be pasted into a shell."""

    title: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A folder and the names of what lies in it."""

    title: str
    folder: str
    names: tuple[str, ...]


Section = Measures | Pivot | Table | Chart | Picture | HeatMap | Notices | Text | Commands | Files
"""A section without a title goes on with the one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a run, or anything else that is judged, has to say."""

    title: str
    verdict: Verdict | None
    sections: tuple[Section, ...]
    provenance: Provenance | None = None
    """None of a page that is about no measurement, such as a list of runs."""


def with_pictures(page: Page, pictures: Sequence[Section], *, before: Sequence[str] = ()) -> Page:
    """Put pictures behind the first figures of a page; where it has none, before a section of a title."""
    titles = [section.title for section in page.sections]
    figures = next((n for n, x in enumerate(page.sections) if isinstance(x, Measures)), None)
    if figures is None:
        place = next((n for n, title in enumerate(titles) if title in before), len(titles))
    else:  # what has no title goes on with the one before it
        place = next((n for n in range(figures + 1, len(titles)) if titles[n]), len(titles))
    return replace(page, sections=(*page.sections[:place], *pictures, *page.sections[place:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column and how it reads a row: its text, or a cell with a tone."""

    header: Header
    text: Callable[[Any], str | Cell | Figure]
    is_optional: bool = False
    """Left out where no row has anything in it."""

    @classmethod
    def of(
        cls,
        title: str,
        text: Callable[[Any], str | Cell | Figure],
        *,
        align: Align = "right",
        folds: bool = False,
        is_optional: bool = False,
    ) -> Column:
        """Return a column."""
        return cls(header=Header(title=title, align=align, folds=folds), text=text, is_optional=is_optional)


def doubt_notice(doubt: Doubt, word: str) -> Notice:
    """Lay out a doubt under a word, with its code."""
    tone: Tone = "bad" if doubt.validity == "INVALID" else "warn"
    return Notice(word=word, tone=tone, text=doubt.reason, advice=doubt.remedy, code=doubt.code)


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


def figure(
    title: str,
    key: Hashable,
    text: Callable[[Measure], str | Cell] = lambda measure: measure.text,
    *,
    is_optional: bool = False,
) -> Column:
    """Return the column of a pivot in which each row's measure of a key stands; `text` is how it reads."""

    def cell(row: Mapping[Hashable, Measure]) -> str | Figure:
        if key not in row:
            return ""
        shown = _cell(text(row[key]))
        return Figure(row[key], shown.text, shown.tone)

    return Column.of(title, cell, is_optional=is_optional)


def pivot_of_rows(title: str, rows: Sequence[Any], *columns: Column) -> Pivot:
    """Lay out rows of any kind; where a column gives a figure, the cell holds its measure."""
    headers, cells = _laid_out(rows, columns)
    return Pivot(title=title, headers=headers, rows=cells)


def as_figure(measure: Measure | None, text: str | None = None) -> Figure | str:
    """Return the cell of a measure, which reads as the measure does; "–" where there is none."""
    return MISSING if measure is None else Figure(measure, measure.text if text is None else text)


def by_launch(title: str, figures: Sequence[tuple[str, Measure, Callable[[float], str]]]) -> Pivot:
    """Lay out what each launch says: a row a launch, and a column a measure with how its values read."""
    replicates = dict.fromkeys(launch.replicate for _, measure, _ in figures for launch in measure.launches)

    def column(name: str, measure: Measure, text: Callable[[float], str]) -> Column:
        values = {launch.replicate: launch.value for launch in measure.launches}
        return Column.of(name, lambda row: as_figure(measure, text(values[row])) if row in values else "")

    number = Column.of("launch", lambda row: str(row + 1))
    return pivot_of_rows(title, list(replicates), number, *(column(*figure) for figure in figures))


def _laid_out(
    rows: Sequence[Any], columns: Sequence[Column]
) -> tuple[tuple[Header, ...], tuple[tuple[Cell | Figure, ...], ...]]:
    """Return the headers and the cells of every row, less optional columns in which nothing stands."""
    cells = [_in_one_unit([_cell(column.text(row)) for row in rows]) for column in columns]
    shown = [
        (column.header, texts)
        for column, texts in zip(columns, cells, strict=True)
        if not column.is_optional or any(cell.text not in ("", MISSING) for cell in texts)
    ]
    return tuple(header for header, _ in shown), tuple(zip(*(texts for _, texts in shown), strict=True))


def _in_one_unit(cells: list[Cell | Figure]) -> list[Cell | Figure]:
    """Return a column with one prefix for all figures of one unit that read as they do by themselves."""
    plain = [cell for cell in cells if isinstance(cell, Figure) and cell.text == cell.measure.text]
    scaled = [(cell, cell.measure.value) for cell in plain if cell.measure.value is not None]
    shared, *others = {cell.measure.unit for cell, _ in scaled} or {""}
    if others or shared not in SCALED or len({cell.text.rpartition(" ")[2] for cell, _ in scaled}) < 2:
        return cells
    texts = in_one_unit([value for _, value in scaled], shared)
    rewritten = {id(cell): replace(cell, text=text) for (cell, _), text in zip(scaled, texts, strict=True)}
    return [rewritten.get(id(cell), cell) for cell in cells]


def _cell(value: str | Cell | Figure) -> Cell | Figure:
    return Cell(value) if isinstance(value, str) else value
