"""Analyse a time series: its centre, how two series differ, and whether the level was stable.

A series comes from one process. It consists of the step times of a window, or of sampled readings that were
each valid for some seconds. Intervals allow for autocorrelation (moving-block bootstrap) and apply to that
one process: they do not apply to other launches, and are marked accordingly.

Three things spoil a window without changing its median step time: a change of level (a cold start, a clock
drop, a ramp, a sawtooth), a stall inside a step, and steps that are too few or too scattered to detect
either. The medians of all twelfths of the window are compared pairwise. The patterns to detect are a sawtooth
with a period of a quarter of the window and a height of 10 %, and a stall of a twentieth of the window.
`benchmarks/unsteady_windows.py` shows how often each pattern is detected, and how often a flat window is
flagged.

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
"""Probability of detecting the smallest detectable difference, 80 % by convention."""
MIN_BLOCKS = 10
"""Minimum number of blocks: with fewer, the spread of the resamples is itself estimated only to within about
a quarter."""
SteadinessVerdict = Literal["steady", "unsteady", "cannot tell"]
MIN_STEPS = 10
"""Minimum number of steps: with fewer, a sawtooth with a period of a quarter of the window has fewer than two
steps per tooth."""
PARTS = 12
"""Number of parts to split a window into: a tooth that lasts a quarter of the window spans three parts."""
MIN_IN_PARTS = 20
"""Minimum number of steps to form parts: with fewer, each step is its own part, because parts of two steps
would hide a sawtooth."""
PLACES = 4 * PARTS
"""Number of positions at which parts start. Overlapping parts catch a peak wherever it is."""
SAME_LEVEL = 0.05
"""Maximum tolerated difference between levels, as a fraction of the median step time. A 10 % sawtooth exceeds
it in 99.7 % of windows; flat windows with a deviation of 1 % stay below it in 98 % of cases."""
OUTLYING = 1.25
"""Multiple of the median above which steps are outliers: their time above the median is lost time."""
LOST_SHARE = 0.04
"""Limit for lost time, as a fraction of the window; a stall of 5 % of the window is detected despite
noise."""
MIN_TURNS, MOST_STEPS_OF_A_TURN, EXPLAINED = 8, 32, 0.25
"""Limits for a regular pattern of outlying steps: it must repeat at least eight times, and leave at most a
quarter of their lost time unexplained. `benchmarks/unsteady_windows.py` shows how rarely random stalls look
regular."""
STUDENTIZED_RANGE = 6.0
"""Range of about 30 independent normal values, divided by their standard deviation, that is exceeded in 1 %
of cases."""
MEDIAN_ERROR = 1.2533
"""Ratio of the median's standard error to the mean's standard error, for normal values: √(π/2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """Values in time order, weighted by how long each was valid (`durations_s`); None: equally."""

    values: Numbers
    durations_s: Numbers | None = None

    def arrays(self) -> tuple[FloatArray, FloatArray | None]:
        """Return the values and the durations as arrays.

        Raises:
            ValueError: a number is not finite, the lengths differ, or a duration is not above 0.
        """
        values = finite(self.values)
        if self.durations_s is None:
            return values, None
        durations = finite(self.durations_s)
        if durations.size != values.size:
            raise ValueError(f"{values.size} values but {durations.size} durations")
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

    With durations, `centre` must be "mean", and is then the time-weighted mean.

    Raises:
        ValueError: the series or the confidence is ill-formed, or durations are used with another centre.
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

    Otherwise like `interval_of_series`. There is no ratio if the centre of `first` may be 0 or less.
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
    """Return the difference that would be detected with 80 % probability, in the interval's unit.

    The result is half the interval's width, which a difference must exceed to be detected, plus a margin of
    0.84 standard errors for the one case in five in which chance reduces the difference.
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
    return f"an interval needs at least {MIN_VALUES} values ({values.size} measured)"


def _too_uniform(drawn: Resampled) -> str | None:
    if drawn.num_blocks >= MIN_BLOCKS:
        return None
    return (
        f"{drawn.num_values:,} values are so strongly correlated that they count as {drawn.num_blocks} "
        f"independent ones (at least {MIN_BLOCKS} needed): the series drifts or is too short"
    )


def _first_reason(reasons: Iterable[str | None]) -> Unavailable | None:
    """Return the reason why one of two series has no interval, and which series that is."""
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
    """Return the Welch–Satterthwaite degrees of freedom, from the number of blocks of each series."""
    variances = [float(series.resamples.var()) for series in (first, second)]
    freedoms = [series.num_blocks - 1 for series in (first, second)]
    if sum(variances) == 0:
        return min(freedoms)
    return welch_degrees_of_freedom(variances, freedoms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """How much levels differ in one window, and what fraction of its time was lost to outlying steps."""

    verdict: SteadinessVerdict
    """Verdict on the levels; "cannot tell" if noise alone may explain their differences."""
    level_spread: float
    """Highest minus lowest median of the parts (twelfths of the window), over the median step time."""
    by_noise: float
    """Difference in levels that the scatter of neighbouring steps alone can explain; 0 if parts are single
    steps."""
    lowest_at: float
    """Position of the middle of the part with the shortest steps, from 0 to 1 within the window."""
    highest_at: float
    lost_share: float
    """Time that outlying steps took beyond the median step, divided by the time of all steps."""
    num_outlying: int
    period: int | None = None
    """Number of steps after which nearly all outlying steps recur at the same positions; None if they do
    not."""

    @property
    def stalled(self) -> bool:
        """Whether outlying steps took a significant share of the time."""
        return self.lost_share > LOST_SHARE


def judge_steadiness(times_s: Numbers) -> Steadiness | None:
    """Evaluate a window's step times, in order; None for fewer than `MIN_STEPS` or a median of 0.

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
    """Return the shortest cycle length at which few steps are far from their position's median."""
    for period in range(2, min(times.size // MIN_TURNS, MOST_STEPS_OF_A_TURN) + 1):
        places = (np.sort(times[place::period]) for place in range(period))
        # the level of an actual step, not a mean of two kinds
        levels = np.array([steps[steps.size // 2] for steps in places])
        away = np.abs(times / levels[np.arange(times.size) % period] - 1)
        if away[away > OUTLYING - 1].sum() < EXPLAINED * lost_share * times.size:
            return period
    return None


def _length_of_parts(num_steps: int) -> int:
    """Return an even number: if long and short steps alternate, each part has equal numbers of both."""
    return 2 * int(num_steps / PARTS / 2 + 0.5) if num_steps >= MIN_IN_PARTS else 1


@lru_cache(maxsize=16)
def _begins_of_parts(num_steps: int, length: int) -> NDArray[np.int64]:
    """Return the start of each part; cached, because all windows of a study have the same size."""
    return np.unique(np.linspace(0, num_steps - length, PLACES).round().astype(np.int64))


def _spread_by_noise(times: FloatArray, length: int) -> float:
    """Return how much medians of `length` steps differ because of the scatter within them.

    A step's distance from the median of its part shows the scatter without the level. The correlation of
    neighbouring distances shows how much of the scatter remains in medians: √((1 + r)/(1 − r)) for AR(1).
    Both are corrected because the part's median is computed from the same steps.
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
