"""How does a recording read as gputop's own log, so that its `--compare` and `--gen-graph` take it?

In: a recording. Out: the array of one GPU, and for several GPUs the multi-GPU array with its aggregates.
That format has no way to write a missing value, and its readers need every number: a moment that lacks one
which the device otherwise gives is left out, never filled in. A fan is 0 on a board without one, as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import numpy as np

from gpuproof.errors import UsageError
from gpuproof.readings.formats.gpu_stats import value
from gpuproof.readings.formats.rows import MIB_BYTES
from gpuproof.readings.recording import DeviceTrack, Flags, RecordingData

_NEEDED = ("util_gpu_percent", "mem_used_bytes", "power_w")
_TYPES = {"nvidia": "nvidia_desktop", "amd": "amd"}
_AMD_SENSORS = {"Edge": "temp_gpu_c", "Junction": "temp_hotspot_c", "Memory": "temp_mem_c"}
_SENSORS = {"GPU": "temp_gpu_c", "Memory": "temp_mem_c"}
_AMD_CLOCKS = {"sclk": "clock_sm_mhz", "mclk": "clock_mem_mhz"}
_CLOCKS = {"gpu": "clock_sm_mhz", "memory": "clock_mem_mhz"}
_LIMITS = {"slowdown": "temp_slowdown_c", "shutdown": "temp_shutdown_c", "max": "temp_max_c"}


def samples(recording: RecordingData, *, physical_index: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the samples of one GPU, the first unless another is named.

    Raises:
        UsageError: there is no such GPU, or it does not give what the format needs.
    """
    track = _track(recording, physical_index)
    limit_w = _power_limit_w(track)
    for i in np.flatnonzero(_whole(track)):
        gpu = _gpu(track, int(i), power_limit_w=limit_w)
        yield {"timestamp": _naive(recording.unix_s[i]), **gpu, **_details(track, int(i))}


def multi_gpu_samples(recording: RecordingData) -> Iterator[dict[str, Any]]:
    """Yield the samples of all GPUs together, at the moments at which each of them answered.

    Raises:
        UsageError: a GPU does not give what the format needs.
    """
    whole = np.logical_and.reduce([_whole(track) for track in recording.devices])
    limits_w = [_power_limit_w(track) for track in recording.devices]
    for i in np.flatnonzero(whole):
        gpus = [
            _gpu(track, int(i), power_limit_w=limit_w)
            for track, limit_w in zip(recording.devices, limits_w, strict=True)
        ]
        yield {
            "timestamp": _naive(recording.unix_s[i]),
            "multi_gpu_data": gpus,
            "aggregate_stats": _aggregate(gpus),
        }


def _track(recording: RecordingData, physical_index: int | None) -> DeviceTrack:
    for track in recording.devices:
        if physical_index in (None, track.identity.physical_index):
            return track
    raise UsageError(
        "has no GPU that gputop's format could hold",
        place=recording.source,
        next_step="Use the native format",
    )


def _whole(track: DeviceTrack) -> Flags:
    """Tell the samples at which nothing is missing that the device gives at other moments."""
    absent = [name for name in _NEEDED if track.values(name) is None]
    if not track.identity.static.get("mem_total_bytes"):
        absent.append("mem_total_bytes")
    if absent:
        raise UsageError(
            f"GPU {track.identity.physical_index} gives no {', '.join(absent)}, which gputop's format needs",
            next_step="Use the native format, which can say so",
        )
    used = {*_NEEDED, *_sensors(track).values(), *_clocks(track).values()}
    columns = [column for name in sorted(used) if (column := track.values(name)) is not None]
    whole: Flags = np.logical_and.reduce([~np.isnan(column) for column in columns])
    return whole


def _sensors(track: DeviceTrack) -> dict[str, str]:
    return _AMD_SENSORS if track.identity.vendor == "amd" else _SENSORS


def _clocks(track: DeviceTrack) -> dict[str, str]:
    return _AMD_CLOCKS if track.identity.vendor == "amd" else _CLOCKS


def _naive(unix_s: float) -> str:
    """Write local time without an offset, always with microseconds: what gputop reads."""
    return datetime.fromtimestamp(float(unix_s)).strftime("%Y-%m-%dT%H:%M:%S.%f")


def _power_limit_w(track: DeviceTrack) -> float:
    """Return the last power cap that was read; 0 where there is none, as that format has it."""
    read = track.given("power_limit_w")
    return float(read[-1]) if len(read) else float(track.identity.static.get("power_limit_w", 0))


def _gpu(track: DeviceTrack, i: int, *, power_limit_w: float) -> dict[str, Any]:
    used_mib = (value(track, "mem_used_bytes", i) or 0.0) / MIB_BYTES
    total_mib = track.identity.static["mem_total_bytes"] / MIB_BYTES
    return {
        "gpu_index": track.identity.physical_index,
        "gpu_name": track.identity.name,
        "utilization": value(track, "util_gpu_percent", i),
        "memory_used": used_mib,
        "memory_total": total_mib,
        "memory_percent": 100.0 * used_mib / total_mib,
        "temperatures": _labelled(track, _sensors(track), i),
        "power": value(track, "power_w", i),
        "power_limit": power_limit_w,
        "clocks": _labelled(track, _clocks(track), i),
    }


def _details(track: DeviceTrack, i: int) -> dict[str, Any]:
    limits = {
        kind: track.identity.static[name] for kind, name in _LIMITS.items() if name in track.identity.static
    }
    first = next(iter(_sensors(track)))
    level = value(track, "pstate_level", i)
    return {
        "gpu_type": _TYPES.get(track.identity.vendor, track.identity.vendor),
        "temp_limits": {first: limits} if limits else {},
        "fan_speed": value(track, "fan_percent", i) or 0,
        "clock_states": {},
        "performance_level": "unknown" if level is None else f"P{level:.0f}",
    }


def _labelled(track: DeviceTrack, metrics: dict[str, str], i: int) -> dict[str, float]:
    return {label: found for label, name in metrics.items() if (found := value(track, name, i)) is not None}


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
