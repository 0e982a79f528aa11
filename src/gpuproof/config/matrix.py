"""The points of a recipe's `matrix:`: every combination of the values of its keys, less what it excludes.

In: the section as plain data, or the settings of a whole recipe. Out: assignments (dotted key → value) in the
order of the section, the last key varying fastest; or mistakes at the line of the entry that makes them.

>>> assignments({"a.x": [1, 2], "b.y": [3, 4], "exclude": [{"a.x": 2, "b.y": 3}]})
[{'a.x': 1, 'b.y': 3}, {'a.x': 1, 'b.y': 4}, {'a.x': 2, 'b.y': 4}]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuproof.config.errors import ConfigError, Mistake, shown
from gpuproof.config.keys import check_keys
from gpuproof.config.rules import check_workload
from gpuproof.config.settings import ConfigSetting, dotted, lay_over
from gpuproof.config.validation import place_refusals, validate

SECTION = "matrix"
EXCLUDE = "exclude"
MAX_POINTS = 1000
FIXED = ("run", "matrix", "search", "suite")
"""Sections that hold for the whole run: its name and place, how often, and what is swept."""
ORDER_SEED = ("run", "order_seed")
"""Makes no sense at a single point, which is checked as a recipe of its own."""

Assignment = dict[str, Any]


def matrix_axes(matrix: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the swept keys with their values."""
    return {key: values for key, values in matrix.items() if key != EXCLUDE}


def assignments(matrix: Mapping[str, Any]) -> list[Assignment]:
    """Return every combination that is not excluded."""
    axes, excluded = matrix_axes(matrix), matrix.get(EXCLUDE, [])
    points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return [point for point in points if not any(_holds(point, part) for part in excluded)]


def _holds(point: Assignment, part: Assignment) -> bool:
    return all(key in point and point[key] == value for key, value in part.items())


def in_one_key(settings: Sequence[ConfigSetting]) -> list[ConfigSetting]:
    """Join what stands below `matrix` to one dotted key each, however it was nested."""
    parents = {
        setting.path[:end]
        for setting in settings
        if setting.path[0] == SECTION
        for end in range(2, len(setting.path))
    }
    return [
        replace(setting, path=(SECTION, dotted(setting.path[1:])))
        if setting.path[0] == SECTION and len(setting.path) > 2
        else setting
        for setting in settings
        if setting.path not in parents
    ]


def matrix_mistakes(settings: Sequence[ConfigSetting], *, with_workloads: bool = False) -> list[Mistake]:
    """Name what is wrong with the matrix of a recipe that is right without it.

    With workloads, that of each point is looked up and checked too.
    """
    entries = {s.path[1]: s for s in settings if s.path[0] == SECTION and len(s.path) == 2}
    exclude = entries.pop(EXCLUDE, None)
    mistakes = [mistake for key, entry in entries.items() for mistake in _fault_of_axis(key, entry)]
    if mistakes:
        return mistakes
    matrix = {key: entry.value for key, entry in entries.items()}
    if exclude is not None:
        mistakes = list(_faults_of_exclude(exclude, matrix))
        matrix[EXCLUDE] = exclude.value
    return mistakes or _faults_of_points(settings, entries, matrix, with_workloads=with_workloads)


def _fault_of_axis(key: str, entry: ConfigSetting) -> Iterable[Mistake]:
    if key.split(".", maxsplit=1)[0] in FIXED:
        cause = f"{key.split('.', maxsplit=1)[0]} holds for the whole run and cannot be swept"
        return [Mistake.in_setting(entry, cause, next_step="Leave it out of the matrix")]
    values = entry.value
    if not isinstance(values, list) or not values:
        cause = f"expected a list of values, found {shown(values, entry.written)}"
        return [Mistake.in_setting(entry, cause, next_step="Write [a, b], or set the key outside the matrix")]
    repeated = [value for place, value in enumerate(values) if _is_among(value, values[:place])]
    if repeated:
        cause = f"{shown(repeated[0])} stands there twice"
        return [Mistake.in_setting(entry, cause, next_step="Keep one; run.repeats launches each point again")]
    return _faults_of_values(key, entry)


def _is_among(value: Any, values: Sequence[Any]) -> bool:
    """Tell 1 from true, which Python takes for equal."""
    return any(value == other and type(value) is type(other) for other in values)


def _faults_of_values(key: str, entry: ConfigSetting) -> Iterable[Mistake]:
    for value in entry.value:
        _, mistakes = check_keys([replace(entry, path=tuple(key.split(".")), value=value, written=None)])
        if mistakes:
            return mistakes[:1]
    return []


def _faults_of_exclude(exclude: ConfigSetting, axes: Mapping[str, list[Any]]) -> Iterable[Mistake]:
    next_step = "Write a list such as [{training.precision: fp32, data.batch_size: 64}]"
    if not isinstance(exclude.value, list) or not all(isinstance(part, dict) for part in exclude.value):
        cause = f"expected a list of combinations, found {shown(exclude.value, exclude.written)}"
        yield Mistake.in_setting(exclude, cause, next_step=next_step)
        return
    for part in exclude.value:
        for key, value in part.items():
            if not _is_among(value, axes.get(key, [])):
                cause = f"no point has {key}={_text(value)}, so this excludes nothing"
                known = "; ".join(f"{name}: {_text(values)}" for name, values in axes.items())
                yield Mistake.in_setting(exclude, cause, next_step=f"The matrix has {known}")
        if not part:
            yield Mistake.in_setting(
                exclude, "an empty combination excludes every point", next_step=next_step
            )


def _faults_of_points(
    settings: Sequence[ConfigSetting],
    entries: Mapping[str, ConfigSetting],
    matrix: Mapping[str, Any],
    *,
    with_workloads: bool,
) -> list[Mistake]:
    """Check each point as a recipe of its own; a mistake of many points is told once."""
    if not entries:
        return []
    first = next(iter(entries.values()))
    num_points = math.prod(len(entry.value) for entry in entries.values())
    if num_points > MAX_POINTS:
        cause = f"{num_points:,} combinations (at most {MAX_POINTS:,})"
        return [Mistake.in_setting(first, cause, next_step="Sweep fewer keys or values")]
    points = assignments(matrix)
    if not points:
        return [Mistake.in_setting(first, "every point is excluded", next_step="Exclude less")]
    base = [s for s in settings if s.path[0] not in (SECTION, "search") and s.path != ORDER_SEED]
    found: dict[tuple[str, str], tuple[Mistake, list[Assignment]]] = {}
    for point in points:
        swept = [
            replace(entries[key], path=tuple(key.split(".")), value=value, written=None)
            for key, value in point.items()
        ]
        for mistake in _mistakes_at(lay_over(base, swept), with_workloads=with_workloads):
            found.setdefault((mistake.place, mistake.cause), (mistake, []))[1].append(point)
    return [_of_points(mistake, wrong) for mistake, wrong in found.values()]


def _mistakes_at(settings: Sequence[ConfigSetting], *, with_workloads: bool) -> Sequence[Mistake]:
    try:
        config = validate(settings)
    except ConfigError as error:
        return error.mistakes
    return place_refusals(check_workload(config), settings) if with_workloads else []


def _of_points(mistake: Mistake, points: Sequence[Assignment]) -> Mistake:
    where = ", ".join(f"{key}={_text(value)}" for key, value in points[0].items())
    more = f" and {len(points) - 1} more" if len(points) > 1 else ""
    return replace(mistake, cause=f"{mistake.cause} (point {where}{more})")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)
