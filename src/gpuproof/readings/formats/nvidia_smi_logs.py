"""What do nvidia-smi's other logs say? `dmon -o DT` and `-q -x -l`, read as lines of its CSV log.

In: a path. Out: `RecordingData`. As documented in nvidia-smi(1) of driver 550, where the second line of dmon
names the unit of each column, and in nvsmi_device_v12.dtd, where values have their units (v11 has power
elsewhere). What stands in place of a number, and units that a field does not have, are as in the CSV log:
so memory by dmon, whose "MB" are not documented to be MiB, is left out with that reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

from gpuproof.base.errors import RecordError
from gpuproof.readings.formats.nvidia_smi import rows_of
from gpuproof.readings.formats.rows import build
from gpuproof.readings.recording import RecordingData

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
"""Path in a `gpu` element → column of the CSV log; of several the last that is there counts."""
_CSV_TIME = "%Y/%m/%d %H:%M:%S.%f"


def load_dmon(path: Path) -> RecordingData:
    """Load a log of `nvidia-smi dmon -o DT`.

    Raises:
        RecordError: it has no date and time, or no reading.
    """
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    names, units = (line.lstrip("# ").split() for line in [*lines, "", ""][:2])
    columns = [name.lower() for name in names]
    if not {"date", "time"} <= {*columns} or len(units) != len(names):
        raise RecordError(
            "is a log of nvidia-smi dmon without date and time",
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
    notes = [f"{len(body) - len(rows)} damaged line(s) left out"] if len(rows) < len(body) else []
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
    """Load a log of `nvidia-smi -q -x -l`: a document a moment.

    Raises:
        RecordError: it is not XML that nvidia-smi writes, or has no reading.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if "<!ENTITY" in text:  # nvidia-smi writes none, and a few of them fill any memory
        raise RecordError("its XML has entities, which nvidia-smi writes none of", place=path.name)
    documents = [part for part in re.split(r"(?=<\?xml)", text) if part.strip()]
    lines: list[dict[str, str]] = []
    damaged = 0
    for document in documents:
        try:
            lines += _query_lines(ElementTree.fromstring(document))  # noqa: S314  # without entities
        except (ElementTree.ParseError, ValueError):  # noqa: PERF203  # the others are read
            damaged += 1
    notes = [f"{damaged} damaged document(s) left out"] if damaged else []
    return build(rows_of(lines), source=path.name, format_name="nvidia-smi -q -x", notes=notes)


def _query_lines(log: ElementTree.Element) -> Iterator[dict[str, str]]:
    at = datetime.strptime(log.findtext("timestamp", ""), "%a %b %d %H:%M:%S %Y").strftime(_CSV_TIME)
    for gpu in log.iter("gpu"):
        texts = {
            column: gpu.findtext(place) for place, column in _QUERY.items() if gpu.find(place) is not None
        }
        yield {"timestamp": at, **{column: text or "" for column, text in texts.items()}}
