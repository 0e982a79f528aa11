"""What does a log of `nvidia-smi --query-gpu=… --format=csv -l` say?

In: a path. Out: `RecordingData`. Columns may come in any order, with units in the values or not; a field of
`[N/A]` is missing for that GPU and moment only. Read are `timestamp` and the columns that the catalogue of
metrics names (`records/metrics.csv`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuproof.errors import RecordError
from gpuproof.readings.formats.rows import MIB_BYTES, Row, build, finite
from gpuproof.readings.recording import NAN, RecordingData
from gpuproof.records.metrics import METRICS
from gpuproof.records.readings import NVIDIA_REASON_BITS

_NAMES = {column: metric for metric in METRICS.values() for column in metric.columns}
_METRICS = {column: metric.name for column, metric in _NAMES.items() if metric.kind != "static"}
_STATIC = {column: metric.name for column, metric in _NAMES.items() if metric.kind == "static"}
_TEXT = {"uuid": "uuid", "gpu_uuid": "uuid", "pci.bus_id": "pci_bus_id", "gpu_bus_id": "pci_bus_id"}
_REASON_COLUMNS = ("clocks_throttle_reasons.active", "clocks_event_reasons.active")
_NUMBER = re.compile(r"P?(-?\d+(?:\.\d+)?)\s*(%|MiB|W|MHz|C)?")
_BITS = re.compile(r"0x[0-9a-fA-F]+")
_SAME_MOMENT_S = 1.0
"""nvidia-smi asks one GPU after the other and stamps each."""


def load_csv(path: Path) -> RecordingData:
    """Load a log with a header line.

    Raises:
        RecordError: there is no header with `timestamp`, or no reading.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace").replace("\0", "")  # a crash leaves NULs
    lines = list(csv.reader(text.splitlines(), skipinitialspace=True))
    header, units = [_plain(name) for name in lines[0]], [_unit(name) for name in lines[0]]
    if "timestamp" not in header or not set(header) & _METRICS.keys():
        raise RecordError(
            "its first line is no header of nvidia-smi with a timestamp",
            place=path.name,
            next_step="Log with --query-gpu=timestamp,index,… --format=csv, without noheader",
        )
    body = [line for line in lines[1:] if line and _plain(line[0]) != header[0]]
    whole = [
        {name: _with_unit(cell, unit) for name, unit, cell in zip(header, units, line, strict=True)}
        for line in body
        if len(line) == len(header)
    ]
    rows = list(_rows(whole))
    notes = [f"{len(body) - len(rows)} damaged line(s) left out"] if len(rows) < len(body) else []
    return build(rows, source=path.name, format_name="nvidia-smi", notes=notes, same_moment_s=_SAME_MOMENT_S)


def _plain(heading: str) -> str:
    """Take the unit off a heading: `power.draw [W]` is `power.draw`."""
    return heading.partition("[")[0].strip()


def _unit(heading: str) -> str:
    return heading.partition("[")[2].rstrip("] ")


def _with_unit(cell: str, unit: str) -> str:
    """Give a bare number its heading's unit, which `nounits` leaves out of the cells."""
    bare = cell.strip()
    return f"{bare} {unit}" if unit and bare.replace(".", "", 1).isdigit() else bare


def _rows(lines: list[dict[str, str]]) -> Iterator[Row]:
    places: dict[str, int] = {}
    for line in lines:
        try:
            unix_s = datetime.strptime(line["timestamp"].strip(), "%Y/%m/%d %H:%M:%S.%f").timestamp()
        except ValueError:
            continue
        yield Row(
            elapsed_s=unix_s,
            unix_s=unix_s,
            index=_index(line, places),
            name=line.get("name", line.get("gpu_name", "")).strip(),
            vendor="nvidia",
            values=finite({metric: _number(line[name]) for name, metric in _METRICS.items() if name in line}),
            static=_static(line),
            throttle_reasons=_reasons(line),
        )


def _index(line: dict[str, str], places: dict[str, int]) -> int:
    """Number a GPU by its index, else by the order in which its UUID or bus id first came."""
    if line.get("index", "").strip().isdigit():
        return int(line["index"])
    identity = next((line[name] for name in _TEXT if name in line), "")
    return places.setdefault(identity, len(places))


def _static(line: dict[str, str]) -> dict[str, Any]:
    numbers = finite({fact: _number(line[name]) for name, fact in _STATIC.items() if name in line})
    return {**numbers, **{fact: line[name].strip() for name, fact in _TEXT.items() if name in line}}


def _number(field: str) -> float:
    """Read `35 %`, `1024 MiB`, `P0`; NaN for `[N/A]` and the like. MiB become bytes."""
    match = _NUMBER.fullmatch(field.strip())
    if match is None:
        return NAN
    return float(match[1]) * (MIB_BYTES if match[2] == "MiB" else 1)


def _reasons(line: dict[str, str]) -> tuple[str, ...] | None:
    word = next((line[name].strip() for name in _REASON_COLUMNS if name in line), "")
    if not _BITS.fullmatch(word):
        return None
    bits = int(word, 16)
    return tuple(reason for bit, reason in NVIDIA_REASON_BITS.items() if bits & bit)
