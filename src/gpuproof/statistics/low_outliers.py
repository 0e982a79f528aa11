"""Which of n healthy-looking figures are too low to be of the same kind as the others?

Each suspect is held against all that are not lower: it is out where it lies further under their mean than one
more healthy figure does with the stated rate (`statistics.prediction`: long and heavy tails are allowed for,
as far as so many figures tell of them). The lowest quarter may be suspects together, so that several do not
hide each other. Of healthy fleets the stated share sees anybody named, whether figures are normal, t₄,
exponential or log-normal (`benchmarks/tail_knowledge.py`).

>>> lowest = low_outliers([1.0, 0.1, -0.3, 0.4, -0.2, 0.2, -0.1, -90.0], error_rate=0.005, least_scatter=0.1)
>>> lowest.places
(7,)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean

from gpuproof.statistics.prediction import HealthyFigure, tail_factor, tail_weight

LEAST_FIGURES = 5
"""Under five the others are too few to show how they scatter."""
MOST_OUT = 4
"""One in so many at most."""


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
        others = _figure_of_others([figures[place] for place in order[suspects:]], least_scatter)
        if figures[order[suspects - 1]] < others.centre - others.reach(one):
            num_out = suspects
    rest = _figure_of_others([figures[place] for place in order[num_out:]], least_scatter)
    reach = rest.reach(one)
    return LowOutliers(places=tuple(order[:num_out]), reach=reach, detectable=reach + rest.noise)


def _figure_of_others(figures: Sequence[float], least_scatter: float) -> HealthyFigure:
    num, mean = len(figures), fmean(figures)
    scatter = sqrt(sum((figure - mean) ** 2 for figure in figures) / (num - 1))
    return HealthyFigure(
        centre=mean,
        day=0.0,
        chance=max(scatter, least_scatter) * sqrt(1 + 1 / num),
        degrees=num - 1,
        tail_factor=tail_factor(num, tail_weight(figures)),
    )
