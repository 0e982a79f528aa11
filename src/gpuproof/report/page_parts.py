r"""Code shared by all page renderers: text without control characters, and a chart as a table.

>>> one_line("a\tb\n\x1b[31mc")
'a b  [31mc'
>>> axis_figure(0.0125, Axis(label="latency", unit="s"))
'12.5 ms'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from math import isfinite
from operator import itemgetter
from unicodedata import combining, east_asian_width

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.base.outside import plain
from gpuproof.records.page import (
    Axis,
    Cell,
    Chart,
    Commands,
    Fact,
    Files,
    HeatMap,
    Measures,
    Notices,
    Page,
    Picture,
    Pivot,
    Reference,
    Section,
    Table,
    Text,
)
from gpuproof.records.page.tables import Column, table

NOTHING = "none"
"""Text below the title of an empty section, because showing nothing could look like an omission."""
BETWEEN = 2
"""Number of spaces between columns."""
NARROWEST = 14
"""Minimum width of a column with text that may wrap."""
MOST_NAMING = 3
"""Maximum number of columns repeated in each part of a split table to identify its rows."""
MOST_ROWS = 40
"""Maximum number of points of a chart shown as a table; result.json contains all of them."""


def several_lines(text: str) -> str:
    """Return a text in which line breaks are the only characters special to a terminal or browser."""
    return "\n".join(plain(line, allowed="") for line in text.splitlines())


def one_line(text: str) -> str:
    """Return text as a single line without control characters."""
    return several_lines(text).replace("\n", " ")


def known_facts(facts: Iterable[Fact]) -> str:
    """Describe the origin of results in one line."""
    return " · ".join(f"{fact.name} {fact.text}" for fact in facts if fact.text)


def unknown_facts(facts: Iterable[Fact]) -> Iterator[str]:
    """List the unknown facts, one line per reason."""
    reasons = grouped((fact.missing, fact.name) for fact in facts if not fact.text)
    yield from (f"no {', '.join(names)}: {reason}" for reason, names in reasons.items())


def with_pictures(page: Page, pictures: Sequence[Section], *, before: Sequence[str] = ()) -> Page:
    """Put non-empty pictures after the page's results; if it has none, before a section in `before`."""
    titles = [section.title for section in page.sections]
    figures = next((n for n, x in enumerate(page.sections) if isinstance(x, Measures)), None)
    if figures is None:
        place = next((n for n, title in enumerate(titles) if title in before), len(titles))
    else:  # a section without a title continues the previous one
        place = next((n for n in range(figures + 1, len(titles)) if titles[n]), len(titles))
    drawn = [picture for picture in pictures if not is_empty(picture)]
    return replace(page, sections=(*page.sections[:place], *drawn, *page.sections[place:]))


def in_words(page: Page) -> Iterator[Section]:
    """Yield the sections for a text renderer: no pictures, and no charts that repeat a table."""
    for section in page.sections:
        is_picture = isinstance(section, Picture | HeatMap)
        if not is_picture and not (isinstance(section, Chart) and section.is_in_a_table):
            yield section


def is_empty(section: Section) -> bool:
    """Check whether a section has nothing to draw below its title."""
    content: Sized
    match section:
        case Chart():
            return not any(isfinite(x) and isfinite(y) for series in section.series for x, y in series.points)
        case Pivot(headers=()) | Table(headers=()) | Files(folder="", names=()):
            return True
        case Files():
            return False
        case (
            Measures(measures=content)
            | Notices(notices=content)
            | HeatMap(rows=content)
            | Pivot(rows=content)
            | Table(rows=content)
            | Text(lines=content)
            | Commands(commands=content)
            | Picture(charts=content)
        ):
            return not content


def axis_figure(value: float, axis: Axis) -> str:
    """Return a value with its axis's unit, or the name shown at that position."""
    if axis.names:
        return axis.names[int(value)]
    if not isfinite(value):
        return units.MISSING
    if axis.unit not in units.SCALED and float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f} {axis.unit}".rstrip()
    return units.amount(value, axis.unit, digits=4)


def has_named_bars(chart: Chart) -> bool:
    """Check whether a chart's bars are labelled by series instead of by positions on an axis."""
    has_names = bool(chart.x.names or chart.y.names)
    return chart.kind == "bar" and not has_names and all(len(one.points) == 1 for one in chart.series)


def measures_as_table(section: Measures, heads: tuple[str, str, str] = ("", "", "")) -> Table:
    """Write results as a table: name, value, and what a reader needs to interpret it."""
    name, value, detail = heads
    return table(
        section.title,
        section.measures,
        Column.of(name, lambda measure: measure.name, align="left"),
        Column.of(value, lambda measure: Cell(measure.text, "strong")),
        Column.of(
            detail,
            lambda measure: Cell(measure.detail or measure.missing or "", "faint"),
            align="left",
            folds=True,
            is_optional=True,
        ),
    )


def column_blocks(section: Pivot | Table, width: int) -> list[list[int]]:
    """Split a table that is too wide into several, each repeating the columns that label its rows."""
    naming = list(range(_num_naming(section, width)))
    blocks = [naming[:]]
    for place in range(len(naming), len(section.headers)):
        if len(blocks[-1]) > len(naming) and needed_width(section, [*blocks[-1], place]) > width:
            blocks.append(naming[:])
        blocks[-1].append(place)
    return blocks


def _num_naming(section: Pivot | Table, width: int) -> int:
    """Return how many leading columns identify all rows; 1 if too many or over half the width."""
    for num in range(1, min(MOST_NAMING, len(section.headers)) + 1):
        named = {tuple(cell.text for cell in row[:num]) for row in section.rows}
        if len(named) == len(section.rows) and needed_width(section, range(num)) <= width / 2:
            return num
    return min(1, len(section.headers))


def needed_width(section: Pivot | Table, places: Sequence[int]) -> int:
    """Return the minimum width of columns, in character cells."""
    total = 0
    for place in places:
        header = section.headers[place]
        texts = [header.title, *(row[place].text for row in section.rows)]
        longest = max(
            (text_cells(line) for text in texts for line in several_lines(text).split("\n")), default=0
        )
        total += BETWEEN + (min(longest, NARROWEST) if header.folds else longest)
    return total


def chart_as_table(chart: Chart) -> tuple[Table, Text]:
    """Write a chart's points as a table, with anything else, such as reference lines, below it."""
    names, figures, rows = _points(chart)
    places = _evenly(len(rows))
    columns = [
        Column.of(head, itemgetter(place), align="left" if place < len(names) else "right")
        for place, head in enumerate((*names, *figures))
    ]
    notes = [_reference(chart, reference) for reference in chart.references]
    if len(places) < len(rows):
        notes.insert(0, f"{len(places)} of {units.count(len(rows))} points are shown here")
    if chart.y.label not in figures:
        notes.insert(0, f"{chart.y.label} by {chart.x.label}")
    return table(chart.title, [rows[place] for place in places], *columns), Text(title="", lines=tuple(notes))


def _points(chart: Chart) -> tuple[list[str], list[str], list[tuple[str, ...]]]:
    """Return name headings, value headings, and rows; series that share x get one column each."""
    rows: list[tuple[str, ...]]
    if has_named_bars(chart):
        rows = [(series.name, axis_figure(series.points[0][1], chart.y)) for series in chart.series]
        return [""], [chart.y.label], rows
    if any(len(dict(series.points)) < len(series.points) for series in chart.series):
        rows = [
            (series.name, axis_figure(x, chart.x), axis_figure(y, chart.y))
            for series in chart.series
            for x, y in series.points
        ]
        return ["series"], [chart.x.label, chart.y.label], rows
    columns = [dict(series.points) for series in chart.series]
    names = [series.name for series in chart.series] if len(columns) > 1 else [chart.y.label]
    rows = [
        (
            axis_figure(x, chart.x),
            *(axis_figure(column[x], chart.y) if x in column else units.MISSING for column in columns),
        )
        for x in dict.fromkeys(x for column in columns for x in column)
    ]
    return [], [chart.x.label, *names], rows


def _evenly(count: int) -> list[int]:
    """Choose evenly spaced positions from first to last, no more than fit in a table."""
    if count <= MOST_ROWS:
        return list(range(count))
    return [round(index * (count - 1) / (MOST_ROWS - 1)) for index in range(MOST_ROWS)]


def _reference(chart: Chart, reference: Reference) -> str:
    along = ((reference.x, chart.x), (reference.y, chart.y))
    return f"{reference.label}: {', '.join(axis_figure(at, axis) for at, axis in along if at is not None)}"


def text_cells(text: str) -> int:
    """Return the width of a text in terminal character cells."""
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)
