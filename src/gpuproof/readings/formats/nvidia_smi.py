"""Reads nvidia-smi's logs: CSV (`--query-gpu=… --format=csv -l`), `dmon -o DT`, `-q -x -l`.

The input is a path. The output is `RecordingData`. CSV columns may come in any order, with units in the
values, in the header, or in neither (`nounits`), in which case nvidia-smi's own unit for the field applies.
`[N/A]` means missing for that GPU in that sample only. The reader uses `timestamp` and the columns listed in
the catalogue of metrics (`records/metrics.csv`).

The other two formats are parsed as if they were lines of the CSV log. dmon output is parsed as documented in
nvidia-smi(1) of driver 550: its second line lists the unit of each column. XML is read as documented in
nvsmi_device_v12.dtd, where values have their units (in v11, power is elsewhere). Memory from dmon is skipped,
with the reason: its "MB" is not documented to mean MiB.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpuproof.base.errors import RecordError
from gpuproof.readings.formats.rows import MIB_BYTES, Row, build, finite
from gpuproof.readings.metric_text import unit
from gpuproof.readings.recording import NAN, RecordingData
from gpuproof.records.metrics import METRICS
from gpuproof.records.readings import NVIDIA_REASON_BITS, UUID_PREFIXES

_DMON = {
    "gpu": "index",
    "pwr": "power.draw",
    "gtemp": "temperature.gpu",
    "mtemp": "temperature.memory",
    "sm": "utilization.gpu",
    "mem": "utilization.memory",
    "mclk": "clocks.mem",
    "pclk": "clocks.sm",
    "fb": "memory.used",
}
_QUERY = {
    "uuid": "uuid",
    "product_name": "name",
    "pci/pci_bus_id": "pci.bus_id",
    "fan_speed": "fan.speed",
    "performance_state": "pstate",
    "fb_memory_usage/used": "memory.used",
    "fb_memory_usage/total": "memory.total",
    "utilization/gpu_util": "utilization.gpu",
    "utilization/memory_util": "utilization.memory",
    "temperature/gpu_temp": "temperature.gpu",
    "temperature/memory_temp": "temperature.memory",
    "power_readings/power_draw": "power.draw",
    "power_readings/enforced_power_limit": "power.limit",
    "gpu_power_readings/power_draw": "power.draw",
    "gpu_power_readings/average_power_draw": "power.draw",
    "gpu_power_readings/instant_power_draw": "power.draw.instant",
    "gpu_power_readings/current_power_limit": "power.limit",
    "clocks/sm_clock": "clocks.sm",
    "clocks/mem_clock": "clocks.mem",
}
"""Path in a `gpu` element → column of the CSV log; if several paths are present, the last is used."""
_CSV_TIME = "%Y/%m/%d %H:%M:%S.%f"
_NAMES = {column: metric for metric in METRICS.values() for column in metric.columns}
_METRICS = {column: metric.name for column, metric in _NAMES.items() if metric.kind != "static"}
_STATIC = {column: metric.name for column, metric in _NAMES.items() if metric.kind == "static"}
_TEXT = {"uuid": "uuid", "gpu_uuid": "uuid", "pci.bus_id": "pci_bus_id", "gpu_bus_id": "pci_bus_id"}
_UUIDS = ("uuid", "gpu_uuid")
_REASON_COLUMNS = ("clocks_throttle_reasons.active", "clocks_event_reasons.active")
_NUMBER = re.compile(r"P?(-?\d+(?:\.\d+)?)\s*([^\d\s]\S*)?")
_FACTORS: dict[str, dict[str, float]] = {
    "B": {"": MIB_BYTES, "KiB": 2**10, "MiB": MIB_BYTES, "GiB": 2**30},
    "W": {"": 1.0, "W": 1.0, "mW": 1e-3},
    "MHz": {"": 1.0, "MHz": 1.0},
    "°C": {"": 1.0, "C": 1.0},
    "%": {"": 1.0, "%": 1.0},
    "1": {"": 1.0},
}
"""Our unit → each unit that a field may have, with its factor; a missing unit means the unit in
`--help-query-gpu`."""
_RESET = "requires reset"
"""Part of the text that nvidia-smi prints in every field of a failed GPU."""
_BITS = re.compile(r"0x[0-9a-fA-F]+")
_SAME_MOMENT_S = 1.0
"""Maximum time between rows of one sample: nvidia-smi queries GPUs one after the other, each with its own
timestamp."""


def load_dmon(path: Path) -> RecordingData:
    """Load a log of `nvidia-smi dmon -o DT`.

    Raises:
        RecordError: the log has no date and time, or no readings.
    """
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    names, units = (line.lstrip("# ").split() for line in [*lines, "", ""][:2])
    columns = [name.lower() for name in names]
    if not {"date", "time"} <= {*columns} or len(units) != len(names):
        raise RecordError(
            "is an nvidia-smi dmon log without date and time",
            place=path.name,
            next_step="Log with `nvidia-smi dmon -o DT -f FILE`",
        )
    body = [line.split() for line in lines[2:] if line.strip() and not line.startswith("#")]
    whole = [
        {name: (cell, unit) for name, cell, unit in zip(columns, cells, units, strict=True)}
        for cells in body
        if len(cells) == len(columns)
    ]
    rows = list(rows_of([_dmon_line(cells) for cells in whole]))
    notes = [f"{len(body) - len(rows)} damaged line(s) skipped"] if len(rows) < len(body) else []
    return build(rows, source=path.name, format_name="nvidia-smi dmon", notes=notes)


def _dmon_line(cells: dict[str, tuple[str, str]]) -> dict[str, str]:
    date, time = cells["date"][0], cells["time"][0]
    line = {"timestamp": f"{date[:4]}/{date[4:6]}/{date[6:]} {time}.0", "index": cells["gpu"][0]}
    for name, column in _DMON.items():
        if name != "gpu" and name in cells:
            cell, unit = cells[name]
            line[column] = "[N/A]" if cell == "-" else f"{cell} {unit}"
    return line


def load_query(path: Path) -> RecordingData:
    """Load a log of `nvidia-smi -q -x -l`, which has one XML document per sample.

    Raises:
        RecordError: the file is not XML from nvidia-smi, or has no readings.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if "<!ENTITY" in text:  # nvidia-smi writes no entities, and a few of them can exhaust the memory
        raise RecordError("its XML contains entities, which nvidia-smi never writes", place=path.name)
    documents = [part for part in re.split(r"(?=<\?xml)", text) if part.strip()]
    lines: list[dict[str, str]] = []
    damaged = 0
    for document in documents:
        try:
            lines += _query_lines(ElementTree.fromstring(document))  # noqa: S314  # without entities
        except (ElementTree.ParseError, ValueError):  # noqa: PERF203  # the others are read
            damaged += 1
    notes = [f"{damaged} damaged document(s) skipped"] if damaged else []
    return build(rows_of(lines), source=path.name, format_name="nvidia-smi -q -x", notes=notes)


def _query_lines(log: ElementTree.Element) -> Iterator[dict[str, str]]:
    at = datetime.strptime(log.findtext("timestamp", ""), "%a %b %d %H:%M:%S %Y").strftime(_CSV_TIME)
    for gpu in log.iter("gpu"):
        texts = {
            column: gpu.findtext(place) for place, column in _QUERY.items() if gpu.find(place) is not None
        }
        yield {"timestamp": at, **{column: text or "" for column, text in texts.items()}}


def load_csv(path: Path) -> RecordingData:
    """Load a log that has a header line.

    Raises:
        RecordError: there is no header with `timestamp`, or there are no readings.
    """
    # a crash can leave NUL bytes
    text = path.read_text(encoding="utf-8-sig", errors="replace").replace("\0", "")
    lines = list(csv.reader(text.splitlines(), skipinitialspace=True))
    header, units = (
        [_plain(name) for name in lines[0]],
        [name.partition("[")[2].rstrip("] ") for name in lines[0]],
    )
    if "timestamp" not in header or not set(header) & _METRICS.keys():
        raise RecordError(
            "its first line is not an nvidia-smi header with a timestamp",
            place=path.name,
            next_step="Log with --query-gpu=timestamp,index,… --format=csv, without noheader",
        )
    body = [line for line in lines[1:] if line and _plain(line[0]) != header[0]]
    whole = [
        {name: _with_unit(cell, of) for name, of, cell in zip(header, units, line, strict=True)}
        for line in body
        if len(line) == len(header)
    ]
    rows = list(rows_of(whole))
    notes = [f"{len(body) - len(rows)} damaged line(s) skipped"] if len(rows) < len(body) else []
    return build(rows, source=path.name, format_name="nvidia-smi", notes=notes, same_moment_s=_SAME_MOMENT_S)


def _plain(heading: str) -> str:
    """Strip the unit from a heading: `power.draw [W]` becomes `power.draw`."""
    return heading.partition("[")[0].strip()


def _with_unit(cell: str, heading_unit: str) -> str:
    """Add the heading's unit to a bare number, since `nounits` omits units in the cells."""
    bare = cell.strip()
    match = _NUMBER.fullmatch(bare)
    return f"{bare} {heading_unit}" if heading_unit and match is not None and match[2] is None else bare


def rows_of(lines: Iterable[dict[str, str]]) -> Iterator[Row]:
    """Yield a row per line, as a dict by column; lines without a readable time are skipped."""
    places: dict[str, int] = {}
    for line in lines:
        try:
            unix_s = datetime.strptime(line["timestamp"].strip(), _CSV_TIME).timestamp()
        except ValueError:
            continue
        yield Row(
            elapsed_s=unix_s,
            unix_s=unix_s,
            index=_index(line, places),
            name=line.get("name", line.get("gpu_name", "")).strip(),
            vendor="nvidia",
            values=_numbers(line, _METRICS),
            static=_static(line),
            unread=dict(_unread(line)),
            throttle_reasons=_reasons(line),
        )


def _index(line: dict[str, str], places: dict[str, int]) -> int:
    """Number a GPU by the index with which its UUID, else its bus id, first appears; else by that order.

    A log may continue after a reboot that gave the GPUs other indices: a UUID is always the same GPU.
    """
    text = line.get("index", "").strip()
    index = int(text) if text.isdigit() else None
    uuid = next((line[name].strip() for name in _UUIDS if name in line), "")
    if index is not None and not uuid.startswith(UUID_PREFIXES):
        return index
    identity = uuid or next((line[name] for name in _TEXT if name in line), "")
    if identity not in places:
        taken = set(places.values())
        first = 0 if index is None or index in taken else index
        places[identity] = next(place for place in count(first) if place not in taken)
    return places[identity]


def _static(line: dict[str, str]) -> dict[str, Any]:
    texts = {fact: line[name].strip() for name, fact in _TEXT.items() if name in line}
    return {**_numbers(line, _STATIC), **texts}


def _numbers(line: dict[str, str], columns: Mapping[str, str]) -> dict[str, float]:
    return finite({metric: _number(line[name], metric) for name, metric in columns.items() if name in line})


def _number(field: str, metric: str) -> float:
    """Parse `35 %`, `1024 MiB`, `P0` into our unit; NaN for `[N/A]` etc., and for unknown units."""
    match = _NUMBER.fullmatch(field.strip())
    factor = None if match is None else _FACTORS[unit(metric)].get(match[2] or "")
    return NAN if match is None or factor is None else float(match[1]) * factor


def _unread(line: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield text found in place of a number, by metric; any column may report a pending reset."""
    for name, cell in line.items():
        text, metric = cell.strip(), _METRICS.get(name)
        if _RESET in text.lower():
            yield metric or _STATIC.get(name, name), text
        elif metric is not None and text and math.isnan(_number(text, metric)):
            number = _NUMBER.fullmatch(text)
            yield (
                metric,
                text if number is None else f"a number in {number[2]}, which is not a unit of this field",
            )


def _reasons(line: dict[str, str]) -> tuple[str, ...] | None:
    word = next((line[name].strip() for name in _REASON_COLUMNS if name in line), "")
    if not _BITS.fullmatch(word):
        return None
    bits = int(word, 16)
    return tuple(reason for bit, reason in NVIDIA_REASON_BITS.items() if bits & bit)
