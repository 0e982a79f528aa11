"""JSON Lines files: flushed after each record, readable even if the last line is truncated.

A journal contains dataclasses that are registered under a `kind`. A reader gets every complete record, in
order, and learns whether the end of the file was truncated (because a process was killed in the middle of a
write).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpuproof.base.errors import RecordError
from gpuproof.base.files import open_plain, read_plain
from gpuproof.base.outside import parse_json
from gpuproof.records.codec import from_json, to_json

SCHEMA_VERSION = 1
"""1 (2026-11): first version."""

RESERVE_BYTES = 65_536
"""Disk space reserved for each journal, so that a full disk still leaves room for the failure record."""

_KINDS: dict[str, _Kind] = {}
_KIND_NAMES: dict[type, str] = {}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Properties of one kind of record."""

    cls: type
    version: int
    pack: Callable[[Any], dict[str, Any]]
    unpack: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None


def record_kind(
    kind: str,
    *,
    version: int = SCHEMA_VERSION,
    pack: Callable[[Any], dict[str, Any]] = to_json,
    unpack: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Register a dataclass as the record called `kind` in journals.

    `version` is the version of the lines that are written. `pack` and `unpack` are for lines with a layout
    that differs from the fields: `unpack` converts a line of any version up to this one to the JSON of the
    fields.
    """

    def register(cls: type[T]) -> type[T]:
        _KINDS[kind] = _Kind(cls=cls, version=version, pack=pack, unpack=unpack)
        _KIND_NAMES[cls] = kind
        return cls

    return register


def encode(record: Any) -> str:
    """Convert a registered record to one line of JSON, without the newline."""
    kind = _KIND_NAMES[type(record)]
    content = {"kind": kind, "v": _KINDS[kind].version, **_KINDS[kind].pack(record)}
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def decode(line: str | bytes, *, place: str = "record", parse: Callable[[Any], Any] = parse_json) -> Any:
    """Convert one line back to its record; return None for a kind that this version does not know.

    `parse` must behave like `parse_json`.

    Raises:
        RecordError: the line is not a JSON object, has a newer schema, or lacks a key.
    """
    try:
        data = parse(line)
    except ValueError as error:
        raise RecordError(f"not a JSON record ({error})", place=place) from error
    return record_of(data, place=place)


def record_of(data: Any, *, place: str = "record") -> Any:
    """Convert the parsed JSON of one line to its record, as `decode` does."""
    if not isinstance(data, Mapping) or "kind" not in data:
        raise RecordError("a record without a kind", place=place)
    version, kind = data.get("v"), _KINDS.get(str(data["kind"]))
    newest = SCHEMA_VERSION if kind is None else kind.version
    if not isinstance(version, int) or version > newest:
        raise RecordError(
            f"schema version {version}, but this gpuproof supports up to {newest}",
            place=place,
            next_step="Read it with the gpuproof version that wrote it, or a newer one",
        )
    if kind is None:
        return None
    try:
        fields = data if kind.unpack is None else kind.unpack(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{data['kind']}: cannot be read ({error})", place=place) from error
    return from_json(kind.cls, fields, place=place)


@dataclass(frozen=True)
class JournalContent:
    """The content of a journal: its records in order, and a note about anything that was lost."""

    records: tuple[Any, ...]
    torn: str | None


def read_journal(path: Path, *, parse: Callable[[bytes], Any] = parse_json) -> JournalContent:
    """Read every complete record of a journal; a truncated last line is reported and skipped.

    `parse` must behave like `parse_json`.

    Raises:
        RecordError: a line other than the last cannot be read.
    """
    try:
        lines = read_plain(path).split(b"\n")
    except OSError as error:
        raise RecordError(f"cannot be read ({error.strerror})", place=path.name) from error
    tail = lines.pop()
    records = [
        decode(line, place=f"{path.name}:{number}", parse=parse)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    torn = f"{path.name}: the last line is truncated ({len(tail)} bytes skipped)" if tail.strip() else None
    return JournalContent(tuple(r for r in records if r is not None), torn)


class JournalTail:
    """Reads a journal while it is being written; each call returns what was added since the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_records(self) -> tuple[Any, ...]:
        """Return the complete records written since the last call; none if the file does not exist yet."""
        try:
            with open_plain(self._path) as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return ()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        records = (decode(line, place=self._path.name) for line in whole.splitlines() if line.strip())
        return tuple(record for record in records if record is not None)


def has_writer(path: Path) -> bool:
    """Return whether a live process has the journal open for writing; False if locks are unsupported."""
    with open_plain(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


class Journal:
    """An open journal. Each appended record is flushed, so a killed process loses nothing written.

    Opening a journal requires no disk space, so that a process on a full disk can still try to report the
    failure. The file is locked while its writer is alive, and `has_writer` checks the lock, whatever happened
    to the process.
    """

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        self._reserve: int | None = None
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise RecordError(
                "another process is writing to it",
                place=str(path),
                next_step="Give every rank a different RANK",
            ) from error
        except OSError:
            pass  # a file system without locks, which only `has_writer` needs

    def reserve_room(self) -> None:
        """Reserve disk space for a final record, filled with bytes that no file system can compress.

        The reserve file has no name, so it disappears when the process exits, however that happens.

        Raises:
            OSError: the disk is full.
        """
        self._reserve, name = tempfile.mkstemp(prefix=".reserve-", dir=self._folder)
        os.unlink(name)
        _write_all(self._reserve, os.urandom(RESERVE_BYTES))

    def append(self, record: Any) -> None:
        """Write one record in a single system call.

        Raises:
            OSError: the disk is full or no longer available. A partial line is removed, so that the file
                stays readable.
        """
        self._write((encode(record) + "\n").encode())

    def append_last_words(self, record: Any) -> None:
        """Write a failure record, freeing the reserved space first."""
        self._free_reserve()
        self.append(record)

    def close(self) -> None:
        """Close the file and free the reserved space."""
        os.close(self._file)
        self._free_reserve()

    def _free_reserve(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    def _write(self, data: bytes) -> None:
        start = os.fstat(self._file).st_size
        try:
            _write_all(self._file, data)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, start)
            raise


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
