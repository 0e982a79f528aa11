"""Loads a recording's JSON Lines into columns by device, metric and tick.

The input is the path of a recording. The output is `RecordingData`: all its arrays have one entry per sample,
NaN if there was no reading. A line that cannot be read is skipped, counted and reported in `notes`: a
recording that was truncated by a crash is still usable. `formats` converts other formats to the same type.
"""

from __future__ import annotations

import contextlib
import gc
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuproof.base.errors import RecordError
from gpuproof.base.outside import bounded, is_clean
from gpuproof.hardware.events import named_events
from gpuproof.readings.parsing import load_line
from gpuproof.readings.sample_columns import Reasons, SampleColumns, joined
from gpuproof.records import readings as r
from gpuproof.records.journal import record_of
from gpuproof.records.ports import PortTotals
from gpuproof.records.sample import reasons_by_device, split

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
NAN = float("nan")
LATEST_UNIX_S = 2.5e11  # this is in the year 9892; datetime ends with 9999
READ_BYTES = 2**18
"""Number of bytes read at a time: Python's default buffer holds only three lines of a typical recording."""
HOST = "host"
"""The key of the host's columns, just as a physical index is the key of a device's columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrack:
    """One device, over the whole recording."""

    identity: r.DeviceIdentity
    metrics: dict[str, Floats]
    """Metric → one value per sample, NaN if there was none (which is common for slow-lane metrics)."""
    throttle: dict[str, Flags]
    """Throttle reason → whether it was reported at each sample; contains only reasons that occurred."""
    throttle_answered: Flags
    """Whether the device reported its throttle reasons at each sample, even if none was active."""

    def values(self, metric: str) -> Floats | None:
        """Return the metric's column; None if the device never reported it."""
        return self.metrics.get(metric)

    def readings(self, metric: str) -> Floats:
        """Return the metric's readings, omitting missing samples; empty if it was never read."""
        column = self.metrics.get(metric)
        return np.empty(0) if column is None else column[~np.isnan(column)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    """A section of the recording, named by the workload; times are in seconds from the start."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingData:
    """A recording in memory: columns over `time_s`, and the records between the samples."""

    source: str
    """The file's name, for titles and messages."""
    format: str
    """`gpuproof`, or the name of the imported format."""
    recording: r.Recording
    time_s: Floats
    """Seconds since the recording started, on the monotonic clock if the format has one."""
    unix_s: Floats
    """Wall-clock time of each sample; all NaN if the format only has times relative to its start."""
    devices: tuple[DeviceTrack, ...]
    host: dict[str, Floats]
    counters: tuple[r.Counters, ...] = ()
    marks: tuple[r.Mark, ...] = ()
    events: tuple[r.DriverEvent, ...] = ()
    unavailable: tuple[r.UnavailableMetrics, ...] = ()
    processes: tuple[r.DeviceProcesses, ...] = ()
    ports: tuple[PortTotals, ...] = ()
    """Port counters; empty if the format, or the version that wrote the file, has none."""
    end: r.RecordingEnd | None = None
    """The recording's last line; None if the sampler was killed or the format has no such line."""
    notes: tuple[str, ...] = ()
    """Caveats for the reader: skipped lines, a missing end, assumed units."""

    @property
    def duration_s(self) -> float:
        """Seconds from the first to the last sample, by their timestamps; 0 with fewer than two samples."""
        return float(self.time_s[-1] - self.time_s[0]) if len(self.time_s) > 1 else 0.0

    @property
    def began_unix_s(self) -> float | None:
        """Wall-clock time of the first sample; None without samples, or without wall-clock times."""
        return float(self.unix_s[0]) if len(self.unix_s) and not np.isnan(self.unix_s[0]) else None

    def seconds_in(self, monotonic_s: float) -> float:
        """Convert a record's monotonic time to seconds since the recording started."""
        return monotonic_s - self.recording.monotonic_s

    def reasons_missing(self, track: DeviceTrack) -> dict[str, str]:
        """Return why metrics are missing: as reported at the start, or later if a device was lost."""
        reasons = dict(track.identity.unavailable)
        for record in self.unavailable:
            if record.physical_index == track.identity.physical_index:
                reasons.update(record.reasons)
        return reasons

    def phases(self) -> tuple[PhaseSpan, ...]:
        """List the phases set by marks; each ends at the next phase or null, or at the last sample."""
        changes = self._phase_changes()
        last_s = float(self.time_s[-1]) if len(self.time_s) else 0.0
        ends = [start for start, _ in changes[1:]] + [last_s]
        return tuple(
            PhaseSpan(name=name, start_s=start, end_s=max(start, end))
            for (start, name), end in zip(changes, ends, strict=False)
            if name is not None
        )

    def _phase_changes(self) -> list[tuple[float, str | None]]:
        """Return when the phase changed; marks that repeat the phase, e.g. one per batch, do not count."""
        changes: list[tuple[float, str | None]] = []
        for mark in sorted(self.marks, key=lambda mark: mark.monotonic_s):
            if "phase" not in mark.metadata:
                continue
            phase = mark.metadata["phase"]
            name = None if phase is None else str(phase)
            if name != (changes[-1][1] if changes else None):
                changes.append((self.seconds_in(mark.monotonic_s), name))
        return changes


def load_recording(path: Path, *, metrics: Collection[str] | None = None) -> RecordingData:
    """Load a gpuproof recording; if metrics are given, load only these for its devices.

    Raises:
        RecordError: the file cannot be read, has no `recording` line, or has a newer schema.
    """
    builder = _Builder(path.name, SampleColumns(metrics, host=HOST))
    try:
        with path.open("rb", buffering=READ_BYTES) as file, without_collection():
            for number, line in enumerate(file, 1):
                builder.add(line, number)
    except OSError as error:
        raise RecordError(error.strerror or str(error), place=str(path)) from error
    return builder.finish()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Pause garbage collection, which takes a sixth of the time: JSON and records have no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Columns:
    """The columns of several owners, built from rows; a column missing from a row gets NaN there.

    Rows of one owner with the same names are stored together as they arrive, so that a day's readings fit in
    a few arrays.
    """

    def __init__(self) -> None:
        self._tables: defaultdict[str, defaultdict[tuple[str, ...], tuple[array[int], array[float]]]]
        self._tables = defaultdict(lambda: defaultdict(lambda: (array("q"), array("d"))))

    def put(self, index: int, owner: str, values: Mapping[str, float]) -> None:
        """Set an owner's values for sample `index`.

        Raises:
            TypeError: a value is not a number; none of the row's values is set then.
        """
        places, numbers = self._tables[owner][tuple(values)]
        numbers.fromlist(list(values.values()))
        places.append(index)

    def arrays(self, length: int) -> dict[str, dict[str, Floats]]:
        """Return each owner's columns, with one entry for each of `length` samples."""
        return {owner: _columns(tables, length) for owner, tables in self._tables.items()}


def _columns(
    tables: Mapping[tuple[str, ...], tuple[array[int], array[float]]], length: int
) -> dict[str, Floats]:
    """Return the tables of one owner, expanded to all samples."""
    filled = {named: table for named, table in tables.items() if table[0]}
    names = list(dict.fromkeys(chain.from_iterable(filled)))
    columns = np.full((len(names), length), NAN)
    for named, (places, numbers) in filled.items():
        rows = np.array([names.index(name) for name in named], dtype=np.int64)[:, None]
        values = np.frombuffer(numbers, dtype=np.float64).reshape(len(places), len(named))
        columns[rows, np.frombuffer(places, dtype=np.int64)] = values.T
    return dict(zip(names, columns, strict=True))


def _wall_time(unix_s: Any) -> float:
    """Return a wall-clock time that datetime can represent.

    Raises:
        ValueError: the time is out of range.
    """
    value = float(unix_s)
    if not 0 <= value <= LATEST_UNIX_S:
        raise ValueError(f"{value:g} s after 1970 is not a valid date")
    return value


def _require_texts(reason_lists: Iterable[Iterable[Any] | None]) -> None:
    """Reject throttle reasons that are not strings.

    Raises:
        TypeError: a reason is not a string.
    """
    if not all(isinstance(reason, str) for reasons in reason_lists for reason in reasons or ()):
        raise TypeError("a throttle reason is not a string")


@dataclass
class _Builder:
    """Processes one line at a time, so that a day of readings is never held in memory as text."""

    source: str
    samples: SampleColumns
    head: r.Recording | None = None
    end: r.RecordingEnd | None = None
    time_s: array[float] = field(default_factory=lambda: array("d"))
    unix_s: array[float] = field(default_factory=lambda: array("d"))
    columns: Columns = field(default_factory=Columns)
    samples_by_reasons: defaultdict[tuple[str, tuple[Any, ...]], array[int]] = field(
        default_factory=lambda: defaultdict(partial(array, "q"))
    )
    """The devices and reasons in a sample → the samples that reported them."""
    throttle: defaultdict[str, Reasons] = field(default_factory=lambda: defaultdict(Reasons))
    others: dict[type, list[Any]] = field(default_factory=dict)
    damaged: list[int] = field(default_factory=list)

    def add(self, line: bytes, number: int) -> None:
        if line.isspace():
            return
        try:
            kind = (data := load_line(line))["kind"]
            # a sample that is nested more deeply is rejected below
            if kind != "sample" or not is_clean(line):
                data = bounded(data, line)
        except (ValueError, TypeError, KeyError):
            self.damaged.append(number)
            return
        if kind == "recording":
            place = f"{self.source}:{number}"
            if self.head is not None:
                raise RecordError("a second recording starts here", place=place, next_step="Split the file")
            self.head = self._head(data, place=place)
            return
        try:
            if kind == "sample":
                self._add_sample(data, number)
            else:
                record = record_of(data)
                if isinstance(record, r.RecordingEnd):
                    self.end = record
                elif record is not None:
                    self.others.setdefault(type(record), []).append(record)
        except (RecordError, ValueError, TypeError, KeyError, AttributeError):
            self.damaged.append(number)

    def _head(self, data: Any, *, place: str) -> r.Recording:
        head: r.Recording = record_of(data, place=place)
        try:
            _wall_time(head.unix_s)
        except ValueError as error:
            raise RecordError(str(error), place=place) from error
        if not head.devices:
            self.samples = SampleColumns(host=HOST)
        return head

    def _add_sample(self, data: dict[str, Any], number: int) -> None:
        """Process a sample as plain JSON, because creating records for a day's readings takes minutes."""
        monotonic_s, unix_s = float(data["monotonic_s"]), _wall_time(data["unix_s"])
        if self.time_s and not monotonic_s >= self.time_s[-1]:
            raise ValueError("this clock never goes backwards")
        is_by_column = "names" in data
        key = self._reasons_of(data) if is_by_column else None
        if not is_by_column:
            for reading in data["devices"].values():
                _require_texts([reading.get("throttle_reasons")])
        index = len(self.time_s)
        self.time_s.append(monotonic_s)
        self.unix_s.append(unix_s)
        if is_by_column:
            host = data["host"]
            if type(host) is not list:
                raise TypeError("the host's values are not a list")
            names, values = data["names"], data["values"]
            self.samples.put(index, line=number, devices=data["gpus"], names=names, values=values)
            self.samples.put(index, line=number, devices=HOST, names=data["host_names"], values=host)
            if key is not None:
                self.samples_by_reasons[key].append(index)
            return
        self.columns.put(index, HOST, data["host"])
        for key, reading in data["devices"].items():
            self.columns.put(index, key, reading["values"])
            reasons = reading.get("throttle_reasons")
            if reasons is not None:
                self.throttle[key].put(index, reasons)

    def _reasons_of(self, data: dict[str, Any]) -> tuple[str, tuple[Any, ...]] | None:
        """Return a sample's devices and their reasons; None if it reported none.

        Raises:
            TypeError: a reason is not a string.
        """
        reasons = data["reasons"]
        if reasons is None:
            return None
        texts = tuple(item if type(item) is str or item is None else tuple(item) for item in reasons)
        key = data["gpus"], texts
        if key not in self.samples_by_reasons:  # already checked when first reported
            _require_texts(texts)
        return key

    def _spread_reasons(self) -> None:
        """Assign each device its throttle reasons from samples that cover all devices."""
        for (devices, reasons), places in self.samples_by_reasons.items():
            names = split(devices)
            of_devices = reasons_by_device(list(reasons), num=len(names))
            for device, of_device in zip(names, of_devices, strict=False):
                if of_device is not None:
                    self.throttle[device].put_all(places, of_device)

    def finish(self) -> RecordingData:
        if self.head is None:
            raise RecordError(
                "contains no recording line",
                place=self.source,
                next_step="Pass a file that `gpuproof monitor record` or `exec` wrote",
            )
        self._spread_reasons()
        columns = self.samples.arrays(len(self.time_s))
        for owner, older in self.columns.arrays(len(self.time_s)).items():
            columns[owner] = joined(older, columns.get(owner, {}))
        self.damaged = sorted({*self.damaged, *self.samples.damaged})
        return RecordingData(
            source=self.source,
            format="gpuproof",
            recording=self.head,
            time_s=np.frombuffer(self.time_s, dtype=np.float64) - self.head.monotonic_s,
            unix_s=np.frombuffer(self.unix_s, dtype=np.float64),
            devices=tuple(self._track(identity, columns) for identity in self._identities(self.head)),
            host=columns.get(HOST, {}),
            counters=tuple(self.others.get(r.Counters, ())),
            marks=tuple(self.others.get(r.Mark, ())),
            events=named_events(self.others.get(r.DriverEvent, ())),
            unavailable=tuple(self.others.get(r.UnavailableMetrics, ())),
            processes=tuple(self.others.get(r.DeviceProcesses, ())),
            ports=tuple(self.others.get(PortTotals, ())),
            end=self.end,
            notes=tuple(self._notes()),
        )

    def _identities(self, head: r.Recording) -> list[r.DeviceIdentity]:
        """Take device identities from the last record that has them, as drivers may respond late."""
        identities = {identity.physical_index: identity for identity in head.devices}
        for record in self.others.get(r.DevicesAppeared, ()):
            identities |= {identity.physical_index: identity for identity in record.devices}
        return [identities[index] for index in sorted(identities)]

    def _track(self, identity: r.DeviceIdentity, columns: Mapping[str, dict[str, Floats]]) -> DeviceTrack:
        key = str(identity.physical_index)
        flags, answered = self.throttle[key].flags(len(self.time_s))
        return DeviceTrack(
            identity=identity, metrics=columns.get(key, {}), throttle=flags, throttle_answered=answered
        )

    def _notes(self) -> Iterator[str]:
        if self.damaged:
            places = ", ".join(str(number) for number in self.damaged[:5])
            more = ", …" if len(self.damaged) > 5 else ""
            yield f"{len(self.damaged)} damaged line(s) skipped (line {places}{more})"
        if self.end is None:
            yield "the recording has no end: the sampler was killed or is still running"
