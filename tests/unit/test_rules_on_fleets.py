"""How often rules are wrong, on few simulated fleets: `benchmarks/rules_on_fleets.py` counts thousands."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
simulation = import_module("rules_on_fleets")

NUM_FLEETS = 60


@pytest.mark.parametrize("shape", ["normal", "alike", "rounded"])
def test_a_healthy_fleet_is_seldom_accused(shape: str) -> None:
    fleet = simulation.HealthyFleet(shape=shape)

    required, advisory, _ = simulation.shares(fleet, NUM_FLEETS, seed=11)

    assert required <= 2
    assert advisory <= 9


def test_one_slow_gpu_of_eight_is_found_by_the_fleets_own_past() -> None:
    fleet = simulation.HealthyFleet(slow=0.05)

    assert simulation.shares(fleet, NUM_FLEETS, seed=12)[2] == NUM_FLEETS


def test_a_slowness_under_what_could_be_shown_is_said_to_be() -> None:
    """A fleet that scatters by 4 % cannot show a GPU that is 5 % slow, and its outcomes say so."""
    import numpy as np

    fleet = simulation.HealthyFleet(spread=0.04, of_baseline=64)

    judged = simulation.judge_fleet(fleet, simulation.rules_of(2), np.random.default_rng(13))

    by_baseline = [item.outcome for item in judged if item.basis == "baseline" and item.is_required]
    assert min(outcome.minimum_detectable or 0.0 for outcome in by_baseline) > 0.05
