"""What ±1 % costs by precision: a few studies of the benchmark, with fixed seeds."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
cost: Any = import_module("precision_cost")
NUM_STUDIES = 12
FIXED_STEPS = cost.FIXED_LAUNCHES * (cost.FIXED_STEPS + cost.WARMUP_STEPS)


def test_short_windows_reach_one_percent_in_a_third_of_the_time_where_fifty_launches_overshoot_it() -> None:
    """Windows of at most 200 steps; nine of ten studies and more reach it, and as many hold the truth."""
    overshooting = 0
    drawn: list[Any] = []
    for _, shape, process in cost.cases():
        rng = np.random.default_rng(3)
        fixed = [cost.fixed(rng, shape, process).half_width for _ in range(NUM_STUDIES)]
        if np.median(fixed) > cost.OVERSHOOT:
            continue
        overshooting += 1
        studies = [
            cost.by_precision(rng, shape, process, step_s=0.01, limit_s=2.0) for _ in range(NUM_STUDIES)
        ]
        assert np.median([study.num_steps for study in studies]) <= FIXED_STEPS / 3
        drawn += studies
    assert overshooting >= 6
    assert np.mean([study.half_width <= cost.TARGET for study in drawn]) >= 0.9
    assert np.mean([study.held for study in drawn]) >= 0.9
