"""Render a page for a terminal or a log: in full, or as much as fits on a screen.

Text from outside, including file names and messages, is printed verbatim, never interpreted as markup, and
its control characters are replaced with blanks. If a page does not fit on a screen, long parts are shortened,
and other parts are omitted and listed with their lengths.

>>> parts = [PagePart(title=name, lines=("x",) * 9) for name in "abc"]
>>> shown, left_out = fitting(parts, 20)
>>> [part.title for part in shown], left_out_text(left_out)
(['a', 'c'], 'b (9 lines)')
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from io import StringIO
from textwrap import wrap
from typing import Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuproof.base.units import rejoined, unbroken
from gpuproof.records import page as pages
from gpuproof.report.page_parts import (
    BETWEEN,
    NOTHING,
    chart_as_table,
    column_blocks,
    in_words,
    is_empty,
    known_facts,
    measures_as_table,
    needed_width,
    one_line,
    several_lines,
    unknown_facts,
)

STYLE: dict[pages.Tone, str] = {
    "plain": "",
    "strong": "bold",
    "faint": "dim",
    "good": "bold green",
    "warn": "bold yellow",
    "bad": "bold red",
}
LOG_WIDTH = 110
"""Line width in character cells if there is no terminal."""
INDENT = 2
Part = tuple[RenderableType, bool]
"""Text to print, and whether its long lines may be wrapped: a wrapped path or command cannot be copied."""
MOST_LINES: Final = 60
"""Maximum number of lines for a page on a screen."""
CLOSING_LINES: Final = 4
"""Lines reserved for the note about omitted parts."""
LONGEST: Final = (40, 30, 24, 20, 16, 12)
"""Maximum line counts per part if not all parts fit in full: the first count at which they fit is used, or
else the last count."""
SHORTEST: Final = 4
"""Minimum number of lines for a shortened part to be useful."""
MOST_NAMED: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePart:
    """A section and its continuation sections, as lines."""

    title: str
    lines: tuple[str, ...]
    is_folded: bool = False


def show_page(page: pages.Page, *, is_whole: bool = True) -> None:
    """Write a page to standard output, as wide as the terminal or a log: in full, or one screen."""
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=LOG_WIDTH)
    print_page(page, console, most_lines=MOST_LINES if console.is_terminal and not is_whole else None)


def print_page(page: pages.Page, console: Console, *, most_lines: int | None = None) -> None:
    """Write a page to a console; parts beyond `most_lines` are listed by name at the end."""
    opening = [line for part in _opening(page) for line in _lines(console, part)]
    parts = list(_parts(page, console))
    closing: list[str] = []
    if most_lines is not None:
        unfolded = [line for part in parts if not part.is_folded for line in part.lines]
        # Commands are not wrapped here: the screen uses extra lines for them.
        cells = (Text.from_ansi(line).cell_len for line in (*opening, *unfolded))
        num_wrapped = sum(max(0, cell_len - 1) // console.width for cell_len in cells)
        parts, left_out = fitting(parts, most_lines - len(opening) - num_wrapped - CLOSING_LINES)
        named = f"Not shown: {left_out_text(left_out)}; --verbose shows all"
        closing = _lines(console, (Text(f"\n{named}", style="dim"), True)) if left_out else []
    sections = [line for part in parts for line in part.lines]
    console.file.write("".join(f"{line}\n" for line in (*opening, *sections, *closing)))
    console.file.flush()  # otherwise, output on the other stream would appear in the middle of a page


def _opening(page: pages.Page) -> Iterator[Part]:
    """Yield the verdict, the title and the origin of the results."""
    if page.verdict is not None:
        yield from ((line, True) for line in _verdict(page.verdict))
        yield Text(), True
    if page.title:
        yield Text(one_line(page.title), style="bold"), True
    if page.provenance is not None:
        yield from _provenance(page.provenance)


def _parts(page: pages.Page, console: Console) -> Iterator[PagePart]:
    """Yield each titled section's content, including the untitled sections that continue it."""
    for title, sections in _by_title(page):
        lines = _lines(console, (Text(f"\n{title}", style="bold"), True)) if title else []
        for section in sections:
            is_nothing = bool(section.title) and is_empty(section)
            content = pages.Text(title="", lines=(NOTHING,)) if is_nothing else section
            for part, fold in _body(content, console.width - INDENT):
                lines += _lines(console, (Padding(part, (0, 0, 0, INDENT)) if fold else part, fold))
        is_folded = any(
            isinstance(section, pages.Table | pages.Pivot) and section.is_folded for section in sections
        )
        yield PagePart(title=title, lines=tuple(lines), is_folded=is_folded)


def _by_title(page: pages.Page) -> list[tuple[str, list[pages.Section]]]:
    groups: list[tuple[str, list[pages.Section]]] = []
    for section in in_words(page):
        if section.title or not groups:
            groups.append((one_line(section.title), []))
        groups[-1][1].append(section)
    return groups


def terminal_text(page: pages.Page, *, width: int) -> str:
    """Return a page in full, as in a log: without colours, in lines of `width` character cells."""
    out = StringIO()
    print_page(page, Console(file=out, width=width, highlight=False, force_terminal=False))
    return out.getvalue()


def _lines(console: Console, part: Part) -> list[str]:
    """Return the lines that a console prints for a part; for files, padding blanks are stripped."""
    content, fold = part
    with console.capture() as captured:
        console.print(content, soft_wrap=not fold)
    lines = rejoined(captured.get()).removesuffix("\n").split("\n")
    return lines if console.is_terminal else [line.rstrip() for line in lines]


def _verdict(verdict: pages.Verdict) -> Iterator[Text]:
    """Yield verdict and reason, result and uncertainty, and what to do: one line each."""
    word = Text(one_line(verdict.word), style=STYLE[verdict.tone])
    reason = unbroken(one_line(verdict.reason))
    yield Text.assemble(word, f": {reason}" if reason else "")
    figure, uncertainty = one_line(verdict.headline), one_line(verdict.uncertainty)
    if figure or uncertainty:
        yield Text.assemble((figure, "bold"), f" {unbroken(uncertainty)}" if uncertainty else "")
    if verdict.limit:
        yield Text(one_line(verdict.limit))
    if verdict.advice:
        yield Text(f"→ {one_line(verdict.advice)}")


def _provenance(provenance: pages.Provenance) -> Iterator[Part]:
    """Yield the date, host, devices and versions of the results; the command is not wrapped."""
    for line in (known_facts(provenance.facts), *unknown_facts((*provenance.facts, provenance.command))):
        if line:
            yield Padding(Text(unbroken(one_line(line)), style="dim"), (0, 0, 0, INDENT)), True
    if provenance.command.text:
        yield Text(f"{' ' * INDENT}{one_line(provenance.command.text)}", style="dim"), False


@singledispatch
def _body(section: pages.Section, width: int) -> Iterator[Part]:
    """Yield the content below a section's title."""
    raise TypeError(f"not a section of a page: {section!r}")


@_body.register
def _(section: pages.Measures, width: int) -> Iterator[Part]:
    yield from _body(measures_as_table(section), width)


@_body.register
def _(section: pages.Pivot | pages.Table, width: int) -> Iterator[Part]:
    for number, places in enumerate(column_blocks(section, width)):
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
        code = f" [{notice.code}]" if notice.code else ""
        rows.append((pages.Cell(notice.word, notice.tone), pages.Cell(f"{notice.text}{code}")))
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
    names = "  ".join(one_line(name) for name in section.names)
    for line in wrap(names, width, break_long_words=False, break_on_hyphens=False):
        yield Text(f"{' ' * INDENT}{line}", style="dim"), False


def _table(section: pages.Pivot | pages.Table, places: Sequence[int], width: int) -> Table:
    headers = [section.headers[place] for place in places]
    is_too_wide = needed_width(section, places) > width
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


def fitting(parts: Sequence[PagePart], room: int) -> tuple[list[PagePart], list[PagePart]]:
    """Return the parts that fit into `room` lines, and the rest; the last part is always shown.

    Folded parts are omitted. If the remaining parts do not fit, long ones are shortened, and later ones
    omitted.
    """
    left_out = [part for part in parts if part.is_folded]
    open_parts = [part for part in parts if not part.is_folded]
    if sum(len(part.lines) for part in open_parts) <= room:
        return open_parts, left_out
    lengths = [len(part.lines) for part in open_parts]
    longest = next((most for most in LONGEST if sum(min(most, num) for num in lengths) <= room), LONGEST[-1])
    shown: list[PagePart] = []
    room -= lengths[-1]
    for part in open_parts[:-1]:
        short = _cut(part, min(longest, room))
        if len(short.lines) > room or len(short.lines) < min(SHORTEST, len(part.lines)):
            left_out.append(part)
            continue
        shown.append(short)
        room -= len(short.lines)
    return [*shown, open_parts[-1]], left_out


def _cut(part: PagePart, most: int) -> PagePart:
    """Return a part with a limited number of lines; the last one shows how many are omitted."""
    if len(part.lines) <= most:
        return part
    lines = part.lines[: max(0, most - 1)]
    return replace(part, lines=(*lines, f"  … {len(part.lines) - len(lines)} more lines (--verbose)"))


def left_out_text(parts: Sequence[PagePart]) -> str:
    """List the omitted parts by name, each with its length."""
    names = [f"{part.title or 'more'} ({len(part.lines)} lines)" for part in parts]
    more = f" and {len(names) - MOST_NAMED} more parts" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"
