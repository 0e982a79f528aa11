"""How low may one more figure of a healthy subject be, after those that a baseline holds? Prediction limits.

In: figures of n subjects, several of each perhaps. A further subject's figure lies under
`centre − factor · spread` by chance with the stated probability: `factor` is Student's t with the degrees of
freedom of the spread times √(1 + 1/n), the limit for one further value of a normal sample (Hahn and Meeker,
Statistical Intervals, 1991, section 4.7). With several figures a subject the spread of a single one is that
between subjects' means plus that within, and the degrees are Satterthwaite's.

Healthy subjects need not scatter as a normal distribution has it. How lopsided they are is told by
L-skewness (Hosking, L-moments, Journal of the Royal Statistical Society B 52, 1990): 0 where both sides are
alike, 1/3 of an exponential distribution. Few figures may look normal and be of a long tail: what is beyond
`sure_reach` is off whatever the shape, as far as that many figures can tell. The numbers by which limits
grow, and under which they do not fall, were chosen by `benchmarks/rules_on_fleets.py`: they are no theory.

>>> spread = spread_of([[100.0], [101.0], [99.0], [100.5], [99.5]])
>>> round(spread.centre, 1), round(spread.deviation, 2), spread.degrees
(100.0, 0.79, 4.0)
>>> round(100 - prediction_reach(spread, error_rate=0.025), 1)
97.6
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import fmean, variance

from scipy.special import stdtrit

LEAST_SUBJECTS = 3
"""Under three a spread is a guess."""
SHAPE_SUBJECTS = 8
"""Under eight nothing is told of a shape; Student's t of so few degrees has wide tails of its own."""
WIDER_PER_SKEWNESS = 4.0
"""A limit is wider by so many times the L-skewness: 2.3 times where the tail is exponential."""
SURE_PER_SKEWNESS = 10.0
"""The same of the limit beyond which a figure is off for certain, where very many figures are known …"""
UNKNOWN_SKEWNESS = 120.0
"""… and so many over those known on top: of few, the skewness itself is a guess."""
UNKNOWN_SHAPE = 11.0
"""That limit is wider by a share of so many figures over those known: twice as far with 11 of them."""
UNKNOWN_DEVIATION = 3.0
"""Heavy tails are allowed for by more, a share of so many subjects over those known: a spread is a guess."""
LEAST_DEVIATIONS = 5.5
"""A limit is no nearer than so many deviations, however many subjects look normal."""
HEAVY_DEGREES = 4.0
"""Of Student's t: the tails that one figure by itself is allowed for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthySpread:
    """Where the figures of healthy subjects lie, and how a single one scatters."""

    centre: float
    deviation: float
    """Standard deviation of a single figure of any subject, in the unit of the figures."""
    degrees: float
    """Of freedom, on which `deviation` rests."""
    num_subjects: int

    @property
    def scale(self) -> float:
        """How far one further figure scatters about the centre, whose own place is not known better."""
        return self.deviation * sqrt(1 + 1 / self.num_subjects)


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
    return HealthySpread(
        centre=fmean(means),
        deviation=sqrt(total),
        degrees=degrees,
        num_subjects=n,
    )


def l_skewness(values: Sequence[float]) -> float:
    """Return the third L-moment over the second; 0 where all values are the same.

    >>> l_skewness([1.0, 2.0, 3.0, 4.0]), round(l_skewness([1.0, 2.0, 3.0, 10.0]), 2)
    (0.0, 0.64)
    """
    ordered, n = sorted(values), len(values)
    mean = fmean(ordered)
    first = sum(place * value for place, value in enumerate(ordered)) / (n * (n - 1))
    second = sum(place * (place - 1) * value for place, value in enumerate(ordered))
    second /= n * (n - 1) * (n - 2)
    scale = 2 * first - mean
    return (6 * second - 6 * first + mean) / scale if scale > 0 else 0.0


def prediction_reach(spread: HealthySpread, *, error_rate: float) -> float:
    """Return how far under the centre one more healthy figure may lie, in the unit of the figures."""
    return one_sided_t(error_rate, round(spread.degrees, 1)) * spread.scale


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyShape:
    """What the figures of healthy subjects, in all tests, tell of the shape of their distribution."""

    num_known: float
    """Figures that know nothing of each other."""
    alike: float
    """Correlation of a subject's standing in one test with that in another; 1 where there is one test."""
    skewness: float
    """L-skewness towards the bad side, in the mean over tests; 0 where that is not the longer one."""


def shape_of(tests: Sequence[Mapping[str, Sequence[float]]], *, bad_sides: Sequence[int]) -> HealthyShape:
    """Return what tests tell, each given by subject; a bad side is −1 where low figures are bad, else 1.

    Where tests rank subjects alike, several say hardly more than one: a subject's mean standing over its
    tests scatters by 1 over the number of tests that count.

    >>> test = {"a": [1.0], "b": [2.0], "c": [4.0]}
    >>> shape_of([test], bad_sides=[1])
    HealthyShape(num_known=3.0, alike=1.0, skewness=0.0)
    >>> shape_of([test, test], bad_sides=[1, 1])
    HealthyShape(num_known=3.0, alike=1.0, skewness=0.0)
    >>> shape_of([test, {"a": [4.0], "b": [1.0], "c": [2.0]}], bad_sides=[1, 1]).num_known
    6.0
    """
    standings: dict[str, list[float]] = {}
    for test in tests:
        for subject, standing in _standings(test).items():
            standings.setdefault(subject, []).append(standing)
    num = float(sum(map(len, standings.values())))
    scatter = variance(map(fmean, standings.values())) if len(standings) > 1 else 0.0
    known = round(min(num, len(standings) / scatter) if scatter else num, 6)
    mean_tests = num / max(1, len(standings))
    alike = (num / known - 1) / (mean_tests - 1) if mean_tests > 1 else 1.0
    skewed = [
        side * l_skewness([fmean(values) for values in test.values()])
        for test, side in zip(tests, bad_sides, strict=True)
        if len(test) >= SHAPE_SUBJECTS
    ]
    skewness = max(0.0, fmean(skewed)) if skewed else 0.0
    return HealthyShape(num_known=known, alike=min(1.0, alike), skewness=skewness)


def _standings(test: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return by how many standard deviations each subject is off; 0 where all are the same."""
    means = {subject: fmean(values) for subject, values in test.items()}
    centre, scatter = fmean(means.values()), sqrt(variance(means.values())) if len(means) > 1 else 0.0
    return {subject: (mean - centre) / scatter if scatter else 0.0 for subject, mean in means.items()}


def tail_reach(
    spread: HealthySpread, *, error_rate: float, skewness: float, wider: float = WIDER_PER_SKEWNESS
) -> float:
    """Return the same where the bad side may have a longer tail.

    `skewness` is that of healthy figures towards the bad side, 0 or more; it is known better from several
    tests than from the one that `spread` is of.
    """
    widened = prediction_reach(spread, error_rate=error_rate) * (1 + wider * skewness)
    return max(widened, LEAST_DEVIATIONS * spread.scale)


def sure_reach(spread: HealthySpread, *, error_rate: float, shape: HealthyShape) -> float:
    """Return the same for any tail that the known figures do not exclude."""
    wider = SURE_PER_SKEWNESS + UNKNOWN_SKEWNESS / shape.num_known
    reach = tail_reach(spread, error_rate=error_rate, skewness=shape.skewness, wider=wider)
    return reach * (1 + UNKNOWN_SHAPE / shape.num_known)


def alike_reach(spread: HealthySpread, *, error_rate: float, shape: HealthyShape) -> float:
    """Return the same for a subject of which several figures are short, with heavy tails.

    What a subject's tests have in common is short in all at once: with Student's t of 4 degrees of freedom in
    alike² (its standard deviation to the 4th power) of the cases of a whole figure. What they do not have in
    common has to be short twice, which is allowed for by the root of the rate.
    """
    rate = min(error_rate / shape.alike**2 if shape.alike else 1.0, sqrt(error_rate))
    return heavy_reach(spread, error_rate=rate) * (1 + UNKNOWN_DEVIATION / spread.num_subjects)


def heavy_reach(spread: HealthySpread, *, error_rate: float) -> float:
    """Return the same for a figure that no other one of its subject bears out: tails may be heavy, too."""
    unit_variance = sqrt(HEAVY_DEGREES / (HEAVY_DEGREES - 2))
    return one_sided_t(error_rate, HEAVY_DEGREES) / unit_variance * spread.scale


@cache
def one_sided_t(error_rate: float, degrees: float) -> float:
    """Return the quantile of Student's t that is exceeded by chance with `error_rate`."""
    return float(-stdtrit(degrees, error_rate))
