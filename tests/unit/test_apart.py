"""Who stands apart: by hand, on ties and rounded rates, and how often in simulated healthy fleets."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from gpuproof.statistics import outliers
from gpuproof.statistics.outliers import ERROR_RATE, HostRate, HostsJudged, judge_hosts, sigma_limit, z_limit

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
healthy_fleets = import_module("healthy_fleets")
limits_program = import_module("outlier_limits")


def judged(*rates: float, reach: float | None = 0.001, error_rate: float = ERROR_RATE) -> HostsJudged:
    hosts = [HostRate(host=f"n{place}", rate=rate, reach=reach) for place, rate in enumerate(rates)]
    return judge_hosts(hosts, error_rate=error_rate)


def named(*rates: float, reach: float | None = 0.001, error_rate: float = ERROR_RATE) -> list[str]:
    return sorted(apart.host for apart in judged(*rates, reach=reach, error_rate=error_rate).apart)


def test_the_limit_grows_with_few_hosts_and_many_tests() -> None:
    assert z_limit(5, 0.05) > z_limit(8, 0.05) > 3.5
    assert z_limit(8, 0.05 / 12) > 2 * z_limit(8, 0.05)
    assert z_limit(64, 0.05) == pytest.approx(outliers.LIMITS[64][0])
    # between rows and columns, and past the last ones
    assert z_limit(64, 0.05) < z_limit(80, 0.05) < z_limit(96, 0.05)
    assert z_limit(8, 0.02) < z_limit(8, 0.015) < z_limit(8, 0.01)
    assert z_limit(8, 1e-5) > z_limit(8, 1e-4)
    assert z_limit(2000, 0.05) > z_limit(1024, 0.05)


@pytest.mark.parametrize("error_rate", [0.0, 0.06])
def test_a_rate_of_errors_out_of_range_is_refused(error_rate: float) -> None:
    with pytest.raises(ValueError, match="at most 5%"):
        z_limit(8, error_rate)


def test_too_few_hosts_have_no_spread() -> None:
    with pytest.raises(ValueError, match="too few to estimate their spread"):
        z_limit(4, 0.05)
    with pytest.raises(ValueError, match="only for 3 or 4"):
        sigma_limit(5, 0.05)


@pytest.mark.parametrize("num_hosts", [5, 8, 16])
def test_the_table_is_what_its_program_computes(num_hosts: int) -> None:
    rates = outliers.ERROR_RATES[:5]
    found = limits_program.chances(num_hosts, 40_000, np.random.default_rng(2))
    again = limits_program.limits(found, rates)
    assert again == pytest.approx(outliers.LIMITS[num_hosts][:5], rel=0.08)


def test_nobody_is_named_for_under_two_percent_or_under_the_launches_interval() -> None:
    close = (100.0, 100.01, 99.99, 100.02, 99.98, 100.0, 100.01)
    assert named(*close, 98.1) == []
    assert named(*close, 97.9) == ["n7"]
    assert named(*close, 97.9, reach=0.03) == []
    assert named(*close, 95.0, reach=None) == ["n7"]


def test_ties_and_rounded_rates() -> None:
    assert named(100, 100, 100, 100, 100) == []
    assert named(100, 100, 100, 100, 100, 100, 100, 50) == ["n7"]  # the MAD is 0
    assert named(100, 100, 100, 100, 100, 100, 100, 90) == ["n7"]
    assert named(100, 100, 100, 101, 103) == []  # steps of 1 %, so that 3 are not much
    assert named(0.5, 0.5, 0.5, 0.5, 0.25) == ["n4"]


def test_two_broken_hosts_of_five_are_both_named() -> None:
    assert named(100, 100.3, 99.8, 60, 50) == ["n3", "n4"]
    assert named(100, 100, 100, 60, 50) == ["n3", "n4"]


def test_where_half_of_the_hosts_are_slow_nobody_is_accused() -> None:
    assert named(100, 100.2, 99.9, 50, 50.1, 49.9) == []
    assert named(100, 100.2, 50, 50.1) == []


def test_three_or_four_hosts_are_judged_by_their_launches() -> None:
    assert named(100, 101, 50) == ["n2"]
    assert named(100, 101, 99, 200) == ["n3"]
    assert named(100, 101, 50, reach=None) == ["n2"]
    assert named(100, 101, 80, reach=0.15) == []  # the intervals meet
    assert named(100, 101, 85, reach=None) == []
    found = judged(100, 101, 96)
    assert found.apart == ()  # healthy hosts may differ by so much
    assert found.standard is not None
    assert found.standard.least_difference == pytest.approx(0.02 * sigma_limit(3, ERROR_RATE))


def test_of_two_hosts_one_is_slower_and_one_alone_is_not_judged() -> None:
    found = judged(100, 70)
    assert found.apart == ()
    assert found.slower is not None
    assert found.slower.host == "n1"
    assert found.slower.relative_difference == pytest.approx(0.3)
    assert judged(100, 99).slower is None
    assert judged(100, 90, reach=0.06).slower is None
    assert judged(100).missing == "fewer than two hosts of this type were measured: nothing to compare"


@pytest.mark.parametrize(
    ("changes", "fleets"),
    [
        ({"hosts": 5, "tails": "t4", "spread": 0.02}, 2000),
        ({"hosts": 8, "tails": "t4", "spread": 0.02}, 2000),
        ({"hosts": 64, "tails": "t4", "spread": 0.02}, 500),
        ({"hosts": 4, "tails": "t4", "spread": 0.02}, 1000),
        ({"hosts": 5, "tails": "t4", "spread": 0.02, "tests": 12}, 300),
        ({"hosts": 8, "spread": 0.02, "tests": 12, "alike": 1.0}, 300),
        ({"hosts": 8, "spread": 0.005, "tests": 12, "rounded": 0.01}, 300),
        ({"hosts": 8, "spread": 0.02, "tests": 12, "lacking": 0.2}, 300),
    ],
)
def test_somebody_is_accused_in_few_healthy_fleets(changes: dict[str, object], fleets: int) -> None:
    fleet = healthy_fleets.Fleet(**changes)
    count, of = healthy_fleets.share(fleet, fleets, 11, bool)
    assert healthy_fleets.upper_bound(count, of) <= 0.05 + 1.65 * 2 * (0.05 * 0.95 / of) ** 0.5


@pytest.mark.parametrize(
    "changes",
    [
        {"hosts": 8, "slow": (0.1,)},
        {"hosts": 8, "slow": (0.1,), "tests": 12, "alike": 1.0},
        {"hosts": 3, "slow": (0.5,), "spread": 0.02},
        {"hosts": 4, "slow": (0.5,), "spread": 0.02},
    ],
)
def test_the_slow_host_is_found(changes: dict[str, object]) -> None:
    fleet = healthy_fleets.Fleet(**changes)
    count, of = healthy_fleets.share(fleet, 300, 12, lambda found: "n0" in found)
    assert count / of >= 0.98  # promised are 99 %, ± 0.5
