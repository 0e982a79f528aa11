"""How does a recording read as `gpu_stats_<config>_<timestamp>.json`? One row a GPU and time.

In: a recording. Out: rows with `timestamp` (ISO, with the offset from UTC), `gpu_index`, `gpu_name`,
`gpu_type`, `utilization` (%), `memory_used` and `memory_total` (MiB), `memory_percent`, `power` (W),
`temperature` (°C), `elapsed_seconds`, `training_metadata` (epoch, batch, phase and whatever else the work
published, on every row) and `host`. What was not read is null. Without a GPU there is one row a time, its
GPU fields null. `schema` is 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from gpuproof.readings.formats.rows import MIB_BYTES
from gpuproof.readings.recording import DeviceTrack, RecordingData

SCHEMA = 1


OLDER_PHASES = ("warmup", "measure")
"""Phases of a training of ours that it calls `training`."""


def rows(
    recording: RecordingData, *, metadata: Mapping[str, Any] | None = None, is_older: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the rows in order of time; `metadata` is added to every row's `training_metadata`.

    `is_older`: phases are called as AdamWPrune's monitor calls them.
    """
    marks = MarksSoFar(recording, first={"epoch": None, "batch": None, "phase": None, **(metadata or {})})
    for i in range(len(recording.time_s)):
        published = marks.at(float(recording.time_s[i]))
        if is_older and published["phase"] in OLDER_PHASES:
            published = {**published, "phase": "training"}
        moment = {
            "schema": SCHEMA,
            "timestamp": iso(float(recording.unix_s[i])),
            "elapsed_seconds": round(float(recording.time_s[i]), 6),
            "training_metadata": published,
            "host": _finite({name: column[i] for name, column in recording.host.items()}) or None,
        }
        for track in recording.devices:
            yield {**moment, **_device(track, i)}
        if not recording.devices:
            yield {**moment, **_NO_DEVICE}


class MarksSoFar:
    """What the work had published by a time that only goes forward: marks add up, null takes a key away."""

    def __init__(self, recording: RecordingData, *, first: Mapping[str, Any]) -> None:
        marks = [(recording.seconds_in(mark.monotonic_s), mark.metadata) for mark in recording.marks]
        self._waiting = sorted(marks, key=lambda mark: mark[0], reverse=True)
        self._so_far = dict(first)

    def at(self, time_s: float) -> dict[str, Any]:
        """Return everything published up to `time_s`, in seconds since the recording began."""
        while self._waiting and self._waiting[-1][0] <= time_s:
            self._so_far = {**self._so_far, **self._waiting.pop()[1]}
        return self._so_far


def iso(unix_s: float) -> str | None:
    """Write a wall time in local time with its offset from UTC; None where it is not known."""
    if math.isnan(unix_s):
        return None
    return datetime.fromtimestamp(unix_s, tz=timezone.utc).astimezone().isoformat(timespec="milliseconds")


_NO_DEVICE: dict[str, Any] = dict.fromkeys(
    (
        "gpu_index",
        "gpu_name",
        "gpu_type",
        "utilization",
        "memory_used",
        "memory_total",
        "memory_percent",
        "power",
        "temperature",
    )
)


def _device(track: DeviceTrack, i: int) -> dict[str, Any]:
    used = value(track, "mem_used_bytes", i)
    total = track.identity.static.get("mem_total_bytes")
    return {
        "gpu_index": track.identity.physical_index,
        "gpu_name": track.identity.name,
        "gpu_type": track.identity.vendor,
        "utilization": value(track, "util_gpu_percent", i),
        "memory_used": None if used is None else used / MIB_BYTES,
        "memory_total": None if not total else total / MIB_BYTES,
        "memory_percent": 100.0 * used / total if used is not None and total else None,
        "power": value(track, "power_w", i),
        "temperature": value(track, "temp_gpu_c", i),
    }


def value(track: DeviceTrack, metric: str, i: int) -> float | None:
    """Return a metric at sample `i`; None where it was not read."""
    column = track.values(metric)
    return None if column is None or math.isnan(column[i]) else float(column[i])


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(number) for name, number in values.items() if not math.isnan(number)}
