"""How often comparisons err: a subset, with fixed seeds, of benchmarks/comparison_errors.py."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from gpuproof.suites.ab.plan import AbOptions

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
simulated = import_module("comparison_errors")

COMPARISONS, DAYS = 1000, 150
MONTE_CARLO = 2 * (0.05 * 0.95 / COMPARISONS) ** 0.5
"""Two standard errors of a share of 5 %."""


@pytest.mark.parametrize("launches", [(3, 3), (5, 20)])
@pytest.mark.parametrize("name", list(simulated.INDEPENDENT))
def test_equal_runs_are_called_different_in_at_most_5_percent(name: str, launches: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    shapes = simulated.INDEPENDENT[name]
    wrong = sum(simulated.is_called(rng, shapes, launches, 0.0) for _ in range(COMPARISONS))
    assert wrong / COMPARISONS <= 0.05 + MONTE_CARLO


def test_a_true_change_is_shown_as_often_as_its_spread_promises() -> None:
    rng, shapes = np.random.default_rng(2), (simulated.normal(0.01), simulated.normal(0.01))
    shown = sum(simulated.is_called(rng, shapes, (8, 8), -0.02) for _ in range(COMPARISONS))
    assert shown / COMPARISONS == pytest.approx(simulated.promised_power(0.01, 8, -0.02), abs=0.02)


@pytest.mark.parametrize("name", list(simulated.ON_ONE_MACHINE))
def test_the_gate_calls_no_regression_that_is_none(name: str) -> None:
    rng, options = np.random.default_rng(3), AbOptions(max_regression=0.0)
    shape = simulated.ON_ONE_MACHINE[name]
    wrong = sum(simulated.a_day(rng, shape, 0.0, options)[0] for _ in range(DAYS))
    assert wrong <= 3, "at 0.3 % a day four in 150 are one case in 1,000"


@pytest.mark.parametrize("name", list(simulated.ON_ONE_MACHINE))
def test_the_gate_finds_3_percent(name: str) -> None:
    rng, options = np.random.default_rng(4), AbOptions(max_regression=0.0)
    shape = simulated.ON_ONE_MACHINE[name]
    found = sum(simulated.a_day(rng, shape, -0.03, options)[0] for _ in range(DAYS))
    assert found / DAYS >= 0.95 - 2 * (0.95 * 0.05 / DAYS) ** 0.5
