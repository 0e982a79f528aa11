"""How spread out are these samples, and which of them stand apart?

Robust measures: one slow step among thousands must not decide what is said of the rest. Outliers are
reported, with the mean as it is and as it would be without them, and never removed.

>>> outliers([10.0, 10.1, 9.9, 10.2, 9.8, 30.0]).indices
(5,)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuproof.statistics.estimate import FloatArray, Numbers, finite, interpolate, median

Z_LIMIT = 3.5
"""Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993)."""
BY_CHANCE = {3: 0.29, 5: 0.21, 10: 0.12, 50: 0.09}
"""By number of equal, normal samples: how often one or more of them is over `Z_LIMIT`."""
NORMAL_MAD = 0.6744897501960817
"""The MAD of a standard normal: its upper quartile."""
NORMAL_MEAN_DEVIATION = 0.7978845608028654
"""The mean absolute deviation of a standard normal: √(2/π)."""


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
