"""What pages fold, share out and write in one unit, so that they are short and lose nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cases_by_hand import cases_of
from gpuproof.base.units import amount
from gpuproof.records.page import Cell, Header, MeasureCell, Page, Pivot, Table
from gpuproof.records.page.tables import Column, measure_cell, pivot_of_rows
from gpuproof.records.result import Measure
from gpuproof.report.html import html
from gpuproof.report.page_parts import column_blocks
from gpuproof.statistics.estimate import Interval
from gpuproof.suites.matrix.page import _status_cell, _status_text
from gpuproof.suites.results import interval_text
from gpuproof.suites.sections import at_point, failures_section
from records_by_hand import failure


def test_equal_failures_are_one_notice_with_the_first_and_their_number() -> None:
    points = [f"optimizer=adam width={number}" for number in range(15)]
    equal = [
        at_point(failure("exit_status", message="status 2: no such file\nmore"), point) for point in points
    ]
    other = failure("out_of_memory", message="tried to allocate")
    first, second = failures_section([*equal, other]).notices
    assert "at optimizer=adam width=0: status 2: no such file" in first.text
    assert first.text.endswith("(the first of 15 such failures; result.json has all)")
    assert "like it" not in second.text


def test_failures_of_other_causes_or_words_stay_apart() -> None:
    several = [failure("exit_status", message="status 1"), failure("exit_status", message="status 2")]
    assert len(failures_section([*several, failure("timeout", message="status 2")]).notices) == 3


def test_a_case_that_failed_as_another_did_names_that_one() -> None:
    first, second, third = (
        replace(case, case_id=name, status="failed", failure="exit_status: no such file", exit_status=2)
        for case, name in zip(cases_of({"a": [1.0, 2.0, 3.0]}), "abc", strict=True)
    )
    done = replace(third, status="done", failure=None)
    names = {_status_text(first): first.case_id}
    cells = [_status_cell(case, names) for case in (first, second, done)]
    assert [cell.text for cell in cells] == ["exit_status: no such file (status 2)", "as a", "done"]


def measured(value: float, unit: str) -> Measure:
    return Measure(name="m", value=value, unit=unit, text=amount(value, unit))


def column(*figures: Measure | None) -> list[str]:
    laid_out = pivot_of_rows("t", figures, Column.of("m", measure_cell))
    assert isinstance(laid_out, Pivot)
    return [row[0].text for row in laid_out.rows]


def test_a_column_has_one_prefix_for_all_its_figures() -> None:
    rates = [measured(value, "B/s") for value in (1.2e9, 149e6)]
    assert column(*rates) == ["1,200 MB/s", "149 MB/s"]
    times = [measured(value, "s") for value in (0.0021, 950e-6)]
    assert column(*times, None) == ["2.10 ms", "0.950 ms", "–"]
    assert column(measured(3.0 * 2**30, "B"), measured(700.0 * 2**20, "B")) == ["3.00 GiB", "0.684 GiB"]


def test_a_column_of_one_unit_or_of_several_quantities_is_left_as_it_is() -> None:
    assert column(measured(0.0021, "s"), measured(0.0033, "s")) == ["2.10 ms", "3.30 ms"]
    assert column(measured(0.0021, "s"), measured(1.2e9, "B/s")) == ["2.10 ms", "1.20 GB/s"]


def test_a_figure_keeps_its_measure_when_its_text_is_rewritten() -> None:
    rates = [measured(value, "B/s") for value in (1.2e9, 149e6)]
    laid_out = pivot_of_rows("t", rates, Column.of("m", measure_cell))
    assert [cell.measure for row in laid_out.rows for cell in row if isinstance(cell, MeasureCell)] == rates


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.004, 0.006, "95% interval 4.00 ms – 6.00 ms (3 launches)"),
        (0.0, 43.3, "95% interval not measured well enough (3 launches)"),
        (-0.403, 43.3, "95% interval not measured well enough (3 launches)"),
    ],
)
def test_an_interval_that_reaches_zero_is_no_figure(low: float, high: float, text: str) -> None:
    interval = Interval(
        low=low,
        high=high,
        centre=0.005,
        confidence=0.95,
        method="t",
        num_launches=3,
        num_samples=3,
        between_launches=True,
    )
    assert interval_text(interval, "s") == text


def wide_table(num_columns: int) -> Table:
    headers = (
        Header(title="host", align="left"),
        *(Header(title=f"test {i:02}") for i in range(num_columns)),
    )
    rows = tuple(
        (Cell(host), *(Cell(f"{i},{i:03}.0 samples/s") for i in range(num_columns))) for host in ("n0", "n1")
    )
    return Table(title="s", headers=headers, rows=rows)


def test_a_wide_table_is_shared_out_in_html_with_its_first_column_in_each() -> None:
    table = wide_table(12)
    written = html(Page(title="t", verdict=None, sections=(table,)))
    blocks = column_blocks(table, 110)
    assert written.count("<table") == len(blocks) > 1
    assert written.count('<th scope="col" class="left">host</th>') == len(blocks)
    assert all(f"{i},{i:03}.0 samples/s" in written for i in range(12))


def test_a_cell_says_its_column_for_screens_on_which_a_row_is_a_card() -> None:
    written = html(Page(title="t", verdict=None, sections=(wide_table(2),)))
    assert re.search(r'data-head="test 01">1,001.0 samples/s</td>', written)
    style = written[written.index("<style>") : written.index("</style>")]
    assert "max-width: 37.5rem" in style
    assert re.findall(r"([^{}\n]*) \{ overflow-x", style) == [".scroll"], "a heat map of many hosts alone"
    assert "min-width: 34rem" not in style


def test_what_is_folded_is_a_details_in_html_and_its_title_is_the_summary() -> None:
    table = replace(wide_table(1), title="Checks: 24 passed", is_folded=True)
    written = html(Page(title="t", verdict=None, sections=(table,)))
    assert '<details class="folded"><summary>Checks: 24 passed</summary>' in written
    assert "<h2>Checks: 24 passed</h2>" not in written
