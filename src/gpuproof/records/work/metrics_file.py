"""A program's own figures, whatever it calls them: one number a name, and its course where it wrote one.

In: the text of a JSON, JSON Lines or CSV file. Out: values and series. Known are an object of numbers and
lists; `training_metrics.json` of both old shapes (lists side by side, with `epochs` a list of numbers; and
`epochs` a list of objects); rows, of which the last is the value. Of a list the last number is the value.

>>> read_metrics('{"epochs": [{"accuracy": 0.5}, {"accuracy": 0.75}], "total_training_time": 3}').values
{'accuracy': 0.75, 'epochs': 2.0, 'total_training_time': 3.0}
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuproof.base.outside import parse_json

MAX_POINTS = 10_000
"""Of a series; a longer one keeps its last value only."""
MAX_BYTES = 64 * 2**20


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
