"""How spread out are these samples, and which of them stand apart, or are too low?

Robust measures: one slow step among thousands must not decide what is said of the rest. Outliers are
reported, with the mean as it is and as it would be without them, and never removed.

Of figures that look healthy, those too low to be of the same kind as the others are found by holding each
suspect against all that are not lower: it is out where it lies further under their mean than one more healthy
figure does with the stated rate (`statistics.prediction`: long and heavy tails are allowed for, as far as so
many figures tell of them). The lowest quarter may be suspects together, so that several do not hide each
other. Of healthy fleets the stated share sees anybody named, whether figures are normal, t₄, exponential or
log-normal (`benchmarks/tail_knowledge.py`).

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
"""Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993)."""
BY_CHANCE = {3: 0.29, 5: 0.21, 10: 0.12, 50: 0.09}
"""By number of equal, normal samples: how often one or more of them is over `Z_LIMIT`."""
NORMAL_MAD = 0.6744897501960817
"""The MAD of a standard normal: its upper quartile."""
NORMAL_MEAN_DEVIATION = 0.7978845608028654
"""The mean absolute deviation of a standard normal: √(2/π)."""
LEAST_FIGURES = 5
"""Under five the others are too few to show how they scatter."""
MOST_OUT = 4
"""One in so many at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outliers:
    """Samples whose modified Z-score is over the limit, and what they do to the mean."""

    indices: tuple[int, ...]
    z_limit: float
    num_samples: int
    mean: float | None
    """None where there are no samples."""
    mean_without: float | None
    """None where there are no samples."""


def median_absolute_deviation(values: Numbers) -> float | None:
    """Return the median distance from the median, unscaled, in the unit of `values`; None without values."""
    samples = finite(values)
    return median(np.abs(samples - median(samples))) if samples.size else None


def modified_z_scores(values: Numbers) -> FloatArray:
    """Return 0.6745·(x − median)/MAD for each value.

    Where over half of the values are equal the MAD is 0; the mean absolute deviation, scaled to agree
    for normal data, then takes its place. All scores are 0 where all values are equal.
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
    """Find the values with |modified Z-score| > `z_limit`. At most half of the values can be found."""
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
    """Return the sentence on samples over `Z_LIMIT`: of few equal ones, one often is."""
    shares = [f"of {num} in {share:.0%}".replace("%", " %") for num, share in BY_CHANCE.items()]
    return f"of equal launches the limit marks some by chance: {', '.join(shares)} of studies"


def coefficient_of_variation(values: Numbers) -> float | None:
    """Return standard deviation (n − 1) over the mean's size; None for under two values or a mean of 0."""
    samples = finite(values)
    if samples.size < 2 or samples.mean() == 0:
        return None
    return float(samples.std(ddof=1) / abs(samples.mean()))


def noise(values: Numbers) -> float | None:
    """Return the interquartile range over the median's size; None for under four values or a median of 0."""
    samples = finite(values)
    if samples.size < 4:
        return None
    ordered = np.sort(samples)
    lower, middle, upper = (interpolate(ordered, (samples.size - 1) * share) for share in (0.25, 0.5, 0.75))
    return (upper - lower) / abs(middle) if middle else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LowOutliers:
    """Who is out, and what would have been."""

    places: tuple[int, ...]
    """The lowest first."""
    reach: float
    """How far under the mean of the others one further would be out …"""
    detectable: float
    """… and by how much a healthy one has to fall to be out in 95 % of cases."""


def low_outliers(figures: Sequence[float], *, error_rate: float, least_scatter: float) -> LowOutliers:
    """Return which figures are too low; nobody, for certain, under five of them.

    `error_rate` is of all of them together. `least_scatter` is the standard deviation to assume where figures
    are equal, or nearly so: rounded ones are.
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
