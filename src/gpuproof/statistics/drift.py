"""Did steps become slower or faster from the start of a window to its end, by more than noise?

The last third of the window is held against the first. A change that is both certain and large enough to
matter is a drift: the window was not steady, and its centre depends on when it was taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuproof.statistics.estimate import FloatArray, Interval, Numbers, Unavailable, finite
from gpuproof.statistics.series import MIN_VALUES, NUM_RESAMPLES, TimeSeries, interval_between


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The change of the mean from the first third of a window to the last."""

    relative_change: float
    """Last over first, minus 1: 0.02 is 2 % more at the end."""
    low: float
    high: float
    confidence: float
    at_least: float
    drifting: bool
    """Whether the interval excludes 0 and the change is `at_least` so large, in either direction."""


def drift(
    values: Numbers,
    *,
    at_least: float = 0.01,
    confidence: float = 0.99,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Drift | Unavailable:
    """Compare the means of the last and first third of `values`, given in order of time.

    The confidence is 99 % because intervals within one process run short where neighbouring steps are much
    alike, and a steady window should seldom be called drifting.

    Raises:
        ValueError: a value is not finite, or the confidence is not between 0 and 1.
    """
    series = finite(values)
    third = series.size // 3
    if third < MIN_VALUES:
        return Unavailable(
            reason=f"too few values to see a drift (needs {3 * MIN_VALUES}, have {series.size})"
        )
    first, last = _thirds_without_slope(series)
    ratio = interval_between(
        TimeSeries(values=first),
        TimeSeries(values=last),
        what="ratio",
        confidence=confidence,
        num_resamples=num_resamples,
        seed=seed,
    )
    return ratio if isinstance(ratio, Unavailable) else _judged(ratio, at_least)


def _thirds_without_slope(series: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Take the window's straight line out but keep each third's mean, or the drift would count as noise."""
    third = series.size // 3
    time = np.arange(series.size) - (series.size - 1) / 2
    line = time * (time @ series) / (time @ time)
    first, last = line[:third], line[-third:]
    return series[:third] - (first - first.mean()), series[-third:] - (last - last.mean())


def _judged(ratio: Interval, at_least: float) -> Drift:
    change, low, high = ratio.centre - 1, ratio.low - 1, ratio.high - 1
    return Drift(
        relative_change=change,
        low=low,
        high=high,
        confidence=ratio.confidence,
        at_least=at_least,
        drifting=not low <= 0 <= high and abs(change) >= at_least,
    )
