"""How do rows of other formats become columns? Rows logged together form a sample, in time order.

The input is rows, one per GPU and point in time, with our metric names and units. The output is
`RecordingData`. A row without a GPU contains only host values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from gpuproof.base.errors import RecordError
from gpuproof.base.units import first_of
from gpuproof.readings.metric_text import title
from gpuproof.readings.recording import HOST, NAN, Columns, DeviceTrack, Floats, RecordingData
from gpuproof.readings.sample_columns import Reasons
from gpuproof.records.readings import (
    DeviceIdentity,
    DriverEvent,
    Mark,
    Recording,
    UnavailableMetrics,
    Vendor,
)

MIB_BYTES = 2**20
RESET_DUE: Final = "reset due"
READING_LOST: Final = "reading lost"
FAULTS: Final = (RESET_DUE, READING_LOST)
"""Events that a file reports in place of a number and that mean the GPU is faulty."""
_LONGEST_WORD, _MOST_NAMED = 60, 4
"""Maximum length of text found in place of a number, and maximum number of metrics listed in an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One GPU at one point in time, as another tool recorded it."""

    elapsed_s: float
    """Time on any clock, as long as the file always uses the same clock."""
    unix_s: float
    """Wall-clock time; NaN if the format has none."""
    index: int | None
    """Index of the GPU; None for a row that contains only host values."""
    name: str = ""
    vendor: Vendor = "replay"
    values: dict[str, float] = field(default_factory=dict)
    static: dict[str, Any] = field(default_factory=dict)
    throttle_reasons: tuple[str, ...] | None = None
    host: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    """Metric → the text found in the file in place of a number, verbatim."""


def build(
    rows: Iterable[Row],
    *,
    source: str,
    format_name: str,
    notes: Iterable[str] = (),
    same_moment_s: float = 0.0,
) -> RecordingData:
    """Build a recording; a GPU's next row, or one after `same_moment_s`, starts a new sample.

    Raises:
        RecordError: there are no rows.
    """
    listed = list(rows)
    if not listed:
        raise RecordError("contains no reading", place=source)
    ordered = sorted(listed, key=lambda row: row.elapsed_s)
    ticks = list(_ticks(ordered, same_moment_s))
    start_s = ordered[0].elapsed_s
    events, unavailable = _stated(ticks, start_s)
    time_s = np.array([tick[0].elapsed_s - start_s for tick in ticks])
    columns = _columns(ticks)
    return RecordingData(
        source=source,
        format=format_name,
        recording=_head(ordered, time_s),
        time_s=time_s,
        unix_s=np.array([tick[0].unix_s for tick in ticks]),
        devices=tuple(
            _track(index, ticks, columns[str(index)])
            for index in sorted({r.index for r in listed if r.index is not None})
        ),
        host=columns[HOST],
        marks=tuple(_marks(ticks, start_s)),
        events=events,
        unavailable=unavailable,
        notes=(*notes, *(["timestamps are not always in order; sorted"] if ordered != listed else [])),
    )


def _ticks(rows: Iterable[Row], same_moment_s: float) -> Iterator[list[Row]]:
    tick: list[Row] = []
    for row in rows:
        begun = bool(tick) and row.elapsed_s - tick[0].elapsed_s <= same_moment_s
        if begun and all(row.index != other.index for other in tick):
            tick.append(row)
        else:
            if tick:
                yield tick
            tick = [row]
    yield tick


def _head(rows: list[Row], time_s: Floats) -> Recording:
    interval_s = float(np.median(np.diff(time_s))) if len(time_s) > 1 else 0.0
    by_index = {row.index: row for row in rows if row.index is not None}
    return Recording(
        host="",
        pid=0,
        boot_id=None,
        gpuproof_version="",
        unix_s=rows[0].unix_s,
        monotonic_s=0.0,
        fast_interval_s=interval_s,
        slow_interval_s=interval_s,
        devices=tuple(_identity(by_index[index]) for index in sorted(by_index)),
        host_facts={},
    )


def _identity(row: Row) -> DeviceIdentity:
    assert row.index is not None
    return DeviceIdentity(
        physical_index=row.index,
        vendor=row.vendor,
        vendor_index=row.index,
        framework_index=None,
        uuid=row.static.get("uuid"),
        pci_bus_id=row.static.get("pci_bus_id"),
        name=row.name,
        static={key: value for key, value in row.static.items() if key not in ("uuid", "pci_bus_id")},
        unavailable={"framework_index": "not stated in the file"},
    )


def _columns(ticks: list[list[Row]]) -> dict[str, dict[str, Floats]]:
    columns = Columns()
    for number, tick in enumerate(ticks):
        columns.put(number, HOST, tick[0].host)
        for row in tick:
            if row.index is not None:
                columns.put(number, str(row.index), row.values)
    return columns.arrays(len(ticks))


def _track(index: int, ticks: list[list[Row]], columns: dict[str, Floats]) -> DeviceTrack:
    reasons, last = Reasons(), None
    for number, tick in enumerate(ticks):
        for row in tick:
            if row.index == index:
                last = row
                if row.throttle_reasons is not None:
                    reasons.put(number, row.throttle_reasons)
    assert last is not None
    flags, answered = reasons.flags(len(ticks))
    return DeviceTrack(
        identity=_identity(last),
        metrics=_without_idle_fan(columns),
        throttle=flags,
        throttle_answered=answered,
    )


def _without_idle_fan(columns: dict[str, Floats]) -> dict[str, Floats]:
    """Drop a fan reading that is always 0: other tools write that for a board without a fan."""
    fan = columns.get("fan_percent")
    if fan is not None and not np.nan_to_num(fan).any():
        return {name: column for name, column in columns.items() if name != "fan_percent"}
    return columns


def _marks(ticks: list[list[Row]], start_s: float) -> Iterator[Mark]:
    """Yield a mark whenever the metadata of the rows changes."""
    before: dict[str, Any] = {}
    for tick in ticks:
        now = {key: value for row in tick for key, value in row.metadata.items() if value is not None}
        if now != before:
            gone = dict.fromkeys(before.keys() - now.keys())
            yield Mark(monotonic_s=tick[0].elapsed_s - start_s, metadata={**gone, **now})
            before = now


def _stated(
    ticks: Iterable[list[Row]], start_s: float
) -> tuple[tuple[DriverEvent, ...], tuple[UnavailableMetrics, ...]]:
    """Return the non-numeric values in a file: faults and errors as events, the rest as reasons."""
    read: set[tuple[int, str]] = set()
    stated: dict[tuple[int, str, str], tuple[float, dict[str, None]]] = {}
    words: dict[tuple[int, str], str] = {}
    for tick in ticks:
        for row in tick:
            if row.index is None:
                continue
            for metric, word in row.unread.items():
                text = word[:_LONGEST_WORD]
                words[row.index, metric] = text
                if event := _event_of(text, was_read=(row.index, metric) in read):
                    at = tick[0].elapsed_s - start_s
                    stated.setdefault((row.index, event, text), (at, {}))[1][metric] = None
            read |= {(row.index, metric) for metric in row.values}
    missing: dict[int, dict[str, str]] = {}
    for (index, metric), text in words.items():
        if (index, metric) not in read:
            missing.setdefault(index, {})[metric] = f"the file has {text}"
    return (
        tuple(_event(key, at_s, metrics) for key, (at_s, metrics) in stated.items()),
        tuple(
            UnavailableMetrics(monotonic_s=0.0, physical_index=index, reasons=reasons)
            for index, reasons in missing.items()
        ),
    )


def _event_of(word: str, *, was_read: bool) -> str | None:
    """Return the event for a text, if any: boards also print errors for fields they never support."""
    if "requires reset" in word.lower():
        return RESET_DUE
    if was_read:
        return READING_LOST
    return "reading error" if "err" in word.lower() else None


def _event(stated: tuple[int, str, str], at_s: float, metrics: Iterable[str]) -> DriverEvent:
    index, event, word = stated
    before = ", read before" if event == READING_LOST else ""
    return DriverEvent(
        monotonic_s=at_s,
        physical_index=index,
        event=event,
        code=None,
        message=f"{word} instead of {first_of([title(metric) for metric in metrics], _MOST_NAMED)}{before}",
    )


def number(value: Any) -> float:
    """Parse a number as written by another tool; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return NAN
    try:
        return float(value)
    except ValueError:
        return NAN


def finite(values: dict[str, float], *, zero_is_missing: Iterable[str] = ()) -> dict[str, float]:
    """Return the finite values, without the zeros that this format uses for missing values."""
    doubtful = set(zero_is_missing)
    return {
        name: value
        for name, value in values.items()
        if math.isfinite(value) and not (value == 0.0 and name in doubtful)
    }
