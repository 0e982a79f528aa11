"""A user's command: the command line, the worker's observations, and the command's own results.

A template is text with fields in braces, such as `--optimizer {optimizer}`; `{{name}}` stands for `{name}`,
and all other braces are literal.

A file with the command's own results is JSON, JSON Lines or CSV. It contains one number per name (any name is
allowed), and optionally the values of that number over time. Supported formats are: an object of numbers and
lists; `training_metrics.json` in both of its old forms (lists side by side, with `epochs` as a list of
numbers; or `epochs` as a list of objects); and rows, of which the last one is used. For a list, the last
number is used.

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
"""The template field for a launch's own output folder; the variable GPUPROOF_OUTPUT_DIR also contains it."""
OUTPUT_VARIABLE = "GPUPROOF_OUTPUT_DIR"
PYTHON = "python"
"""The template field for the Python that gpuproof uses for launches on the host where the command runs."""
FILES = "files"
"""The name of the output folder inside the launch's folder."""
OUTPUT_LOG, ERROR_LOG = "output.log", "error.txt"
"""Files with the command's standard output and standard error."""
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_FIELD = re.compile(rf"\{{(\{{{_NAME}\}})\}}|\{{({_NAME})\}}")
MAX_POINTS = 10_000
"""Maximum length of a series; for longer ones, only the last value is stored."""
MAX_BYTES = 64 * 2**20


def fields_of(template: str) -> list[str]:
    """List a template's fields in order."""
    return [match[2] for match in _FIELD.finditer(template) if match[2]]


def fill_template(template: str, values: Mapping[str, Any]) -> str:
    """Replace fields with their values; a field without a value is left unchanged.

    A boolean becomes `true` or `false`, and null becomes an empty string.
    """

    def put(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        return value_text(values[match[2]]) if match[2] in values else match[0]

    return _FIELD.sub(put, template)


def value_text(value: Any) -> str:
    """Format a value for use in a command line or file name.

    >>> [value_text(value) for value in (True, None, 0.7, "adamw")]
    ['true', '', '0.7', 'adamw']
    """
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def setting_text(value: Any) -> str:
    """Format a value as in a recipe.

    >>> setting_text(None), setting_text(True)
    ('null', 'true')
    """
    return "null" if value is None else value_text(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """The command to start, with only `{output_dir}` and `{python}` left for the worker to fill in."""

    argv: tuple[str, ...]
    cwd: str | None
    """Working folder; None means the folder in which the worker was started."""
    env: dict[str, str | None] = field(default_factory=dict)
    """Values of variables; None means that the variable is already set, and its value is never stored."""
    collect: tuple[str, ...] = ()
    """Patterns for the files to keep, which are searched for first in the launch's own folder, then in the
    working folder."""
    metrics: str | None = None
    """The file with the command's own results, searched for in the same two folders; None if the command
    writes none."""
    time_limit_s: float | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    """The values that the template was filled with."""


@record_kind("command_started")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStarted:
    """The command is running."""

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
    """A command's processes at one point in time, including those detached from their parent."""

    rank: int
    monotonic_s: float
    pids: tuple[int, ...]
    resident_bytes: int
    """Total over all processes; shared pages are counted in each of them."""
    peak_resident_bytes: int
    """The maximum resident memory since the previous record."""


@record_kind("command_ended")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnded:
    """How the command ended, and how long it took."""

    rank: int
    returncode: int
    """The exit status, or the negated number of the signal that ended the command."""
    ended_by: Literal["itself", "time_limit"]
    wall_s: float
    cpu_s: float
    """CPU time of the command and of all children that it waited for."""
    begin_monotonic_s: float
    end_monotonic_s: float
    left_behind: int
    """Processes that were still running after the command exited and were then stopped."""


@record_kind("command_metrics")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandMetrics:
    """The command's own results, as written by the command."""

    rank: int
    file: str
    values: dict[str, float]
    series: dict[str, tuple[float, ...]]
    missing: str | None
    """Why there are no results, if there are none."""


@record_kind("collected_files")
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedFiles:
    """Files stored in the launch's folder, and patterns that matched nothing."""

    rank: int
    files: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetrics:
    """The content of a results file."""

    values: dict[str, float] = field(default_factory=dict)
    series: dict[str, tuple[float, ...]] = field(default_factory=dict)


def read_metrics(text: str, *, name: str = "metrics.json") -> FileMetrics:
    """Return the results in a file; the content determines the format, or the file name for CSV.

    Raises:
        ValueError: the file has no known format, or contains no number.
    """
    is_csv = name.endswith(".csv")
    metrics = _from_rows(csv.DictReader(io.StringIO(text))) if is_csv else _from_json(text)
    if not metrics.values:
        raise ValueError("it contains no number")
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
    """Store a number, or a list of numbers along with its last item; skip anything else."""
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
    diverged: set[str] = set()  # their latest value is NaN or infinite: an earlier one is not the result
    for row in rows:
        if not isinstance(row, Mapping):
            raise ValueError("a row is not an object")  # the file is wrong, not one of our own types
        for key, value in row.items():
            if (number := _number(value)) is not None:
                columns.setdefault(str(key), []).append(number)
                diverged.discard(str(key))
            elif _is_not_finite(value):
                diverged.add(str(key))
    kept = {key: numbers for key, numbers in columns.items() if key not in diverged}
    return FileMetrics(
        values={key: numbers[-1] for key, numbers in kept.items()},
        series={key: tuple(numbers) for key, numbers in kept.items() if 1 < len(numbers) <= MAX_POINTS},
    )


def _is_not_finite(value: Any) -> bool:
    """Report whether a value is NaN or infinite, also as text; a missing value is neither."""
    if isinstance(value, bool) or not isinstance(value, (float, str)):
        return False
    try:
        return not math.isfinite(float(value))
    except ValueError:
        return False


def _number(value: Any) -> float | None:
    """Return a finite number, parsed from text for CSV; booleans do not count as numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
