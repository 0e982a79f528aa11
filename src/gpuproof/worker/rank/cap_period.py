"""The period of a power cap's controller, by the step times of a window, as `statistics.power_cap` has it.

That module's method without numpy, which a node need not have. It takes 5 to 10 ms, which a device that is
given its work ahead does not notice.
"""

from __future__ import annotations

import cmath
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import linear_regression

BINS = 512
"""Parts of a window in which a period is looked for; a power of two."""
PERIODIC = 0.5
"""Mean autocorrelation at a period and its multiples from which it is one …"""
FUNDAMENTAL = 0.5
"""… and the share of the best score that the shortest lag has which is the period."""
SAME_PERIOD = 0.15
FLAT = 1e-3
"""Rates that differ by less show how a clock is rounded, and no controller."""


def period_of_ends(ends_s: Sequence[float]) -> float | None:
    """Return the period of steps that ended at these times of a window, in seconds; None if none shows."""
    if len(ends_s) < 2 or ends_s[-1] <= 0:
        return None
    every_s = ends_s[-1] / min(BINS, len(ends_s) // 2)
    done = [_steps_done(ends_s, place * every_s) for place in range(round(ends_s[-1] / every_s) + 1)]
    lag = _lag([late - early for early, late in pairwise(done)])
    return None if lag is None else lag * every_s


def _steps_done(ends_s: Sequence[float], moment_s: float) -> float:
    """Return the steps until a moment, with the share of the one that was under way."""
    place = min(bisect_left(ends_s, moment_s), len(ends_s) - 1)
    begin_s = ends_s[place - 1] if place else 0.0
    return place + min(1.0, (moment_s - begin_s) / (ends_s[place] - begin_s))


def _lag(values: Sequence[float]) -> int | None:
    most = len(values) // 4
    if most < 4 or max(values) - min(values) < FLAT * max(values):
        return None
    correlation = _autocorrelation(values, most)
    falls = next((lag for lag, value in enumerate(correlation) if value < 0), most)
    scores = {
        lag: _score(correlation, lag)
        for lag in range(falls + 1, most)
        if correlation[lag] > 0 and correlation[lag] >= max(correlation[lag - 1], correlation[lag + 1])
    }
    best = max(scores.values(), default=0.0)
    if best < PERIODIC:
        return None
    first = next(lag for lag, score in scores.items() if score >= FUNDAMENTAL * best)
    return max((lag for lag in scores if first <= lag <= (1 + SAME_PERIOD) * first), key=lambda x: scores[x])


def _autocorrelation(values: Sequence[float], most: int) -> list[float]:
    """Return it at lags from 0 to `most`, without a trend, with components weighted by their frequency."""
    line = linear_regression(range(len(values)), values)
    away = [value - line.intercept - line.slope * place for place, value in enumerate(values)]
    size = 2 * BINS
    waves = _fourier([complex(value) for value in away] + [0j] * (size - len(away)))
    power = [abs(wave) ** 2 * min(order, size - order) for order, wave in enumerate(waves)]
    products = [product.real for product in _fourier([complex(value) for value in power])[: most + 1]]
    return [product / products[0] / (1 - lag / len(values)) for lag, product in enumerate(products)]


def _fourier(values: list[complex]) -> list[complex]:
    """Return the discrete Fourier transform of a power of two of values (Cooley and Tukey 1965)."""
    if len(values) == 1:
        return values
    even, odd = _fourier(values[::2]), _fourier(values[1::2])
    turned = [cmath.rect(1, -2 * cmath.pi * k / len(values)) * value for k, value in enumerate(odd)]
    sums = [one + other for one, other in zip(even, turned, strict=True)]
    return sums + [one - other for one, other in zip(even, turned, strict=True)]


def _score(correlation: Sequence[float], lag: int) -> float:
    """Return the mean of the autocorrelation at a lag and near each multiple, as periods differ in length."""
    peaks = [correlation[lag]]
    for multiple in range(2 * lag, len(correlation), lag):
        near = max(1, multiple // 20)
        peaks.append(max(correlation[multiple - near : multiple + near + 1]))
    return sum(peaks) / len(peaks)
