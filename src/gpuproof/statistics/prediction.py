"""How low may one more figure of a healthy subject be, after those that a baseline holds? Prediction limits.

In: figures of n subjects, several of each perhaps. A further subject's figure lies under
`centre − factor · spread` by chance with the stated probability: `factor` is Student's t with the degrees of
freedom of the spread times √(1 + 1/n), the limit for one further value of a normal sample (Hahn and Meeker,
Statistical Intervals, 1991, section 4.7). With several figures a subject the spread of a single one is that
between subjects' means plus that within, and the degrees are Satterthwaite's.

>>> spread = spread_of([[100.0], [101.0], [99.0], [100.5], [99.5]])
>>> round(spread.centre, 1), round(spread.deviation, 2), spread.degrees
(100.0, 0.79, 4.0)
>>> round(100 - prediction_reach(spread, error_rate=0.025), 1)
97.6
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import fmean, variance

from scipy.stats import t

LEAST_SUBJECTS = 3
"""Under three a spread is a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthySpread:
    """Where the figures of healthy subjects lie, and how a single one scatters."""

    centre: float
    deviation: float
    """Standard deviation of a single figure of any subject, in the unit of the figures."""
    degrees: float
    """Of freedom, on which `deviation` rests."""
    num_subjects: int


def spread_of(figures: Sequence[Sequence[float]]) -> HealthySpread | None:
    """Return the spread of figures, given subject by subject; None with under three subjects."""
    groups = [list(of_subject) for of_subject in figures if of_subject]
    if len(groups) < LEAST_SUBJECTS:
        return None
    means = [fmean(group) for group in groups]
    between, n = variance(means), len(groups)
    inner = [(variance(group), len(group) - 1) for group in groups if len(group) > 1]
    within_degrees = sum(degrees for _, degrees in inner)
    within = sum(found * degrees for found, degrees in inner) / within_degrees if inner else 0.0
    repeats = n / sum(1 / len(group) for group in groups)
    # A mean of r figures scatters by between + within/r: a single one has the rest of `within` on top.
    rest = (1 - 1 / repeats) * within
    total = between + rest
    parts = between**2 / (n - 1) + (rest**2 / within_degrees if within_degrees else 0.0)
    degrees = total**2 / parts if parts else float(n - 1)
    return HealthySpread(centre=fmean(means), deviation=sqrt(total), degrees=degrees, num_subjects=n)


def prediction_reach(spread: HealthySpread, *, error_rate: float) -> float:
    """Return how far under the centre one more healthy figure may lie, in the unit of the figures."""
    scale = spread.deviation * sqrt(1 + 1 / spread.num_subjects)
    return one_sided_t(error_rate, round(spread.degrees, 1)) * scale


@cache
def one_sided_t(error_rate: float, degrees: float) -> float:
    """Return the quantile of Student's t that is exceeded by chance with `error_rate`."""
    return float(t.isf(error_rate, degrees))
