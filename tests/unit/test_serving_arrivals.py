"""Schedules: their rate, their gaps, and that a seed makes them again."""

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from gpuproof.records.work.serving import ServingSpec
from gpuproof.worker.serving.generator import at_once, schedule, traffic_plan


def test_constant_arrivals_are_a_gap_apart() -> None:
    assert list(schedule("constant", rate_per_s=10, num_requests=4, seed=1)) == pytest.approx(
        [0.1, 0.2, 0.3, 0.4]
    )


def test_poisson_gaps_are_exponential() -> None:
    times = schedule("poisson", rate_per_s=200, num_requests=40_000, seed=3)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # An exponential's mean and standard deviation are both 1/rate; 4 standard errors of each.
    assert fmean(gaps) == pytest.approx(1 / 200, rel=0.02)
    assert pstdev(gaps) == pytest.approx(1 / 200, rel=0.03)
    # P[gap > 2/rate] = e⁻² = 0.1353
    assert sum(gap > 0.01 for gap in gaps) / len(gaps) == pytest.approx(0.1353, abs=0.007)


def test_the_seed_alone_decides() -> None:
    first = schedule("poisson", rate_per_s=50, num_requests=100, seed=7)
    assert first == schedule("poisson", rate_per_s=50, num_requests=100, seed=7)
    assert first != schedule("poisson", rate_per_s=50, num_requests=100, seed=8)


def test_offline_is_all_at_once() -> None:
    assert list(at_once(3)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_is_positive(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        schedule("constant", rate_per_s=rate, num_requests=1, seed=0)


@pytest.mark.parametrize("shape", [0.25, 1.0, 16.0])
def test_gamma_gaps_have_the_rate_and_the_variation_of_their_shape(shape: float) -> None:
    times = schedule("gamma", rate_per_s=200, num_requests=40_000, seed=3, burstiness=shape)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    variation = shape**-0.5
    assert fmean(gaps) == pytest.approx(1 / 200, rel=4 * variation / 200)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(variation, rel=0.06)


def test_a_ramp_rises_evenly_to_twice_its_mean() -> None:
    times = schedule("ramp", rate_per_s=100, num_requests=20_000, seed=3)
    end_s = 20_000 / 100
    # Of a rate that grows with t, a quarter of the requests come in the first half; 4 standard errors.
    share = sum(time_s < end_s / 2 for time_s in times) / 20_000
    assert share == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 20_000) ** 0.5)
    last = sum(time_s > 0.95 * end_s for time_s in times) / (0.05 * end_s)
    assert last == pytest.approx(2 * 100, rel=0.1)
    assert list(times) == sorted(times)


def test_a_trace_is_sent_at_its_times(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = ({"timestamp": at_ms, "input_length": 5, "output_length": 2} for at_ms in (0, 27, 30, 900))
    path.write_text("\n".join(json.dumps(line) for line in lines))
    spec = ServingSpec(target="endpoint", arrivals="trace", trace=str(path), window_s=0.5)
    plan = traffic_plan(spec, begin_monotonic_s=0.0, seed=1)
    assert list(plan.schedule()) == [0.0, 0.027, 0.030]
    assert plan.num_requests == 3
    assert plan.offered_per_s == pytest.approx(6.0)
