"""Compute how much another launch may differ, and how precisely a window determines its mean.

Choices made once per process (algorithm selection, memory layout, placement) shift all of its steps together,
so even many steps of one process say nothing about the next process. The input is the values of launches, or
their step times. The output is an interval for their centre, with the launch as the unit of replication.

The steps of one window are cut into pieces of equal length, long enough that neighbouring pieces are nearly
independent (batch means: Law and Kelton 1984, https://doi.org/10.1287/opre.32.6.1221). The remaining
dependence widens the interval. A few slow steps among many make the distribution of the mean skewed, so
Student's t interval is too low; the transformation of Hall (1992, On the Removal of Skewness by
Transformation, Journal of the Royal Statistical Society B 54) corrects this. Only the first step finds an
empty queue, so the interval is computed from the other steps, and then extended to include the mean of all
steps. One or two slow steps among steady ones say little about how often such steps occur. Their possible
contribution to the mean is bounded by twice the longest of them, at the highest rate that so few slow steps
among so many allow (Clopper and Pearson 1934, https://doi.org/10.1093/biomet/26.4.404). If that bound is
small, the interval includes it. `benchmarks/unsteady_windows.py` shows how often the interval contains the
true value.

>>> interval_of_launches([10.0, 12.0, 11.0]).centre
11.0
>>> interval_of_launches([10.0]).reason
'one launch does not show how much launches vary (needs 2)'
>>> interval_of_mean([1.0, 1.1, 0.9, 1.0] * 25).relative_half_width < 0.02
True
>>> interval_of_mean([1.0] * 9).reason
'an interval needs at least 10 values (9 measured)'
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import cbrt, sqrt

import numpy as np

from gpuproof.statistics.bootstrap import CHUNK_VALUES, expanded_interval, resample
from gpuproof.statistics.distributions import beta_quantile, student_t_quantile
from gpuproof.statistics.estimate import FloatArray, Interval, Numbers, Unavailable, check_confidence, finite
from gpuproof.statistics.series import NUM_RESAMPLES, TimeSeries, interval_of_series

BOOTSTRAP_LAUNCHES = 20
"""Number of launches needed to see the shape of their distribution."""
RESAMPLES_PER_LAUNCH = 100
"""Number of resampled medians drawn per launch; 20 launches provide 2,000."""
MAX_LAUNCHES = 10**6
MIN_PIECES = 10
"""Minimum number of pieces: with fewer, their spread is itself poorly estimated."""
INDEPENDENT = 0.1
"""Correlation between neighbouring pieces up to which they count as nearly independent and are no longer
merged."""
DEPENDENT = 0.5
"""Correlation above which the window is too short, measured at the minimum number of pieces."""
SKEWNESS_SHARE = 0.7
"""Fraction of the pieces' skewness that is removed. For 1,000 steps, 1 % of them slow, intervals contain the
true value in 97.2 % of cases if all skewness is removed, and in 93.3 % if none is."""
MIN_SLOW = 2.5
"""Minimum effective number of pieces that cause the scatter, computed as (Σd²)²/Σd⁴: for three equally slow
steps, this is 3."""
MAX_RARE = 2
"""Maximum number of slow steps for which a bound on their rate is computed; if more steps cause the scatter,
the scatter itself reveals how often they occur."""
LONGER = 2.0
"""Maximum length assumed for rare steps that were not seen, as a multiple of the longest one seen."""
RARE_REACH = 0.03
"""Maximum fraction that rare steps may add to the mean if an interval is to be reported; more than this would
hide the losses that matter."""
SKEWED = 1.5
"""Skewness above which the scatter counts as skewed upward: 10 normal values exceed this in about one case in
a hundred."""
ROUNDING = 1e-12
"""Relative differences between equal times, caused by summation."""
METHOD = "batch means within one launch, corrected for skewness"


def interval_of_launches(values: Numbers, *, confidence: float = 0.95) -> Interval | Unavailable:
    """Return Student's t interval (k − 1 degrees of freedom) for one value per launch, in their unit.

    Raises:
        ValueError: a value is not finite, or the confidence is not between 0 and 1.
    """
    launches = finite(values)
    check_confidence(confidence)
    if launches.size < 2:
        return Unavailable(reason=_too_few(launches.size))
    return _t_interval(
        launches, confidence=confidence, method="Student's t on launches", num_samples=launches.size
    )


def interval_of_rates(values: Numbers) -> Interval | Unavailable:
    """Return `interval_of_launches` for rates or times, which are never negative whatever the spread.

    >>> interval_of_rates([1.0, 9.0]).low
    0.0

    Raises:
        ValueError: a value is not finite.
    """
    return not_negative(interval_of_launches(values))


def not_negative(interval: Interval | Unavailable) -> Interval | Unavailable:
    """Clip an interval at 0: the true value cannot be negative, so the coverage is unchanged."""
    return interval if isinstance(interval, Unavailable) else replace(interval, low=max(0.0, interval.low))


def interval_of_step_times(
    launches: Sequence[Numbers],
    *,
    confidence: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval | Unavailable:
    """Return the interval of the median step time, in the unit of the step times.

    One launch: within that launch only, by moving-block bootstrap. 2 or more launches: Student's t on the
    launches' medians. 20 or more: hierarchical bootstrap over launches, then over blocks of steps.

    Raises:
        ValueError: a step time is not finite, or the confidence is not between 0 and 1.
    """
    check_confidence(confidence)
    steps = [finite(launch) for launch in launches]
    empty = [str(place) for place, launch in enumerate(steps, start=1) if not launch.size]
    if not steps or empty:
        return Unavailable(reason=f"no steps in launch {', '.join(empty)}" if steps else "no launches")
    if len(steps) == 1:
        return interval_of_series(
            TimeSeries(values=steps[0]), confidence=confidence, num_resamples=num_resamples, seed=seed
        )
    if len(steps) >= BOOTSTRAP_LAUNCHES:
        return _hierarchical(steps, confidence, num_resamples, np.random.default_rng(seed))
    return _t_interval(
        np.array([np.median(launch) for launch in steps]),
        confidence=confidence,
        method="Student's t on medians of launches",
        num_samples=sum(launch.size for launch in steps),
    )


def required_launches(
    values: Numbers, *, relative_half_width: float, confidence: float = 0.95
) -> int | Unavailable:
    """Return how many launches narrow the interval to ± `relative_half_width` (0.01: 1 %) of its centre.

    This is the smallest k ≥ 2 for which t(k − 1)·s/√k is within the target, where s is the spread of
    `values`.

    Raises:
        ValueError: a value is not finite, or the target or the confidence is out of range.
    """
    launches = finite(values)
    check_confidence(confidence)
    if not relative_half_width > 0:
        raise ValueError(f"a target half-width must be above 0, not {relative_half_width}")
    if launches.size < 2:
        return Unavailable(reason=_too_few(launches.size))
    target = relative_half_width * abs(float(launches.mean()))
    return _launches_for(target, spread=float(launches.std(ddof=1)), confidence=confidence)


def more_launches(interval: Interval, *, relative_half_width: float) -> int | Unavailable:
    """Return how many launches a Student's t interval with this spread needs to reach ± the target.

    >>> more_launches(interval_of_launches([98.0, 100.0, 102.0]), relative_half_width=0.02)
    7
    """
    per_spread = _half_width(1.0, interval.num_launches, interval.confidence)
    target = relative_half_width * abs(interval.centre)
    spread = (interval.high - interval.centre) / per_spread
    return _launches_for(target, spread=spread, confidence=interval.confidence)


def _launches_for(target: float, *, spread: float, confidence: float) -> int | Unavailable:
    candidates = range(2, MAX_LAUNCHES)
    place = bisect_left(candidates, True, key=lambda k: _half_width(spread, k, confidence) <= target)
    if place == len(candidates):
        return Unavailable(reason=f"even {MAX_LAUNCHES:,} launches would not reach the target")
    return candidates[place]


def _too_few(num_launches: int) -> str:
    return "one launch does not show how much launches vary (needs 2)" if num_launches else "no launches"


def _half_width(spread: float, num_launches: int, confidence: float) -> float:
    return student_t_quantile(num_launches - 1, (1 + confidence) / 2) * spread / sqrt(num_launches)


def _t_interval(launches: FloatArray, *, confidence: float, method: str, num_samples: int) -> Interval:
    centre = float(launches.mean())
    half_width = _half_width(float(launches.std(ddof=1)), launches.size, confidence)
    return Interval(
        low=centre - half_width,
        high=centre + half_width,
        centre=centre,
        confidence=confidence,
        method=method,
        num_launches=launches.size,
        num_samples=num_samples,
        between_launches=True,
    )


def _hierarchical(
    steps: Sequence[FloatArray], confidence: float, num_resamples: int, rng: np.random.Generator
) -> Interval:
    """Resample launches, then blocks of steps in each; take the mean of the launches' medians.

    The spread of the observed medians already includes the within-launch noise, and resampling steps adds
    that noise again. The medians' distances from the centre are therefore shrunk so that both sources
    together have the observed variance (Davison and Hinkley 1997, Bootstrap Methods and Their Application,
    section 3.8).
    """
    drawn = [
        resample(launch, centre="median", num_resamples=RESAMPLES_PER_LAUNCH, rng=rng) for launch in steps
    ]
    medians = np.array([launch.statistic for launch in drawn])
    shifts = np.array([launch.resamples - launch.resamples.mean() for launch in drawn])
    centre, observed = float(medians.mean()), float(medians.var(ddof=1))
    shrink = sqrt(max(0.0, 1 - float(shifts.var(axis=1).mean()) / observed)) if observed else 0.0
    distances = shrink * (medians - centre)
    means = _means_of_drawn(distances, shifts, num_resamples, rng)
    low, high = expanded_interval(centre + means, confidence, len(steps) - 1)
    return Interval(
        low=low,
        high=high,
        centre=centre,
        confidence=confidence,
        method="hierarchical bootstrap of launches and blocks of steps",
        num_launches=len(steps),
        num_samples=sum(launch.size for launch in steps),
        between_launches=True,
    )


def _means_of_drawn(
    distances: FloatArray, shifts: FloatArray, num_resamples: int, rng: np.random.Generator
) -> FloatArray:
    num_launches, num_shifts = shifts.shape
    per_chunk = max(1, CHUNK_VALUES // num_launches)
    chunks = []
    for done in range(0, num_resamples, per_chunk):
        size = (min(per_chunk, num_resamples - done), num_launches)
        launch = rng.integers(num_launches, size=size)
        shift = shifts[launch, rng.integers(num_shifts, size=size)]
        chunks.append((distances[launch] + shift).mean(axis=1))
    return np.concatenate(chunks)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Means of a series' pieces, and the moments from which the interval is computed."""

    count: int
    deviation: float
    skewness: float
    correlation: float
    num_making_scatter: float
    """The value (Σd²)²/Σd⁴: the number of equal, rare deviations that would have the same variance and
    kurtosis."""


def interval_of_mean(values: Numbers, *, confidence: float = 0.95) -> Interval | Unavailable:
    """Return the interval of one launch's mean step time, in its unit; it contains the mean.

    Raises:
        ValueError: a value is not finite, or the confidence is not between 0 and 1.
    """
    check_confidence(confidence)
    steps = finite(values)
    if steps.size < MIN_PIECES:
        return Unavailable(reason=f"an interval needs at least {MIN_PIECES} values ({steps.size} measured)")
    others = steps[1:] if steps.size > MIN_PIECES else steps
    steady, rare_s = others, 0.0
    pieces = _independent_pieces(steady)
    if _is_of_few(pieces):
        steady, rare_s = _without_rare(others, confidence)
        pieces = _independent_pieces(steady)
    mean, level = float(steps.mean()), float(steady.mean())
    if missing := _not_carried(pieces, steps.size, rare_share=rare_s / level if level else 0.0):
        return Unavailable(reason=missing)
    below, above = _distances(pieces, confidence)
    return Interval(
        low=min(mean, max(level - below, float(others.min()))),  # no mean is below the shortest step time
        high=max(mean, level + above + rare_s),
        centre=mean,
        confidence=confidence,
        method=METHOD,
        num_launches=1,
        num_samples=steps.size,
        between_launches=False,
    )


def _is_of_few(pieces: _Pieces) -> bool:
    """Return whether one or two pieces account for nearly all the scatter."""
    return pieces.num_making_scatter < MIN_SLOW and pieces.skewness > SKEWED


def _without_rare(steps: FloatArray, confidence: float) -> tuple[FloatArray, float]:
    """Return the steps without one or two rare ones, and the maximum that these can add to the mean.

    Adjacent slow steps count as one event that is as long as all of them together.
    """
    rarest_last = np.argsort(steps, kind="stable")
    steady, bound = steps, 0.0
    for num_rare in range(1, MAX_RARE + 1):
        places = np.sort(rarest_last[-num_rare:])
        steady = np.delete(steps, places)
        excess = steps[places] - float(steady.mean())
        is_one_event = num_rare == MAX_RARE and places[1] == places[0] + 1
        longest = float(excess.sum() if is_one_event else excess.max())
        events = 1 if is_one_event else num_rare
        rate = beta_quantile(events + 1, steps.size - events, (1 + confidence) / 2)
        bound = rate * LONGER * longest
        if not _is_of_few(_independent_pieces(steady)):
            break
    return steady, bound


def _not_carried(pieces: _Pieces, num_steps: int, *, rare_share: float) -> str | None:
    """Return why the steps do not support an interval; None if they do.

    `rare_share` is the maximum that rare steps can add to the mean, as a fraction of the mean.
    """
    if pieces.correlation > DEPENDENT:
        return (
            f"steps are correlated over such a long time that {num_steps:,} make up fewer than "
            f"{MIN_PIECES} independent pieces: the series drifts or is too short"
        )
    if _is_of_few(pieces) or rare_share > RARE_REACH:
        percent = f"{100 * rare_share:,.{1 if rare_share < 0.1 else 0}f} %"
        return (
            f"one or two of {num_steps:,} steps account for nearly all of the scatter: how often "
            f"such steps occur is unknown, and they could add {percent} to the mean"
        )
    return None


def _independent_pieces(steps: FloatArray) -> _Pieces:
    """Merge neighbouring pieces in pairs until they are nearly independent, or too few to merge."""
    means = steps
    while True:
        pieces = _describe(means)
        if pieces.correlation <= INDEPENDENT or means.size < 2 * MIN_PIECES:
            return pieces
        even = means.size - means.size % 2
        # if the number of pieces is odd, the first is dropped
        means = means[-even:].reshape(-1, 2).mean(axis=1)


def _describe(means: FloatArray) -> _Pieces:
    count = means.size
    centre = float(means.mean())
    away = means - centre
    squares = away * away  # sums of products instead of `@`, since its last digits depend on the CPU
    total = float(squares.sum())
    if total <= count * (ROUNDING * centre) ** 2:
        return _Pieces(count, 0.0, 0.0, 0.0, float(count))
    correlation = float((away[1:] * away[:-1]).sum()) / total
    return _Pieces(
        count=count,
        deviation=sqrt(total / (count - 1)),
        skewness=float((squares * away).sum()) / count / (total / count) ** 1.5,
        correlation=correlation
        + (1 + 3 * correlation) / count,  # Kendall 1954, https://doi.org/10.1093/biomet/41.3-4.403
        num_making_scatter=total**2 / float((squares * squares).sum()),
    )


def _distances(pieces: _Pieces, confidence: float) -> tuple[float, float]:
    """Return how far the interval extends below and above the mean."""
    count = pieces.count
    left = max(0.0, pieces.correlation)
    error = pieces.deviation / sqrt(count) * sqrt((1 + left) / (1 - left))
    unbiased = pieces.skewness * sqrt(count * (count - 1)) / (count - 2)
    skewness = SKEWNESS_SHARE * unbiased / sqrt(count)
    quantile = student_t_quantile(count - 1, (1 + confidence) / 2)
    return error * _invert(quantile, skewness), -error * _invert(-quantile, skewness)


def _invert(quantile: float, skewness: float) -> float:
    """Solve T + a·T²/3 + a²·T³/27 + a/6 = `quantile` for T; a is the mean's `skewness` (Hall 1992)."""
    if abs(skewness) < 1e-9:
        return quantile
    return 3 / skewness * (cbrt(1 + skewness * (quantile - skewness / 6)) - 1)
