"""A page as a person reads it in a terminal or a log.

Texts come from outside, file names and messages among them: they are printed as they are, never read as
markup, and their control characters are blanked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuproof.records import page as pages
from gpuproof.report.page_parts import (
    NOTHING,
    chart_as_table,
    in_words,
    is_empty,
    measures_as_table,
    one_line,
    several_lines,
)
from gpuproof.units import rejoined, unbroken

STYLE: dict[pages.Tone, str] = {
    "plain": "",
    "strong": "bold",
    "faint": "dim",
    "good": "bold green",
    "warn": "bold yellow",
    "bad": "bold red",
}
LOG_WIDTH = 110
"""Character cells of a line where there is no terminal."""
INDENT = 2
BETWEEN = 2
"""Blanks between columns."""
NARROWEST = 14
"""Of a column whose texts may be broken over lines."""
MOST_NAMING = 3
"""Columns that stand again in each part of a table that is too wide, to tell its rows apart."""
Part = tuple[RenderableType, bool]
"""What is printed, and whether long lines of it may be broken: a path or command that is cannot be copied."""


def show_page(page: pages.Page) -> None:
    """Write a page to standard output: as wide as the terminal, or as a log is."""
    console = Console(highlight=False)
    print_page(page, console if console.is_terminal else Console(highlight=False, width=LOG_WIDTH))


def print_page(page: pages.Page, console: Console) -> None:
    """Write a page to a console."""
    if page.title:
        write(console, Text(one_line(page.title), style="bold"))
    if page.verdict is not None:
        write(console, _verdict(page.verdict))
    for section in in_words(page):
        if section.title:
            write(console, Text(f"\n{one_line(section.title)}", style="bold"))
        content = pages.Text(title="", lines=(NOTHING,)) if section.title and is_empty(section) else section
        for part, fold in _body(content, console.width - INDENT):
            write(console, Padding(part, (0, 0, 0, INDENT)) if fold else part, fold=fold)


def terminal_text(page: pages.Page, *, width: int) -> str:
    """Return a page as a log has it: no colours, lines of `width` character cells."""
    out = StringIO()
    print_page(page, Console(file=out, width=width, highlight=False, force_terminal=False))
    return out.getvalue()


def write(console: Console, *parts: RenderableType, fold: bool = True) -> None:
    """Print to a terminal as it is; to a file without the blanks that fill lines up.

    `fold` breaks lines that are longer than the console is wide.
    """
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=not fold)
    shown = rejoined(captured.get())
    if not console.is_terminal:
        shown = "".join(f"{line.rstrip()}\n" for line in shown.splitlines())
    console.file.write(shown)
    console.file.flush()  # or what is told on the other stream would stand in the middle of a page


def _verdict(verdict: pages.Verdict) -> Text:
    """One line: the figure, its uncertainty, and whether to trust it."""
    figure = (one_line(verdict.headline), one_line(verdict.uncertainty))
    line = Text.assemble((figure[0], "bold"), f" {figure[1]}".rstrip(), "  " if any(figure) else "")
    line.append(one_line(verdict.word), style=STYLE[verdict.tone])
    return line.append(f": {unbroken(one_line(verdict.meaning))}" if verdict.meaning else "")


@singledispatch
def _body(section: pages.Section, width: int) -> Iterator[Part]:
    """Yield what stands under the title of a section."""
    raise TypeError(f"no section of a page: {section!r}")


@_body.register
def _(section: pages.Measures, width: int) -> Iterator[Part]:
    yield from _body(measures_as_table(section), width)


@_body.register
def _(section: pages.Pivot | pages.Table, width: int) -> Iterator[Part]:
    for number, places in enumerate(_blocks(section, width)):
        if number:
            yield Text(), True
        yield _table(section, places, width), True


@_body.register
def _(section: pages.Chart, width: int) -> Iterator[Part]:
    for shown in chart_as_table(section):
        yield from _body(shown, width)


@_body.register
def _(section: pages.Notices, width: int) -> Iterator[Part]:
    rows: list[tuple[pages.Cell, pages.Cell]] = []
    for notice in section.notices:
        rows.append((pages.Cell(notice.word, notice.tone), pages.Cell(notice.text)))
        if notice.advice:
            rows.append((pages.Cell(""), pages.Cell(f"→ {notice.advice}")))
    headers = (pages.Header(title="", align="left"), pages.Header(title="", align="left", folds=True))
    yield from _body(pages.Table(title="", headers=headers, rows=tuple(rows)), width)


@_body.register
def _(section: pages.Text, width: int) -> Iterator[Part]:
    yield from ((Text(unbroken(several_lines(line)), overflow="fold"), True) for line in section.lines)


@_body.register
def _(section: pages.Commands, width: int) -> Iterator[Part]:
    yield from ((Text(f"{' ' * INDENT}{several_lines(command)}"), False) for command in section.commands)


@_body.register
def _(section: pages.Files, width: int) -> Iterator[Part]:
    if section.folder:
        yield Text(f"{' ' * INDENT}{one_line(section.folder)}"), False
    if section.names:
        yield Text("  ".join(one_line(name) for name in section.names), style="dim"), True


def _blocks(section: pages.Pivot | pages.Table, width: int) -> list[list[int]]:
    """Share the columns of too wide a table out over several tables, each with those that name its rows."""
    naming = list(range(_num_naming(section, width)))
    blocks = [naming[:]]
    for place in range(len(naming), len(section.headers)):
        if len(blocks[-1]) > len(naming) and _needed(section, [*blocks[-1], place]) > width:
            blocks.append(naming[:])
        blocks[-1].append(place)
    return blocks


def _num_naming(section: pages.Pivot | pages.Table, width: int) -> int:
    """Return how many of the first columns tell all rows apart; one where a few in half the width do not."""
    for num in range(1, min(MOST_NAMING, len(section.headers)) + 1):
        named = {tuple(cell.text for cell in row[:num]) for row in section.rows}
        if len(named) == len(section.rows) and _needed(section, range(num)) <= width / 2:
            return num
    return min(1, len(section.headers))


def _needed(section: pages.Pivot | pages.Table, places: Sequence[int]) -> int:
    """Return the width that columns need at least, in character cells."""
    total = 0
    for place in places:
        header = section.headers[place]
        texts = [header.title, *(row[place].text for row in section.rows)]
        longest = max(
            (cell_len(line) for text in texts for line in several_lines(text).split("\n")), default=0
        )
        total += BETWEEN + (min(longest, NARROWEST) if header.folds else longest)
    return total


def _table(section: pages.Pivot | pages.Table, places: Sequence[int], width: int) -> Table:
    headers = [section.headers[place] for place in places]
    is_too_wide = _needed(section, places) > width
    has_titles = any(header.title for header in section.headers)
    table = Table(box=None, show_header=has_titles, padding=(0, BETWEEN, 0, 0), header_style="dim")
    for header in headers:
        no_wrap = not header.folds and not is_too_wide
        title = Text(one_line(header.title))
        table.add_column(title, justify=header.align, no_wrap=no_wrap, overflow="fold")
    for row in section.rows:
        cells = [row[place] for place in places]
        table.add_row(*(Text(unbroken(several_lines(cell.text)), style=STYLE[cell.tone]) for cell in cells))
    return table
