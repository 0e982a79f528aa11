"""What did a recording hold? Loads a sampler's JSON Lines into columns, one value a device, metric and tick.

In: the path of a recording. Out: `RecordingData`, whose arrays all have one entry a sample, NaN where
there was no reading. A line that cannot be read is left out, counted and named in `notes`: a recording
that a crash cut short is still a recording. Other formats become the same value in `formats`.
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
LATEST_UNIX_S = 2.5e11  # in the year 9892; a calendar ends with 9999
READ_BYTES = 2**18
"""Read at a time: a line of a day's readings takes a third of what Python would read."""
HOST = "host"
"""Whose columns those of the host are, beside a device's physical index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrack:
    """One device over the whole recording."""

    identity: r.DeviceIdentity
    metrics: dict[str, Floats]
    """Metric → one value a sample, NaN where there was none (a slow-lane metric has many)."""
    throttle: dict[str, Flags]
    """Throttle reason → whether it was given at each sample; only reasons that occurred."""
    throttle_answered: Flags
    """Whether the device told its throttle reasons at each sample, also when there were none."""

    def values(self, metric: str) -> Floats | None:
        """Return the metric's column; None where the device never gave it."""
        return self.metrics.get(metric)

    def readings(self, metric: str) -> Floats:
        """Return the metric's readings without the samples that have none; empty where it was never read."""
        column = self.metrics.get(metric)
        return np.empty(0) if column is None else column[~np.isnan(column)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    """A stretch of the recording that the watched work named, in seconds from the start."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingData:
    """A recording in memory: columns over `time_s`, and the records between the samples."""

    source: str
    """The file's name, for titles and messages."""
    format: str
    """`gpuproof`, or the name of the format that it was imported from."""
    recording: r.Recording
    time_s: Floats
    """Seconds since the recording began, by the monotonic clock where the format has one."""
    unix_s: Floats
    """Wall time of each sample; NaN throughout where the format counts from its own start."""
    devices: tuple[DeviceTrack, ...]
    host: dict[str, Floats]
    counters: tuple[r.Counters, ...] = ()
    marks: tuple[r.Mark, ...] = ()
    events: tuple[r.DriverEvent, ...] = ()
    unavailable: tuple[r.UnavailableMetrics, ...] = ()
    processes: tuple[r.DeviceProcesses, ...] = ()
    ports: tuple[PortTotals, ...] = ()
    """Empty where the format, or the version that wrote it, has none."""
    end: r.RecordingEnd | None = None
    """None where the recording has no last line: the sampler was killed, or the format has none."""
    notes: tuple[str, ...] = ()
    """What the reader has to know before trusting it: lines left out, a missing end, units assumed."""

    @property
    def duration_s(self) -> float:
        """Seconds from the first to the last sample, by their timestamps; 0 with under two samples."""
        return float(self.time_s[-1] - self.time_s[0]) if len(self.time_s) > 1 else 0.0

    @property
    def began_unix_s(self) -> float | None:
        """Wall time of the first sample; None without samples or where the format has no wall time."""
        return float(self.unix_s[0]) if len(self.unix_s) and not np.isnan(self.unix_s[0]) else None

    def seconds_in(self, monotonic_s: float) -> float:
        """Turn a record's monotonic time into seconds since the recording began."""
        return monotonic_s - self.recording.monotonic_s

    def reasons_missing(self, track: DeviceTrack) -> dict[str, str]:
        """Say why metrics are missing: as said at the start, and later when a device was lost."""
        reasons = dict(track.identity.unavailable)
        for record in self.unavailable:
            if record.physical_index == track.identity.physical_index:
                reasons.update(record.reasons)
        return reasons

    def phases(self) -> tuple[PhaseSpan, ...]:
        """List the stretches that marks name, up to the next phase or a null; the last to the last sample."""
        changes = self._phase_changes()
        last_s = float(self.time_s[-1]) if len(self.time_s) else 0.0
        ends = [start for start, _ in changes[1:]] + [last_s]
        return tuple(
            PhaseSpan(name=name, start_s=start, end_s=max(start, end))
            for (start, name), end in zip(changes, ends, strict=False)
            if name is not None
        )

    def _phase_changes(self) -> list[tuple[float, str | None]]:
        """Say when the phase became another; marks that repeat it, one a batch, change nothing."""
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
    """Load a recording that gpuproof wrote; where metrics are named, of its devices, if any, these alone.

    Raises:
        RecordError: the file cannot be read, holds no `recording` line, or is of a newer schema.
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
    """Hold off the collector of cycles: JSON and records have none, and it takes a sixth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Columns:
    """The columns of several owners, made of rows; one that a row does not name gets NaN there.

    An owner's rows with the same names are kept together as they come: a day in a few arrays.
    """

    def __init__(self) -> None:
        self._tables: defaultdict[str, defaultdict[tuple[str, ...], tuple[array[int], array[float]]]]
        self._tables = defaultdict(lambda: defaultdict(lambda: (array("q"), array("d"))))

    def put(self, index: int, owner: str, values: Mapping[str, float]) -> None:
        """Set an owner's values of sample `index`.

        Raises:
            TypeError: a value is no number; then none of the row's is set.
        """
        places, numbers = self._tables[owner][tuple(values)]
        numbers.fromlist(list(values.values()))
        places.append(index)

    def arrays(self, length: int) -> dict[str, dict[str, Floats]]:
        """Return each owner's columns, one entry for each of `length` samples."""
        return {owner: _columns(tables, length) for owner, tables in self._tables.items()}


def _columns(
    tables: Mapping[tuple[str, ...], tuple[array[int], array[float]]], length: int
) -> dict[str, Floats]:
    """Return the tables of one owner spread over all samples."""
    filled = {named: table for named, table in tables.items() if table[0]}
    names = list(dict.fromkeys(chain.from_iterable(filled)))
    columns = np.full((len(names), length), NAN)
    for named, (places, numbers) in filled.items():
        rows = np.array([names.index(name) for name in named], dtype=np.int64)[:, None]
        values = np.frombuffer(numbers, dtype=np.float64).reshape(len(places), len(named))
        columns[rows, np.frombuffer(places, dtype=np.int64)] = values.T
    return dict(zip(names, columns, strict=True))


def _wall_time(unix_s: Any) -> float:
    """Return a wall time that a calendar has.

    Raises:
        ValueError: it has none.
    """
    value = float(unix_s)
    if not 0 <= value <= LATEST_UNIX_S:
        raise ValueError(f"no date is {value:g} s after 1970")
    return value


def _require_texts(reason_lists: Iterable[Iterable[Any] | None]) -> None:
    """Refuse throttle reasons that are no texts.

    Raises:
        TypeError: one is none.
    """
    if not all(isinstance(reason, str) for reasons in reason_lists for reason in reasons or ()):
        raise TypeError("a throttle reason is no text")


@dataclass
class _Builder:
    """Takes lines one by one, so that a day of readings never stands in memory as text."""

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
    """Devices, and the reasons that a sample gave of them → the samples."""
    throttle: defaultdict[str, Reasons] = field(default_factory=lambda: defaultdict(Reasons))
    others: dict[type, list[Any]] = field(default_factory=dict)
    damaged: list[int] = field(default_factory=list)

    def add(self, line: bytes, number: int) -> None:
        if line.isspace():
            return
        try:
            data = load_line(line)
            kind = data["kind"]
            if kind != "sample" or not is_clean(line):  # a sample that is nested deeper is no sample below
                data = bounded(data, line)
        except (ValueError, TypeError, KeyError):
            self.damaged.append(number)
            return
        if kind == "recording":
            self.head = self.head or self._head(data, place=f"{self.source}:{number}")
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
        """Take a sample from its plain JSON: building records of a day's readings takes minutes."""
        monotonic_s, unix_s = float(data["monotonic_s"]), _wall_time(data["unix_s"])
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
                raise TypeError("the host's values are no list")
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
        """Return the devices of a sample and what it told of them; None where it told nothing.

        Raises:
            TypeError: a reason is no text.
        """
        reasons = data["reasons"]
        if reasons is None:
            return None
        texts = tuple(item if type(item) is str or item is None else tuple(item) for item in reasons)
        key = data["gpus"], texts
        if key not in self.samples_by_reasons:  # what was told before was looked at then
            _require_texts(texts)
        return key

    def _spread_reasons(self) -> None:
        """Give every device its own of what samples told of all."""
        for (devices, reasons), places in self.samples_by_reasons.items():
            names = split(devices)
            of_devices = reasons_by_device(list(reasons), num=len(names))
            for device, of_device in zip(names, of_devices, strict=False):
                if of_device is not None:
                    self.throttle[device].put_all(places, of_device)

    def finish(self) -> RecordingData:
        if self.head is None:
            raise RecordError(
                "holds no recording line",
                place=self.source,
                next_step="Name a file that `gpuproof monitor record` or `exec` wrote",
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
        """Take who devices are from the last record that says it: drivers may answer after the beginning."""
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
            yield f"{len(self.damaged)} damaged line(s) left out (line {places}{more})"
        if self.end is None:
            yield "the recording has no end: the sampler was killed or is still running"
