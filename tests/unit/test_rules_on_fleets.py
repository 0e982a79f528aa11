"""How often rules are wrong, on few simulated fleets: `benchmarks/rules_on_fleets.py` counts thousands."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
simulation = import_module("rules_on_fleets")

NUM_FLEETS = 60


@pytest.mark.parametrize(
    ("shape", "alike"),
    [
        *(("normal", 0.0), ("t4", 0.0), ("slow tail", 0.0), ("wandering", 0.0), ("rounded", 0.0)),
        *(("slow tail", 0.95),),
    ],
)
def test_a_healthy_fleet_is_seldom_accused(shape: str, alike: float) -> None:
    seen = simulation.count(simulation.HealthyFleet(shape=shape, alike=alike), NUM_FLEETS, seed=11)

    assert seen.required <= 2
    assert seen.undecided <= 2
    assert seen.advisory <= 9


@pytest.mark.parametrize(("tests", "alike"), [(6, 0.95), (2, 0.0)])
def test_a_gpu_that_is_slow_in_two_tests_is_found_by_the_fleets_own_past(tests: int, alike: float) -> None:
    fleet = simulation.HealthyFleet(slow=0.05, slow_tests=tests, alike=alike, of_baseline=64)

    assert simulation.count(fleet, NUM_FLEETS, seed=12).found == NUM_FLEETS


def test_a_slowness_under_what_could_be_shown_is_said_to_be() -> None:
    """A fleet that scatters by 4 % cannot show a GPU that is 5 % slow, and its outcomes say so."""
    import numpy as np

    fleet = simulation.HealthyFleet(spread=0.04, of_baseline=64)

    judged = simulation.judge_fleet(fleet, simulation.rules_of(2), np.random.default_rng(13))

    by_baseline = [item.outcome for item in judged if item.basis == "baseline" and item.is_required]
    assert min(outcome.minimum_detectable or 0.0 for outcome in by_baseline) > 0.05
