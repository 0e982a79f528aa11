"""The launches of a sweep: every point of a recipe's `matrix`, `run.repeats` times.

Every replicate runs all points once, in a newly shuffled order, so that a machine that warms up or slows down
affects all points equally.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.config.matrix import assignments, matrix_keys, point_names, short_names
from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import Plan, Point, check_points, config_at, shuffled_order


def points_of_matrix(config: RunConfig) -> dict[str, Point]:
    """Return the points by name, in matrix order.

    Raises:
        UsageError: a point is not a runnable recipe.
    """
    wanted = list(assignments(config.matrix))
    names = point_names(wanted, short_names(list(matrix_keys(config.matrix))))
    return {
        case_id: Point(case_id=case_id, assignment=assignment, config=config_at(config, assignment))
        for case_id, assignment in zip(names, wanted, strict=True)
    }


def plan(config: RunConfig) -> Plan:
    """Plan every launch of the sweep.

    Raises:
        UsageError: a point is not a runnable recipe.
    """
    points = points_of_matrix(config)
    return Plan(points=points, order=shuffled_order(config, points))


def begin(config: RunConfig, _places: Sequence[HostPlace]) -> Plan:
    """Plan the launches of all points.

    Raises:
        UsageError: a point cannot run.
    """
    return check_points(plan(config))
