"""How often rules are wrong, on few simulated fleets: `benchmarks/rules_on_fleets.py` counts thousands."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from gpuproof.statistics.prediction import HealthyShape, HealthySpread, alike_reach

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
simulation = import_module("rules_on_fleets")

NUM_FLEETS = 60


@pytest.mark.parametrize(
    ("shape", "alike"),
    [
        ("normal", 0.0),
        *(
            pytest.param(shape, 0.0, marks=pytest.mark.long)
            for shape in ("t4", "slow tail", "wandering", "rounded")
        ),
        ("slow tail", 0.95),
    ],
)
def test_a_healthy_fleet_is_seldom_accused(shape: str, alike: float) -> None:
    seen = simulation.count(simulation.HealthyFleet(shape=shape, alike=alike), NUM_FLEETS, seed=11)

    assert seen.required <= 2
    assert seen.undecided <= 2
    assert seen.advisory <= 9


@pytest.mark.parametrize(("tests", "alike"), [(6, 0.95), pytest.param(2, 0.0, marks=pytest.mark.long)])
def test_a_gpu_that_is_slow_in_two_tests_is_found_by_the_fleets_own_past(tests: int, alike: float) -> None:
    fleet = simulation.HealthyFleet(slow=0.05, slow_tests=tests, alike=alike, of_baseline=64)

    assert simulation.count(fleet, NUM_FLEETS, seed=12).found >= NUM_FLEETS - 1


def test_a_small_baseline_fails_a_slow_gpu_since_its_healthy_peers_tell_of_the_tail_too() -> None:
    """Of 16 GPUs whose tests are alike: by the baseline alone it is failed in half of the cases."""
    seen = simulation.count(simulation.HealthyFleet(slow=0.05, alike=0.95), NUM_FLEETS, seed=12)

    assert seen.found >= 0.7 * NUM_FLEETS
    assert seen.doubted >= NUM_FLEETS - 1


@pytest.mark.long
def test_peers_with_a_long_tail_are_seldom_said_to_stand_apart() -> None:
    """At a spread of 2 %, where no least difference helps; before, it was so in a fifth of fleets."""
    fleet = simulation.HealthyFleet(shape="longer tail", spread=0.02)

    assert simulation.count(fleet, 2 * NUM_FLEETS, seed=15).advisory <= 0.1 * 2 * NUM_FLEETS


def test_what_all_tests_of_a_subject_share_is_allowed_a_heavy_tail() -> None:
    """By hand, Student's t of 4 degrees over the root of 2: 5.598 is exceeded in 0.25 %, 3.747 in 1 %."""
    spread = HealthySpread(centre=0.0, deviation=1.0, degrees=99.0, num_subjects=100)

    def reach(alike: float) -> float:
        shape = HealthyShape(num_known=100.0, alike=alike, skewness=0.0)
        return float(alike_reach(spread, error_rate=0.0025, shape=shape) / (1.03 * 1.01**0.5))

    assert reach(1.0) == pytest.approx(5.598 / 2**0.5, rel=1e-3)
    assert reach(0.5) == pytest.approx(3.747 / 2**0.5, rel=1e-3)
    assert reach(0.1) == reach(0.0) == pytest.approx(2.132 / 2**0.5, rel=1e-3)


def test_a_slowness_under_what_could_be_shown_is_said_to_be() -> None:
    """A fleet that scatters by 4 % cannot show a GPU that is 5 % slow, and its outcomes say so."""
    import numpy as np

    fleet = simulation.HealthyFleet(spread=0.04, of_baseline=64)

    judged = simulation.judge_fleet(fleet, simulation.rules_of(2), np.random.default_rng(13))

    by_baseline = [item.outcome for item in judged if item.basis == "baseline" and item.is_required]
    assert min(outcome.minimum_detectable or 0.0 for outcome in by_baseline) > 0.05
