"""Measure how spread out samples are, and find those that are outliers or too low.

The measures are robust: one slow step among thousands must not decide the result for the rest. Outliers are
never removed; they are reported, along with the mean computed with and without them.

Results that are too low to be healthy are found by comparing each suspect with all results that are not
lower. A suspect is flagged if it lies further below their mean than one more healthy result would be expected
to at the stated rate (`statistics.prediction`: long and heavy tails are allowed for, as far as the number of
results can reveal them). Up to a quarter of the results, the lowest ones, may be suspects at once, so that
they do not mask each other. In a healthy fleet, a member is flagged at the stated rate, whether results are
normal, t₄, exponential or log-normal (`benchmarks/tail_knowledge.py`).

>>> outliers([10.0, 10.1, 9.9, 10.2, 9.8, 30.0]).indices
(5,)
>>> lowest = low_outliers([1.0, 0.1, -0.3, 0.4, -0.2, 0.2, -0.1, -90.0], error_rate=0.005, least_scatter=0.1)
>>> lowest.places
(7,)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean

import numpy as np

from gpuproof.statistics.estimate import FloatArray, Numbers, finite, interpolate, median
from gpuproof.statistics.prediction import HealthyValue, tail_factor, tail_weight

Z_LIMIT = 3.5
"""Limit for a modified Z-score, from Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993)."""
BY_CHANCE = {3: 0.29, 5: 0.21, 10: 0.12, 50: 0.09}
"""Fraction of sets of normal samples in which at least one exceeds `Z_LIMIT`, by number of samples."""
NORMAL_MAD = 0.6744897501960817
"""The MAD of a standard normal distribution, which is its upper quartile."""
NORMAL_MEAN_DEVIATION = 0.7978845608028654
"""The mean absolute deviation of a standard normal distribution: √(2/π)."""
LEAST_FIGURES = 5
"""Minimum number of values: with fewer, too few would be left to estimate their scatter."""
MOST_OUT = 4
"""At most one value in this many may be suspect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outliers:
    """Samples with a modified Z-score above the limit, and their effect on the mean."""

    indices: tuple[int, ...]
    z_limit: float
    num_samples: int
    mean: float | None
    """Mean of all samples; None if there are none."""
    mean_without: float | None
    """Mean excluding outliers; None if there are no samples."""


def median_absolute_deviation(values: Numbers) -> float | None:
    """Return the median distance from the median, unscaled, in the unit of `values`; None without values."""
    samples = finite(values)
    return median(np.abs(samples - median(samples))) if samples.size else None


def modified_z_scores(values: Numbers) -> FloatArray:
    """Return 0.6745·(x − median)/MAD for each value.

    If more than half of the values are equal, the MAD is 0; the mean absolute deviation, scaled to agree with
    it for normal data, is then used instead. All scores are 0 if all values are equal.
    """
    samples = finite(values)
    if not samples.size:
        return samples
    deviations = samples - median(samples)
    sigma = median(np.abs(deviations)) / NORMAL_MAD
    if sigma == 0:
        sigma = float(np.abs(deviations).mean()) / NORMAL_MEAN_DEVIATION
    return deviations / sigma if sigma else deviations


def outliers(values: Numbers, *, z_limit: float = Z_LIMIT) -> Outliers:
    """Find the values, at most half of all, with |modified Z-score| > `z_limit`."""
    samples = finite(values)
    outlying = np.abs(modified_z_scores(samples)) > z_limit
    return Outliers(
        indices=tuple(int(i) for i in np.flatnonzero(outlying)),
        z_limit=z_limit,
        num_samples=samples.size,
        mean=float(samples.mean()) if samples.size else None,
        mean_without=float(samples[~outlying].mean()) if samples.size else None,
    )


def outliers_by_chance() -> str:
    """Return a sentence on how often a few healthy samples exceed `Z_LIMIT` by chance."""
    shares = [f"of {num} in {share:.0%}".replace("%", " %") for num, share in BY_CHANCE.items()]
    return f"the limit flags some equal launches by chance: {', '.join(shares)} of studies"


def coefficient_of_variation(values: Numbers) -> float | None:
    """Return the standard deviation (n − 1) over |mean|; None for fewer than 2 values or a mean of 0."""
    samples = finite(values)
    if samples.size < 2 or samples.mean() == 0:
        return None
    return float(samples.std(ddof=1) / abs(samples.mean()))


def noise(values: Numbers) -> float | None:
    """Return the interquartile range over |median|; None for fewer than four values or a median of 0."""
    samples = finite(values)
    if samples.size < 4:
        return None
    ordered = np.sort(samples)
    lower, middle, upper = (interpolate(ordered, (samples.size - 1) * share) for share in (0.25, 0.5, 0.75))
    return (upper - lower) / abs(middle) if middle else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LowOutliers:
    """Positions of values that are too low, and the threshold for being too low."""

    places: tuple[int, ...]
    """Positions of the values that are too low, lowest value first."""
    reach: float
    """Distance below the mean of the others at which another value counts as too low."""
    detectable: float
    """Drop at which a healthy value counts as too low in 95 % of cases."""


def low_outliers(figures: Sequence[float], *, error_rate: float, least_scatter: float) -> LowOutliers:
    """Return which values are too low; with fewer than five values, none are, by definition.

    `error_rate` applies to all values together. `least_scatter` is the standard deviation to assume if values
    are (nearly) equal, e.g. because they are rounded.
    """
    num = len(figures)
    if num < LEAST_FIGURES:
        return LowOutliers(places=(), reach=inf, detectable=inf)
    order = sorted(range(num), key=lambda place: figures[place])
    num_out, one = 0, error_rate / num
    for suspects in range(1, num // MOST_OUT + 1):
        others = _value_of_others([figures[place] for place in order[suspects:]], least_scatter)
        if figures[order[suspects - 1]] < others.centre - others.reach(one):
            num_out = suspects
    rest = _value_of_others([figures[place] for place in order[num_out:]], least_scatter)
    reach = rest.reach(one)
    return LowOutliers(places=tuple(order[:num_out]), reach=reach, detectable=reach + rest.noise)


def _value_of_others(figures: Sequence[float], least_scatter: float) -> HealthyValue:
    num, mean = len(figures), fmean(figures)
    scatter = sqrt(sum((figure - mean) ** 2 for figure in figures) / (num - 1))
    return HealthyValue(
        centre=mean,
        day=0.0,
        chance=max(scatter, least_scatter) * sqrt(1 + 1 / num),
        degrees=num - 1,
        tail_factor=tail_factor(num, tail_weight(figures)),
    )
