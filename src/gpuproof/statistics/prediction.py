"""Prediction limits: how low may a healthy subject's next result be, given a baseline's results?

For a subject's own history, the next result differs from the mean of the earlier ones by the variation
between sessions (`day`, normal) and between runs of one session (`within`, Student's t with the degrees of
freedom from all subjects of its type). A limit at the stated error rate is computed for each part. The two
limits are added in quadrature (Zou and Donner, Statistics in Medicine 27, 2008, section 2), which preserves
the heavy tail of a part estimated from few runs.

For the fleet's results, one additional subject falls below `centre − factor · spread` by chance at the stated
rate (Hahn and Meeker, Statistical Intervals, 1991, section 4.7). Healthy subjects need not be normally
distributed, and a few of them may look normal despite a long tail. So the larger of the normal limit and the
limit from Student's t with 4 degrees of freedom is multiplied by `tail_factor`. The factor is chosen such
that the lowest of 5 to 256 subjects with normal, t₄, exponential or log-normal (sigma 0.8) results is below
the limit at the stated rate. It grows with the tail weight, computed from L-moments (Hosking, Journal of the
Royal Statistical Society B 52, 1990), and falls with the number of results. Its constants were determined by
`benchmarks/tail_knowledge.py`.

Three runs of a single subject, repeatable to 0.1 %, can detect only large losses. When pooled with seven
other subjects, they resolve 0.9 %, or 8.4 % with day-to-day variation (1 %):

>>> runs = {"monday": [999.0, 1000.0, 1001.0]}
>>> cases = [repeatability_of([runs] * num, day=day) for num, day in ((1, 0.0), (8, 0.0), (8, 0.01))]
>>> [round(past_of_subject(runs, of_case).detectable(1e-5), 3) for of_case in cases]
[0.26, 0.009, 0.084]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import hypot, inf, sqrt
from statistics import fmean

from gpuproof.statistics.distributions import student_t_quantile

LEAST_SUBJECTS = 3
"""Minimum number of subjects: with fewer, a spread is a guess."""
SHAPE_FIGURES = 4
"""Minimum number of values for an L-kurtosis."""
HEAVY_DEGREES = 4.0
"""Degrees of freedom of Student's t, used to always allow for heavy tails in healthy subjects."""
NORMAL_KURTOSIS = 0.1226
"""L-kurtosis of a normal distribution."""
PER_SKEWNESS, PER_KURTOSIS = 4.0, 6.0
"""Coefficients of `tail_weight`."""
KNOWN_SHAPE, UNKNOWN_SHAPE = 0.4, 23.0
"""Coefficients of `tail_factor`: its value for very many results, and the increase, which is divided by their
number."""
FEWEST, PER_FIGURE = 2.57, 0.14
"""Coefficients of `tail_factor` for a small number of results, where Student's t is already wide."""
TELLING_FIGURES = 15
"""Minimum number of results for estimating their tails. The tails of fewer results are mostly due to chance,
and are weighted by the square of the available fraction of this number."""
DAY_EFFECT = 0.01
"""Relative standard deviation between sessions, used if it cannot be determined from a baseline: completed
runs on two days differed by this much on quiet machines."""
DAY_DEGREES = 10
"""Number of sessions that this default counts as: eleven days of a baseline have the same weight."""
LEAST_DAY_EFFECT = 0.005
"""Minimum relative standard deviation between sessions, however similar the days of a baseline were: the
driver, another process or the room temperature may change on the next day."""
IN_MOST_CASES = 0.05
"""Maximum fraction of cases in which a detectable loss may be missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthySpread:
    """The centre of healthy subjects' results, and the spread of a single result."""

    centre: float
    deviation: float
    """Standard deviation of a single result of any subject, in the results' unit."""
    degrees: float
    """Degrees of freedom of `deviation` (by Satterthwaite's formula)."""
    num_subjects: int
    tail_weight: float = 0.0
    """Tail weight of the subjects' means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeatability:
    """Variation of one subject's results, pooled over all subjects of a type, in the results' unit."""

    within: float
    """Standard deviation between runs of one session."""
    degrees: int
    """Degrees of freedom of `within`."""
    day: float
    """Standard deviation between sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyValue:
    """The result expected next from a healthy subject, in another session."""

    centre: float
    day: float
    """Standard deviation between sessions, including the uncertainty of the centre, in the results' unit."""
    chance: float
    """Standard deviation due to everything else."""
    degrees: float
    """Degrees of freedom of `chance`."""
    tail_factor: float | None = None
    """Factor by which the limit is widened because subjects may have long tails; None if `chance` is for one
    subject."""

    def reach(self, error_rate: float) -> float:
        """Return how far the result may be from the centre, on one side."""
        quantile = one_sided_t(error_rate, self.degrees)
        if self.tail_factor is not None:
            heavy = one_sided_t(error_rate, HEAVY_DEGREES) / sqrt(HEAVY_DEGREES / (HEAVY_DEGREES - 2))
            quantile = self.tail_factor * max(quantile, heavy)
        return hypot(one_sided_t(error_rate, inf) * self.day, quantile * self.chance)

    @property
    def noise(self) -> float:
        """Distance from the centre within which a healthy result falls in all but 5 % of cases."""
        return one_sided_t(IN_MOST_CASES, inf) * hypot(self.day, self.chance)

    def detectable(self, error_rate: float) -> float | None:
        """Return the smallest relative loss that a limit with this error rate detects in 95 % of cases."""
        return (self.reach(error_rate) + self.noise) / abs(self.centre) if self.centre else None


def spread_of(figures: Sequence[Sequence[float]]) -> HealthySpread | None:
    """Return the spread of results, grouped by subject; None with fewer than three subjects.

    >>> spread = spread_of([[100.0], [101.0], [99.0], [100.5], [99.5]])
    >>> round(spread.centre, 1), round(spread.deviation, 2), spread.degrees
    (100.0, 0.79, 4.0)
    """
    groups = [list(of_subject) for of_subject in figures if of_subject]
    if len(groups) < LEAST_SUBJECTS:
        return None
    means = [fmean(group) for group in groups]
    (between, _), n = _pool([means]), len(groups)
    within, within_degrees = _pool(groups)
    repeats = n / sum(1 / len(group) for group in groups)
    # The variance of a mean of r results is between + within/r: for a single result, add the rest of
    # `within`.
    rest = (1 - 1 / repeats) * within
    total = between + rest
    parts = between**2 / (n - 1) + (rest**2 / within_degrees if within_degrees else 0.0)
    return HealthySpread(
        centre=fmean(means),
        deviation=sqrt(total),
        degrees=total**2 / parts if parts else float(n - 1),
        num_subjects=n,
        tail_weight=tail_weight(means),
    )


def _pool(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the variance within groups, and its degrees of freedom; both 0 if nothing was repeated."""
    squares, degrees = 0.0, 0
    for group in groups:
        centre = fmean(group)
        squares += sum((value - centre) ** 2 for value in group)
        degrees += len(group) - 1
    return (squares / degrees if degrees else 0.0), degrees


def tail_weight(figures: Sequence[float]) -> float:
    """Return how much longer or heavier tails are than a normal distribution's; 0 if they are not.

    The weight is computed from ratios of L-moments: skewness to either side (0 if symmetric, 1/3 for an
    exponential distribution), and excess kurtosis over the normal distribution.

    >>> tail_weight([1.0, 2.0, 3.0, 4.0]), round(tail_weight([1.0, 2.0, 3.0, 10.0]), 2)
    (0.0, 5.69)
    """
    ordered, n = sorted(figures), len(figures)
    if n < SHAPE_FIGURES:
        return 0.0
    first = second = third = 0.0
    for place, value in enumerate(ordered):
        first += place * value
        second += place * (place - 1) * value
        third += place * (place - 1) * (place - 2) * value
    mean, first = fmean(ordered), first / (n * (n - 1))
    second /= n * (n - 1) * (n - 2)
    third /= n * (n - 1) * (n - 2) * (n - 3)
    scale = 2 * first - mean
    if scale <= 0:
        return 0.0
    skewness = (6 * second - 6 * first + mean) / scale
    kurtosis = (20 * third - 30 * second + 12 * first - mean) / scale
    return PER_SKEWNESS * abs(skewness) + PER_KURTOSIS * max(0.0, kurtosis - NORMAL_KURTOSIS)


def tail_factor(num_figures: int, weight: float) -> float:
    """Return how much wider a limit is for this number of healthy results with this tail weight.

    >>> [round(tail_factor(num, 0.0), 2) for num in (4, 7, 15, 63, 255)]
    [3.13, 3.55, 1.93, 0.77, 0.49]
    """
    evidence = weight * min(1.0, num_figures / TELLING_FIGURES) ** 2
    return evidence + min(FEWEST + PER_FIGURE * num_figures, KNOWN_SHAPE + UNKNOWN_SHAPE / num_figures)


def repeatability_of(
    subjects: Sequence[Mapping[str, Sequence[float]]], *, day: float
) -> Repeatability | None:
    """Return how well subjects of one type repeat, grouped by session; None if nothing was repeated.

    `day` is the variation between sessions relative to the centre; the sessions passed here refine it. As a
    prior, it counts as `DAY_DEGREES` sessions. All subjects of a session count as one, because day effects
    are common to all.
    """
    of_runs, degrees = _pool([runs for sessions in subjects for runs in sessions.values()])
    several = [sessions for sessions in subjects if len(sessions) > 1]
    if not degrees:  # once per session, as it includes the variation between sessions
        of_runs, degrees = _pool([[fmean(runs) for runs in of.values()] for of in subjects])
        several = []
    if not degrees:
        return None
    assumed = day * abs(fmean(fmean(runs) for sessions in subjects for runs in sessions.values()))
    if not several:
        return Repeatability(within=sqrt(of_runs), degrees=degrees, day=assumed)
    means, _ = _pool([[fmean(runs) for runs in sessions.values()] for sessions in several])
    of_mean = fmean(1 / len(runs) for sessions in several for runs in sessions.values())
    seen, days = max(0.0, means - of_runs * of_mean), max(map(len, several)) - 1
    pooled = sqrt((DAY_DEGREES * assumed**2 + days * seen) / (DAY_DEGREES + days))
    least = assumed * LEAST_DAY_EFFECT / DAY_EFFECT
    return Repeatability(within=sqrt(of_runs), degrees=degrees, day=max(least, pooled))


def past_of_subject(sessions: Mapping[str, Sequence[float]], repeats: Repeatability) -> HealthyValue:
    """Return the value expected from a subject's own history, grouped by session."""
    num = len(sessions)
    of_runs = sum(1 / len(runs) for runs in sessions.values()) / num**2
    return HealthyValue(
        centre=fmean(fmean(runs) for runs in sessions.values()),
        day=repeats.day * sqrt(1 + 1 / num),
        chance=repeats.within * sqrt(1 + of_runs),
        degrees=repeats.degrees,
    )


def past_of_fleet(spread: HealthySpread, *, day: float) -> HealthyValue:
    """Return the healthy value expected for one more subject, from a fleet's results.

    `day` is the variation between sessions, in the results' unit.
    """
    return HealthyValue(
        centre=spread.centre,
        day=day * sqrt(2),
        chance=spread.deviation * sqrt(1 + 1 / spread.num_subjects),
        degrees=round(spread.degrees, 1),
        tail_factor=tail_factor(spread.num_subjects, spread.tail_weight),
    )


@cache
def one_sided_t(error_rate: float, degrees: float) -> float:
    """Return the quantile of Student's t that is exceeded by chance with probability `error_rate`."""
    return -student_t_quantile(degrees, error_rate)
