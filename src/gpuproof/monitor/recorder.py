"""Where do records go? To a journal file, or as JSON Lines to standard output for a reader.

Input: records. Output: lines, each flushed as it is written. A recording is never appended to a file that
already contains one: deltas between its start and end would then mix two machines or two days.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Protocol

from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.records.journal import Journal, encode

STANDARD_OUTPUT = "-"


class RecordSink(Protocol):
    """Accepts records in order."""

    def append(self, record: Any) -> None:
        """Write one record.

        Raises:
            OSError: the disk is full, or the reader has closed the stream.
        """

    def append_last_words(self, record: Any) -> None:
        """Write the last record, even if there is no space left for other records."""

    def close(self) -> None:
        """Close the file."""


class StreamRecorder:
    """Writes JSON Lines to an open stream, without closing it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def append(self, record: Any) -> None:
        """Write one record and flush it."""
        self._stream.write((encode(record) + "\n").encode())
        self._stream.flush()

    def append_last_words(self, record: Any) -> None:
        """Write the last record like any other record."""
        self.append(record)

    def close(self) -> None:
        """Leave the stream open for its owner."""


def open_recorder(out: str, *, stdout: BinaryIO) -> RecordSink:
    """Open the recorder for `out`, a path or `-`.

    Raises:
        UsageError: the file already exists and is not empty.
        EnvironmentUnfitError: the file cannot be created, or its disk is full.
    """
    if out == STANDARD_OUTPUT:
        return StreamRecorder(stdout)
    path = Path(out)
    refuse_existing(path)
    try:
        journal = Journal(path)
        journal.reserve_room()
    except OSError as error:
        raise EnvironmentUnfitError(
            f"cannot write the recording ({error.strerror})", place=out, next_step="Specify a file elsewhere"
        ) from error
    return journal


def refuse_existing(path: Path) -> None:
    """Reject a file that already has content.

    Raises:
        UsageError: it exists and is not empty.
    """
    if path.exists() and path.stat().st_size > 0:
        raise UsageError("the file exists", place=str(path), next_step="Name another file, or remove it")
