"""How often rules are wrong, on few simulated fleets: `benchmarks/rules_on_fleets.py` counts thousands."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
simulation = import_module("rules_on_fleets")

NUM_FLEETS = 40


def count(fleet: Mapping[str, object], *, num: int = NUM_FLEETS) -> Counter[str]:
    counted: Counter[str] = simulation.count(simulation.HealthyFleet(**fleet), num, seed=11)
    return counted


@pytest.mark.parametrize(
    "fleet",
    [
        {"gpus": 1},
        {"gpus": 2, "day_is_shared": False},
        {"gpus": 4, "gpus_a_host": 1, "shape": "t4"},
        {"gpus": 8, "day_is_shared": False},
    ],
)
def test_a_healthy_fleet_is_ready_on_another_day_and_nobody_is_accused(fleet: dict[str, object]) -> None:
    """1 % between sessions, three runs on each of two days; promised are 95 % ready, and 1 % accused."""
    seen = count(fleet)

    assert seen["accused"] <= 1
    assert seen["ready"] >= 0.9 * NUM_FLEETS


@pytest.mark.parametrize("day_is_shared", [True, False])
def test_a_gpu_a_tenth_under_its_own_past_is_failed_and_never_passes_all_tests(day_is_shared: bool) -> None:
    """Of eight that are 1 % apart and repeat to 0.1 %, six tests each."""
    seen = count({"slow": 0.1, "day_is_shared": day_is_shared})

    assert seen["baseline names"] >= NUM_FLEETS - 1
    assert seen["baseline passes"] == 0


def test_the_smallest_loss_that_is_said_to_show_does_show() -> None:
    """A GPU that loses what its outcome says is failed in 95 % of sessions."""
    rng, rules = np.random.default_rng(12), simulation.shipped_rules()
    fleet = simulation.HealthyFleet(slow_tests=1, day_is_shared=False)
    names = 0
    for _ in range(60):
        off = simulation.deviations(fleet, fleet.gpus, rng)
        baseline = simulation.baseline_of(fleet, off, rng)
        judged = simulation.judged_of(fleet, off, baseline, rules, rng)
        loss = next(
            item.outcome.minimum_detectable
            for item in judged
            if item.basis == "baseline" and item.outcome.subject == simulation.FIRST_GPU
        )
        off[0, 0] = (1 + off[0, 0]) * (1 - loss) - 1
        judged = simulation.judged_of(fleet, off, baseline, rules, rng)
        names += any(
            item.outcome.status == "FAIL" and item.outcome.subject == simulation.FIRST_GPU for item in judged
        )
    assert names >= 0.9 * 60


def test_three_runs_of_one_gpu_resolve_little_and_more_on_another_day_do() -> None:
    rng, rules = np.random.default_rng(13), simulation.shipped_rules()

    def coarsest(**fleet: object) -> float:
        judged = simulation.judge_fleet(simulation.HealthyFleet(**fleet), rules, rng)
        return max(x.outcome.minimum_detectable or 9.0 for x in judged if x.basis == "baseline")

    assert coarsest(gpus=1, runs=2, days=1) > 0.5
    assert coarsest(gpus=1, runs=3, days=2) < 0.1


@pytest.mark.parametrize("num_slow", [1, 8])
def test_one_slow_gpu_of_64_and_a_whole_slow_host_are_named_by_their_peers(num_slow: int) -> None:
    """5 % at a spread of 0.5 %, normal, tests independent; promised are 95 %."""
    fleet = {"gpus": 64, "runs": 0, "spread": 0.005, "slow": 0.05, "slow_gpus": num_slow}

    assert count(fleet, num=12)["peers names"] >= 11


@pytest.mark.parametrize("shape", ["longer tail", "t4"])
def test_healthy_peers_with_long_tails_are_seldom_accused(shape: str) -> None:
    fleet = {"runs": 0, "spread": 0.02, "shape": shape, "alike": 0.95}

    assert count(fleet, num=100)["accused"] <= 2
