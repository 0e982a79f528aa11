"""How often the search confirms a rate that is too high: whole searches of queues whose percentile is known.

A subset, with fixed seeds, of `benchmarks/serving_search.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import serving_search as simulated
from gpuproof.launches.bounds import Bound, RequestSeries, judge_bound, judge_rate
from gpuproof.statistics.estimate import FloatArray
from gpuproof.suites.serving.search import Effort

NUMBER = 20


@pytest.fixture(autouse=True)
def short_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "TRUTH_REQUESTS", 500_000)


@pytest.mark.parametrize(
    ("name", "load", "least_inside"),
    [
        ("M/D/1", 0.7, 0.8),
        pytest.param("M/D/1", 0.9, 0.8, marks=pytest.mark.long),
        pytest.param("M/M/1", 0.95, 0.0, marks=pytest.mark.long),
        ("M/G/1 lognormal", 0.8, 0.0),
        pytest.param("M/G/1 bimodal", 0.9, 0.0, marks=pytest.mark.long),
    ],
)
def test_whole_searches_rarely_confirm_a_rate_that_is_too_high(
    name: str, load: float, least_inside: float
) -> None:
    found = simulated.searches(name, load, 99, number=NUMBER, capacity_per_s=100.0)
    assert simulated.num_violating(found, load) <= 1  # 5 % of 20
    assert sum(one.refuted is not None and one.refuted < load for one in found) <= 1
    inside = sum(one.met is not None and one.met >= 0.8 * load for one in found)
    assert inside >= least_inside * NUMBER
    assert max(one.num_launches for one in found) <= 80


@pytest.mark.parametrize("load", [0.7, 0.9, 0.95])
def test_launches_of_one_busy_spell_confirm_nothing(load: float) -> None:
    """A bound 10 % under the true p99 and launches of 2,000 requests: LoadGen's rule took it as met."""
    server = simulated.Server(service=simulated.SERVICES["M/D/1"])
    bound = Bound(name="latency", limit=0.9 * simulated.true_percentile_s("M/D/1", load, 99), q=99)
    rng = np.random.default_rng(1)
    then = now = 0
    for _ in range(60):
        launches = [server.latencies(rng, load * 1000, 2000) for _ in range(3)]
        over = sum(launches[0] > bound.limit)
        verdict = judge_bound(num_requests=2000, num_over=int(over), bound_s=bound.limit, q=99)
        then += verdict.outcome == "met"
        series = [RequestSeries(one, one, one) for one in launches]
        now += judge_rate(series, [bound], confirmations=3).outcome == "met"
    assert then >= 0.1 * 60
    assert now <= 0.05 * 60


def test_a_queue_that_grows_is_not_confirmed_however_loose_the_bound() -> None:
    server = simulated.Server(service=simulated.SERVICES["M/D/1"])
    rng = np.random.default_rng(2)
    for q in (50.0, 90.0, 99.0):
        bound = Bound(name="latency", limit=60.0, q=q)
        launches = [server.latencies(rng, 1050.0, 10_000) for _ in range(5)]
        series = [RequestSeries(one, one, one) for one in launches]
        found = judge_rate(series, [bound], confirmations=3)
        assert found.outcome == "undecided"
        assert found.reason is not None


@pytest.mark.parametrize("name", [pytest.param("stalls of 0.5 s", marks=pytest.mark.long), "slow start"])
def test_a_disturbed_server_is_not_confirmed_too_high(name: str) -> None:
    _, too_high = simulated.hostile_searches(name, number=8)
    assert too_high <= 1


@pytest.mark.parametrize("name", ["1 % fail", "too few requests"])
def test_what_cannot_be_told_is_not_met(name: str) -> None:
    found, _ = simulated.hostile_searches(name, number=5)
    assert [one.met for one in found] == [None] * 5


def test_launches_that_disagree_confirm_nothing() -> None:
    """One launch of four is slow throughout: a share of 1 % over the bound cannot be promised."""
    rng = np.random.default_rng(3)
    quick = [rng.exponential(0.01, 5000) for _ in range(3)]
    bound = Bound(name="latency", limit=0.08, q=99)
    assert _judged(quick, bound) == "met"
    assert _judged([*quick, rng.exponential(0.02, 5000)], bound) != "met"


def _judged(launches: list[FloatArray], bound: Bound) -> str:
    return judge_rate([RequestSeries(one, one, one) for one in launches], [bound], confirmations=3).outcome


def test_a_rate_is_given_no_more_than_its_time() -> None:
    effort = Effort(confirmations=3, min_requests=100, window_s=1.0, time_at_a_rate_s=20.0)
    assert effort.first_requests(500.0) == 500
    assert effort.most_requests(500.0) == 10_000
    assert effort.most_requests(2.0) == 300  # a slow server gets its first launches
