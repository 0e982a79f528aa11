"""What would another launch give? Intervals whose unit of replication is the launch.

Choices made once a process (algorithm picks, memory layout, placement) move all of its steps together, so
that the steps of one process, however many, say nothing of the next one. In come values of launches, or
their step times; out goes an interval for what launches centre on.

>>> interval_of_launches([10.0, 12.0, 11.0]).centre
11.0
>>> interval_of_launches([10.0]).reason
'one launch does not show how much launches differ (needs 2)'
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from gpuproof.statistics.bootstrap import CHUNK_VALUES, expanded_interval, resample
from gpuproof.statistics.distributions import student_t_quantile
from gpuproof.statistics.estimate import (
    FloatArray,
    Interval,
    Numbers,
    Unavailable,
    check_confidence,
    finite,
)
from gpuproof.statistics.series import NUM_RESAMPLES, TimeSeries, interval_of_series

BOOTSTRAP_LAUNCHES = 20
"""From here on launches are many enough to show the shape of their distribution."""
RESAMPLES_PER_LAUNCH = 100
"""Resampled medians kept of each launch; 20 launches give 2,000 to draw from."""
MAX_LAUNCHES = 10**6


def interval_of_launches(values: Numbers, *, confidence: float = 0.95) -> Interval | Unavailable:
    """Return Student's t interval (k − 1 degrees of freedom) of one value a launch, in the values' unit.

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
    """Return `interval_of_launches` of rates or times, which are never negative, however launches differ.

    >>> interval_of_rates([1.0, 9.0]).low
    0.0

    Raises:
        ValueError: a value is not finite.
    """
    return not_negative(interval_of_launches(values))


def not_negative(interval: Interval | Unavailable) -> Interval | Unavailable:
    """Cut an interval at 0: what it is of cannot lie below, so that it covers as often as before."""
    return interval if isinstance(interval, Unavailable) else replace(interval, low=max(0.0, interval.low))


def interval_of_step_times(
    launches: Sequence[Numbers],
    *,
    confidence: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval | Unavailable:
    """Return the interval of the median step time, in seconds if the step times are.

    One launch: within that launch only, by moving-block bootstrap. From 2: Student's t on the launches'
    medians. From 20: hierarchical bootstrap over launches, then blocks of steps.

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
    """Return how many launches bring the interval to ± `relative_half_width` (0.01 is 1 %) of its centre.

    It is the least k ≥ 2 with t(k − 1)·s/√k within the target, s being the spread of the `values` at hand.

    Raises:
        ValueError: a value is not finite, or the target or the confidence is out of range.
    """
    launches = finite(values)
    check_confidence(confidence)
    if not relative_half_width > 0:
        raise ValueError(f"a target half-width is above 0, not {relative_half_width}")
    if launches.size < 2:
        return Unavailable(reason=_too_few(launches.size))
    target = relative_half_width * abs(float(launches.mean()))
    return _launches_for(target, spread=float(launches.std(ddof=1)), confidence=confidence)


def more_launches(interval: Interval, *, relative_half_width: float) -> int | Unavailable:
    """Return how many launches, as spread as those of a Student's t interval, bring it to ± the target.

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
    return "one launch does not show how much launches differ (needs 2)" if num_launches else "no launches"


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
    """Resample launches, then blocks of steps in each, and take the mean of the launches' medians.

    The spread of the observed medians holds the within-launch noise already, and resampling steps adds it
    once more. Their distances from the centre are therefore shrunk so that both together have the observed
    variance (Davison and Hinkley 1997, Bootstrap Methods and Their Application, section 3.8).
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
