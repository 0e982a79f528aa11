"""A sweep: every point of a recipe's `matrix`, each launched `run.repeats` times.

In: the config and the launches so far. Out: the launches still to do. Their order is replicate-major, and
shuffled anew for each replicate, so that a machine that warms up or slows down treats all points alike.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from gpuproof.config.matrix import Assignment, assignments, matrix_axes
from gpuproof.config.models import RunConfig
from gpuproof.errors import UsageError
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.training import case_of, launch_key

MAX_NAME = 100
"""Characters of a point's name, which is a folder's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of the swept keys, and the recipe that it makes."""

    case_id: str
    assignment: Assignment
    config: RunConfig


def points_of(config: RunConfig) -> list[Point]:
    """Return the points in the order of the matrix.

    Raises:
        UsageError: a point is no recipe that can be run.
    """
    axes = matrix_axes(config.matrix)
    return [
        Point(case_id=case_id, assignment=assignment, config=config_at(config, assignment))
        for case_id, assignment in zip(
            point_names(assignments(config.matrix), short_names(list(axes))),
            assignments(config.matrix),
            strict=True,
        )
    ]


def next_cases(config: RunConfig, results: Sequence[CaseRecords]) -> list[Case]:
    """Return the launches that are not among the results, in the order in which to launch them.

    Raises:
        UsageError: a point is no recipe that can be run.
    """
    launched = {launch_key(records.case) for records in results}
    cases = _ordered(config, points_of(config))
    return [case for case in cases if launch_key(case) not in launched]


def _ordered(config: RunConfig, points: Sequence[Point]) -> list[Case]:
    cases = []
    for replicate in range(config.run.repeats):
        order = list(points)
        random.Random(f"{config.run.order_seed}:{replicate}").shuffle(order)  # noqa: S311  # no secret
        cases += [_case_at(point, replicate) for point in order]
    # What the host has is the same at every point, and takes time to find out.
    return [case if place == 0 else replace(case, capture_env=False) for place, case in enumerate(cases)]


def _case_at(point: Point, replicate: int) -> Case:
    try:
        return case_of(point.config, replicate, case_id=point.case_id, is_sweep=True)
    except UsageError as error:
        raise UsageError(
            f"{error.cause} (at the point {point.case_id})", place=error.place, next_step=error.next_step
        ) from error


def config_at(config: RunConfig, assignment: Mapping[str, Any]) -> RunConfig:
    """Return the recipe of one point, without the sweep.

    Raises:
        UsageError: it is none that can be run.
    """
    values = config.model_dump(exclude={"matrix", "search", "load"})
    values["run"]["order_seed"] = 0
    for key, value in assignment.items():
        node, (*above, last) = values, key.split(".")
        for part in above:
            node = node.setdefault(part, {})
        node[last] = value
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(
            f"{first['msg']} (at the point {dict(assignment)})",
            place=".".join(map(str, first["loc"])) or "matrix",
        ) from error


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Name each dotted key by its last part, or in full where two end alike.

    >>> short_names(["training.precision", "data.name", "model.name"])
    {'training.precision': 'precision', 'data.name': 'data.name', 'model.name': 'model.name'}
    """
    last = Counter(key.rpartition(".")[2] for key in keys)
    return {key: key if last[key.rpartition(".")[2]] > 1 else key.rpartition(".")[2] for key in keys}


def point_names(points: Sequence[Assignment], names: Mapping[str, str]) -> list[str]:
    """Name points as folders can be named; a sum tells names apart that would be the same, or too long.

    >>> point_names([{"a.lr": 0.1, "b.devices": [0, 1]}, {"a.lr": None, "b.devices": [2]}],
    ...             {"a.lr": "lr", "b.devices": "devices"})
    ['lr=0.1,devices=0-1', 'lr=null,devices=2']
    """
    plain = [",".join(f"{names[key]}={_slug(value)}" for key, value in point.items()) for point in points]
    count = Counter(plain)
    return [
        f"{name[: MAX_NAME - 9]}-{zlib.crc32(repr(point).encode()):08x}"
        if count[name] > 1 or len(name) > MAX_NAME
        else name
        for name, point in zip(plain, points, strict=True)
    ]


def _slug(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return "-".join(_slug(item) for item in value)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).lstrip(".-") or "-"
