"""Reading a profiler's trace event by event, so that one of a gigabyte takes no more memory than a small one.

The file is the Chrome trace format: one JSON object, whose `traceEvents` is a list that may be very long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from gpuproof.base.errors import RecordError
from gpuproof.base.outside import bounded

CHUNK_CHARS = 2**20
LARGEST_BYTES = 2**30
"""Some three million events: half a minute of reading."""
LIST_KEY = '"traceEvents"'


def trace_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace file one by one.

    Raises:
        RecordError: the file is torn, is no trace, or is too large to be read.
    """
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        limit = f"over {LARGEST_BYTES / 2**30:.0f} is not read"
        raise RecordError(f"{path.name} has {size / 2**30:.1f} GiB, and {limit}")
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8", errors="replace") as file:
        text = _from_the_list_on(file, path)
        place = 0
        while True:
            place = _next_item(text, place)
            if text[place : place + 1] == "]":
                return
            try:
                event, end = decoder.raw_decode(text, place)
                event, place = bounded(event, text[place:end]), end
            except json.JSONDecodeError:
                more = file.read(CHUNK_CHARS)
                if not more:
                    raise RecordError(f"{path.name} is torn: its list of events does not end") from None
                text, place = text[place:] + more, 0
                continue
            except (ValueError, RecursionError):
                raise RecordError(f"{path.name} is no trace: an event is nested too deeply") from None
            if isinstance(event, dict):
                yield event


def _from_the_list_on(file: TextIO, path: Path) -> str:
    text = ""
    while more := file.read(CHUNK_CHARS):
        text += more
        key = text.find(LIST_KEY)
        bracket = text.find("[", key) if key >= 0 else -1
        if bracket >= 0:
            return text[bracket + 1 :]
    raise RecordError(f"{path.name} is no trace: it has no list of events")


def _next_item(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n,":
        place += 1
    return place
