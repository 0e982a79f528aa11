"""Any page in a terminal: in order, whole, and obeying nothing that comes from outside."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gpuproof.records.page import Cell as PageCell
from gpuproof.records.page import Commands, Files, Header, Page, Table, Text, Verdict
from gpuproof.report.terminal import MOST_LINES, print_page
from pages_by_hand import COMMAND, EMPTY_PAGE, HOLLOW_PAGE, HOSTILE, PAGE, hostile_page

HEADERS = (Header(title="", align="left"),)


def drawn(page: Page, width: int = 110) -> str:
    out = io.StringIO()
    print_page(page, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_verdict_then_title_then_provenance_then_sections_in_order() -> None:
    lines = drawn(PAGE).splitlines()
    assert lines[0] == "SUSPECT: use with care; 3 of 4 launches were measured"
    assert lines[1] == "2,000 samples/s ±0.50 %"
    assert lines[2] == "→ Finish the run with --resume"
    assert lines[4] == PAGE.title
    assert lines[5].startswith("  date 2026-11-20 12:00 UTC · host node-001, node-002 · device 2 × ")
    titles = [section.title for section in PAGE.sections if section.title]
    assert [line for line in lines[5:] if line and not line.startswith(" ")] == titles


def test_what_is_not_known_is_said_with_its_reason_and_the_command_is_one_line() -> None:
    lines = drawn(PAGE, 60).splitlines()
    assert "  no torch: no launch recorded the facts of its host" in lines
    assert f"  {COMMAND}" in lines
    assert (
        lines[lines.index("a section without a title goes on".rjust(35)) - 1] == "  measured on 2 of 3 hosts"
    )


def test_a_verdict_without_a_figure_begins_with_its_word() -> None:
    verdict = Verdict(word="READY", tone="good", reason="")
    assert drawn(Page(title="t", verdict=verdict, sections=())) == "READY\n\nt\n"


def screen(page: Page, width: int = 110) -> str:
    out = io.StringIO()
    print_page(page, Console(file=out, width=width, highlight=False), most_lines=MOST_LINES)
    return out.getvalue()


def long_page(*lengths: int) -> Page:
    sections = [
        Text(title=f"part {number}", lines=tuple(f"{number}.{i}" for i in range(length)))
        for number, length in enumerate(lengths)
    ]
    return Page(
        title="t", verdict=PAGE.verdict, sections=(*sections, Commands(title="Next", commands=("do",)))
    )


@pytest.mark.parametrize("lengths", [(5,), (80,), (300,), (9,) * 30, (1, 200, 2, 100, 3, 40), (20, 20, 20)])
@pytest.mark.parametrize("width", [40, 80, 110])
def test_a_screen_has_sixty_lines_and_names_what_it_leaves_out(lengths: tuple[int, ...], width: int) -> None:
    page = long_page(*lengths)
    text = screen(page, width)
    assert len(text.splitlines()) <= 60
    assert "  do\n" in text
    is_cut = len(drawn(page, width).splitlines()) > 60
    assert ("more lines" in text or "Not shown: " in text) == is_cut


def test_what_is_folded_is_counted_on_a_screen_and_whole_elsewhere() -> None:
    passed = Table(title="Checks: 2 passed", headers=HEADERS, rows=((PageCell("ecc"),),) * 2, is_folded=True)
    page = Page(title="t", verdict=PAGE.verdict, sections=(passed, Commands(title="Next", commands=("do",))))
    assert "Not shown: Checks: 2 passed (4 lines); --verbose shows all" in screen(page)
    assert "ecc" not in screen(page)
    assert drawn(page).count("ecc") == 2


@pytest.mark.parametrize("width", [20, 60, 110])
def test_hostile_texts_are_shown_and_not_obeyed(width: int) -> None:
    text = drawn(hostile_page(), width)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\t" not in text
    words = "".join(text.split())
    assert "[boldred]x[/]" in words
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_nothing_of_a_long_word_is_lost() -> None:
    page = Page(title="t", verdict=None, sections=(Text(title="s", lines=("w" * 300,)),))
    assert drawn(page, 50).count("w") == 300
    headers = tuple(Header(title="", folds=folds) for folds in (False, True))
    cells = (PageCell("v" * 300), PageCell("w" * 300))
    text = drawn(
        Page(title="t", verdict=None, sections=(Table(title="s", headers=headers, rows=(cells,)),)), 50
    )
    assert (text.count("v"), text.count("w")) == (300, 300)
    assert max(map(len, text.splitlines())) <= 50


def test_a_table_wider_than_the_console_is_shared_out_with_its_first_column_on_each() -> None:
    headers = (Header(title="host", align="left"), *(Header(title=f"test {i:02}") for i in range(20)))
    rows = tuple((PageCell(host), *(PageCell(f"{i},{i:03}.0") for i in range(20))) for host in ("n0", "n1"))
    text = drawn(Page(title="t", verdict=None, sections=(Table(title="s", headers=headers, rows=rows),)), 60)
    assert all(f" {i},{i:03}.0" in text for i in range(20))
    assert all(f"test {i:02}" in text for i in range(20))
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("n0") == text.count("host") > 1


def test_each_part_of_a_wide_table_says_which_row_is_which() -> None:
    headers = tuple(
        Header(title=title) for title in ("batch", "devices", *(f"test {i:02}" for i in range(20)))
    )
    rows = tuple((PageCell("256"), PageCell(n), *(PageCell("1,000.0") for _ in range(20))) for n in "124")
    text = drawn(Page(title="t", verdict=None, sections=(Table(title="s", headers=headers, rows=rows),)), 60)
    parts = text.split("\n\n")[1:]
    assert len(parts) > 1
    for part in parts:
        lines = part.removeprefix("s\n").splitlines()
        assert lines[0].split()[:2] == ["batch", "devices"]
        assert [line.split()[:2] for line in lines[1:]] == [["256", "1"], ["256", "2"], ["256", "4"]]


def test_paths_and_commands_are_never_broken() -> None:
    command = f"gpuproof report '{'a' * 200}/it is'"
    sections = (
        Commands(title="Next", commands=(command,)),
        Files(title="Files", folder="b" * 200, names=("c" * 100, "d" * 100)),
    )
    lines = drawn(Page(title="t", verdict=None, sections=sections), 40).splitlines()
    assert f"  {command}" in lines
    assert f"  {'b' * 200}" in lines
    assert {f"  {'c' * 100}", f"  {'d' * 100}"} <= set(lines)


def test_colours_are_for_terminals() -> None:
    out = io.StringIO()
    print_page(PAGE, Console(file=out, width=110, force_terminal=True, color_system="standard"))
    assert "\x1b[1;33mSUSPECT\x1b[0m" in out.getvalue()
    assert "\x1b[1;31mlost rank" in out.getvalue()
    assert "\x1b[38" not in drawn(PAGE)


def test_an_empty_section_says_so() -> None:
    assert drawn(EMPTY_PAGE) == "nothing yet\n"
    text = drawn(HOLLOW_PAGE)
    assert text.count("\n  none\n") == len(HOLLOW_PAGE.sections) - 1
    assert "NOTHING MEASURED" in text


def test_every_line_of_a_hostile_text_stays_under_its_section() -> None:
    page = Page(title="t", verdict=None, sections=(Text(title="s", lines=("a\nVALID: b",)),))
    assert drawn(page) == "t\n\ns\n  a\n  VALID: b\n"
    assert "\nsecond line" not in drawn(Page(title=HOSTILE, verdict=None, sections=()), 2000)


@pytest.mark.parametrize("width", range(20, 60))
def test_no_line_ends_between_a_figure_and_its_unit(width: int) -> None:
    said = "spans 11 % of 6.67 s and 40 requests, at most 753 ms of 1.50 GiB (2.00 TB/s, 5 steps)"
    headers = (Header(title="", align="left", folds=True),)
    for section in (
        Text(title="said", lines=(said,)),
        Table(title="said", headers=headers, rows=((PageCell(said),),)),
    ):
        text = drawn(Page(title="t", verdict=None, sections=(section,)), width)
        assert " ".join(text.split()) == f"t said {said}"
        starts = {line.split()[0] for line in text.splitlines()[2:]}
        assert starts.isdisjoint({"%", "s", "ms", "GiB", "TB/s,"})
