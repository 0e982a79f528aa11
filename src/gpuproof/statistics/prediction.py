"""How low may one more figure of a healthy subject be, after those of a baseline? Prediction limits.

A subject's own past: its next figure is off the mean of its earlier ones by what sessions differ (`day`,
normal) and by what runs of one session differ (`within`, Student's t with the degrees of freedom that all
subjects of its type give together). Each part has a limit for the stated error rate; the two are added as
squares (Zou and Donner, Statistics in Medicine 27, 2008, section 2), which keeps the heavy tail of a part
that is known from few runs.

The fleet's figures: a further subject's lies under `centre − factor · spread` by chance with the stated rate
(Hahn and Meeker, Statistical Intervals, 1991, section 4.7). Healthy subjects need not scatter as a normal
distribution has it, and few of them may look normal and be of a long tail. So the larger one of the normal
limit and that of Student's t with 4 degrees of freedom is multiplied by `tail_factor`: so that of 5 to 256
subjects that are normal, t₄, exponential or log-normal (sigma 0.8) the lowest is under it at the stated rate.
It grows with what L-moments tell of the tails (Hosking, Journal of the Royal Statistical Society B 52, 1990),
and falls with the number that they rest on. `benchmarks/tail_knowledge.py` chose its numbers.

Three runs of one subject that repeats to 0.1 % resolve little; beside seven others they resolve 0.9 %, and
with what a day does (1 %) 8.4 %:

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
"""Under three a spread is a guess."""
SHAPE_FIGURES = 4
"""Under four there is no L-kurtosis."""
HEAVY_DEGREES = 4.0
"""Of Student's t: the tails that healthy subjects are allowed at least."""
NORMAL_KURTOSIS = 0.1226
"""L-kurtosis of a normal distribution."""
PER_SKEWNESS, PER_KURTOSIS = 4.0, 6.0
"""Of `tail_weight`."""
KNOWN_SHAPE, UNKNOWN_SHAPE = 0.4, 23.0
"""Of `tail_factor`: of very many figures, and by how much over their number more."""
FEWEST, PER_FIGURE = 2.57, 0.14
"""The same of a few figures, of which Student's t is wide by itself."""
TELLING_FIGURES = 15
"""So many tell of their tails; what fewer tell is mostly chance, and counts by the square of their share."""
DAY_EFFECT = 0.01
"""Standard deviation between sessions, relative, where a baseline does not show it: finished runs of two days
differed by so much on quiet machines."""
DAY_DEGREES = 10
"""How many sessions' worth of evidence that default is: eleven days of a baseline count as much."""
LEAST_DAY_EFFECT = 0.005
"""However alike the days of a baseline were: a driver, a neighbour or the room may change on the next."""
IN_MOST_CASES = 0.05
"""A loss can be detected where it is missed in so few cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthySpread:
    """Where the figures of healthy subjects lie, and how a single one scatters."""

    centre: float
    deviation: float
    """Standard deviation of a single figure of any subject, in the unit of the figures."""
    degrees: float
    """Of freedom, on which `deviation` rests (Satterthwaite's)."""
    num_subjects: int
    tail_weight: float = 0.0
    """Of the subjects' means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeatability:
    """How figures of one subject scatter, pooled over subjects of a type, in the unit of the figures."""

    within: float
    """Standard deviation between runs of one session."""
    degrees: int
    """Of freedom, on which `within` rests."""
    day: float
    """Standard deviation between sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyValue:
    """What a healthy subject's next figure is expected to be, in another session."""

    centre: float
    day: float
    """Standard deviation by what sessions differ, that of the centre included; in the unit of the figures."""
    chance: float
    """The same of all else."""
    degrees: float
    """Of freedom, on which `chance` rests."""
    tail_factor: float | None = None
    """By how much the limit is wider since subjects may have long tails; None: `chance` is one subject's."""

    def reach(self, error_rate: float) -> float:
        """Return how far off the centre, to one side, the figure may be."""
        quantile = one_sided_t(error_rate, self.degrees)
        if self.tail_factor is not None:
            heavy = one_sided_t(error_rate, HEAVY_DEGREES) / sqrt(HEAVY_DEGREES / (HEAVY_DEGREES - 2))
            quantile = self.tail_factor * max(quantile, heavy)
        return hypot(one_sided_t(error_rate, inf) * self.day, quantile * self.chance)

    @property
    def noise(self) -> float:
        """How far off a healthy figure is in all but 5 % of cases."""
        return one_sided_t(IN_MOST_CASES, inf) * hypot(self.day, self.chance)

    def detectable(self, error_rate: float) -> float | None:
        """Return the smallest loss, as a share, that a limit of this error rate fails in 95 % of cases."""
        return (self.reach(error_rate) + self.noise) / abs(self.centre) if self.centre else None


def spread_of(figures: Sequence[Sequence[float]]) -> HealthySpread | None:
    """Return the spread of figures, given subject by subject; None with under three subjects.

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
    # A mean of r figures scatters by between + within/r: a single one has the rest of `within` on top.
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
    """Return the variance within groups, and its degrees of freedom; 0 of each where nothing was repeated."""
    squares, degrees = 0.0, 0
    for group in groups:
        centre = fmean(group)
        squares += sum((value - centre) ** 2 for value in group)
        degrees += len(group) - 1
    return (squares / degrees if degrees else 0.0), degrees


def tail_weight(figures: Sequence[float]) -> float:
    """Return how much longer or heavier the tails of figures are than normal ones; 0 where they are not.

    From ratios of L-moments: skewness to either side (0 where both are alike, 1/3 of an exponential
    distribution), and kurtosis over the normal one.

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
    """Return how much wider a limit is where so many figures of healthy subjects are known, of this weight.

    >>> [round(tail_factor(num, 0.0), 2) for num in (4, 7, 15, 63, 255)]
    [3.13, 3.55, 1.93, 0.77, 0.49]
    """
    evidence = weight * min(1.0, num_figures / TELLING_FIGURES) ** 2
    return evidence + min(FEWEST + PER_FIGURE * num_figures, KNOWN_SHAPE + UNKNOWN_SHAPE / num_figures)


def repeatability_of(
    subjects: Sequence[Mapping[str, Sequence[float]]], *, day: float
) -> Repeatability | None:
    """Return how subjects of one type repeat, each given by session; None where nothing was repeated.

    `day` is by how much sessions differ, relative to the centre, unless these show it: the default counts as
    `DAY_DEGREES` sessions, and all subjects of a session as one, since what a day does it does to all.
    """
    of_runs, degrees = _pool([runs for sessions in subjects for runs in sessions.values()])
    several = [sessions for sessions in subjects if len(sessions) > 1]
    if not degrees:  # once a session: what sessions do is in it
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
    """Return what a subject's own past, given by session, lets expect."""
    num = len(sessions)
    of_runs = sum(1 / len(runs) for runs in sessions.values()) / num**2
    return HealthyValue(
        centre=fmean(fmean(runs) for runs in sessions.values()),
        day=repeats.day * sqrt(1 + 1 / num),
        chance=repeats.within * sqrt(1 + of_runs),
        degrees=repeats.degrees,
    )


def past_of_fleet(spread: HealthySpread, *, day: float) -> HealthyValue:
    """Return what a fleet's figures let expect of one more subject.

    `day` is by how much sessions differ, in the unit of the figures.
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
    """Return the quantile of Student's t that is exceeded by chance with `error_rate`."""
    return -student_t_quantile(degrees, error_rate)
