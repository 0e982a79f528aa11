"""Power caps' controllers, simulated: step times of windows whose rate is turned up and down.

Periods differ in their rate and in their length by the same scatter, steps by 1 % besides, and a window
begins anywhere in a period. Nothing here is a figure of any device. Tests draw a few windows, and
`benchmarks/power_cap_windows.py` many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from gpuproof.statistics.estimate import FloatArray
from gpuproof.statistics.power_cap import NEEDED_PERIODS, NEEDED_S, PowerCapWindow, judge_power_cap
from gpuproof.worker.engine.loop import TimeLimit
from gpuproof.worker.rank.power_cap import CapMeter, LongEnoughAtCap

STEPS_A_PERIOD = 60
STEP_NOISE = 0.01
WAVES: Mapping[str, Callable[[FloatArray], FloatArray]] = {
    "saw-tooth": lambda phase: 0.5 - phase,
    "sine": lambda phase: 0.5 * np.sin(2 * np.pi * phase),
    "two levels": lambda phase: np.where(phase < 0.5, -0.5, 0.5),
}
"""The rate over a period (0 to 1), from crest to foot 1, its mean 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """How a power cap turns the rate."""

    wave: str
    period_s: float
    depth: float
    scatter: float
    """Deviation of the rates, and of the lengths, of periods."""
    drift: float = 0.0
    """By which share of their mean steps become longer over the window."""
    drop: float = 0.0
    """By which share they do at once, somewhere between 20 and 80 % of the window."""

    @property
    def step_s(self) -> float:
        """The mean step of an endless window."""
        return self.period_s / STEPS_A_PERIOD

    def draw(self, rng: np.random.Generator, window_s: float) -> FloatArray:
        """Return the step times of one window."""
        most = int(1.5 * window_s / self.period_s) + 6
        lengths = self.period_s * np.maximum(0.3, 1 + self.scatter * rng.standard_normal(most))
        ends = np.cumsum(lengths) - rng.random() * self.period_s
        rates = 1 + self.scatter * rng.standard_normal(most)
        tick_s = self.step_s / 4
        time_s = (np.arange(int(window_s / tick_s)) + 0.5) * tick_s
        turn = np.searchsorted(ends, time_s, side="right")
        wave = WAVES[self.wave](1 - (ends[turn] - time_s) / lengths[turn])
        place = time_s / window_s
        slower = 1 + self.drift * (place - 0.5) + self.drop * (place > rng.uniform(0.2, 0.8))
        done = np.cumsum((1 + self.depth * wave) * rates[turn] / slower) * tick_s / self.step_s
        ended_s = np.interp(np.arange(int(done[-1])), np.concatenate([[0.0], done]), np.append(0.0, time_s))
        steps = np.diff(ended_s)
        return np.asarray(steps * (1 + STEP_NOISE * rng.standard_normal(steps.size)))

    def changing(self, *, drift: float = 0.0, drop: float = 0.0) -> Controller:
        """Return it with a level that changes."""
        return replace(self, drift=drift, drop=drop)


def measure(
    controller: Controller, rng: np.random.Generator, *, periods: float = NEEDED_PERIODS
) -> PowerCapWindow:
    """Judge a window as it is measured: of that many periods, and of `NEEDED_S` where none can be shown."""
    window_s = (periods + rng.random()) * controller.period_s
    window = judge_power_cap(controller.draw(rng, window_s))
    assert window is not None
    if window.period_s is None and window_s < NEEDED_S <= periods / NEEDED_PERIODS * NEEDED_S:
        window = judge_power_cap(controller.draw(rng, NEEDED_S + rng.random()))
        assert window is not None
    return window


class AlwaysCapped(CapMeter):
    """A device that is at its cap all the time."""

    def __init__(self) -> None:
        self._looked_s = 0.0

    @property
    def capped_s(self) -> float:
        """Return all of the time so far."""
        return self._looked_s or 0.0

    def look(self, elapsed_s: float, *, every_s: float = 0.0) -> None:
        """Take note of the time."""
        self._looked_s = elapsed_s


def window_of(
    steps_s: FloatArray, *, asked_s: float = 1.0, limit_s: float = 60.0
) -> tuple[float, LongEnoughAtCap]:
    """Return how long the worker's window of these steps lasts at the cap, and its plan."""
    times_s = steps_s.tolist()
    ends_s = [0.0, *accumulate(times_s)]
    asked = TimeLimit(asked_s, agree=int, step_s=times_s[0])
    plan, done = LongEnoughAtCap(asked, AlwaysCapped(), limit_s=limit_s, agree=int), 0
    while more := plan.next_steps(done=done, elapsed_s=ends_s[done], capacity=10_000):
        plan.take(times_s[done : done + more])
        done += more
    return ends_s[done], plan
