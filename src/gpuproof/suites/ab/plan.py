"""Launches of A and B in turns: which may begin now, from those that have ended.

First come `pilot_pairs` pairs. Their spread says how many pairs find a regression of `find` beyond the limit
with 99 % power (`pairs_to_find`); so many are launched, `max_pairs` at most. With a limit, a measure whose
interval then lies beyond it is confirmed by as many pairs again, of which the 90 % interval must lie beyond
it, too. No figure is looked at in between, so that nothing can stop at a lucky moment. Planning and
conclusion both ask `course`. `benchmarks/comparison_errors.py` shows how often a change is called that is
none, and one of 3 % is found.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import log, log1p
from typing import Any

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
CONFIDENCE = 0.95
"""Of all measures of the first run together."""
CONFIRMED = 0.9
"""Of a measure's confirmation: 5 % on the side of a regression, of those that the first run calls."""
POWER = 0.99
"""Of the first run as it is planned; both runs together then find 95 % and more."""
RATE = THROUGHPUT
BETTER: Mapping[str, Better] = {
    RATE: "higher",
    GOODPUT: "higher",
    ANSWERED: "higher",
    MEDIAN_FIRST_TOKEN: "lower",
    MEDIAN_TOKEN: "lower",
    MEDIAN_LATENCY: "lower",
}
"""What sides are compared by: a run's own figures. A step need not be the same work on both."""
LaunchFigures = Mapping[str, float]
"""What one launch says: measure → value; empty where it measured nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbPlan:
    """Both sides, the order of their launches, and what those that ended gave."""

    points: Mapping[str, Point]
    options: AbOptions
    order: tuple[LaunchKey, ...]
    """Of as many pairs as there may be; how many there are is the `course`."""
    figures: Mapping[LaunchKey, LaunchFigures] = field(default_factory=dict)

    @property
    def course(self) -> Course:
        """What is to be launched, as far as it is known."""
        return course(self.options, self.figures)

    @property
    def num_left(self) -> int:
        """Launches that are known to be still to do."""
        planned = self.order[: 2 * self.course.total]
        return sum(key not in self.figures for key in planned)

    @property
    def until(self) -> str | None:
        """Until when more launches follow those that are known; None once that is planned."""
        if self.course.needed is not None:
            return None
        most = f"{self.options.max_pairs} pairs at most"
        return f"a regression of {100 * self.options.find:g} % would be found ({most})"

    def settle(self, launch: CaseRecords) -> AbPlan:
        """Return the plan after a launch ended; one that is not in it changes nothing."""
        key = launch_key(launch.case)
        if key not in self.order:
            return self
        return replace(self, figures={**self.figures, key: compared_values(launch)})

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield what is neither settled nor running, in turns."""
        for key in self.order[: 2 * self.course.total]:
            if key not in self.figures and key not in running:
                side, pair = key
                yield _case(self.points[side].config, pair, side)


def begin(config: RunConfig) -> AbPlan:
    """Plan both sides.

    Raises:
        UsageError: one of them is no recipe that can be run.
    """
    options = read_options(config)
    points = points_of(config, options)
    for side, point in points.items():
        _case(point.config, 0, side)
    draw = random.Random(f"{config.run.order_seed}")  # noqa: S311  # no secret
    turns = launch_order([draw.random() < 0.5 for _ in range(options.max_pairs)])  # two pairs each: both runs
    order = tuple((side, pair) for pair, sides in enumerate(turns) for side in sides)
    return AbPlan(points=points, options=options, order=order)


def _case(config: RunConfig, pair: int, side: str) -> Case:
    """Return a launch of a side; of requests both of a pair have the same arrivals."""
    if config.kind == "serving":
        return case_of_load(config, load_of(config.serving), pair, case_id=side)
    return build_case(config, pair, case_id=side)


def points_of(config: RunConfig, options: AbOptions) -> dict[str, Point]:
    """Return the recipe of each side.

    Raises:
        UsageError: its keys make no recipe.
    """
    points = {}
    for side, keys in zip(SIDES, (options.a, options.b), strict=True):
        side_keys: dict[str, Any] = {"suite": None, "suite_options": {}, **keys}
        points[side] = Point(case_id=side, assignment={}, config=config_at(config, side_keys))
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class AbOptions:
    """The block `ab` of a recipe: in what the sides differ from it, and how hard it looks."""

    a: dict[str, Any] = field(default_factory=dict)
    """Keys of side A that differ from the recipe, such as training.precision, with their values."""
    b: dict[str, Any] = field(default_factory=dict)
    """Keys of side B that differ from the recipe; none on both sides compares the recipe with itself."""
    a_name: str = "A"
    """Name of side A in reports."""
    b_name: str = "B"
    """Name of side B in reports."""
    max_regression: float | None = None
    """Limit of a gate, 0.02 being 2 %: a regression beyond it is confirmed by a second run and ends with exit
    code 3. null only compares."""
    find: float = 0.03
    """Size of the regression that must be found; it decides how many launches there are."""
    pilot_pairs: int = 10
    """Pilot pairs of launches; their spread decides how many pairs are needed."""
    max_pairs: int = 60
    """Largest number of pairs, in the first run and again in the confirmation."""

    def __post_init__(self) -> None:
        if not (self.max_regression or 0.0) < self.find < 1:
            raise ValueError("find is a share below 1, and above max_regression")
        if self.max_regression is not None and not 0 <= self.max_regression < 1:
            raise ValueError("max_regression is a share from 0 to below 1")
        if not MIN_LAUNCHES <= self.pilot_pairs <= self.max_pairs:
            pairs = f"pilot_pairs ({self.pilot_pairs}) is from {MIN_LAUNCHES} to max_pairs ({self.max_pairs})"
            raise ValueError(f"{pairs}: set it to fewer, or max_pairs to more")

    @property
    def limit(self) -> float:
        """The regression that a gate lets pass; 0 where there is none."""
        return self.max_regression or 0.0


def read_options(config: RunConfig) -> AbOptions:
    """Return the block of a recipe."""
    return from_json(AbOptions, config.suite_options[NAME], place=NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is to be launched, as far as it is known."""

    num_pairs: int
    """Of the first run."""
    needed: int | None = None
    """Pairs that find what is to be found, by the pilot; None before its end, or where it cannot tell."""
    suspected: tuple[str, ...] = ()
    """Measures whose regression is to be confirmed."""

    @property
    def total(self) -> int:
        """Pairs of the first run and of its confirmation."""
        return self.num_pairs * (2 if self.suspected else 1)

    @property
    def is_short(self) -> bool:
        """Whether the first run has fewer pairs than it takes."""
        return self.needed is None or self.needed > self.num_pairs


def course(options: AbOptions, figures: Mapping[LaunchKey, LaunchFigures]) -> Course:
    """Return the pairs to launch, by the launches that have ended, in whichever order they did."""
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
    """Return the measures that are compared: those of every launch that measured something."""
    measured = [set(launch) for launch in figures.values() if launch]
    return [name for name in BETTER if measured and all(name in names for names in measured)]


def confidence_per_measure(figures: Mapping[LaunchKey, LaunchFigures]) -> float:
    """Return the confidence of one measure's interval, so that all together have `CONFIDENCE`."""
    return 1 - (1 - CONFIDENCE) / max(1, len(measures_in(figures)))


def pair_values(
    figures: Mapping[LaunchKey, LaunchFigures], name: str, pairs: Collection[int]
) -> tuple[list[float], list[float]]:
    """Return a measure's values on both sides, of the pairs of which both launches have it."""
    rows = [[figures.get((side, pair), {}).get(name) for side in SIDES] for pair in pairs]
    whole = [(a, b) for a, b in rows if a is not None and b is not None]
    return [a for a, _ in whole], [b for _, b in whole]


def _needed_pairs(options: AbOptions, figures: Mapping[LaunchKey, LaunchFigures], pilot: range) -> int | None:
    """Return the pairs that every measure needs; None where too few pairs of the pilot ended well."""
    effect = log1p(options.find) - log1p(options.limit)  # the lesser of a longer time's and a lower rate's
    most = None
    for name in measures_in(figures):
        a, b = pair_values(figures, name, pilot)
        if len(a) < MIN_LAUNCHES:
            return None
        ratios = [log(second / first) for first, second in zip(a, b, strict=True)]
        needed = pairs_to_find(ratios, effect=effect, confidence=confidence_per_measure(figures), power=POWER)
        most = max(needed, most or options.pilot_pairs)
    return most


def _suspects(
    options: AbOptions, figures: Mapping[LaunchKey, LaunchFigures], num_pairs: int
) -> tuple[str, ...]:
    confidence, names = confidence_per_measure(figures), []
    for name in measures_in(figures):
        comparison = compare_pairs(
            *pair_values(figures, name, range(num_pairs)),
            better=BETTER[name],
            confidence=confidence,
            num_pilot=len(pair_values(figures, name, range(options.pilot_pairs))[0]),
        )
        if is_beyond(comparison, options.limit, better=BETTER[name]):
            names.append(name)
    return tuple(names)


def launch_order(draws: Collection[bool]) -> list[tuple[str, str]]:
    """Return the order within each pair: two pairs a draw, A B B A or B A A B.

    >>> launch_order([False, True])
    [('a', 'b'), ('b', 'a'), ('b', 'a'), ('a', 'b')]
    """
    firsts = [first for is_turned in draws for first in ((B, A) if is_turned else (A, B))]
    return [(first, other) for first in firsts for other in SIDES if other != first]
