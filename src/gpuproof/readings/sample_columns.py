"""Converts a recording's samples from column-wise lines to columns, in chunks.

The input is the devices, names and values of each sample, as in its line (`records/sample.py`). The output is
one column per device and metric, NaN if there was no reading. A metric that never changes needs no space, and
a metric with the same values on all devices is stored once, so a day of eight GPUs fits in memory along with
its results. A row with non-numeric values is skipped, and its line number is reported.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuproof.records.sample import split

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Places = NDArray[np.int64]

_NUMBERS: Final = {int, float}
BATCH: Final = 64
"""Number of samples collected before they are converted to arrays: this many fit in a CPU cache, which halves
the time."""
CHUNK: Final = 32
"""Number of batches that are merged into one, to limit the number of arrays."""


@dataclass(slots=True)
class _Chunk:
    """Consecutive samples: their positions, and the values of each metric.

    Shapes: () for a constant, (samples) if all devices have the same values, else (samples, devices).
    """

    places: Places
    parts: dict[str, Floats]


@dataclass(slots=True)
class _Table:
    """The samples with the same devices and names."""

    devices: list[str]
    num_names: int
    """Number of names per line; `names` are the requested names, and `pick` selects their values."""
    names: list[str]
    pick: Callable[[list[Any]], tuple[Any, ...]]
    places: array[int] = field(default_factory=lambda: array("q"))
    lines: list[int] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    batches: list[_Chunk] = field(default_factory=list)
    chunks: list[_Chunk] = field(default_factory=list)

    def flush(self) -> list[int]:
        """Convert the rows to arrays; return the line numbers of rows that are not entirely numeric."""
        damaged: list[int] = []
        try:
            parts = self._parts(self.rows)
        except (ValueError, TypeError, OverflowError):
            whole = [self._is_whole(row) for row in self.rows]
            damaged = [line for line, good in zip(self.lines, whole, strict=True) if not good]
            self.places = array("q", (p for p, good in zip(self.places, whole, strict=True) if good))
            parts = self._parts([row for row, good in zip(self.rows, whole, strict=True) if good])
        if self.places:
            self.batches.append(_Chunk(places=np.array(self.places, dtype=np.int64), parts=parts))
        self.places, self.lines, self.rows = array("q"), [], []
        if len(self.batches) >= CHUNK:
            self.merge()
        return damaged

    def merge(self) -> None:
        """Merge the batches into a chunk."""
        if len(self.batches) < 2:
            self.chunks += self.batches
            self.batches = []
            return
        lengths = [len(batch.places) for batch in self.batches]
        parts = {name: _one([batch.parts[name] for batch in self.batches], lengths) for name in self.names}
        places = np.concatenate([batch.places for batch in self.batches])
        self.chunks.append(_Chunk(places=places, parts=parts))
        self.batches = []

    def _parts(self, rows: list[tuple[Any, ...]]) -> dict[str, Floats]:
        columns = zip(self.names, zip(*rows, strict=True), strict=True) if rows else ()
        return {name: _part(column, len(self.devices)) for name, column in columns}

    def _is_whole(self, row: tuple[Any, ...]) -> bool:
        """Return whether each value is a number, or a list with one number per device."""
        try:
            for value in row:
                _part((value,), len(self.devices))
        except (ValueError, TypeError, OverflowError):
            return False
        return True


def _part(column: tuple[Any, ...], num_devices: int) -> Floats:
    """Create an array from a metric's values.

    Raises:
        ValueError: the values are not numbers, or not one per device.
        TypeError: the values have another type.
    """
    kinds = set(map(type, column))
    if list not in kinds:
        if kinds <= _NUMBERS and column.count(column[0]) == len(column):
            return np.array(float(column[0]))
        values = np.array(column, dtype=np.float64)
        if values.shape != (len(column),):
            raise ValueError(f"{values.shape} values")
        return values
    filled = column
    if len(kinds) > 1:
        filled = tuple(value if type(value) is list else [value] * num_devices for value in column)
    if set(map(len, filled)) != {num_devices}:
        raise ValueError(f"not {num_devices} values each")
    return _table_of(filled, num_devices)


def _table_of(rows: tuple[list[Any], ...], num_devices: int) -> Floats:
    """Create an array from rows of equal length; packing them in one go takes a third of the time."""
    try:
        flat = struct.pack(f"{len(rows) * num_devices}d", *chain.from_iterable(rows))
    except struct.error:  # a row has no values
        table = np.array(rows, dtype=np.float64)
        if table.shape != (len(rows), num_devices):
            raise ValueError(f"{table.shape} values") from None
        return table
    return np.frombuffer(flat).reshape(len(rows), num_devices)


def _one(parts: list[Floats], lengths: list[int]) -> Floats:
    """Join a metric's values, given with their sample counts, in the smallest shape that fits all."""
    widest = max(parts, key=lambda part: part.ndim)
    if widest.ndim == 0 and all(part == widest for part in parts):
        return widest
    if widest.ndim < 2:
        return np.concatenate(
            [np.broadcast_to(part, (length,)) for part, length in zip(parts, lengths, strict=True)]
        )
    rows = (part if part.ndim == 2 else part.reshape(-1, 1) for part in parts)
    shapes = [(length, widest.shape[1]) for length in lengths]
    return np.concatenate([np.broadcast_to(row, shape) for row, shape in zip(rows, shapes, strict=True)])


def _picker(places: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Return a function that selects the values at these positions from a row."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda row: tuple(row[place] for place in places)


class SampleColumns:
    """Columns as they arrive. `metrics`: device metrics to keep (not for `host`); None keeps all."""

    def __init__(self, metrics: Collection[str] | None = None, *, host: str) -> None:
        self._host = host
        self._metrics = None if metrics is None else frozenset(metrics)
        self._tables: dict[tuple[str, str], _Table] = {}
        self.damaged: list[int] = []
        """Lines with values that were not numbers."""

    def put(self, place: int, *, line: int, devices: str, names: str, values: list[Any]) -> None:
        """Add a sample's values.

        Raises:
            ValueError: the number of values differs from the number of names.
            TypeError: the values are not a list, or the names are not a string.
        """
        table = self._tables.get((devices, names)) or self._table(devices, names)
        if len(values) != table.num_names:
            raise ValueError(f"{len(values)} values for {table.num_names} names")
        if not table.names:
            return
        table.rows.append(table.pick(values))
        table.places.append(place)
        table.lines.append(line)
        if len(table.rows) >= BATCH:
            self.damaged += table.flush()

    def _table(self, devices: str, names: str) -> _Table:
        listed = split(names)
        wanted = self._metrics
        if wanted is not None and devices == self._host:
            wanted = frozenset()
        places = [i for i, name in enumerate(listed) if wanted is None or name in wanted]
        read = [listed[place] for place in places]
        table = _Table(split(devices), len(listed), read, _picker(places))
        return self._tables.setdefault((devices, names), table)

    def arrays(self, length: int) -> dict[str, dict[str, Floats]]:
        """Return each device's columns, with an entry for each of `length` samples; free them here."""
        tables = list(self._tables.values())
        for table in tables:
            self.damaged += table.flush() if table.rows else []
            table.merge()
        columns: dict[str, dict[str, Floats]] = {d: {} for table in tables for d in table.devices}
        having: defaultdict[str, list[_Table]] = defaultdict(list)
        for table in tables:
            for name in table.names:
                having[name].append(table)
        for name, those in having.items():
            for device, column in _columns(those, name, length):
                # otherwise it exists for other devices only
                if not math.isnan(column.item(0)) or not np.isnan(column).all():
                    columns[device][name] = column
        return columns


def _columns(having: list[_Table], name: str, length: int) -> Iterator[tuple[str, Floats]]:
    """Yield a metric's column for each device with that metric, then free its sources."""
    pieces = [(t, c.places, c.parts.pop(name)) for t in having for c in t.chunks if name in c.parts]
    devices = list(dict.fromkeys(device for table in having for device in table.devices))
    if all(table.devices == devices for table in having):
        together = [(places, part) for _, places, part in pieces]
        if all(part.ndim < 2 for _, part in together):
            yield from zip(devices, repeat(_column(together, length)))
        else:
            yield from zip(devices, _columns_of_all(together, len(devices), length), strict=True)
        return
    for device in devices:
        of_device = [
            (places, part[:, table.devices.index(device)] if part.ndim == 2 else part)
            for table, places, part in pieces
            if device in table.devices
        ]
        yield device, _column(of_device, length)


def _columns_of_all(pieces: list[tuple[Places, Floats]], num_devices: int, length: int) -> Iterator[Floats]:
    """Expand pieces with the same devices to all samples at once: twice as fast as one by one."""
    if len(pieces) == 1 and len(pieces[0][0]) == length and pieces[0][1].ndim == 2:
        columns = np.ascontiguousarray(pieces[0][1].T)
    else:
        columns = np.full((num_devices, length), np.nan)
        for places, part in pieces:
            columns[:, places] = part.T
    constant = (columns == columns[:, :1]).all(axis=1)
    for column, stands in zip(columns, constant, strict=True):
        yield _standing(column.item(0), length) if stands else column


def _column(pieces: list[tuple[Places, Floats]], length: int) -> Floats:
    """Expand a column's pieces into one value per sample; a column that never changes needs no space."""
    if sum(len(places) for places, _ in pieces) == length:
        first = next((part.flat[0] for _, part in pieces if part.size), np.nan)
        if all(part.flat[-1] == first and (part == first).all() for _, part in pieces if part.size):
            return _standing(first, length)
        if len(pieces) == 1:
            return pieces[0][1].copy()
    column = np.full(length, np.nan)
    for places, part in pieces:
        column[places] = part
    return column


def _standing(value: float, length: int) -> Floats:
    """Return a read-only column with one constant value: like `np.broadcast_to`, but faster."""
    return np.ndarray((length,), np.float64, struct.pack("d", value), strides=(0,))


def joined(first: Mapping[str, Floats], second: Mapping[str, Floats]) -> dict[str, Floats]:
    """Join the columns of two builders that cover different samples."""
    both = {name: np.fmax(first[name], second[name]) for name in first if name in second}
    return {**first, **second, **both}


class Reasons:
    """The throttle reasons of one device, sample by sample."""

    def __init__(self) -> None:
        self._samples: defaultdict[tuple[str, ...], array[int]] = defaultdict(partial(array, "q"))

    def put(self, index: int, reasons: Iterable[str]) -> None:
        """Set the reasons reported at sample `index`; an empty set also counts as an answer."""
        self._samples[tuple(reasons)].append(index)

    def put_all(self, places: array[int], reasons: Iterable[str]) -> None:
        """Set the same reasons for many samples."""
        self._samples[tuple(reasons)].extend(places)

    def flags(self, length: int) -> tuple[dict[str, Flags], Flags]:
        """Return each reason's flags, and in which of the `length` samples reasons were read."""
        answered = np.zeros(length, dtype=bool)
        flags: dict[str, Flags] = {}
        for reasons, places in self._samples.items():
            answered[places] = True
            for reason in reasons:
                flags.setdefault(reason, np.zeros(length, dtype=bool))[places] = True
        return flags, answered
