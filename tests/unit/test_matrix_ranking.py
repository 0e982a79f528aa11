"""Which configuration of a matrix is called the best: only where it is shown, and how often wrongly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cases_by_hand import cases_of, done_case
from gpuproof.records.result import Better
from gpuproof.suites.matrix.case_values import Amount, CaseValues, shown_memory
from gpuproof.suites.matrix.compare import (
    MatrixRanking,
    choose_metric,
    configurations,
    differing_work,
    memory_cost,
    pareto_front,
    rank_configurations,
)
from gpuproof.suites.matrix.measures import MEMORY, RESIDENT


def ranked(cases: list[CaseValues], metric: str = "accuracy", better: Better = "higher") -> MatrixRanking:
    found = configurations(cases, metric, seed="seed")
    return rank_configurations(found, metric, better, unlike=list(differing_work(cases)))


def test_the_best_is_named_where_each_comparison_shows_it() -> None:
    cases = cases_of({"a": [0.90, 0.91, 0.905], "b": [0.80, 0.81, 0.805], "c": [0.70, 0.71, 0.705]})
    found = ranked(cases)
    assert (found.best, found.num_compared, found.contenders) == ("a", 3, ("a",))
    assert ranked(cases, better="lower").best == "c"


def test_no_best_is_named_where_one_other_may_be_as_good() -> None:
    cases = cases_of({"a": [0.90, 0.91, 0.905], "b": [0.902, 0.911, 0.90], "c": [0.70, 0.71, 0.705]})
    found = ranked(cases)
    assert found.best is None
    assert set(found.contenders) == {"a", "b"}
    assert "no difference shown" in str(found.missing)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"a": [0.9, 0.91, 0.9]}, "only one configuration"),
        ({"a": [0.9, 0.91], "b": [0.1, 0.11, 0.1]}, "a has 2 launches (needs 3"),
        ({"a": [0.9, 0.91, 0.9], "b": [0.0, 0.01, 0.0]}, "not above 0"),
        ({"a": [0.9, 0.9, 0.9], "b": [0.8, 0.8, 0.8]}, "no difference shown"),
    ],
)
def test_why_none_is_named_is_said(values: dict[str, list[float]], reason: str) -> None:
    found = ranked(cases_of(values))
    assert found.best is None
    assert reason in str(found.missing)


def test_cases_of_other_lengths_are_not_ranked() -> None:
    cases = cases_of({"a": [0.90, 0.91, 0.905]}, steps=5000.0)
    cases += cases_of({"b": [0.80, 0.81, 0.805]}, steps=7000.0)
    (doubt,) = differing_work(cases)
    assert doubt.code == "unequal-steps"
    assert "5000 steps for a, 7000 for b" in doubt.reason
    assert ranked(cases).best is None
    assert ranked(cases_of({"a": [0.90, 0.91, 0.905], "b": [0.80, 0.81, 0.805]}, steps=5000.0)).best == "a"


def test_schedules_that_differ_on_the_way_are_flagged() -> None:
    slow, fast = (0.0, 0.005, 0.1, 0.7), (0.0, 0.5, 0.65, 0.7)
    one = replace(done_case("slow", 1, accuracy=0.9), schedules={"sparsity": slow})
    other = replace(done_case("fast", 1, accuracy=0.9), schedules={"sparsity": fast})
    (doubt,) = differing_work([one, other])
    assert doubt.code == "unlike-sparsity"
    assert "differ by 55% at point 3 of 4" in doubt.reason
    another_target = replace(other, schedules={"sparsity": (0.0, 0.3, 0.8, 0.95)})
    assert list(differing_work([one, another_target])) == []


def test_the_metric_is_one_that_all_have() -> None:
    cases = [done_case("a", 1, accuracy=0.9, loss=0.1), done_case("b", 1, accuracy=0.8)]
    assert choose_metric(cases, None, None) == ("accuracy", "higher")
    assert choose_metric(cases, "loss", None) == ("loss", "lower")
    assert choose_metric([*cases, done_case("c", 1)], None, None) == ("wall_s", "lower")


def front(points: dict[str, tuple[float, float]], *, spread: float = 0.01, launches: int = 4) -> list[str]:
    """Return the front by memory of configurations whose launches scatter by a share."""
    cases = [
        done_case(
            name,
            number,
            accuracy=value * (1 + spread * (number % 2)),
            memory_bytes=spent * (1 + spread * (number % 2)),
        )
        for name, (value, spent) in points.items()
        for number in range(launches)
    ]
    return pareto_front(configurations(cases, "accuracy", seed="seed"), MEMORY, "higher")


TRADE = {"cheap": (0.7, 1.0), "good": (0.9, 4.0), "dear": (0.8, 5.0), "twin": (0.9, 4.0)}


def test_the_front_holds_what_nothing_beats() -> None:
    assert front(TRADE) == ["cheap", "good", "twin"]
    exact = [
        done_case(name, number, accuracy=value * (1 + 0.01 * number), memory_bytes=spent)
        for name, (value, spent) in TRADE.items()
        for number in range(3)
    ]
    assert pareto_front(configurations(exact, "accuracy", seed="s"), MEMORY, "higher") == [
        "cheap",
        "good",
        "twin",
    ]


def test_only_differences_that_were_shown_form_a_front() -> None:
    assert front(TRADE, launches=1) == []  # a launch each shows nothing
    assert front(TRADE, spread=1.5) == []
    assert front({"a": (0.9, 307.6), "b": (0.91, 308.8), "c": (0.905, 308.1)}, spread=0.05) == []
    assert front({"best": (0.9, 1.0), "worse": (0.7, 2.0)}) == []  # one alone is no front
    # What lies on neither side of anything shown is on no front, and the others trade nevertheless.
    assert front({"cheap": (0.7, 1.0), "good": (0.9, 4.0), "beaten": (0.7, 4.0)}) == ["cheap", "good"]


@pytest.mark.parametrize("quantum", [None, 1 / 360])
def test_equal_configurations_are_rarely_called_best(quantum: float | None) -> None:
    """With one error rate over all configurations, under 5 % of matrices without any difference name one."""
    rng = np.random.default_rng(7)
    named = 0
    for _ in range(400):
        drawn = rng.normal(0.95, 0.004, size=(6, 3))
        values = drawn if quantum is None else np.round(drawn / quantum) * quantum
        named += ranked(cases_of({f"c{k}": row.tolist() for k, row in enumerate(values)})).best is not None
    assert named <= 20


def test_launches_whose_memory_was_measured_in_different_ways_have_no_mean_of_it() -> None:
    first, second = done_case("a", 1, memory_bytes=2.0**30), done_case("a", 2, memory_bytes=2.0**31)
    second = replace(second, memory=replace(second.memory, basis="allocator"))
    (one,) = configurations([first, second], "wall_s", seed="seed")
    memory = one.measure(MEMORY)
    assert memory is not None
    assert memory.value is None
    assert memory.missing == "memory of launches was measured in different ways: process tree, allocator"
    assert (memory.interval, memory.launches) == (None, ())  # so that `compare` cannot take one for the other
    assert one.memory_basis == ""
    unread = replace(second, memory=Amount(missing="the driver was lost"))
    (one,) = configurations([first, unread], "wall_s", seed="seed")
    memory = one.measure(MEMORY)
    assert memory is not None
    assert (memory.value, memory.missing) == (None, "the driver was lost")


def test_memory_of_devices_and_of_processes_are_never_in_one_column_or_front() -> None:
    """The driver was lost after the first case: of the others only what their processes held is known."""
    resident = Amount(basis="resident, process tree", peak_bytes=8.5 * 2**20)
    first = replace(done_case("a", 1, accuracy=0.9, memory_bytes=189.0 * 2**30), resident=resident)
    second = replace(done_case("b", 1, accuracy=0.8), resident=resident)
    found = configurations([first, second], "accuracy", seed="seed")
    assert [(one.value(MEMORY), one.value(RESIDENT)) for one in found] == [
        (189.0 * 2**30, 8.5 * 2**20),
        (None, 8.5 * 2**20),
    ]
    assert pareto_front(found, memory_cost(found), "higher") == []  # one alone was compared with none
    assert memory_cost(found[1:]) == RESIDENT  # where no device was read at all
    shown = shown_memory([first, second])
    assert [shown(case).basis for case in (first, second)] == ["process tree", ""]
