r"""A page as GitHub-flavoured Markdown, for pasting into an issue or reading as is.

Texts are untrusted. Anything that would act as markup is escaped, and nothing else is, because people read
the source too.

>>> escaped("a|b <i> step_time *x* p95 < 3")
'a\\|b &lt;i> step_time \\*x\\* p95 < 3'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import singledispatch

from gpuproof.base.units import MISSING
from gpuproof.records import page as pages
from gpuproof.report.page_parts import (
    NOTHING,
    chart_as_table,
    in_words,
    is_empty,
    known_facts,
    measures_as_table,
    one_line,
    several_lines,
    text_cells,
    unknown_facts,
)

SPECIAL = re.compile(
    r"[\\`*|~$]|\](?=[(\[:])"  # backslash, code, emphasis, cell, strikethrough, formula; the end of a link
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis; an underscore within a word is not emphasis
)
HTML = re.compile(r"<(?=[A-Za-z/!?])|&(?=#|\w+;)")
LINE_BEGIN = re.compile(r"^[-+>#=\[]|(?<=^\d)[.)]|(?<=^\d\d)[.)]")
"""Pattern for anything that starts a list, a task, a quotation, a heading or a horizontal rule."""
WIDEST = 60
"""Width in character cells up to which columns are padded with spaces, so that the source also reads as a
table."""
Lines = list[str]


def markdown(page: pages.Page) -> str:
    """Return the page as Markdown."""
    blocks: list[Lines] = [] if page.verdict is None else list(_verdict(page.verdict))
    if page.title:
        blocks.append([f"# {_begun(page.title)}"])
    if page.provenance is not None:
        blocks.append(list(_provenance(page.provenance)))
    for section in in_words(page):
        is_folded = isinstance(section, pages.Table | pages.Pivot) and section.is_folded
        if is_folded:
            blocks.append([f"<details><summary>{escaped(section.title)}</summary>"])
        elif section.title:
            blocks.append([f"## {_begun(section.title)}"])
        blocks += [[NOTHING]] if section.title and is_empty(section) else _blocks(section)
        blocks += [["</details>"]] if is_folded else []
    return "\n\n".join("\n".join(block) for block in blocks if any(block)) + "\n"


def escaped(text: str) -> str:
    """Return a text as one line without any markup."""
    line = SPECIAL.sub(r"\\\g<0>", one_line(text).strip())
    return HTML.sub(lambda match: "&lt;" if match[0] == "<" else "&amp;", line)


def _begun(text: str) -> str:
    """Return text that is safe at the start of a line."""
    return LINE_BEGIN.sub(r"\\\g<0>", escaped(text))


def _strong(text: str) -> str:
    return f"**{escaped(text)}**" if text.strip() else ""


def _verdict(verdict: pages.Verdict) -> Iterator[Lines]:
    """Yield verdict word and reason, result, limiting factor and next step: one paragraph each."""
    yield [f"{_strong(verdict.word)}{f': {escaped(verdict.reason)}' if verdict.reason else ''}"]
    yield [" ".join(filter(None, (_strong(verdict.headline), escaped(verdict.uncertainty))))]
    yield [escaped(verdict.limit)]
    yield [f"→ {escaped(verdict.advice)}" if verdict.advice else ""]


def _provenance(provenance: pages.Provenance) -> Iterator[str]:
    unknown = unknown_facts((*provenance.facts, provenance.command, *provenance.details))
    for line in (known_facts(provenance.facts), known_facts(provenance.details), *unknown):
        if line:
            yield f"- {escaped(line)}"
    if provenance.command.text:
        yield f"- {_code(provenance.command.text)}"


@singledispatch
def _blocks(section: pages.Section) -> Iterator[Lines]:
    """Yield the paragraphs below a section's title, each as a list of lines."""
    raise TypeError(f"not a section of a page: {section!r}")


@_blocks.register
def _(section: pages.Measures) -> Iterator[Lines]:
    yield from _blocks(measures_as_table(section, ("metric", "value", "detail")))


@_blocks.register
def _(section: pages.Pivot | pages.Table) -> Iterator[Lines]:
    if section.headers:
        rows = [[_cell(cell) for cell in row] for row in section.rows]
        heads = [escaped(header.title) for header in section.headers]
        yield _aligned(heads, rows, [header.align for header in section.headers])


@_blocks.register
def _(section: pages.Chart) -> Iterator[Lines]:
    for shown in chart_as_table(section):
        yield from _blocks(shown)


@_blocks.register
def _(section: pages.Notices) -> Iterator[Lines]:
    yield [
        line
        for notice in section.notices
        for line in (
            f"- {_strong(notice.word)}: {escaped(notice.text)} {_code(notice.code)}".rstrip(),
            f"  → {escaped(notice.advice)}" if notice.advice else "",
        )
        if line
    ]


@_blocks.register
def _(section: pages.Text) -> Iterator[Lines]:
    yield [f"- {_begun(line)}" for line in section.lines]


@_blocks.register
def _(section: pages.Commands) -> Iterator[Lines]:
    lines = [line for command in section.commands for line in several_lines(command).split("\n")]
    fence = _longer_than_any("`", lines, at_least=3)
    yield [f"{fence}sh", *lines, fence] if lines else []


@_blocks.register
def _(section: pages.Files) -> Iterator[Lines]:
    names = ", ".join(filter(None, map(_code, section.names)))
    yield [f"- {text}" for text in (_code(section.folder), names) if text]


def _code(text: str) -> str:
    """Return text as code, in which nothing is escaped."""
    line = one_line(text)
    if not line.strip():
        return ""
    fence = _longer_than_any("`", [line])
    blank = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{blank}{line}{blank}{fence}"


def _longer_than_any(sign: str, lines: Sequence[str], *, at_least: int = 1) -> str:
    runs = (len(run) for line in lines for run in re.findall(f"{sign}+", line))
    return sign * max(at_least, 1 + max(runs, default=0))


def _cell(cell: pages.Cell | pages.MeasureCell) -> str:
    lines = [escaped(line) for line in several_lines(cell.text).split("\n")]
    text = "<br>".join(lines)
    is_bold = cell.tone in ("strong", "warn", "bad") and text not in ("", MISSING)
    return f"**{text}**" if is_bold else text


def _aligned(heads: Lines, rows: Sequence[Lines], aligns: Sequence[pages.Align]) -> Lines:
    """Return a table's lines, with columns as wide as their text unless that is too wide."""
    longest = [max(3, *(text_cells(line[place]) for line in [heads, *rows])) for place in range(len(heads))]
    widths = [width if width <= WIDEST else 3 for width in longest]
    rules = [
        f"{'-' * (width - 1)}:" if align == "right" else f":{'-' * (width - 1)}"
        for width, align in zip(widths, aligns, strict=True)
    ]
    return [
        f"| {' | '.join(_filled(*cell) for cell in zip(line, widths, aligns, strict=True))} |"
        for line in (heads, rules, *rows)
    ]


def _filled(text: str, width: int, align: pages.Align) -> str:
    blanks = " " * (width - text_cells(text))
    return blanks + text if align == "right" else text + blanks
