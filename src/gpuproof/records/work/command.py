"""A command of the user's: what is started, what the worker saw of it, and the figures that it wrote itself.

A template is text with fields in braces, such as `--optimizer {optimizer}`; `{{name}}` stands for `{name}`,
and all other braces for themselves.

A file of its own figures is JSON, JSON Lines or CSV. Out come one number a name, whatever it is called, and
its course where it wrote one. Known are an object of numbers and lists; `training_metrics.json` of both old
shapes (lists side by side, with `epochs` a list of numbers; and `epochs` a list of objects); rows, of which
the last is the value. Of a list the last number is the value.

>>> fill_template('--lr={lr} {{x}} {"a": {"b": 1}}', {"lr": 0.1}), fields_of("{a}-{{b}}-{c}")
('--lr=0.1 {x} {"a": {"b": 1}}', ['a', 'c'])
>>> read_metrics('{"epochs": [{"accuracy": 0.5}, {"accuracy": 0.75}], "total_training_time": 3}').values
{'accuracy': 0.75, 'epochs': 2.0, 'total_training_time': 3.0}
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuproof.base.outside import parse_json
from gpuproof.records.journal import record_kind

OUTPUT_DIR = "output_dir"
"""The field, and as GPUPROOF_OUTPUT_DIR the variable, that name a launch's own folder for its files."""
OUTPUT_VARIABLE = "GPUPROOF_OUTPUT_DIR"
PYTHON = "python"
"""The field for the Python that gpuproof runs launches with, where the command runs."""
FILES = "files"
"""That folder's name in the folder of the launch."""
OUTPUT_LOG, ERROR_LOG = "output.log", "error.txt"
"""What the command printed to its standard output and to its standard error."""
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_FIELD = re.compile(rf"\{{(\{{{_NAME}\}})\}}|\{{({_NAME})\}}")
MAX_POINTS = 10_000
"""Of a series; a longer one keeps its last value only."""
MAX_BYTES = 64 * 2**20


def fields_of(template: str) -> list[str]:
    """Name the fields of a template in order."""
    return [match[2] for match in _FIELD.finditer(template) if match[2]]


def fill_template(template: str, values: Mapping[str, Any]) -> str:
    """Put values in the place of fields; a field without a value stays as it is written.

    A value that is a flag reads `true` or `false`, and one that is null is empty.
    """

    def put(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        return value_text(values[match[2]]) if match[2] in values else match[0]

    return _FIELD.sub(put, template)


def value_text(value: Any) -> str:
    """Write a value as a command line and a file name have it.

    >>> [value_text(value) for value in (True, None, 0.7, "adamw")]
    ['true', '', '0.7', 'adamw']
    """
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """What is started. Every field is filled but `{output_dir}` and `{python}`, which the worker knows."""

    argv: tuple[str, ...]
    cwd: str | None
    """None is the folder that the worker was started in."""
    env: dict[str, str | None] = field(default_factory=dict)
    """None is for a variable that is there already, whose value is kept nowhere."""
    collect: tuple[str, ...] = ()
    """Patterns of files to keep, looked for in the launch's own folder, then in the working folder."""
    metrics: str | None = None
    """The file of the command's own figures, looked for likewise; None where it writes none."""
    time_limit_s: float | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    """What the template was filled with."""


@record_kind("command_started")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStarted:
    """The command runs."""

    rank: int
    host: str
    pid: int
    argv: tuple[str, ...]
    cwd: str
    monotonic_s: float
    unix_s: float


@record_kind("process_tree")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTree:
    """The processes of a command at one moment, those that left their parent included."""

    rank: int
    monotonic_s: float
    pids: tuple[int, ...]
    resident_bytes: int
    """Of all of them; pages that several share are counted in each."""
    peak_resident_bytes: int
    """The most since the record before."""


@record_kind("command_ended")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnded:
    """How the command ended, and how long it took."""

    rank: int
    returncode: int
    """Its own; minus the number of the signal that ended it."""
    ended_by: Literal["itself", "time_limit"]
    wall_s: float
    cpu_s: float
    """Of the command and of all it waited for."""
    begin_monotonic_s: float
    end_monotonic_s: float
    left_behind: int
    """Processes that still ran when the command had ended, and were ended."""


@record_kind("command_metrics")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandMetrics:
    """The command's own figures, as it wrote them."""

    rank: int
    file: str
    values: dict[str, float]
    series: dict[str, tuple[float, ...]]
    missing: str | None
    """Why there are none."""


@record_kind("collected_files")
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedFiles:
    """Files that were kept in the launch's folder, and patterns that matched nothing."""

    rank: int
    files: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetrics:
    """What a file of figures holds."""

    values: dict[str, float] = field(default_factory=dict)
    series: dict[str, tuple[float, ...]] = field(default_factory=dict)


def read_metrics(text: str, *, name: str = "metrics.json") -> FileMetrics:
    """Return the figures of a file; its content shows its form, and of rows with commas its name.

    Raises:
        ValueError: it is none of the known forms, or holds no number.
    """
    is_csv = name.endswith(".csv")
    metrics = _from_rows(csv.DictReader(io.StringIO(text))) if is_csv else _from_json(text)
    if not metrics.values:
        raise ValueError("it holds no number")
    return metrics


def _from_json(text: str) -> FileMetrics:
    try:
        content = parse_json(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return _from_rows(map(parse_json, lines))
    if isinstance(content, list):
        return _from_rows(content)
    if not isinstance(content, Mapping):
        raise ValueError("it is neither an object nor rows")
    return _from_object(content)


def _from_object(content: Mapping[str, Any]) -> FileMetrics:
    values: dict[str, float] = {}
    series: dict[str, tuple[float, ...]] = {}
    epochs = content.get("epochs")
    if isinstance(epochs, list) and epochs and all(isinstance(row, Mapping) for row in epochs):
        rows = _from_rows(epochs)
        values |= {**rows.values, "epochs": float(len(epochs))}
        series |= rows.series
    elif isinstance(epochs, list):
        values["epochs"] = float(len(epochs))
    for key, value in content.items():
        if key != "epochs" or not isinstance(value, list):
            _put(key, value, values, series)
    return FileMetrics(values=values, series=series)


def _put(key: str, value: Any, values: dict[str, float], series: dict[str, tuple[float, ...]]) -> None:
    """Keep a number, or a list of numbers with its last one; leave anything else."""
    if (number := _number(value)) is not None:
        values[key] = number
    elif isinstance(value, list):
        numbers = tuple(number for item in value if (number := _number(item)) is not None)
        if numbers and len(numbers) == len(value):
            values.setdefault(key, numbers[-1])
            if len(numbers) <= MAX_POINTS:
                series[key] = numbers


def _from_rows(rows: Iterable[Any]) -> FileMetrics:
    columns: dict[str, list[float]] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise ValueError("a row is no object")  # the file is wrong, not a type of ours
        for key, value in row.items():
            if (number := _number(value)) is not None:
                columns.setdefault(str(key), []).append(number)
    return FileMetrics(
        values={key: numbers[-1] for key, numbers in columns.items()},
        series={key: tuple(numbers) for key, numbers in columns.items() if 1 < len(numbers) <= MAX_POINTS},
    )


def _number(value: Any) -> float | None:
    """Return a finite number, of CSV also from its digits; flags are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
