"""How is a recording exported to other tools: as AdamWPrune's `gpu_stats` or gputop's log?

The input is a recording. The output, as `gpu_stats_<config>_<timestamp>.json`: one row per GPU and time with
`timestamp` (ISO, with the UTC offset), `gpu_index`, `gpu_name`, `gpu_type`, `utilization` (%), `memory_used`
and `memory_total` (MiB), `memory_percent`, `power` (W), `temperature` (°C), `elapsed_seconds`,
`training_metadata` (epoch, batch, phase and anything else the workload published, on every row) and `host`.
Missing readings are null. Without a GPU, there is one row per timestamp with null GPU fields. `schema` is 1.

The output for gputop's `--compare` and `--gen-graph` is the array of one GPU or, for several GPUs, the
multi-GPU array with its aggregates. Entries of the multi-GPU array also have the single-GPU keys, aggregated
over all GPUs, because gputop's own readers need them. The format cannot represent a missing value, and
programs that read it need every number. A value missing from a tick is carried forward for at most one slow
interval. A sample that still lacks a number that the GPU reports in other samples is dropped, never filled
in. As in gputop, the fan is 0 on a board without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from math import ceil
from statistics import fmean
from typing import Any

import numpy as np

from gpuproof.base.errors import UsageError
from gpuproof.readings.formats.rows import MIB_BYTES
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData

SCHEMA = 1


OLDER_PHASES = ("warmup", "measure")
"""Our phases that AdamWPrune calls `training`."""
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
_NEEDED = ("util_gpu_percent", "mem_used_bytes", "power_w")
_IF_GIVEN = ("power_limit_w", "fan_percent")
_TYPES = {"nvidia": "nvidia_desktop", "amd": "amd"}
_AMD_SENSORS = {"Edge": "temp_gpu_c", "Junction": "temp_hotspot_c", "Memory": "temp_mem_c"}
_SENSORS = {"GPU": "temp_gpu_c", "Memory": "temp_mem_c"}
_AMD_CLOCKS = {"sclk": "clock_sm_mhz", "mclk": "clock_mem_mhz"}
_CLOCKS = {"gpu": "clock_sm_mhz", "memory": "clock_mem_mhz"}
_LIMITS = {"slowdown": "temp_slowdown_c", "shutdown": "temp_shutdown_c", "max": "temp_max_c"}


def gpu_stats_rows(
    recording: RecordingData, *, metadata: Mapping[str, Any] | None = None, is_older: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the rows in time order; `metadata` is added to the `training_metadata` of every row.

    If `is_older`, use the phase names of AdamWPrune's monitor.
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
    """Marks published by the workload up to a time, which must never decrease; null clears keys."""

    def __init__(self, recording: RecordingData, *, first: Mapping[str, Any]) -> None:
        marks = [(recording.seconds_in(mark.monotonic_s), mark.metadata) for mark in recording.marks]
        self._waiting = sorted(marks, key=lambda mark: mark[0], reverse=True)
        self._so_far = dict(first)

    def at(self, time_s: float) -> dict[str, Any]:
        """Return everything published up to `time_s`, in seconds since the recording started."""
        while self._waiting and self._waiting[-1][0] <= time_s:
            self._so_far = {**self._so_far, **self._waiting.pop()[1]}
        return self._so_far


def iso(unix_s: float) -> str | None:
    """Format a wall time in local time with its offset from UTC; None if unknown."""
    if math.isnan(unix_s):
        return None
    return datetime.fromtimestamp(unix_s, tz=timezone.utc).astimezone().isoformat(timespec="milliseconds")


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
    """Return a metric's value at sample `i`; None if it was not read."""
    column = track.values(metric)
    return None if column is None or math.isnan(column[i]) else float(column[i])


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(number) for name, number in values.items() if not math.isnan(number)}


def gputop_samples(
    recording: RecordingData, *, physical_index: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the samples of one GPU; by default, the first GPU that this format can represent.

    Raises:
        UsageError: there is no such GPU, or it does not report what the format needs.
    """
    chosen = [t for t in recording.devices if physical_index in (None, t.identity.physical_index)]
    gpu = _usable(recording, chosen)[0]
    for i in np.flatnonzero(gpu.whole):
        yield {"timestamp": _naive(recording.unix_s[i]), **gpu.row(int(i)), **gpu.details(int(i))}


def gputop_multi_gpu_samples(recording: RecordingData) -> Iterator[dict[str, Any]]:
    """Yield the samples of all GPUs together; each entry contains the GPUs that responded.

    Raises:
        UsageError: no GPU reports everything the format needs.
    """
    usable = _usable(recording, recording.devices)
    for i in np.flatnonzero(np.logical_or.reduce([gpu.whole for gpu in usable])):
        answering = [gpu for gpu in usable if gpu.whole[i]]
        rows = [gpu.row(int(i)) for gpu in answering]
        yield {
            "timestamp": _naive(recording.unix_s[i]),
            **_together(rows, [gpu.details(int(i)) for gpu in answering]),
            "multi_gpu_data": rows,
            "aggregate_stats": _aggregate(rows),
        }


def _usable(recording: RecordingData, tracks: Sequence[DeviceTrack]) -> list[_Gpu]:
    """Return the GPUs that report everything the format needs."""
    lacking = {track.identity.physical_index: _lacking(track) for track in tracks}
    usable = [_Gpu(recording, t) for t in tracks if not lacking[t.identity.physical_index]]
    if usable:
        return usable
    if not tracks:
        raise UsageError(
            "has no GPU that gputop's format can represent",
            place=recording.source,
            next_step="Use the native format",
        )
    index, absent = next(iter(lacking.items()))
    raise UsageError(
        f"GPU {index} does not report {', '.join(absent)}, which gputop's format needs",
        next_step="Use the native format, which can represent missing values",
    )


def _lacking(track: DeviceTrack) -> list[str]:
    absent = [name for name in _NEEDED if track.values(name) is None]
    return absent if track.identity.static.get("mem_total_bytes") else [*absent, "mem_total_bytes"]


def _carried(recording: RecordingData, column: Floats) -> Floats:
    """Carry each reading forward to the next one, for at most one slow interval (in whole ticks)."""
    fast_s = recording.recording.fast_interval_s
    longest_s = ceil(recording.recording.slow_interval_s / fast_s - 1e-9) * fast_s if fast_s > 0 else 0.0
    read_at = np.flatnonzero(~np.isnan(column))
    if not len(read_at):
        return column
    last = read_at[np.maximum(np.searchsorted(read_at, np.arange(len(column)), side="right") - 1, 0)]
    age_s = recording.time_s - recording.time_s[last]
    return np.where((age_s >= 0) & (age_s <= longest_s + 1e-6), column[last], np.nan)


class _Gpu:
    """One GPU, with readings carried forward in its columns."""

    def __init__(self, recording: RecordingData, track: DeviceTrack) -> None:
        self._identity = track.identity
        is_amd = track.identity.vendor == "amd"
        self._sensors, self._clocks = (_AMD_SENSORS, _AMD_CLOCKS) if is_amd else (_SENSORS, _CLOCKS)
        used = (*_NEEDED, *_IF_GIVEN, *self._sensors.values(), *self._clocks.values())
        self._columns = {
            name: _carried(recording, column) for name in used if (column := track.values(name)) is not None
        }
        self._limit_w = float(track.identity.static.get("power_limit_w", 0))
        self.whole: Flags = np.logical_and.reduce([~np.isnan(column) for column in self._columns.values()])
        """Samples that contain everything the device reports in any sample."""
        levels = track.values("pstate_level")
        self._levels = None if levels is None else _carried(recording, levels)

    def row(self, i: int) -> dict[str, Any]:
        """Format the GPU's entry in the multi-GPU array."""
        used_mib = self._columns["mem_used_bytes"][i] / MIB_BYTES
        total_mib = self._identity.static["mem_total_bytes"] / MIB_BYTES
        return {
            "gpu_index": self._identity.physical_index,
            "gpu_name": self._identity.name,
            "utilization": self._value("util_gpu_percent", i, 0.0),
            "memory_used": float(used_mib),
            "memory_total": total_mib,
            "memory_percent": float(100.0 * used_mib / total_mib),
            "temperatures": self._labelled(self._sensors, i),
            "power": self._value("power_w", i, 0.0),
            "power_limit": self._value("power_limit_w", i, self._limit_w),
            "clocks": self._labelled(self._clocks, i),
        }

    def details(self, i: int) -> dict[str, Any]:
        """Format the fields that the single-GPU array adds to a row."""
        static = self._identity.static
        limits = {kind: static[name] for kind, name in _LIMITS.items() if name in static}
        level = None if self._levels is None or np.isnan(self._levels[i]) else self._levels[i]
        return {
            "gpu_type": _TYPES.get(self._identity.vendor, self._identity.vendor),
            "temp_limits": {next(iter(self._sensors)): limits} if limits else {},
            "fan_speed": self._value("fan_percent", i, 0),
            "clock_states": {},
            "performance_level": "unknown" if level is None else f"P{level:.0f}",
        }

    def _value(self, metric: str, i: int, otherwise: float) -> float:
        column = self._columns.get(metric)
        return otherwise if column is None else float(column[i])

    def _labelled(self, metrics: dict[str, str], i: int) -> dict[str, float]:
        return {
            label: float(self._columns[name][i]) for label, name in metrics.items() if name in self._columns
        }


def _naive(unix_s: float) -> str:
    """Format local time without a UTC offset, always with microseconds, as gputop expects."""
    return datetime.fromtimestamp(float(unix_s)).strftime("%Y-%m-%dT%H:%M:%S.%f")


def _together(gpus: list[dict[str, Any]], details: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine GPUs into one: summed memory and power, highest temperature, mean of the rest."""
    all_ = _aggregate(gpus)
    names = list(dict.fromkeys(gpu["gpu_name"] for gpu in gpus))
    return {
        **details[0],
        "gpu_name": f"{len(gpus)} × {', '.join(names)}",
        "utilization": all_["average_utilization"],
        "memory_used": all_["total_memory_used"],
        "memory_total": all_["total_memory_total"],
        "memory_percent": all_["total_memory_percent"],
        "temperatures": _by_label([gpu["temperatures"] for gpu in gpus], max),
        "power": all_["total_power"],
        "power_limit": all_["total_power_limit"],
        "clocks": _by_label([gpu["clocks"] for gpu in gpus], fmean),
        "fan_speed": fmean(row["fan_speed"] for row in details),
    }


def _by_label(tables: list[dict[str, float]], join: Callable[[list[float]], float]) -> dict[str, float]:
    labels = dict.fromkeys(label for table in tables for label in table)
    return {label: join([table[label] for table in tables if label in table]) for label in labels}


def _aggregate(gpus: list[dict[str, Any]]) -> dict[str, float]:
    used, total = sum(gpu["memory_used"] for gpu in gpus), sum(gpu["memory_total"] for gpu in gpus)
    return {
        "total_memory_used": used,
        "total_memory_total": total,
        "total_memory_percent": 100.0 * used / total,
        "average_utilization": sum(gpu["utilization"] for gpu in gpus) / len(gpus),
        "total_power": sum(gpu["power"] for gpu in gpus),
        "total_power_limit": sum(gpu["power_limit"] for gpu in gpus),
        "max_temperature": max((t for gpu in gpus for t in gpu["temperatures"].values()), default=0),
        "gpu_count": len(gpus),
    }
