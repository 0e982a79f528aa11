"""A matrix as plain data: its combinations, which of them are run, and what each case is called.

The rules and the plan both ask here, so that they name the same cases.

>>> assignments({"a.x": [1, 2], "b.y": [3, 4], "exclude": [{"a.x": 2, "b.y": 3}]})
[{'a.x': 1, 'b.y': 3}, {'a.x': 1, 'b.y': 4}, {'a.x': 2, 'b.y': 4}]
>>> assignments({"x": [1], "include": [{"x": 5}]}), list(matrix_keys({"include": [{"x": 5}]}))
([{'x': 1}, {'x': 5}], ['x'])
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuproof.config.rules.base import Refusal, Refusals
from gpuproof.records.work.command import fill_template, value_text

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


MAX_NAME = 100
"""Characters of a point's name, which is a folder's."""

EXCLUDE, INCLUDE = "exclude", "include"

Assignment = dict[str, Any]


def matrix_axes(matrix: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the swept keys with their values."""
    return {key: values for key, values in matrix.items() if key not in (EXCLUDE, INCLUDE)}


def matrix_keys(matrix: Mapping[str, Any]) -> dict[str, None]:
    """Return the keys of every combination: those of the axes, else of what is included."""
    first: list[Mapping[str, Any]] = [matrix_axes(matrix), *_included(matrix)]
    return dict.fromkeys(next((keys for keys in first if keys), ()))


def _included(matrix: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the combinations that are added, as far as they are any."""
    stated = matrix.get(INCLUDE, ())
    return [part for part in stated if isinstance(part, Mapping)] if isinstance(stated, list) else []


def num_combinations(matrix: Mapping[str, Any]) -> int:
    """Count the combinations before any is left out."""
    axes = matrix_axes(matrix)
    product = math.prod(len(values) for values in axes.values()) if axes else 0
    return product + len(_included(matrix))


def assignments(matrix: Mapping[str, Any]) -> list[Assignment]:
    """Return every combination that is not excluded, then those that are included."""
    axes, excluded = matrix_axes(matrix), matrix.get(EXCLUDE, [])
    product = itertools.product(*axes.values()) if axes else ()
    points = (dict(zip(axes, values, strict=True)) for values in product)
    remaining = [point for point in points if not any(_holds(point, part) for part in excluded)]
    return [*remaining, *map(dict, _included(matrix))]


def _holds(point: Assignment, part: Assignment) -> bool:
    return all(key in point and point[key] == value for key, value in part.items())


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Name each dotted key by its last part, or in full where two end alike.

    >>> short_names(["training.precision", "data.name", "model.name"])
    {'training.precision': 'precision', 'data.name': 'data.name', 'model.name': 'model.name'}
    """
    last = Counter(key.rpartition(".")[2] for key in keys)
    return {key: key if last[key.rpartition(".")[2]] > 1 else key.rpartition(".")[2] for key in keys}


def slug(value: Any) -> str:
    """Write a value as a part of a folder's name."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return "-".join(slug(item) for item in value)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).lstrip(".-") or "-"


def point_names(points: Sequence[Assignment], names: Mapping[str, str]) -> list[str]:
    """Name points as folders can be named; a sum tells names apart that would be the same, or too long.

    >>> point_names([{"a.lr": 0.1, "b.devices": [0, 1]}, {"a.lr": None, "b.devices": [2]}],
    ...             {"a.lr": "lr", "b.devices": "devices"})
    ['lr=0.1,devices=0-1', 'lr=null,devices=2']
    """
    plain = [",".join(f"{names[key]}={slug(value)}" for key, value in point.items()) for point in points]
    count = Counter(plain)
    return [
        f"{name[: MAX_NAME - 9]}-{zlib.crc32(repr(point).encode()):08x}"
        if count[name] > 1 or len(name) > MAX_NAME
        else name
        for name, point in zip(plain, points, strict=True)
    ]


MAX_CASES = 10_000
"""Of one matrix, repetitions included."""
LONGEST_NAME = 100
"""Characters of a case's name, which is a folder's."""


def chosen_cases(config: RunConfig) -> list[Assignment]:
    """Return the combinations that cases.only leaves; the empty one where there is no matrix."""
    wanted = assignments(config.matrix) if config.matrix else [{}]
    return [one for one in wanted if all(_is_chosen(one, text) for text in config.cases.only)]


def _is_chosen(assignment: Assignment, text: str) -> bool:
    """Say whether a case is as `axis=value,value` has it."""
    name, _, values = text.partition("=")
    key = _key(name, assignment)
    return key is not None and value_text(assignment[key]) in values.split(",")


def _key(name: str, keys: Any) -> str | None:
    """Find a key by its full name, or by the last part of it."""
    return next((key for key in keys if name in (key, key.rpartition(".")[2])), None)


def names_from_template(chosen: Sequence[Assignment], config: RunConfig) -> list[str] | None:
    """Name cases by the user's template; None where there is none."""
    template = config.cases.name
    if template is None:
        return None
    return [slug(fill_template(template, {**config.cases.fields, **_by_short_name(one)})) for one in chosen]


def _by_short_name(assignment: Assignment) -> dict[str, Any]:
    names = short_names(list(assignment))
    return {names[key].replace(".", "_"): value for key, value in assignment.items()}


def _can_be_listed(config: RunConfig) -> bool:
    """Say whether the matrix is one whose cases can be listed; what else is wrong is told elsewhere."""
    values = config.matrix.values()
    return all(isinstance(value, list) for value in values) and num_combinations(config.matrix) <= MAX_CASES


def only_names_cases(config: RunConfig) -> Refusals:
    """Refuse a choice of an axis that there is not, or that leaves no case."""
    if not config.cases.only or not _can_be_listed(config):
        return
    keys = matrix_keys(config.matrix)
    for text in config.cases.only:
        if "=" not in text or _key(text.partition("=")[0], keys) is None:
            yield Refusal(
                keys=("cases.only",),
                cause=f"{text!r} is no AXIS=VALUE of this matrix",
                next_step=f"Its axes are {', '.join(keys) or 'none'}",
            )
            return
    if not chosen_cases(config):
        yield Refusal(
            keys=("cases.only",),
            cause=f"no case is left by {' '.join(config.cases.only)}",
            next_step="Name values that the matrix has",
        )


def names_are_different(config: RunConfig) -> Refusals:
    """Refuse two cases of one name, and names that no folder can have."""
    if config.cases.name is None or not _can_be_listed(config):
        return
    names = names_from_template(chosen_cases(config), config) or []
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        yield Refusal(
            keys=("cases.name",),
            cause=f"{Counter(names)[repeated[0]]} cases have the name {repeated[0]}",
            next_step="Name every field that the matrix varies",
        )
    elif any(len(name) > LONGEST_NAME for name in names):
        cause = f"a case's name has over {LONGEST_NAME} characters"
        yield Refusal(keys=("cases.name",), cause=cause, next_step="Name fewer fields")
