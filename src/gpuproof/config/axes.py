"""A matrix as plain data: its axes, what it leaves out, what it adds, and all combinations.

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
from typing import Any

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
