"""Markdown, HTML, JSON and CSV of any page: the same figures, nothing obeyed that comes from outside."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import PurePath

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.records.codec import from_json
from gpuproof.records.page import Cell, Chart, Commands, Files, Header, Page, Section, Table, Text
from gpuproof.records.result import Result
from gpuproof.report.formats import FORMATS, choose_format, csv_text, json_text, render, render_page
from gpuproof.report.html import html
from gpuproof.report.markdown import escaped, markdown
from gpuproof.report.page_parts import chart_as_table
from pages_by_hand import BUS, EMPTY_PAGE, HOLLOW_PAGE, HOSTILE, LATENCY, PAGE, RESULT, hostile_page

VOID = {"meta", "br", "wbr", "link", "img", "input", "hr"}
KNOWN = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "h1",
        "h2",
        "p",
        "span",
        "div",
        "table",
        "wbr",
        "thead",
    ),
    *("tbody", "tr", "th", "td", "ul", "li", "pre", "code", "figure", "details", "summary"),
    *("dl", "dt", "dd"),
    *("main", "svg", "desc", "path", "rect", "text"),
}


class StrictReader(HTMLParser):
    """Read a page; every element must be known, closed in order, and refer to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href", "xlink:href", "action", "srcset", "data"} & {name for name, _ in attrs}
        assert not [name for name, _ in attrs if name.startswith("on")]
        self.names.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: Page) -> StrictReader:
    written = html(page)
    reader = StrictReader()
    reader.feed(written)
    reader.close()
    assert reader.open == []
    assert reader.names <= KNOWN
    style = "".join(re.findall(r"<style>(.*?)</style>", written, re.DOTALL))
    assert not re.search(r"url\(|@import|https?:", style)
    return reader


def of(*sections: Section) -> Page:
    return Page(title="t", verdict=None, sections=sections)


@pytest.mark.parametrize("page", [PAGE, EMPTY_PAGE, HOLLOW_PAGE, hostile_page(), hostile_page("")])
def test_a_page_is_html_that_refers_to_nothing(page: Page) -> None:
    read(page)


def test_markup_in_texts_is_shown_as_text() -> None:
    shown = "".join(read(hostile_page()).texts)
    assert "<script>alert(1)</script> </td>" in shown
    assert "{{ 7 * 7 }} {% raw %}" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert shown.count("w" * 300) > 15


def test_an_empty_section_says_so_in_every_format() -> None:
    num_empty = len(HOLLOW_PAGE.sections) - 1
    assert read(HOLLOW_PAGE).texts.count("none") == num_empty
    assert markdown(HOLLOW_PAGE).count("\n\nnone\n") == num_empty
    assert markdown(EMPTY_PAGE) == "# nothing yet\n"


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_the_same_figures_are_in_every_format(form: str) -> None:
    chosen = choose_format(form, None)
    drawn = "".join(read(PAGE).texts) if form == "html" else render(RESULT, PAGE, chosen, width=300)
    assert [measure.text for measure in RESULT.measures if measure.text not in drawn] == []
    assert "2,000 samples/s" in drawn
    for chart in (LATENCY, BUS):
        table, notes = chart_as_table(chart)
        figures = [cell.text for row in table.rows for cell in row] + list(notes.lines)
        assert [text for text in figures if text not in drawn] == []


def test_programs_get_the_result_itself() -> None:
    assert from_json(Result, json.loads(json_text(RESULT))) == RESULT
    rows = list(csv.DictReader(io.StringIO(csv_text(RESULT))))
    assert [row["name"] for row in rows] == [measure.name for measure in RESULT.measures]
    assert [row["value"] for row in rows] == ["2000.0", "", "0.101", "412400000000.0"]
    assert rows[0]["interval.low"] == "1990.0"
    assert json.loads(rows[0]["launches"])[2]["start"] == "fork"
    assert (rows[3]["label.size_bytes"], rows[3]["label.dtype"]) == ("1048576", "bfloat16")
    assert rows[1]["missing"].startswith("p99 needs 299 steps")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a|b", "a\\|b"),
        ("<b>bold</b> and 3 < 4", "&lt;b>bold&lt;/b> and 3 < 4"),
        ("*x* _y_ step_time `z` ~2~", "\\*x\\* \\_y\\_ step_time \\`z\\` \\~2\\~"),
        ("[a](b) by SIGKILL [9]", "[a\\](b) by SIGKILL [9]"),
        ("&amp; R&D", "&amp;amp; R&D"),
        ("c:\\dir", "c:\\\\dir"),
        ("two\nlines\ttab\x1b[0m", "two lines tab [0m"),
    ],
)
def test_escaped_markdown(text: str, written: str) -> None:
    assert escaped(text) == written


@pytest.mark.parametrize("begin", ["# x", "- x", "+ x", "> x", "1. x", "12) x", "=== x", "[ ] x"])
def test_a_text_begins_no_list_or_heading(begin: str) -> None:
    line = markdown(of(Text(title="", lines=(begin,)))).splitlines()[-1]
    assert re.match(r"- \d*\\", line)


def test_a_table_has_as_many_cells_in_every_line_and_reads_well() -> None:
    headers = (Header(title="a|b", align="left"), Header(title="rate"))
    rows = ((Cell("x\ny|z", "bad"), Cell("1,234")), (Cell(""), Cell("日本")))
    lines = markdown(of(Table(title="", headers=headers, rows=rows))).splitlines()[2:]
    assert lines == [
        "| a\\|b          |  rate |",
        "| :------------ | ----: |",
        "| **x<br>y\\|z** | 1,234 |",
        "|               |  日本 |",
    ]


def test_fences_are_longer_than_any_within() -> None:
    lines = markdown(of(Commands(title="", commands=("echo ````", "b")))).splitlines()
    assert lines[2:] == ["`````sh", "echo ````", "b", "`````"]
    lines = markdown(of(Files(title="", folder="a`b", names=("`c", "")))).splitlines()
    assert lines[2:] == ["- ``a`b``", "- `` `c ``"]


def test_hostile_markdown_has_no_html_and_no_line_of_its_own() -> None:
    written = markdown(hostile_page())
    text = re.sub(r"(`+).*?\1", "", re.sub(r"(?s)````+sh.*?````+", "", written))
    ours = {"<details>", "<summary>", "</summary>", "</details>"}
    assert set(re.findall(r"</?(?!br>)[A-Za-z/!?]+>?", text)) == ours
    assert "\x1b" not in written
    headings = [line for line in written.splitlines() if line.startswith("#")]
    folded = [x for x in hostile_page().sections if isinstance(x, Table) and x.is_folded]
    assert len(headings) == 1 + len(hostile_page().sections) - len(folded)


def test_of_many_points_some_are_written_and_it_is_said() -> None:
    points = tuple((float(i), float(i * i)) for i in range(1000))
    axis = LATENCY.x
    chart = Chart(
        title="c", kind="line", x=axis, y=axis, series=(type(LATENCY.series[0])(name="s", points=points),)
    )
    table, notes = chart_as_table(chart)
    assert len(table.rows) == 40
    assert (table.rows[0][0].text, table.rows[-1][0].text) == ("0 requests/s", "999 requests/s")
    assert notes.lines == ("40 of 1,000 points are shown here",)


@pytest.mark.parametrize(
    ("asked", "output", "form"),
    [
        (None, None, "terminal"),
        ("csv", "x.html", "csv"),
        (None, "x.HTML", "html"),
        (None, "dir/x.md", "markdown"),
        (None, "x.txt", "terminal"),
    ],
)
def test_the_format_is_asked_for_or_read_from_the_name(
    asked: str | None, output: str | None, form: str
) -> None:
    assert choose_format(asked, None if output is None else PurePath(output)) == form


@pytest.mark.parametrize(("asked", "output"), [("pdf", None), (None, "report"), (None, "x.pdf")])
def test_an_unknown_format_is_refused_with_those_that_there_are(
    asked: str | None, output: str | None
) -> None:
    with pytest.raises(UsageError) as refused:
        choose_format(asked, None if output is None else PurePath(output))
    assert all(form in str(refused.value) for form in FORMATS)


def test_every_format_of_a_hostile_page_can_be_written_as_utf_8() -> None:
    page = hostile_page(f"\ud800{HOSTILE}")
    for form in ("terminal", "markdown", "html"):
        chosen = choose_format(form, None)
        assert chosen in ("terminal", "markdown", "html")
        render_page(page, chosen).encode()


def test_a_long_word_may_be_broken_between_its_parts_alone() -> None:
    cells = ("host/node1/gpu/GPU-0123", "a word", "x" * 40)
    headers = tuple(Header(title=str(n), align="left", folds=True) for n in range(3))
    page = Page(
        title="t",
        verdict=None,
        sections=(Table(title="T", headers=headers, rows=(tuple(map(Cell, cells)),)),),
    )
    text = render_page(page, "html")
    assert "host/<wbr>node1/<wbr>gpu/<wbr>GPU-0123</td>" in text
    assert ">a word</td>" in text
    assert text.count(' long"') == 1
