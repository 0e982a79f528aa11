"""One series in order of time: its centre, how two of them differ, and whether it kept one level.

A series is what one process gave: step times of a window, or sampled readings that each held for some
seconds. Intervals allow for autocorrelation (moving-block bootstrap), and hold for that one process: they
say nothing about what another launch would give, and are marked so.

Three things spoil a window and leave its middle step as it is: a level that changed (a cold start, a clock
that went down, a ramp, a sawtooth), a stop inside a step, and too few steps that scatter too much to tell.
The median of a twelfth of the window is held against that of any other twelfth. What is to be found is a
sawtooth of a quarter of the window and 10 % from crest to foot, and a stop of a twentieth of the window.
`benchmarks/unsteady_windows.py` shows how often each is found, and how often a flat window is suspected.

>>> judge_steadiness([1.0] * 80 + [1.25] * 20).verdict
'unsteady'
>>> judge_steadiness([1.0, 1.01, 0.99, 1.0] * 15).verdict
'steady'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from gpuproof.statistics.bootstrap import Centre, Resampled, expanded_interval, resample
from gpuproof.statistics.dispersion import NORMAL_MAD
from gpuproof.statistics.distributions import normal_quantile
from gpuproof.statistics.estimate import (
    FloatArray,
    Interval,
    Numbers,
    Unavailable,
    check_confidence,
    finite,
    median,
    welch_degrees_of_freedom,
)

NUM_RESAMPLES = 10_000
MIN_VALUES = 10
POWER = 0.8
"""The chance to show a difference of the smallest size that is called shown: the customary 80 %."""
MIN_BLOCKS = 10
"""Under this, the spread of the resamples is itself known to about a quarter only."""
SteadinessVerdict = Literal["steady", "unsteady", "cannot tell"]
MIN_STEPS = 10
"""Of fewer, a sawtooth of a quarter of the window has no two steps on a tooth."""
PARTS = 12
"""A tooth of a quarter of the window is three of them long."""
MIN_IN_PARTS = 20
"""Of fewer steps, each is a part of its own: two of them would hide a tooth."""
PLACES = 4 * PARTS
"""Where parts begin. Parts that overlap find a crest wherever it lies."""
SAME_LEVEL = 0.05
"""Levels may differ by this share of the median step. A sawtooth of 10 % makes them
differ by more in 99.7 % of windows, flat ones with a deviation of 1 % by less in 98 %."""
OUTLYING = 1.25
"""Steps over this many medians are outlying: what they take beyond a median is lost time."""
LOST_SHARE = 0.04
"""Share of the window's time; a stop of 5 % of the window is found with what noise there is."""
MIN_TURNS, MOST_STEPS_OF_A_TURN, EXPLAINED = 8, 32, 0.25
"""A pace that outlying steps keep is looked for in at least eight turns, and leaves at most a quarter of what
they take: `benchmarks/unsteady_windows.py` shows how seldom stops by chance seem to keep one."""
STUDENTIZED_RANGE = 6.0
"""Range over deviation of some 30 independent normal values, exceeded in 1 % of cases."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal values: √(π/2)."""


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
    reason = _too_uniform(drawn)
    return Unavailable(reason=reason) if reason else drawn


def _too_few(values: FloatArray) -> str | None:
    if values.size >= MIN_VALUES:
        return None
    return f"too few values for an interval (at least {MIN_VALUES} needed, {values.size} measured)"


def _too_uniform(drawn: Resampled) -> str | None:
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
    if reason := _first_reason(map(_too_uniform, pair)):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """How far levels differ in one window, and how much of its time outlying steps took."""

    verdict: SteadinessVerdict
    """Of the levels; "cannot tell" where noise alone may make them differ as far as they do."""
    level_spread: float
    """Highest less lowest median of a twelfth of the window, over the median step."""
    by_noise: float
    """As far may levels differ by the scatter of neighbouring steps alone; 0 where parts are single steps."""
    lowest_at: float
    """Where in the window (0 to 1) the part with the shortest steps has its middle."""
    highest_at: float
    lost_share: float
    """What outlying steps took beyond the median step, over the time of all steps."""
    num_outlying: int
    period: int | None = None
    """After so many steps the outlying ones come again at the same places, where nearly all of them do."""

    @property
    def stalled(self) -> bool:
        """Whether outlying steps took a share of the time that matters."""
        return self.lost_share > LOST_SHARE


def judge_steadiness(times_s: Numbers) -> Steadiness | None:
    """Judge the step times of a window, in order; None for under `MIN_STEPS` steps, or steps of no time.

    Raises:
        ValueError: a time is not finite.
    """
    times = finite(times_s)
    middle = median(times) if times.size >= MIN_STEPS else 0.0
    if middle <= 0:
        return None
    length = _length_of_parts(times.size)
    begins = _begins_of_parts(times.size, length)
    levels = np.median(sliding_window_view(times, length)[begins], axis=1) / middle
    lowest, highest = int(levels.argmin()), int(levels.argmax())
    spread = float(levels[highest] - levels[lowest])
    by_noise = _spread_by_noise(times / middle, length)
    outlying = times[times > OUTLYING * middle]
    lost_share = float((outlying - middle).sum() / times.sum())
    if spread <= SAME_LEVEL:
        verdict: SteadinessVerdict = "steady"
    else:
        verdict = "unsteady" if length > 1 and spread > by_noise else "cannot tell"
    return Steadiness(
        verdict=verdict,
        level_spread=spread,
        by_noise=by_noise,
        lowest_at=float((begins[lowest] + length / 2) / times.size),
        highest_at=float((begins[highest] + length / 2) / times.size),
        lost_share=lost_share,
        num_outlying=outlying.size,
        period=_period(times, lost_share) if lost_share > LOST_SHARE else None,
    )


def _period(times: FloatArray, lost_share: float) -> int | None:
    """Return the fewest steps of a turn whose places have levels from which few steps are far away."""
    for period in range(2, min(times.size // MIN_TURNS, MOST_STEPS_OF_A_TURN) + 1):
        places = (np.sort(times[place::period]) for place in range(period))
        levels = np.array([steps[steps.size // 2] for steps in places])  # of one step: no mean of two kinds
        away = np.abs(times / levels[np.arange(times.size) % period] - 1)
        if away[away > OUTLYING - 1].sum() < EXPLAINED * lost_share * times.size:
            return period
    return None


def _length_of_parts(num_steps: int) -> int:
    """Return an even number, so that of steps which are long and short in turns each part has as many."""
    return 2 * int(num_steps / PARTS / 2 + 0.5) if num_steps >= MIN_IN_PARTS else 1


@lru_cache(maxsize=16)
def _begins_of_parts(num_steps: int, length: int) -> NDArray[np.int64]:
    """Return where parts begin; windows of a study are of one size."""
    return np.unique(np.linspace(0, num_steps - length, PLACES).round().astype(np.int64))


def _spread_by_noise(times: FloatArray, length: int) -> float:
    """Return how far medians of `length` steps differ by the scatter within them.

    A step's distance from its own part's median shows the scatter without the level, and the correlation of
    neighbours' distances how much of the scatter medians keep: √((1 + r)/(1 − r)) for AR(1). Both are
    corrected for the part's median being of the same steps.
    """
    if length == 1:
        return 0.0
    whole = times[: times.size - times.size % length].reshape(-1, length)
    away = (whole - np.median(whole, axis=1, keepdims=True)).ravel()
    deviation = median(np.abs(away)) / NORMAL_MAD * sqrt(length / (length - 1))
    held = np.clip(away, -3 * deviation, 3 * deviation)
    total = float(held @ held)
    correlation = float(held[1:] @ held[:-1]) / total if total else 0.0
    correlation = min(0.95, max(0.0, correlation + 1 / length))
    error = MEDIAN_ERROR * deviation * sqrt((1 + correlation) / (1 - correlation) / length)
    return STUDENTIZED_RANGE * error
