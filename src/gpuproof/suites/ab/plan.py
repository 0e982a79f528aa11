"""Launches of A and B in turns: which may begin now, from those that have ended."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.ab.course import (
    SIDES,
    AbOptions,
    Course,
    LaunchFigures,
    course,
    launch_order,
    read_options,
)
from gpuproof.suites.base import LaunchKey, launch_key
from gpuproof.suites.cases import build_case
from gpuproof.suites.measures import compared_figures
from gpuproof.suites.points.plan import Point, config_at
from gpuproof.suites.serving.plan import case_of_load, load_of


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
        return replace(self, figures={**self.figures, key: compared_figures(launch)})

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
