"""JSON Lines files: appended with one flush a record, read back even when the last line is torn.

A journal holds dataclasses that were registered under a `kind`. What a reader gets is every whole
record, in order, and whether the end of the file was torn (a process killed in the middle of a write).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpuproof.errors import RecordError
from gpuproof.records.codec import from_json, to_json

SCHEMA_VERSION = 1
"""1 (2026-11): first version."""

RESERVE_BYTES = 65_536
"""Kept beside each journal, so that a full disk still leaves room for the failure record."""

_KINDS: dict[str, type] = {}
T = TypeVar("T")


def record_kind(kind: str) -> Callable[[type[T]], type[T]]:
    """Register a dataclass as the record called `kind` in journals."""

    def register(cls: type[T]) -> type[T]:
        _KINDS[kind] = cls
        return cls

    return register


def encode(record: Any) -> str:
    """Write a registered record as one line of JSON, without the line end."""
    kind = next(name for name, cls in _KINDS.items() if cls is type(record))
    return json.dumps(
        {"kind": kind, "v": SCHEMA_VERSION, **to_json(record)}, allow_nan=False, separators=(",", ":")
    )


def decode(line: str | bytes, *, place: str = "record") -> Any:
    """Read one line back into its record; None for a kind that this version does not know.

    Raises:
        RecordError: the line is no JSON object, is of a newer schema, or lacks a key.
    """
    try:
        data = json.loads(line)
    except ValueError as error:
        raise RecordError(f"not a JSON record ({error})", place=place) from error
    if not isinstance(data, Mapping) or "kind" not in data:
        raise RecordError("a record without a kind", place=place)
    version = data.get("v")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise RecordError(
            f"schema version {version}, this gpuproof reads up to {SCHEMA_VERSION}",
            place=place,
            next_step="Read it with the gpuproof that wrote it, or a newer one",
        )
    cls = _KINDS.get(str(data["kind"]))
    return None if cls is None else from_json(cls, data, place=place)


@dataclass(frozen=True)
class JournalContent:
    """What a journal held: its records in order, and the note of anything that was lost."""

    records: tuple[Any, ...]
    torn: str | None


def read_journal(path: Path) -> JournalContent:
    """Read every whole record of a journal; a torn last line is reported and left out.

    Raises:
        RecordError: a line before the last cannot be read.
    """
    lines = path.read_bytes().split(b"\n")
    tail = lines.pop()
    records = [
        decode(line, place=f"{path.name}:{number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    torn = f"{path.name}: the last line is torn ({len(tail)} bytes left out)" if tail.strip() else None
    return JournalContent(tuple(r for r in records if r is not None), torn)


class JournalTail:
    """Reads a journal while it is being written: each call returns what has come since the last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_records(self) -> tuple[Any, ...]:
        """Return the whole records written since the last call; none while there is no file yet."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return ()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        records = (decode(line, place=self._path.name) for line in whole.splitlines() if line.strip())
        return tuple(record for record in records if record is not None)


def release_reserve(path: Path) -> None:
    """Remove the room that a writer kept beside a journal, after that writer was killed."""
    _reserve(path).unlink(missing_ok=True)


def _reserve(path: Path) -> Path:
    return path.with_name(f".reserve-{path.name}")


class Journal:
    """An open journal: append records, each flushed, so that a killed process loses none it wrote."""

    def __init__(self, path: Path) -> None:
        self._reserve = _reserve(path)
        self._reserve.write_bytes(b"\0" * RESERVE_BYTES)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, record: Any) -> None:
        """Write one record in a single system call.

        Raises:
            OSError: the disk is full or gone. A partial line is ended, so that later records stay readable.
        """
        self._write((encode(record) + "\n").encode())

    def append_last_words(self, record: Any) -> None:
        """Write a failure record, freeing the reserved room first."""
        self._reserve.unlink(missing_ok=True)
        self.append(record)

    def close(self) -> None:
        """Close the file and give back the reserved room."""
        os.close(self._file)
        self._reserve.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        start = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, data)
            if written < len(data):
                os.write(self._file, data[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, start)
            raise
