"""Stores samples by column in the lines of a recording, so that names appear once per line.

The names of all devices' metrics appear once, joined by commas. For each name, there is one value, or a list
with one value per device if the values differ; null is a missing reading. Numbers have three decimals
(counters of seconds have nine), and no driver reports more. In version 1, the line had one object of names
and values per device.

>>> packed_columns(["0", "1"], [{"power_w": 75.25, "temp_gpu_c": 60.0}, {"temp_gpu_c": 60.0}])
('power_w,temp_gpu_c', [[75.25, None], 60])
>>> readings_by_name("power_w,temp_gpu_c", [[75.25, None], 60], num=2)
[{'power_w': 75.25, 'temp_gpu_c': 60}, {'temp_gpu_c': 60}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from gpuproof.records.codec import to_json

VERSION = 2
"""1 (2026-11): one object per device, with names and values. 2 (2026-11): by column."""


def packed_columns(devices: Sequence[str], readings: Sequence[Mapping[str, float]]) -> tuple[str, list[Any]]:
    """Join the names of all readings; also return one value per name, or a list of values per device."""
    names = list(dict.fromkeys(chain.from_iterable(readings)))
    columns = [[_short(name, values.get(name)) for values in readings] for name in names]
    return ",".join(names), [_once(column) for column in columns] if devices else []


def _once(column: list[Any]) -> Any:
    first = column[0]
    return first if all(value == first for value in column) else column


def _short(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    rounded = as_stored(name, to_json(value))
    return int(rounded) if rounded == int(rounded) else rounded


def as_stored(name: str, value: float) -> float:
    """Round a metric's value as samples do: seconds to the nanosecond, everything else to a thousandth."""
    return round(value, 9 if name.endswith("_s") else 3)


def readings_by_name(names: str, columns: Sequence[Any], *, num: int) -> list[dict[str, float]]:
    """Undo `packed_columns` for this many devices.

    Raises:
        TypeError: the columns are not a list.
        ValueError: the number of columns differs from the number of names, or values do not match devices.
    """
    if not isinstance(columns, list):
        raise TypeError("values are not a list")
    of_devices: list[dict[str, float]] = [{} for _ in range(num)]
    for name, column in zip(split(names), columns, strict=True):
        values = column if isinstance(column, list) else [column] * num
        for readings, value in zip(of_devices, values, strict=True):
            if value is not None:
                readings[name] = value
    return of_devices


def split(joined: str) -> list[str]:
    """Split names or indices; return an empty list for an empty string.

    Raises:
        TypeError: the argument is not a string.
    """
    if not isinstance(joined, str):
        raise TypeError("names are not a string")
    return joined.split(",") if joined else []


def reasons_by_device(reasons: Any, *, num: int) -> list[Any]:
    """Return the throttle reasons per device, from one set for all or a list of one per device."""
    differ = isinstance(reasons, list) and any(not isinstance(item, str) for item in reasons)
    return list(reasons) if differ else [reasons] * num


def packed_reasons(reasons: Sequence[Sequence[str] | None]) -> Any:
    """Undo `reasons_by_device`: return one set if all devices report the same, else a list."""
    listed = [None if names is None else list(names) for names in reasons]
    return _once(listed) if listed else None


def pack_sample(sample: Any) -> dict[str, Any]:
    """Convert a `Sample` to the JSON of its line."""
    devices = list(sample.devices)
    readings = list(sample.devices.values())
    names, values = packed_columns(devices, [reading.values for reading in readings])
    host_names, host = packed_columns([""], [sample.host])
    return {
        "monotonic_s": round(sample.monotonic_s, 6),
        "unix_s": round(sample.unix_s, 6),
        "lane": sample.lane,
        "gpus": ",".join(devices),
        "names": names,
        "values": values,
        "reasons": packed_reasons([reading.throttle_reasons for reading in readings]),
        "host_names": host_names,
        "host": host,
    }


def unpack_sample(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Sample` from its JSON line, in either version.

    Raises:
        KeyError: a key is missing.
        TypeError: a value has another type.
        ValueError: the number of names differs from the number of values, or values do not match devices.
    """
    if "names" not in line:
        return dict(line)
    devices = split(line["gpus"])
    readings = readings_by_name(line["names"], line["values"], num=len(devices))
    reasons = reasons_by_device(line["reasons"], num=len(devices))
    return {
        "monotonic_s": line["monotonic_s"],
        "unix_s": line["unix_s"],
        "lane": line["lane"],
        "devices": {
            device: {"values": values, "throttle_reasons": names}
            for device, values, names in zip(devices, readings, reasons, strict=True)
        },
        "host": readings_by_name(line["host_names"], line["host"], num=1)[0],
    }
