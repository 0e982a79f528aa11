"""Reads JSON files of other monitors: gputop's and `gpu_stats_*` arrays, sample dicts.

The input is a path. The output is `RecordingData`. Sizes are in MiB; temperatures are one number or a dict of
sensors. Some formats write 0 for unknown values: a 0 that cannot be a real reading (watts, degrees,
megahertz) is treated as missing, and `notes` reports it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuproof.base.errors import RecordError
from gpuproof.base.outside import parse_json
from gpuproof.readings.formats.rows import MIB_BYTES, Row, build, finite, number
from gpuproof.readings.recording import LATEST_UNIX_S, NAN, RecordingData
from gpuproof.records.readings import Vendor

_NEVER_ZERO = (
    "power_w",
    "power_limit_w",
    "temp_gpu_c",
    "temp_hotspot_c",
    "temp_mem_c",
    "clock_sm_mhz",
    "clock_mem_mhz",
)
_STEP = "To show a tool's result, use `gpuproof report FILE`"
_ZEROS_NOTE = "zeros in power, temperature and clocks count as missing: this format writes 0 for unknown"
_SENSORS = {
    "gpu": "temp_gpu_c",
    "edge": "temp_gpu_c",
    "junction": "temp_hotspot_c",
    "hotspot": "temp_hotspot_c",
    "memory": "temp_mem_c",
}
_CLOCKS = {"gpu": "clock_sm_mhz", "sclk": "clock_sm_mhz", "memory": "clock_mem_mhz", "mclk": "clock_mem_mhz"}
_LIMITS = {
    "slowdown": "temp_slowdown_c",
    "critical": "temp_slowdown_c",
    "shutdown": "temp_shutdown_c",
    "emergency": "temp_shutdown_c",
    "max": "temp_max_c",
}


MOST_GPUS = 2**16
_SAMPLES = re.compile(r'"samples"\s*:\s*\[')
_BETWEEN = " \t\r\n,"


def load_json(path: Path) -> RecordingData:
    """Load an array, or a dict that contains `samples`.

    Raises:
        RecordError: no object in it is a reading in a known format.
    """
    items, damage = objects(path.read_text(encoding="utf-8-sig", errors="replace"))
    if not items:
        raise RecordError("contains no reading", place=path.name)
    name = _detect_format(items[0])
    if name is None:
        keys = ", ".join(sorted(items[0])[:6])
        raise RecordError(f"its objects are not readings (keys: {keys})", place=path.name, next_step=_STEP)
    ours = "schema" in items[0]
    undated = sum(math.isnan(_times(item.get("timestamp"))[1]) for item in items)
    notes = [
        *([damage] if damage else []),
        *([f"{undated} reading(s) without a timestamp in seconds or as a date skipped"] if undated else []),
        *([] if ours else [_ZEROS_NOTE]),
    ]
    try:
        rows = list(_rows(items, zeros=() if ours else _NEVER_ZERO))
    except RecordError as error:
        raise RecordError(error.cause, place=path.name) from error
    return build(rows, source=path.name, format_name=name, notes=notes)


def _detect_format(first: dict[str, Any]) -> str | None:
    if "multi_gpu_data" in first:
        return "gputop multi-GPU"
    if "temperatures" in first and "timestamp" in first:
        return "gputop"
    if "utilization" in first and "timestamp" in first:
        return "gpu_stats"
    if {"memory_mb", "memory_used_mb", "gpu_utilization"} & first.keys() and "timestamp" in first:
        return "samples"
    return None


def _rows(items: list[dict[str, Any]], *, zeros: tuple[str, ...]) -> Iterator[Row]:
    elapsed = all(math.isfinite(number(item.get("elapsed_seconds"))) for item in items)
    for item in items:
        unix_s, time_s = _times(item.get("timestamp"))
        if math.isnan(time_s):
            continue
        if elapsed:
            time_s = number(item["elapsed_seconds"])
        gpus = item.get("multi_gpu_data", [item])
        for gpu in gpus if isinstance(gpus, list) else ():
            if isinstance(gpu, dict):
                yield _row(gpu, unix_s=unix_s, elapsed_s=time_s, zeros=zeros)


def _times(timestamp: Any) -> tuple[float, float]:
    """Parse a timestamp: wall-clock seconds (NaN if relative to the start), and seconds on any clock."""
    if isinstance(timestamp, str):
        try:
            unix_s = datetime.fromisoformat(timestamp).timestamp()
        except ValueError:
            return NAN, NAN
        return unix_s, unix_s
    seconds = number(timestamp)
    if not abs(seconds) <= LATEST_UNIX_S:  # e.g. in milliseconds
        return NAN, NAN
    return (seconds if seconds > 1e9 else NAN), seconds


def _row(gpu: dict[str, Any], *, unix_s: float, elapsed_s: float, zeros: tuple[str, ...]) -> Row:
    index = gpu.get("gpu_index", gpu.get("gpu_id", 0))
    total = number(gpu.get("memory_total", gpu.get("memory_total_mb"))) * MIB_BYTES
    metadata, fields, host = gpu.get("training_metadata"), _fields(gpu), gpu.get("host")
    return Row(
        elapsed_s=elapsed_s,
        unix_s=unix_s,
        index=None if index is None else _index(index),
        name=str(gpu.get("gpu_name") or ""),
        vendor=_vendor(str(gpu.get("gpu_type") or "")),
        values=finite(_values(fields), zero_is_missing=(*zeros, *(() if total else ("mem_used_bytes",)))),
        static=finite({"mem_total_bytes": total, **_limits(gpu)}, zero_is_missing=("mem_total_bytes",)),
        host=finite({name: number(value) for name, value in host.items()} if isinstance(host, dict) else {}),
        metadata=metadata if isinstance(metadata, dict) else {},
        unread={
            metric: text
            for metric, text in fields.items()
            if isinstance(text, str) and text and math.isnan(number(text))
        },
    )


def _index(value: Any) -> int:
    """Return the index of a GPU.

    Raises:
        RecordError: it is not a whole number from 0.
    """
    index = number(value)
    if not (index.is_integer() and 0 <= index < MOST_GPUS):
        raise RecordError(f"the index of a GPU is {value!r}, which is not a whole number from 0")
    return int(index)


def _vendor(gpu_type: str) -> Vendor:
    for vendor in ("nvidia", "amd", "intel", "fake"):
        if gpu_type.lower().startswith(vendor):
            return vendor
    return "replay"


def _fields(gpu: dict[str, Any]) -> dict[str, Any]:
    """Return the file's value for each metric, in that format's unit."""
    fields = {
        "util_gpu_percent": gpu.get("utilization", gpu.get("gpu_utilization")),
        "mem_used_bytes": gpu.get("memory_used", gpu.get("memory_mb", gpu.get("memory_used_mb"))),
        "power_w": gpu.get("power"),
        "power_limit_w": gpu.get("power_limit"),
        "fan_percent": gpu.get("fan_speed"),
        "temp_gpu_c": gpu.get("temperature"),
    }
    for names, table in ((_SENSORS, gpu.get("temperatures")), (_CLOCKS, gpu.get("clocks"))):
        for label, value in table.items() if isinstance(table, dict) else ():
            metric = names.get(str(label).lower())
            if metric is not None:
                fields[metric] = value
    return fields


def _values(fields: dict[str, Any]) -> dict[str, float]:
    values = {metric: number(value) for metric, value in fields.items()}
    return {**values, "mem_used_bytes": values["mem_used_bytes"] * MIB_BYTES}


def _limits(gpu: dict[str, Any]) -> dict[str, float]:
    sensors = gpu.get("temp_limits")
    limits = {}
    for label, limit in sensors.items() if isinstance(sensors, dict) else ():
        if _SENSORS.get(str(label).lower()) == "temp_gpu_c" and isinstance(limit, dict):
            limits.update({_LIMITS[kind]: number(c) for kind, c in limit.items() if kind in _LIMITS})
    return limits


def objects(text: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return a file's objects (an array, a dict's `samples`, or one object), and a note if truncated.

    >>> objects('[{"a": 1}, {"a": 2}, {"a"')
    ([{'a': 1}, {'a': 2}], 'truncated after 2 complete objects')
    >>> objects('{"interval_ms": 500, "samples": [{"t": 0}, {"t"')
    ([{'t': 0}], 'truncated after 1 complete objects')
    >>> objects('[{"a": 1}]')
    ([{'a': 1}], None)
    >>> objects('{"a": 1}')
    ([{'a': 1}], None)
    """
    try:
        whole = parse_json(text)
    except ValueError:
        return _whole_objects(text)
    if isinstance(whole, dict):
        whole = whole.get("samples", [whole])  # a single record is one sample
    items = [item for item in whole if isinstance(item, dict)] if isinstance(whole, list) else []
    return items, None


def _whole_objects(text: str) -> tuple[list[dict[str, Any]], str]:
    inside = _SAMPLES.search(text) if text.lstrip().startswith("{") else None
    place = inside.end() if inside else text.find("[") + 1
    decoder = json.JSONDecoder()
    items: list[dict[str, Any]] = []
    while place < len(text):
        if text[place] in _BETWEEN:
            place += 1
            continue
        try:
            item, place = decoder.raw_decode(text, place)
        except ValueError:
            break
        if isinstance(item, dict):
            items.append(item)
    return items, f"truncated after {len(items)} complete objects"
