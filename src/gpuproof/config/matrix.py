"""A recipe's `matrix:`: its combinations, the ones that run, the case names, and mistakes.

Both the rules and the plan use this module, so that both list the same cases. Mistakes are reported at the
line of the entry that causes them. Keys are recipe keys, and each combination is checked as a recipe; if the
recipe has a command, the keys are the fields of its template.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuproof.config.keys import check_keys
from gpuproof.config.load import place_refusals, validate
from gpuproof.config.rules import check_workload
from gpuproof.config.rules.base import Refusal, Refusals
from gpuproof.config.settings import ConfigError, ConfigSetting, Mistake, dotted, lay_over, shown
from gpuproof.records.work.command import fill_template, setting_text, value_text

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


MAX_NAME = 100
"""Maximum length of the name of a point or case, which is also a folder name."""

EXCLUDE, INCLUDE = "exclude", "include"

Assignment = dict[str, Any]
MAX_CASES = 10_000
"""Maximum number of launches per matrix, including repetitions."""
SECTION = "matrix"
MAX_POINTS = 1000
FIXED = ("run", "matrix", "search", "suite")
"""Sections that apply to the whole run: its name and location, its repeats, and what is swept."""
OF_THE_WHOLE = (("run", "order_seed"), ("cases", "only"), ("cases", "name"))
"""Keys that make no sense for a single point, which is checked as a separate recipe."""


def matrix_axes(matrix: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the swept keys with their values."""
    return {key: values for key, values in matrix.items() if key not in (EXCLUDE, INCLUDE)}


def matrix_keys(matrix: Mapping[str, Any]) -> dict[str, None]:
    """Return the keys of every combination: of the axes or, without axes, of the included entries."""
    first: list[Mapping[str, Any]] = [matrix_axes(matrix), *_included(matrix)]
    return dict.fromkeys(next((keys for keys in first if keys), ()))


def _included(matrix: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the included combinations, without invalid ones."""
    stated = matrix.get(INCLUDE, ())
    return [part for part in stated if isinstance(part, Mapping)] if isinstance(stated, list) else []


def num_combinations(matrix: Mapping[str, Any]) -> int:
    """Count the combinations before exclusions are applied."""
    axes = matrix_axes(matrix)
    product = math.prod(len(values) for values in axes.values()) if axes else 0
    return product + len(_included(matrix))


def assignments(matrix: Mapping[str, Any]) -> list[Assignment]:
    """Return every combination that is not excluded, followed by the included ones."""
    axes, excluded = matrix_axes(matrix), matrix.get(EXCLUDE, [])
    product = itertools.product(*axes.values()) if axes else ()
    points = (dict(zip(axes, values, strict=True)) for values in product)
    remaining = [point for point in points if not any(_holds(point, part) for part in excluded)]
    return [*remaining, *map(dict, _included(matrix))]


def _holds(point: Assignment, part: Assignment) -> bool:
    return all(key in point and point[key] == value for key, value in part.items())


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Shorten each dotted key to its last part, unless that is ambiguous.

    >>> short_names(["training.precision", "data.name", "model.name"])
    {'training.precision': 'precision', 'data.name': 'data.name', 'model.name': 'model.name'}
    """
    last = Counter(key.rpartition(".")[2] for key in keys)
    return {key: key if last[key.rpartition(".")[2]] > 1 else key.rpartition(".")[2] for key in keys}


def slug(value: Any) -> str:
    """Write a value as part of a folder name."""
    if isinstance(value, list):
        return "-".join(slug(item) for item in value)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", setting_text(value)).lstrip(".-") or "-"


def point_names(points: Sequence[Assignment], names: Mapping[str, str]) -> list[str]:
    """Assign each point a valid folder name; duplicate or overly long names get a hash.

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


def chosen_cases(config: RunConfig) -> list[Assignment]:
    """Return the combinations selected by cases.only; without a matrix, only the empty combination."""
    wanted = assignments(config.matrix) if config.matrix else [{}]
    return [one for one in wanted if all(_is_chosen(one, text) for text in config.cases.only)]


def _is_chosen(assignment: Assignment, text: str) -> bool:
    """Return whether a case matches `axis=value,value`."""
    name, _, values = text.partition("=")
    key = _key(name, assignment)
    return key is not None and value_text(assignment[key]) in values.split(",")


def _key(name: str, keys: Any) -> str | None:
    """Find a key by its full name or its last part."""
    return next((key for key in keys if name in (key, key.rpartition(".")[2])), None)


def names_from_template(chosen: Sequence[Assignment], config: RunConfig) -> list[str] | None:
    """Name cases using the user's template; None if there is no template."""
    template = config.cases.name
    if template is None:
        return None
    return [slug(fill_template(template, {**config.cases.fields, **_by_short_name(one)})) for one in chosen]


def _by_short_name(assignment: Assignment) -> dict[str, Any]:
    names = short_names(list(assignment))
    return {names[key].replace(".", "_"): value for key, value in assignment.items()}


def _can_be_listed(config: RunConfig) -> bool:
    """Return whether the matrix's cases can be listed; any other mistakes are reported elsewhere."""
    values = config.matrix.values()
    return all(isinstance(value, list) for value in values) and num_combinations(config.matrix) <= MAX_CASES


def only_names_cases(config: RunConfig) -> Refusals:
    """Reject a selection that uses an unknown axis or leaves no case."""
    if not config.cases.only or not _can_be_listed(config):
        return
    keys = matrix_keys(config.matrix)
    for text in config.cases.only:
        if "=" not in text or _key(text.partition("=")[0], keys) is None:
            yield Refusal(
                keys=("cases.only",),
                cause=f"{text!r} is not an AXIS=VALUE of this matrix",
                next_step=f"Its axes are {', '.join(keys) or 'none'}",
            )
            return
    if not chosen_cases(config):
        yield Refusal(
            keys=("cases.only",),
            cause=f"no case matches {' '.join(config.cases.only)}",
            next_step="Use values from the matrix",
        )


def names_are_different(config: RunConfig) -> Refusals:
    """Reject two cases with the same name, and names that are not valid for a folder."""
    if config.cases.name is None or not _can_be_listed(config):
        return
    names = names_from_template(chosen_cases(config), config) or []
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        yield Refusal(
            keys=("cases.name",),
            cause=f"{Counter(names)[repeated[0]]} cases have the name {repeated[0]}",
            next_step="Include every field that the matrix varies",
        )
    elif any(len(name) > MAX_NAME for name in names):
        cause = f"a case's name has more than {MAX_NAME} characters"
        yield Refusal(keys=("cases.name",), cause=cause, next_step="Name fewer fields")


def in_one_key(settings: Sequence[ConfigSetting]) -> list[ConfigSetting]:
    """Flatten everything below `matrix` to one dotted key each, however it was nested."""
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
    """List the mistakes in the matrix of a recipe that is valid without the matrix.

    If workloads are checked, each point's workload is also looked up and checked.
    """
    entries = {s.path[1]: s for s in settings if s.path[0] == SECTION and len(s.path) == 2}
    exclude, include = entries.pop(EXCLUDE, None), entries.pop(INCLUDE, None)
    is_template = any(s.path[0] == "command" for s in settings)
    mistakes = [
        m for key, entry in entries.items() for m in _fault_of_axis(key, entry, is_template=is_template)
    ]
    if mistakes:
        return mistakes
    matrix = {key: entry.value for key, entry in entries.items()}
    if include is not None:
        mistakes += _faults_of_include(include, matrix)
        matrix[INCLUDE] = include.value
    if exclude is not None and not mistakes:
        mistakes += _faults_of_exclude(exclude, matrix)
        matrix[EXCLUDE] = exclude.value
    if mistakes:
        return mistakes
    all_entries = [*entries.values(), *(entry for entry in (include,) if entry is not None)]
    if not all_entries:
        step = "Add keys to sweep, each with a list of values, or remove the section"
        return [Mistake.in_setting(exclude, "no key is swept", next_step=step)] if exclude else []
    is_of_cases = is_template or any(s.path == ("suite",) and s.value == SECTION for s in settings)
    if wrong := _faults_of_number(all_entries[0], matrix, most=MAX_CASES if is_of_cases else MAX_POINTS):
        return wrong
    if is_template:
        return []
    return _faults_of_points(
        settings,
        {**dict.fromkeys(matrix_keys(matrix), all_entries[0]), **entries},
        matrix,
        with_workloads=with_workloads,
    )


def _fault_of_axis(key: str, entry: ConfigSetting, *, is_template: bool) -> Iterable[Mistake]:
    if key.split(".", maxsplit=1)[0] in FIXED and not is_template:
        cause = f"{key.split('.', maxsplit=1)[0]} applies to the whole run and cannot be swept"
        return [Mistake.in_setting(entry, cause, next_step="Remove it from the matrix")]
    values = entry.value
    if not isinstance(values, list) or not values:
        cause = f"expected a list of values, found {shown(values, entry.written)}"
        return [Mistake.in_setting(entry, cause, next_step="Write [a, b], or set the key outside the matrix")]
    repeated = [value for place, value in enumerate(values) if _is_among(value, values[:place])]
    if repeated:
        cause = f"{shown(repeated[0])} is listed twice"
        return [Mistake.in_setting(entry, cause, next_step="Keep one; run.repeats repeats each point")]
    for value in values:
        if not is_template:
            swept = replace(entry, path=tuple(key.split(".")), value=value, written=None)
            if wrong := check_keys([swept])[1]:
                return wrong[:1]
        elif isinstance(value, (list, dict)):
            cause = f"{shown(value)} is not a single value"
            return [Mistake.in_setting(entry, cause, next_step="Write text, numbers, true, false or null")]
    return []


def _is_among(value: Any, values: Sequence[Any]) -> bool:
    """Distinguish 1 from true, which Python treats as equal, but not from 1.0."""
    return any(value == other and isinstance(value, bool) is isinstance(other, bool) for other in values)


def _faults_of_include(include: ConfigSetting, axes: Mapping[str, list[Any]]) -> Iterable[Mistake]:
    """Reject a combination that lacks a key or is a duplicate."""
    if not isinstance(include.value, list) or not all(
        isinstance(part, dict) and part for part in include.value
    ):
        cause = f"expected a list of combinations, found {shown(include.value, include.written)}"
        yield Mistake.in_setting(include, cause, next_step="Write a list such as [{optimizer: sgd, seed: 1}]")
        return
    keys = list(matrix_keys({**axes, INCLUDE: include.value}))
    there = assignments(axes)
    for part in include.value:
        if set(part) != set(keys):
            cause = f"{_text_of(part)} must set each of {', '.join(keys)}, and nothing else"
            yield Mistake.in_setting(include, cause, next_step="Complete it")
        elif part in there:
            cause = f"{_text_of(part)} is listed already"
            yield Mistake.in_setting(include, cause, next_step="Remove it; run.repeats repeats each point")
        there.append(part)


def _faults_of_number(first: ConfigSetting, matrix: Mapping[str, Any], *, most: int) -> list[Mistake]:
    """Reject a matrix with too many combinations, or with none."""
    if num_combinations(matrix) > most:
        cause = f"{num_combinations(matrix):,} combinations (at most {most:,})"
        return [Mistake.in_setting(first, cause, next_step="Sweep fewer keys or values")]
    if not assignments(matrix):
        return [Mistake.in_setting(first, "every point is excluded", next_step="Exclude less")]
    return []


def _faults_of_exclude(exclude: ConfigSetting, axes: Mapping[str, list[Any]]) -> Iterable[Mistake]:
    next_step = "Write a list such as [{training.precision: fp32, data.batch_size: 64}]"
    if not isinstance(exclude.value, list) or not all(isinstance(part, dict) for part in exclude.value):
        cause = f"expected a list of combinations, found {shown(exclude.value, exclude.written)}"
        yield Mistake.in_setting(exclude, cause, next_step=next_step)
        return
    for part in exclude.value:
        for key, value in part.items():
            if key == INCLUDE or not _is_among(value, axes.get(key, [])):
                cause = f"no point has {key}={_text(value)}, so this excludes nothing"
                axes_text = "; ".join(
                    f"{name}: {_text(values)}" for name, values in axes.items() if name != INCLUDE
                )
                yield Mistake.in_setting(exclude, cause, next_step=f"The matrix has {axes_text}")
        if not part:
            yield Mistake.in_setting(exclude, "an empty combination excludes all points", next_step=next_step)


def _faults_of_points(
    settings: Sequence[ConfigSetting],
    entries: Mapping[str, ConfigSetting],
    matrix: Mapping[str, Any],
    *,
    with_workloads: bool,
) -> list[Mistake]:
    """Check each point as a separate recipe; report a mistake only once if many points share it."""
    base = [s for s in settings if s.path[0] not in (SECTION, "search") and s.path not in OF_THE_WHOLE]
    faults: dict[tuple[str, str], tuple[Mistake, list[Assignment]]] = {}
    for point in assignments(matrix):
        swept = [
            replace(entries[key], path=tuple(key.split(".")), value=value, written=None)
            for key, value in point.items()
        ]
        for mistake in _mistakes_at(lay_over(base, swept), with_workloads=with_workloads):
            faults.setdefault((mistake.place, mistake.cause), (mistake, []))[1].append(point)
    return [_at_points(mistake, wrong) for mistake, wrong in faults.values()]


def _mistakes_at(settings: Sequence[ConfigSetting], *, with_workloads: bool) -> Sequence[Mistake]:
    try:
        config = validate(settings)
    except ConfigError as error:
        return error.mistakes
    return place_refusals(check_workload(config), settings) if with_workloads else []


def _at_points(mistake: Mistake, points: Sequence[Assignment]) -> Mistake:
    more = f" and {len(points) - 1} more" if len(points) > 1 else ""
    return replace(mistake, cause=f"{mistake.cause} (point {_text_of(points[0])}{more})")


def _text_of(point: Assignment) -> str:
    return ", ".join(f"{key}={_text(value)}" for key, value in point.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)
