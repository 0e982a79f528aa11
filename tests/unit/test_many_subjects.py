"""Figures of many subjects: a row a quantity, with the middle and the ends of what they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuproof.records.result import Measure
from gpuproof.suites.many_subjects import values_table


def figure(value: float | None, subject: str = "whole", *, name: str = "throughput", **said: Any) -> Measure:
    case, uncertainty = said.pop("case", "gemm"), said.pop("uncertainty", None)
    return Measure(
        name=name,
        value=value,
        unit="B/s",
        text=f"{value} GB/s",
        uncertainty=uncertainty,
        case=case,
        subject=subject,
        labels={"stage": "gemm", **said},
    )


def rows(figures: Sequence[Measure]) -> list[list[str]]:
    return [[cell.text for cell in row] for row in values_table(figures).rows]


def test_one_subject_is_told_in_full() -> None:
    assert rows([figure(3.0, "host/a", uncertainty="±2 %")]) == [
        ["gemm", "throughput", "host/a", "3.0 GB/s", "±2 %"]
    ]


def test_many_devices_are_a_row_with_a_measured_middle_and_both_ends() -> None:
    values = [5.0, 1.0, 4.0, 3.0]
    devices = [figure(v, f"host/a/gpu/{n}", case=f"gemm@a+{n}") for n, v in enumerate(values)]
    assert rows(devices) == [
        [
            "gemm",
            "throughput",
            "4 devices",
            "3.0 GB/s",
            "1.0 GB/s, host/a/gpu/1\n5.0 GB/s, host/a/gpu/0",
        ]
    ]


def test_of_two_that_differ_each_is_told_and_no_median() -> None:
    both = [figure(value, f"host/{name}", case=f"gemm@{name}") for name, value in (("a", 4.0), ("b", 2.0))]
    assert [row[1:4] for row in rows(both)] == [
        ["throughput", "host/a", "4.0 GB/s"],
        ["throughput", "host/b", "2.0 GB/s"],
    ]


def test_what_reads_the_same_everywhere_has_no_middle() -> None:
    same = [figure(2.0, f"host/{name}", pattern=pattern) for name in "ab" for pattern in ("ones", "zeros")]
    assert rows(same) == [["gemm", "throughput", "2 hosts", "2.0 GB/s"]]


def test_words_that_tell_figures_of_a_subject_apart_are_named() -> None:
    times = [figure(value, "link/a>b", name="time", of=of) for of, value in (("compute", 1.0), ("both", 2.0))]
    assert [row[1:4] for row in rows(times)] == [
        ["time, compute", "link/a>b", "1.0 GB/s"],
        ["time, both", "link/a>b", "2.0 GB/s"],
    ]


def test_levels_and_cases_and_stages_are_not_mixed() -> None:
    mixed = [
        figure(1.0),
        figure(2.0, "host/a"),
        figure(3.0, "host/a/gpu/0"),
        figure(4.0, "host/a", case="memory"),
    ]
    assert [row[2] for row in rows([*mixed, figure(5.0, stage="soak")])] == [
        *("all", "host/a", "host/a/gpu/0", "host/a", "all")
    ]


def test_what_is_missing_and_digests_are_left_to_the_result() -> None:
    assert rows([figure(None), figure(1.0, name="p95 step"), figure(0.0, name="fingerprint")]) == []
