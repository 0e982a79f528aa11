"""The search for who is slow: promises on simulated fleets (those of the benchmark), small cases by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuproof.verdict.blame.evidence import FAST, SLOW, Group, Level, weigh
from gpuproof.verdict.blame.findings import Findings, links_not_tried
from gpuproof.verdict.blame.search import BlameSearch, begin

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
simulated: Any = import_module("blame_tests")
MeasureCell = Callable[[Group], float | None]


def searched(members: int, figure: MeasureCell, **options: Any) -> BlameSearch:
    names = [f"n{number}" for number in range(members)]
    search = begin(names, **{"noise": 0.01, "slowdown": 0.1, **options})
    while groups := search.next_round():
        taken = [member for group in groups for member in group.members]
        assert len(taken) == len(set(taken)), "groups of a round are disjoint"
        search = search.settle({group: figure(group) for group in groups})
    return search


def names(findings: Findings) -> list[tuple[str, ...]]:
    return [found.members for found in (*findings.accused, *findings.links)]


def slow_with(*bad: str, by: float = 0.1) -> MeasureCell:
    return lambda group: 100 * (1 - by * any(member in group.members for member in bad))


@pytest.mark.parametrize(
    ("world", "median", "most"),
    [
        ({}, 20, 20),
        ({"slow_hosts": 1}, 18, 24),
        ({"slow_hosts": 1, "tails": "t4"}, 18, 24),
        ({"slow_hosts": 2}, 40, 40),
    ],
)
def test_as_few_tests_as_promised_and_nobody_wrongly_named(
    world: dict[str, Any], median: int, most: int
) -> None:
    draws = 150
    found = simulated.tally(simulated.World(name="", **world), draws, seed=7)
    assert np.median(found.tests) <= median
    assert np.quantile(found.tests, 0.95) <= most
    assert found.wrong == 0
    assert found.exact >= 0.98 * draws


@pytest.mark.parametrize(
    "world",
    [
        {"drift": 0.01, "slow_hosts": 1},
        {"common": 0.02, "slow_hosts": 1},
        {"failing": 0.05, "slow_hosts": 1},
        {"rounded": 2.0, "slow_hosts": 1},
        {"wandering": 0.01, "slow_hosts": 1},
        {"tails": "log-normal", "slow_hosts": 1},
        {"stalls": 0.02, "slow_hosts": 1},
        {"slow_hosts": 16, "in_a_row": True},
        {"hosts": 16, "slow_hosts": 2},
        {"hosts": 5, "slow_links": 1},
        {"dead": 1},
    ],
    ids=str,
)
def test_on_shapes_that_fool_others_it_names_the_right_ones(world: dict[str, Any]) -> None:
    draws = 40
    found = simulated.tally(simulated.World(name="", **world), draws, seed=3)
    assert found.wrong == 0
    assert found.exact >= 0.95 * draws


@pytest.mark.parametrize(
    "world",
    [
        {"present": 0.5, "slow_hosts": 1},
        {"present": 0.5, "slow_hosts": 1, "stays": 0.8},
        {"stalls": 0.02},
        {"noise": 0.04, "slow_hosts": 1, "tails": "t4"},
        {"noise": 0.03},
        {"slow_hosts": 40},
        {"hosts": 8, "slow_links": 1, "tails": "t4"},
    ],
    ids=str,
)
def test_where_it_cannot_be_told_healthy_ones_are_not_named(world: dict[str, Any]) -> None:
    draws = 40
    assert simulated.tally(simulated.World(name="", **world), draws, seed=5).wrong <= 1


@pytest.mark.parametrize(("hosts", "present"), [(232, 0.75), (16, 0.5), (5, 0.5), (5, 0.3)])
def test_a_link_is_not_named_for_an_end_that_is_slow_now_and_then(hosts: int, present: float) -> None:
    world = simulated.World(name="", hosts=hosts, slow_hosts=1, present=present)
    assert simulated.tally(world, 100, seed=9).wrong == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 40), st.data())
def test_without_noise_whoever_is_slow_is_named_and_confirmed_with_a_good_partner(
    members: int, data: st.DataObject
) -> None:
    bad = f"n{data.draw(st.integers(0, members - 1))}"
    findings = searched(members, slow_with(bad)).findings()
    (found,) = findings.accused
    assert found.members == (bad,)
    assert found.slower_by == pytest.approx(0.1)
    assert any(len(test.group.members) == 2 for test in found.tests)
    assert set(findings.cleared) == {f"n{number}" for number in range(members)} - {bad}


def test_a_link_is_named_and_not_its_ends_and_in_the_direction_that_is_slow() -> None:
    def figure(group: Group) -> float:
        both = {"n1", "n3"} <= set(group.members)
        return 60.0 if both and (not group.one_way or group.members == ("n3", "n1")) else 100.0

    findings = searched(5, figure, every_link=True).findings()
    assert [found.directions for found in findings.links] == [(("n3", "n1"),)]
    assert not findings.accused
    assert set(findings.cleared) == {f"n{number}" for number in range(5)}


def test_a_link_within_a_group_of_many_is_found_and_one_between_groups_is_listed_as_not_tested() -> None:
    def figure(*ends: str) -> MeasureCell:
        return lambda group: 80.0 if set(ends) <= set(group.members) else 100.0

    inside = searched(232, figure("n30", "n55"), every_link=True)
    assert names(inside.findings()) == [("n30", "n55")]
    between = searched(232, figure("n30", "n90"), every_link=True)
    assert not names(between.findings())
    untested = list(links_not_tried(between.members, between.tests, every_link=True))
    assert ("n30", "n90") in untested
    tried = between.findings().links_tried
    assert tried.num_not_tried == len(untested)
    assert tried.num_tried + tried.num_not_tried == 232 * 231 // 2


def test_a_ring_goes_over_few_links_so_that_only_pairs_count_as_tried() -> None:
    tried = searched(16, slow_with()).findings().links_tried
    assert tried.num_tried == 8


@pytest.mark.parametrize("failure", [None, 0.0])
def test_a_member_with_which_tests_fail_is_named(failure: float | None) -> None:
    findings = searched(20, lambda group: failure if "n4" in group.members else 100.0).findings()
    assert names(findings) == [("n4",)]


@pytest.mark.parametrize(
    ("members", "noise", "figure", "why"),
    [
        (2, 0.01, slow_with("n1"), "with fewer than three members, the slow one cannot be identified"),
        (1, 0.01, slow_with("n0"), "with fewer than three members, the slow one cannot be identified"),
        (232, 0.2, slow_with("n1"), "noise is too large"),
        (8, 0.01, lambda group: None, "too few healthy partners"),
        (8, 0.01, lambda group: 95.0 if "n3" in group.members else 100.0, "between slow and not slow"),
    ],
)
def test_what_is_undecided_says_why(members: int, noise: float, figure: MeasureCell, why: str) -> None:
    findings = searched(members, figure, noise=noise).findings()
    assert not names(findings)
    assert any(why in each.why for each in findings.undecided), findings.undecided


def test_a_fault_that_all_share_is_not_seen_since_groups_are_compared_with_each_other() -> None:
    everybody = [f"n{number}" for number in range(16)]
    assert searched(16, slow_with(*everybody)).findings().cleared == tuple(everybody)


def test_a_search_is_a_value_and_goes_on_with_what_a_round_left_out() -> None:
    search = begin([f"n{number}" for number in range(20)], noise=0.01)
    groups = search.next_round()
    assert search.next_round() == groups
    half = search.settle(dict.fromkeys(groups[:2], 100.0))
    assert half.next_round() == groups[2:]
    assert search.num_rounds == 0
    assert search.findings().undecided[0].why == "the search did not finish"
    ended = replace(half, most_tests=2).findings()
    assert "2 tests is used up" in ended.undecided[0].why


@pytest.mark.parametrize("figure", [-1.0, float("nan"), float("inf")])
def test_what_is_no_figure_is_refused(figure: float) -> None:
    search = begin(["a", "b", "c"], noise=0.01)
    with pytest.raises(ValueError, match="not a valid test value; a test without a value"):
        search.settle({search.next_round()[0]: figure})


@pytest.mark.parametrize(
    ("members", "noise", "slowdown"), [(["a", "a"], 0.1, 0.1), (["a"], -1, 0.1), (["a"], 0, 0)]
)
def test_what_makes_no_sense_is_refused(members: list[str], noise: float, slowdown: float) -> None:
    with pytest.raises(ValueError, match=r"listed twice|must be at least 0 and below 1, and slowdown"):
        begin(members, noise=noise, slowdown=slowdown)


def test_a_figure_weighs_less_the_farther_it_is_from_both() -> None:
    level = Level(value=100.0, num_values=8)
    weights = [weigh(value, level, noise=0.01, slowdown=0.1) for value in (110, 100, 95, 90, 50)]
    assert weights[0] < FAST
    assert weights[1] < FAST
    assert abs(weights[2]) < 1e-9
    assert weights[3] > SLOW
    assert weights[4] > weights[3]
