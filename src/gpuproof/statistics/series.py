"""What is the centre of one series, and how do two series differ, autocorrelation allowed for?

A series is what one process gave in order of time: step times of a window, or sampled readings that each
held for some seconds. Intervals are by moving-block bootstrap, and hold for that one process: they say
nothing about what another launch would give, and are marked so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpuproof.statistics.bootstrap import Centre, Resampled, expanded_interval, resample
from gpuproof.statistics.distributions import normal_quantile
from gpuproof.statistics.estimate import (
    FloatArray,
    Interval,
    Numbers,
    Unavailable,
    check_confidence,
    finite,
    welch_degrees_of_freedom,
)

NUM_RESAMPLES = 10_000
MIN_VALUES = 10
POWER = 0.8
"""The chance to show a difference of the smallest size that is called shown: the customary 80 %."""
MIN_BLOCKS = 10
"""Under this, the spread of the resamples is itself known to about a quarter only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """Values in order of time. `durations_s` weighs each by how long it held; None weighs all alike."""

    values: Numbers
    durations_s: Numbers | None = None

    def arrays(self) -> tuple[FloatArray, FloatArray | None]:
        """Return both as arrays.

        Raises:
            ValueError: a number is not finite, the lengths differ, or a duration is not above 0.
        """
        values = finite(self.values)
        if self.durations_s is None:
            return values, None
        durations = finite(self.durations_s)
        if durations.size != values.size:
            raise ValueError(f"{values.size} values with {durations.size} durations")
        if (durations <= 0).any():
            raise ValueError("every duration must be above 0 s")
        return values, durations


def interval_of_series(
    series: TimeSeries,
    *,
    centre: Centre = "median",
    confidence: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval | Unavailable:
    """Return the interval of the centre within one process, in the unit of the values.

    With durations, `centre` must be "mean", and is the time-weighted mean.

    Raises:
        ValueError: the series or the confidence is ill-formed, or durations go with another centre.
    """
    check_confidence(confidence)
    drawn = _resample(series, centre, num_resamples, np.random.default_rng(seed))
    if isinstance(drawn, Unavailable):
        return drawn
    low, high = expanded_interval(drawn.resamples, confidence, drawn.num_blocks - 1)
    return Interval(
        low=low,
        high=high,
        centre=drawn.statistic,
        confidence=confidence,
        method="moving-block bootstrap within one launch",
        num_launches=1,
        num_samples=len(series.values),
        between_launches=False,
    )


def interval_between(
    first: TimeSeries,
    second: TimeSeries,
    *,
    what: Literal["difference", "ratio"],
    centre: Centre = "mean",
    confidence: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval | Unavailable:
    """Return the interval of second − first, or of second / first, for two independent series.

    Otherwise as `interval_of_series`. There is no ratio where the centre of `first` may be 0 or less.
    """
    check_confidence(confidence)
    rng = np.random.default_rng(seed)
    samples = [first.arrays(), second.arrays()]
    if short := _first_reason(_too_few(values) for values, _ in samples):
        return short
    drawn = [
        resample(values, centre=centre, weights=weights, num_resamples=num_resamples, rng=rng)
        for values, weights in samples
    ]
    return _interval(drawn, what, confidence)


def smallest_shown(interval: Interval) -> float:
    """Return the difference that would have been shown 4 times in 5, in the unit of the interval of one.

    Half the interval's width, which a difference must exceed to be shown, and what chance takes from one
    difference in five: 0.84 standard errors.
    """
    half_width = (interval.high - interval.low) / 2
    return half_width * (1 + normal_quantile(POWER) / normal_quantile((1 + interval.confidence) / 2))


def _resample(
    series: TimeSeries, centre: Centre, num_resamples: int, rng: np.random.Generator
) -> Resampled | Unavailable:
    values, weights = series.arrays()
    if reason := _too_few(values):
        return Unavailable(reason=reason)
    drawn = resample(values, centre=centre, weights=weights, num_resamples=num_resamples, rng=rng)
    reason = _too_alike(drawn)
    return Unavailable(reason=reason) if reason else drawn


def _too_few(values: FloatArray) -> str | None:
    if values.size >= MIN_VALUES:
        return None
    return f"too few values for an interval (at least {MIN_VALUES} needed, {values.size} measured)"


def _too_alike(drawn: Resampled) -> str | None:
    if drawn.num_blocks >= MIN_BLOCKS:
        return None
    return (
        f"{drawn.num_values:,} values, each so like the one before that they count as "
        f"{drawn.num_blocks} independent ones (at least {MIN_BLOCKS} needed): "
        "the series drifts or is too short"
    )


def _first_reason(reasons: Iterable[str | None]) -> Unavailable | None:
    """Say which of two series gives no interval."""
    named = zip(("first", "second"), reasons, strict=True)
    return next((Unavailable(reason=f"{name} series: {why}") for name, why in named if why), None)


def _interval(
    pair: Sequence[Resampled], what: Literal["difference", "ratio"], confidence: float
) -> Interval | Unavailable:
    if reason := _first_reason(map(_too_alike, pair)):
        return reason
    first, second = pair
    if what == "ratio" and min(first.statistic, float(first.resamples.min())) <= 0:
        return Unavailable(reason="no ratio: the first series is not clearly above 0")
    return _combine(first, second, what, confidence)


def _combine(
    first: Resampled, second: Resampled, what: Literal["difference", "ratio"], confidence: float
) -> Interval:
    if what == "difference":
        centre, resamples = second.statistic - first.statistic, second.resamples - first.resamples
    else:
        centre, resamples = second.statistic / first.statistic, second.resamples / first.resamples
    low, high = expanded_interval(resamples, confidence, _degrees_of_freedom(first, second))
    return Interval(
        low=low,
        high=high,
        centre=centre,
        confidence=confidence,
        method=f"moving-block bootstrap of a {what}",
        num_launches=2,
        num_samples=first.num_values + second.num_values,
        between_launches=False,
    )


def _degrees_of_freedom(first: Resampled, second: Resampled) -> float:
    """Return Welch and Satterthwaite's degrees of freedom, by the blocks that each series has."""
    variances = [float(series.resamples.var()) for series in (first, second)]
    freedoms = [series.num_blocks - 1 for series in (first, second)]
    if sum(variances) == 0:
        return min(freedoms)
    return welch_degrees_of_freedom(variances, freedoms)
