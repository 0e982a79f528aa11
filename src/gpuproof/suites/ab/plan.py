"""Plan alternating launches of A and B: which may start now, given those that have finished.

First, `pilot_pairs` pairs are launched. Their spread determines how many pairs are needed to find a
regression of `find` beyond the limit with 99 % power (`pairs_to_find`); that many are launched, up to
`max_pairs`. If there is a limit and a measure's interval then lies beyond it, the same number of additional
pairs must confirm the regression: their 90 % interval must also lie beyond the limit. No value is examined in
between, so the run cannot stop early on a lucky value. Planning and conclusion both call `course`.
`benchmarks/comparison_errors.py` shows how often a change is reported when there is none, and how often a
change of 3 % is found.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import log, log1p
from typing import Any

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.launches.point_measures import THROUGHPUT
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Better
from gpuproof.statistics.comparison import MIN_LAUNCHES, compare_pairs, is_beyond, pairs_to_find
from gpuproof.suites.base import LaunchKey, launch_key
from gpuproof.suites.cases import build_case
from gpuproof.suites.points.plan import Point, config_at
from gpuproof.suites.results import (
    ANSWERED,
    GOODPUT,
    MEDIAN_FIRST_TOKEN,
    MEDIAN_LATENCY,
    MEDIAN_TOKEN,
    compared_values,
)
from gpuproof.suites.serving.plan import case_of_load, load_of

NAME = "ab"
A, B = "a", "b"
SIDES = (A, B)
KINDS = ("training", "inference", "serving")
MOST_PAIRS = 1000
"""Largest `max_pairs`: as many as a recipe's launches (run.repeats)."""
CONFIDENCE = 0.95
"""Joint confidence for all measures of the first run."""
CONFIRMED = 0.9
"""Confidence for confirming a measure's regression: 5 % error on the regression side, among regressions that
the first run reports."""
POWER = 0.99
"""Power planned for the first run; both runs together then have at least 95 %."""
RATE = THROUGHPUT
BETTER: Mapping[str, Better] = {
    RATE: "higher",
    GOODPUT: "higher",
    ANSWERED: "higher",
    MEDIAN_FIRST_TOKEN: "lower",
    MEDIAN_TOKEN: "lower",
    MEDIAN_LATENCY: "lower",
}
"""The measures used to compare the sides, and whether higher or lower is better for each. All of them are
results for a whole run, because a step need not do the same amount of work on both sides."""
LaunchFigures = Mapping[str, float]
"""The result of one launch, with a value for each measure; empty if nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbPlan:
    """Both sides, the order of their launches, and the results of those that finished."""

    points: Mapping[str, Point]
    options: AbOptions
    order: tuple[LaunchKey, ...]
    """Launches in order, for the maximum number of pairs; `course` determines how many are run."""
    figures: Mapping[LaunchKey, LaunchFigures] = field(default_factory=dict)

    @property
    def course(self) -> Course:
        """Planned launches known so far."""
        return course(self.options, self.figures)

    @property
    def num_left(self) -> int:
        """Number of launches known to be pending."""
        planned = self.order[: 2 * self.course.total]
        return sum(key not in self.figures for key in planned)

    @property
    def until(self) -> str | None:
        """Launches may be added until this condition is met; None once everything is planned."""
        if self.course.needed is not None:
            return None
        most = f"{self.options.max_pairs} pairs at most"
        return f"a regression of {100 * self.options.find:g} % would be found ({most})"

    def settle(self, launch: CaseRecords) -> AbPlan:
        """Return the plan after a launch has finished; a launch that is not in the plan changes nothing."""
        key = launch_key(launch.case)
        if key not in self.order:
            return self
        return replace(self, figures={**self.figures, key: compared_values(launch)})

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield launches that are neither finished nor running, alternating between the sides."""
        for key in self.order[: 2 * self.course.total]:
            if key not in self.figures and key not in running:
                side, pair = key
                yield _case(self.points[side].config, pair, side)


def begin(config: RunConfig) -> AbPlan:
    """Plan both sides.

    Raises:
        UsageError: one of the sides is not a runnable recipe.
    """
    options = read_options(config)
    points = points_of(config, options)
    for side, point in points.items():
        if point.config.kind not in KINDS:
            cause = f"side {side} is of kind {point.config.kind}, and sides must be of {' or '.join(KINDS)}"
            raise UsageError(cause, place=f"ab.{side}", next_step="Remove kind from it")
        _case(point.config, 0, side)
    draw = random.Random(f"{config.run.order_seed}")  # noqa: S311  # no secret
    # each draw covers two pairs; the order applies to both runs
    turns = launch_order([draw.random() < 0.5 for _ in range(options.max_pairs)])
    order = tuple((side, pair) for pair, sides in enumerate(turns) for side in sides)
    return AbPlan(points=points, options=options, order=order)


def _case(config: RunConfig, pair: int, side: str) -> Case:
    """Return a launch of one side; for requests, both launches of a pair have the same arrival times."""
    if config.kind == "serving":
        return case_of_load(config, load_of(config.serving), pair, case_id=side)
    return build_case(config, pair, case_id=side)


def points_of(config: RunConfig, options: AbOptions) -> dict[str, Point]:
    """Return the recipe of each side.

    Raises:
        UsageError: a side's keys do not form a valid recipe.
    """
    points = {}
    for side, keys in zip(SIDES, (options.a, options.b), strict=True):
        side_keys: dict[str, Any] = {"suite": None, "suite_options": {}, **keys}
        points[side] = Point(case_id=side, assignment={}, config=config_at(config, side_keys))
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class AbOptions:
    """The `ab` block of a recipe: what each side changes, and how sensitive the comparison is."""

    a: dict[str, Any] = field(default_factory=dict)
    """Keys that side A changes in the recipe, e.g. training.precision, with their values."""
    b: dict[str, Any] = field(default_factory=dict)
    """Keys that side B changes in the recipe. If neither side changes any, the recipe is compared with
    itself."""
    a_name: str = "A"
    """Name of side A in reports."""
    b_name: str = "B"
    """Name of side B in reports."""
    max_regression: float | None = None
    """Limit of a gate, e.g. 0.02 for 2 %: a regression beyond it that a second run confirms leads to exit
    code 3. With null, the sides are only compared."""
    find: float = 0.03
    """Size of the regression that must be detected; it determines the number of launches."""
    pilot_pairs: int = 10
    """Number of pilot pairs; their spread determines how many pairs are needed."""
    max_pairs: int = 60
    """Maximum number of pairs, for the first run and again for the confirmation."""

    def __post_init__(self) -> None:
        if not (self.max_regression or 0.0) < self.find < 1:
            raise ValueError("find must be a fraction below 1, and above max_regression")
        if self.max_regression is not None and not 0 <= self.max_regression < 1:
            raise ValueError("max_regression must be a fraction in [0, 1)")
        if self.max_pairs > MOST_PAIRS:
            raise ValueError(f"max_pairs must be at most {MOST_PAIRS}")
        if not MIN_LAUNCHES <= self.pilot_pairs <= self.max_pairs:
            pairs = (
                f"pilot_pairs ({self.pilot_pairs}) must be between {MIN_LAUNCHES} and max_pairs "
                f"({self.max_pairs})"
            )
            raise ValueError(f"{pairs}: reduce it, or raise max_pairs")

    @property
    def limit(self) -> float:
        """The regression that a gate tolerates; 0 without a gate."""
        return self.max_regression or 0.0


def read_options(config: RunConfig) -> AbOptions:
    """Return the recipe's `ab` block."""
    return from_json(AbOptions, config.suite_options[NAME], place=NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Planned pairs known so far."""

    num_pairs: int
    """Number of pairs in the first run."""
    needed: int | None = None
    """Number of pairs needed according to the pilot; None before it finishes, or if it cannot determine the
    number."""
    suspected: tuple[str, ...] = ()
    """Measures with a regression that is yet to be confirmed."""

    @property
    def total(self) -> int:
        """Number of pairs in the first run and its confirmation together."""
        return self.num_pairs * (2 if self.suspected else 1)

    @property
    def is_short(self) -> bool:
        """Whether the first run has fewer pairs than needed."""
        return self.needed is None or self.needed > self.num_pairs


def course(options: AbOptions, figures: Mapping[LaunchKey, LaunchFigures]) -> Course:
    """Return the pairs to launch, given the finished launches in any order."""
    pilot = range(options.pilot_pairs)
    if not _have_ended(figures, pilot):
        return Course(num_pairs=options.pilot_pairs)
    needed = _needed_pairs(options, figures, pilot)
    first = Course(num_pairs=min(options.max_pairs, needed or options.pilot_pairs), needed=needed)
    if options.max_regression is None or not _have_ended(figures, range(first.num_pairs)):
        return first
    return Course(
        num_pairs=first.num_pairs, needed=needed, suspected=_suspects(options, figures, first.num_pairs)
    )


def _have_ended(figures: Mapping[LaunchKey, LaunchFigures], pairs: range) -> bool:
    return all((side, pair) in figures for pair in pairs for side in SIDES)


def measures_in(figures: Mapping[LaunchKey, LaunchFigures]) -> list[str]:
    """Return the measures to compare: those that are in every launch with any result."""
    measured = [set(launch) for launch in figures.values() if launch]
    return [name for name in BETTER if measured and all(name in names for names in measured)]


def measures_lost(figures: Mapping[LaunchKey, LaunchFigures]) -> list[str]:
    """Return the measures that some launches with a result have and others lack, so they are not compared."""
    found = {name for launch in figures.values() for name in launch}
    return [name for name in BETTER if name in found and name not in measures_in(figures)]


def have_ratio(a: Collection[float], b: Collection[float]) -> bool:
    """Report whether launches have ratios: a launch of 0 has none."""
    return all(value > 0 for value in (*a, *b))


def confidence_per_measure(figures: Mapping[LaunchKey, LaunchFigures]) -> float:
    """Return the confidence per measure, so that all intervals together have `CONFIDENCE`."""
    return 1 - (1 - CONFIDENCE) / max(1, len(measures_in(figures)))


def pair_values(
    figures: Mapping[LaunchKey, LaunchFigures], name: str, pairs: Collection[int]
) -> tuple[list[float], list[float]]:
    """Return a measure's values on both sides, for pairs in which both launches measured it."""
    rows = [[figures.get((side, pair), {}).get(name) for side in SIDES] for pair in pairs]
    whole = [(a, b) for a, b in rows if a is not None and b is not None]
    return [a for a, _ in whole], [b for _, b in whole]


def _needed_pairs(options: AbOptions, figures: Mapping[LaunchKey, LaunchFigures], pilot: range) -> int | None:
    """Return the number of pairs needed for all measures; None if too few pilot pairs succeeded."""
    # the smaller of two effects: a longer time or a lower rate
    effect = log1p(options.find) - log1p(options.limit)
    most = None
    for name in measures_in(figures):
        a, b = pair_values(figures, name, pilot)
        if len(a) < MIN_LAUNCHES:
            return None
        if not have_ratio(a, b):
            continue
        ratios = [log(second / first) for first, second in zip(a, b, strict=True)]
        needed = pairs_to_find(ratios, effect=effect, confidence=confidence_per_measure(figures), power=POWER)
        most = max(needed, most or options.pilot_pairs)
    return most


def _suspects(
    options: AbOptions, figures: Mapping[LaunchKey, LaunchFigures], num_pairs: int
) -> tuple[str, ...]:
    confidence, names = confidence_per_measure(figures), []
    for name in measures_in(figures):
        pairs = pair_values(figures, name, range(num_pairs))
        if not have_ratio(*pairs):
            continue
        comparison = compare_pairs(
            *pairs,
            better=BETTER[name],
            confidence=confidence,
            num_pilot=len(pair_values(figures, name, range(options.pilot_pairs))[0]),
        )
        if is_beyond(comparison, options.limit, better=BETTER[name]):
            names.append(name)
    return tuple(names)


def launch_order(draws: Collection[bool]) -> list[tuple[str, str]]:
    """Return the order within each pair: two pairs per draw, A B B A or B A A B.

    >>> launch_order([False, True])
    [('a', 'b'), ('b', 'a'), ('b', 'a'), ('a', 'b')]
    """
    firsts = [first for is_turned in draws for first in ((B, A) if is_turned else (A, B))]
    return [(first, other) for first in firsts for other in SIDES if other != first]
