"""Readings of a GPU at work and at none, as drivers give them: whole per cents, autocorrelated."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = tuple[Floats, Floats, Floats]
LIMIT_W: Final = 700.0
HEALTHY: Final = ("training", "memory_bound", "launch_bound", "idle", "data_starved", "barriers", "inference")
"""Kinds of work that no rule may take for a hang."""


def wander(draw: np.random.Generator, n: int, *, mean: float, spread: float) -> Floats:
    """An autocorrelated series (φ 0.97) around a mean."""
    steps = draw.normal(0.0, spread * np.sqrt(1 - 0.97**2), n)
    values = np.empty(n)
    level = draw.normal(0.0, spread)
    for i in range(n):
        level = 0.97 * level + steps[i]
        values[i] = level
    return mean + values


def trace(kind: str, draw: np.random.Generator, *, n: int, interval_s: float) -> Columns:
    """Return utilisation, power and memory traffic of `n` readings."""
    time_s = np.arange(n) * interval_s
    means = {
        "training": (98.0, 0.75, 45.0),
        "memory_bound": (100.0, 0.38, 92.0),
        "launch_bound": (99.5, 0.30, 6.0),
        "idle": (0.0, 0.12, 0.0),
        "data_starved": (45.0, 0.35, 15.0),
        "barriers": (100.0, 0.70, 40.0),
        "inference": (97.0, 0.33, 35.0),
        "hung": (100.0, 0.22, 0.0),
    }
    util_mean, power_share, traffic_mean = means[kind]
    still = kind in ("idle", "hung")
    util = wander(draw, n, mean=util_mean, spread=0.2 if still else 3.0)
    power = wander(draw, n, mean=power_share, spread=0.01 if still else 0.06) * LIMIT_W
    traffic = wander(draw, n, mean=traffic_mean, spread=0.1 if still else traffic_mean * 0.1)
    if kind == "barriers":  # eight seconds of each twenty, every rank but the first waits for it
        waits = time_s % 20.0 >= 12.0
        util[waits], power[waits], traffic[waits] = 100.0, 0.22 * LIMIT_W, 0.0
    return np.clip(np.rint(util), 0, 100), np.maximum(power, 30.0), np.clip(np.rint(traffic), 0, 100)
