"""Shapes of step times that windows have had, simulated: what rules, intervals and stops are tried on.

Each shape gives a matrix, a row a window and a column a step, about a level of 1; `Shape.mean` is the mean
that an endless window would have. Fixed seeds give the same windows again; tests draw a few of them, and
`benchmarks/unsteady_windows.py` as many as the figures in docs/how-we-measure.md stand on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, expm1, log1p, sqrt

import numpy as np
import scipy
from numpy.typing import NDArray

from gpuproof.statistics.estimate import FloatArray

Generator = np.random.Generator
Draw = Callable[[Generator, int, int], FloatArray]
"""Of a generator, a number of windows and the steps of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A shape and what its steps come to in the long run."""

    draw: Draw
    mean: float = 1.0


def white(rng: Generator, windows: int, steps: int) -> FloatArray:
    """Independent normal noise of deviation 1."""
    return rng.standard_normal((windows, steps))


def autoregressive(phi: float) -> Draw:
    """Normal noise of deviation 1 in which neighbours are correlated by `phi`."""

    def draw(rng: Generator, windows: int, steps: int) -> FloatArray:
        noise = rng.standard_normal((windows, steps))
        noise[:, 1:] *= sqrt(1 - phi**2)
        return np.asarray(scipy.signal.lfilter([1.0], [1.0, -phi], noise, axis=1))

    return draw


def noisy(deviation: float, noise: Draw = white) -> Shape:
    """A level of 1 with noise."""
    return Shape(draw=lambda rng, windows, steps: 1 + deviation * noise(rng, windows, steps))


def quantised(deviation: float, *, unit: float) -> Shape:
    """A flat window read from a clock that counts in `unit`."""

    def draw(rng: Generator, windows: int, steps: int) -> FloatArray:
        level = 1 + unit * (rng.random((windows, 1)) - 0.5)
        counted: FloatArray = np.round((level + deviation * white(rng, windows, steps)) / unit) * unit
        return counted

    return Shape(draw=draw)


def log_normal(shape: float, deviation: float, phi: float = 0.0) -> Shape:
    """Skewed noise about a median of 1, with this standard deviation, neighbours correlated by `phi`."""
    noise = autoregressive(phi)
    spread = sqrt(expm1(shape**2) * exp(shape**2))

    def draw(rng: Generator, windows: int, steps: int) -> FloatArray:
        return 1 + deviation * np.expm1(shape * noise(rng, windows, steps)) / spread

    return Shape(draw=draw, mean=1 + deviation * expm1(shape**2 / 2) / spread)


def rare(share: float, times: float, *, deviation: float = 0.01) -> Shape:
    """A share of the steps, each by chance, takes `times` as long."""

    def draw(rng: Generator, windows: int, steps: int) -> FloatArray:
        slow = rng.random((windows, steps)) < share
        return (1 + deviation * white(rng, windows, steps)) * np.where(slow, times, 1.0)

    return Shape(draw=draw, mean=1 + share * (times - 1))


def stalls(every: int, times: float, *, deviation: float = 0.01) -> Shape:
    """One step in `every` takes `times` as long, in regular turns that begin anywhere."""

    def draw(rng: Generator, windows: int, steps: int) -> FloatArray:
        begin = rng.integers(0, every, size=(windows, 1))
        slow = (np.arange(steps) + begin) % every == 0
        return (1 + deviation * white(rng, windows, steps)) * np.where(slow, times, 1.0)

    return Shape(draw=draw, mean=1 + (times - 1) / every)


def first_longer(by: float, *, deviation: float) -> Shape:
    """The first step takes longer by the share `by`: it waits for an empty queue, and no other does."""

    def draw(rng: Generator, windows: int, steps: int) -> FloatArray:
        times = 1 + deviation * white(rng, windows, steps)
        times[:, 0] *= 1 + by
        return times

    return Shape(draw=draw)


def bursts(share: float, times: float, *, length: int = 5) -> Shape:
    """Slow steps come `length` at a time."""

    def draw(rng: Generator, windows: int, steps: int) -> FloatArray:
        begun = rng.random((windows, steps + length)) < -log1p(-share) / length
        slow = scipy.signal.lfilter(np.ones(length), [1.0], begun, axis=1)[:, length:] > 0.5
        return (1 + 0.01 * white(rng, windows, steps)) * np.where(slow, times, 1.0)

    return Shape(draw=draw, mean=1 + share * (times - 1))


def spells(rng: Generator, windows: int, steps: int, *, share: float, length: int) -> NDArray[np.bool_]:
    """Say which steps are slow: spells of `length` steps in the mean, `share` of all, that end by chance."""
    is_slow = np.empty((windows, steps), dtype=np.bool_)
    now = rng.random(windows) < share
    for step in range(steps):
        is_slow[:, step] = now
        chance = rng.random(windows)
        now = np.where(now, chance >= 1 / length, chance < share / (1 - share) / length)
    return is_slow


def levels(level: Callable[[Generator, int, FloatArray], FloatArray], noise: Shape) -> Draw:
    """Noise times a level, which `level` gives of the places in the window (0 to 1) of its steps."""

    def draw(rng: Generator, windows: int, steps: int) -> FloatArray:
        place = (np.arange(steps) + 0.5) / steps
        return noise.draw(rng, windows, steps) * level(rng, windows, place[np.newaxis])

    return draw


def cold_start(rng: Generator, windows: int, place: FloatArray) -> FloatArray:
    """The first 15 % of the steps take twice as long."""
    return np.broadcast_to(np.where(place < 0.15, 2.0, 1.0), (windows, place.size))


def clock_down(rng: Generator, windows: int, place: FloatArray) -> FloatArray:
    """The clock goes down by 20 % at 80 % of the window."""
    return np.broadcast_to(np.where(place >= 0.8, 1 / 0.8, 1.0), (windows, place.size))


def one_step(rng: Generator, windows: int, place: FloatArray) -> FloatArray:
    """10 % slower, or faster, from somewhere between a sixth and five sixths of the window on."""
    at = rng.uniform(1 / 6, 5 / 6, size=(windows, 1))
    return np.where(place >= at, np.where(rng.random((windows, 1)) < 0.5, 1.1, 1 / 1.1), 1.0)


def staircase(rng: Generator, windows: int, place: FloatArray) -> FloatArray:
    """Up and down by 10 % at three to six places, each level at least a tenth of the window long."""
    count = rng.integers(3, 7, size=(windows, 1))
    phase = rng.random((windows, 1))
    return 1 + 0.1 * (np.floor(place * count + phase) % 2)


def sawtooth(rng: Generator, windows: int, place: FloatArray) -> FloatArray:
    """Teeth of 10 % from crest to foot and of a quarter to the whole of the window, up or down."""
    period = rng.uniform(0.25, 1.0, size=(windows, 1))
    tooth = (place / period + rng.random((windows, 1))) % 1.0
    return 1 + 0.1 * np.where(rng.random((windows, 1)) < 0.5, tooth, 1 - tooth)


def fast_sawtooth(rng: Generator, windows: int, place: FloatArray) -> FloatArray:
    """Teeth of 10 % and a quarter of the window: the hardest of the sawtooths."""
    return 1 + 0.1 * ((4 * place + rng.random((windows, 1))) % 1.0)


def ramp(rng: Generator, windows: int, place: FloatArray) -> FloatArray:
    """5 % more at the end than at the beginning, in a line."""
    return np.broadcast_to(1 + 0.05 * place, (windows, place.size))


def with_stop(share: float, noise: Shape) -> Draw:
    """One step, anywhere, takes as much longer as is `share` of the whole window."""

    def draw(rng: Generator, windows: int, steps: int) -> FloatArray:
        times = noise.draw(rng, windows, steps)
        where = rng.integers(0, steps, size=windows)
        times[np.arange(windows), where] += share / (1 - share) * times.sum(axis=1)
        return times

    return draw


def unsteady(noise: Shape) -> Mapping[str, Draw]:
    """The shapes that must never pass for steady, with this noise on top."""
    return {
        "cold start": levels(cold_start, noise),
        "clock down": levels(clock_down, noise),
        "one step of 10 %": levels(one_step, noise),
        "staircase of 10 %": levels(staircase, noise),
        "sawtooth of 10 %": levels(sawtooth, noise),
        "four teeth of 10 %": levels(fast_sawtooth, noise),
        "one stop of 5 %": with_stop(0.05, noise),
    }


STEADY: Mapping[str, tuple[Shape, int]] = {
    "normal, 1 %": (noisy(0.01), 10),
    "normal, 0.1 %": (noisy(0.001), 10),
    "log-normal, 1 %": (log_normal(0.5, 0.01), 60),
    "AR(1) 0.6, 1 %": (noisy(0.01, autoregressive(0.6)), 60),
    "AR(1) 0.9, 1 %": (noisy(0.01, autoregressive(0.9)), 500),
    "counted in 2 %": (quantised(0.005, unit=0.02), 60),
    "counted in 1 %": (quantised(0.003, unit=0.01), 60),
}
"""Flat windows, each with the number of steps from which it must pass for steady."""

CARRIED: Mapping[str, Shape] = {
    "normal, 1 %": noisy(0.01),
    "1 % of steps × 10": rare(0.01, 10),
    "2 % of steps × 20": rare(0.02, 20),
    "AR(1) 0.9, 5 %": noisy(0.05, autoregressive(0.9)),
    "log-normal 0.5, AR(1) 0.6": log_normal(0.5, 0.03, 0.6),
    "log-normal 1.0, AR(1) 0.6": log_normal(1.0, 0.3, 0.6),
    "2 % of steps × 20 in bursts of 5": bursts(0.02, 20),
    "a stall of × 10 every 300 steps": stalls(300, 10),
    "first step 1.5 % longer, 0.02 %": first_longer(0.015, deviation=0.0002),
}
"""Steady in the long run: what intervals of the mean are tried on."""
