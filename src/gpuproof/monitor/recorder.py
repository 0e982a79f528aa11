"""Where do the records go? Into a journal, or as JSON Lines to standard output for another process to read.

In: records. Out: lines, each flushed as it is written. A recording never goes on in a file that already
holds one: the deltas between its two ends would be of two machines or two days.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Protocol

from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.records.journal import Journal, encode

STANDARD_OUTPUT = "-"


class RecordSink(Protocol):
    """Takes records in order."""

    def append(self, record: Any) -> None:
        """Write one record.

        Raises:
            OSError: the disk is full, or nobody reads any more.
        """

    def append_last_words(self, record: Any) -> None:
        """Write the last record, also where there is no room left for others."""

    def close(self) -> None:
        """Let go of the file."""


class StreamRecorder:
    """Writes JSON Lines to an open stream, which stays open."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def append(self, record: Any) -> None:
        """Write one record and flush it."""
        self._stream.write((encode(record) + "\n").encode())
        self._stream.flush()

    def append_last_words(self, record: Any) -> None:
        """Write the last record as any other."""
        self.append(record)

    def close(self) -> None:
        """Leave the stream to who opened it."""


def open_recorder(out: str, *, stdout: BinaryIO) -> RecordSink:
    """Open the recorder for `out`, a path or `-`.

    Raises:
        UsageError: the file is there already and not empty.
        EnvironmentUnfitError: the file cannot be made, or its disk is full.
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
            f"cannot write the recording ({error.strerror})", place=out, next_step="Name a file elsewhere"
        ) from error
    return journal


def refuse_existing(path: Path) -> None:
    """Refuse a file that something was written to already.

    Raises:
        UsageError: it is there and not empty.
    """
    if path.exists() and path.stat().st_size > 0:
        raise UsageError("the file exists", place=str(path), next_step="Name another file, or remove it")
