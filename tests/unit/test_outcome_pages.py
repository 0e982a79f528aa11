"""A page of checks: what nobody has to look into shares rows, and what needs action stands by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuproof.records.outcome import JUDGED, NEEDING_ACTION, Judged, Outcome, Status
from gpuproof.records.page import Table, Text
from gpuproof.suites.validate.page import subjects_table
from gpuproof.verdict.page import MOST_NAMES, outcome_sections, outcomes_page
from gpuproof.verdict.rollup import MOST_LISTED, roll_up


def judged(
    name: str, status: Status, subject: str = "whole", *, said: str = "no GPU", is_required: bool = True
) -> Judged:
    outcome = Outcome(
        status=status,
        subject=subject,
        measured=said if status in JUDGED else None,
        expected="none" if status in JUDGED else None,
        source="docs/guides/rules.md" if status in JUDGED else None,
        reason=None if status in JUDGED else said,
        next_step="look" if status in NEEDING_ACTION else None,
    )
    return Judged(name=name, outcome=outcome, is_required=is_required)


def first_cells(*items: Judged) -> list[str]:
    shown = outcome_sections("Checks", items)[0]
    assert isinstance(shown, Table)
    return [row[0].text for row in shown.rows]


@pytest.mark.parametrize("status", ["PASS", "ERROR", "SKIP", "NOT-APPLICABLE"])
def test_what_the_same_is_said_of_shares_a_row(status: Status) -> None:
    rows = first_cells(
        judged("ecc", status), judged("xid", status, "host/a"), judged("xid", status, "host/b")
    )
    assert rows == ["ecc; xid: host/a, host/b"]


@pytest.mark.parametrize("status", ["WARN", "FAIL"])
def test_what_was_found_stands_by_itself(status: Status) -> None:
    assert first_cells(judged("ecc", status), judged("xid", status)) == ["ecc", "xid"]


def test_rows_differ_where_anything_that_is_said_differs() -> None:
    items = [judged("a", "SKIP"), judged("b", "ERROR"), judged("c", "SKIP", said="one"), judged("d", "SKIP")]
    advisory = judged("e", "SKIP", is_required=False)
    assert first_cells(*items, advisory) == ["a; d", "b", "c", "e (advisory)"]


def test_what_passed_or_does_not_apply_is_folded_with_its_count_where_there_is_more() -> None:
    items = [judged("a", "PASS"), judged("b", "FAIL"), judged("c", "NOT-APPLICABLE"), judged("d", "PASS")]
    first, _, folded = outcome_sections("Checks", items)
    assert isinstance(first, Table)
    assert isinstance(folded, Table)
    assert (first.title, [row[0].text for row in first.rows], first.is_folded) == ("Checks", ["b"], False)
    assert (folded.title, folded.is_folded) == ("Checks: 2 passed, 1 not applicable", True)
    assert [row[0].text for row in folded.rows] == ["a; d", "c"]
    (only,) = outcome_sections("Checks", items[:1])
    assert isinstance(only, Table)
    assert not only.is_folded


@pytest.mark.parametrize(
    ("statuses", "word", "headline"),
    [
        (("PASS", "PASS"), "PASS", "2 of 2 checks passed"),
        (("PASS", "WARN", "FAIL"), "FAIL", "1 of 3 checks passed"),
        (("PASS", "SKIP"), "SKIP", "1 of 2 checks passed"),
        (("NOT-APPLICABLE",), "NOT-APPLICABLE", "no check applies"),
        (("PASS", "NOT-APPLICABLE"), "PASS", "1 of 1 checks passed"),
    ],
)
def test_a_page_of_outcomes_opens_with_the_gravest(
    statuses: tuple[Status, ...], word: str, headline: str
) -> None:
    items = [judged(f"check {number}", status) for number, status in enumerate(statuses)]
    verdict = outcomes_page("", ("", items)).verdict
    assert verdict is not None
    assert (verdict.word, verdict.headline) == (word, headline)
    assert outcomes_page("").verdict is None


def test_a_row_of_a_large_fleet_counts_what_it_does_not_name() -> None:
    hosts = [judged("xid", "PASS", f"host/{number}") for number in range(512)]
    (row,) = first_cells(*hosts)
    assert row.endswith(f"host/{MOST_LISTED - 1} and {512 - MOST_LISTED} more")
    (row,) = first_cells(*(judged(f"check {number}", "PASS") for number in range(MOST_NAMES + 3)))
    assert row.endswith(f"check {MOST_NAMES - 1}; and 3 more checks")


def test_a_source_is_named_once_with_what_rests_on_it() -> None:
    sections = outcome_sections(
        "Checks", [judged("a", "WARN"), judged("b", "FAIL"), judged("a", "WARN", "host/x")]
    )
    assert isinstance(sections[1], Text)
    assert sections[1].lines == ("a; b: docs/guides/rules.md",)


def subject_rows(*items: Judged, known: Sequence[str] = ()) -> list[list[str]]:
    return [[cell.text for cell in row] for row in subjects_table(roll_up(items, subjects=known).tree).rows]


def test_hosts_that_stand_alike_are_one_row_and_the_other_stands_out() -> None:
    gpus = [f"host/{host}/gpu/{gpu}" for host in range(64) for gpu in range(8)]
    good = [judged("gemm", "PASS", subject) for subject in gpus if subject != "host/7/gpu/3"]
    rows = subject_rows(*good, judged("gemm", "FAIL", "host/7/gpu/3"))
    assert [row[0].partition(",")[0] for row in rows] == [
        "all",
        "· 63: host/0",
        "· · 504: host/0/gpu/0",
        "· host/7",
        "· · 7: host/7/gpu/0",
        "· · host/7/gpu/3",
    ]
    assert [row[1] for row in rows] == ["failed", "passed", "passed", "failed", "passed", "failed"]
    assert [row[2] for row in rows] == ["0", "0", "504", "0", "7", "0"]
    assert rows[-1][3] == "gemm FAIL: no GPU, expected none"


def test_a_few_subjects_have_a_row_each() -> None:
    rows = subject_rows(judged("gemm", "PASS", "host/a"), judged("gemm", "PASS", "host/b"), known=["host/c"])
    assert [row[:3] for row in rows[1:]] == [
        ["· host/c", "undecided", "0"],
        ["· host/a", "passed", "1"],
        ["· host/b", "passed", "1"],
    ]
    assert rows[0][3] == ""
