"""How does a workload report its progress? By one call, or a JSON line on a pipe (any language).

    from gpuproof.monitor.marks import publish
    publish(phase="train", epoch=1)                    # Python
    echo '{"phase": "train"}' >&$GPUPROOF_MARKS_FD     # a shell, through the inherited descriptor
    echo '{"phase": "train"}' > "$GPUPROOF_MARKS_PIPE" # a process that closed what it inherited

Marks accumulate: a mark changes only the keys it contains; null removes a key. If there is no listener, or
the pipe is full, the mark is dropped: the workload never waits and never fails because of it. This module
only needs the standard library, so a copy of the file works without gpuproof.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any

FD_VARIABLE = "GPUPROOF_MARKS_FD"
PIPE_VARIABLE = "GPUPROOF_MARKS_PIPE"
MAX_LINE_BYTES = select.PIPE_BUF
"""Lines up to this length are written to the pipe atomically, even with other concurrent writers."""


def publish(**metadata: Any) -> bool:
    """Publish progress, e.g. `phase="train", epoch=3, batch=100`; return whether it was sent.

    Nothing is sent if no monitor listens, the pipe is full, or the line is over 4 KiB.

    Raises:
        TypeError: a value cannot be written as JSON.
    """
    line = json.dumps({**metadata, "monotonic_s": time.monotonic()}, separators=(",", ":")) + "\n"
    data = line.encode()
    if len(data) > MAX_LINE_BYTES:
        return False
    path, number = os.environ.get(PIPE_VARIABLE), os.environ.get(FD_VARIABLE)
    return _send_to_pipe(path, data) if path else _send_to_descriptor(number, data)


def _send_to_descriptor(number: str | None, data: bytes) -> bool:
    """Write to the inherited descriptor if it is a pipe in this process, not a file of the workload."""
    if not number or not number.isdigit():
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(int(number)).st_mode):
            return False
        return os.write(int(number), data) == len(data)
    except OSError:
        return False


def _send_to_pipe(path: str, data: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.write(descriptor, data) == len(data)
    except OSError:
        return False
    finally:
        os.close(descriptor)


class MarkReader:
    """The monitor's end: reads the pipe line by line and counts lines that are not JSON objects."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.bad_lines = 0
        self.closed = False
        self._rest = b""
        os.set_blocking(descriptor, False)

    def take(self, now_s: float) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield each pending mark with the monotonic time of its publication, capped at `now_s`."""
        *lines, self._rest = (self._rest + self._read_all()).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self.bad_lines += 1
            self._rest = b""
        for line in lines:
            metadata = _parsed(line)
            if metadata is not None:
                yield _published_s(metadata, now_s), metadata
            elif line.strip():
                self.bad_lines += 1

    def _read_all(self) -> bytes:
        """Read what is available, at most 1 MiB, so that a flood of marks cannot delay the readings."""
        chunks: list[bytes] = []
        for _ in range(16):
            try:
                chunk = os.read(self.descriptor, 65536)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                    raise
                break
            if not chunk:
                self.closed = True
                break
            chunks.append(chunk)
        return b"".join(chunks)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        metadata = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return dict(metadata) if isinstance(metadata, Mapping) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


def _published_s(metadata: dict[str, Any], now_s: float) -> float:
    """Take the publisher's own clock reading from a mark, or the current time if it has none."""
    published_s = metadata.pop("monotonic_s", None)
    with contextlib.suppress(TypeError):
        if now_s - 10.0 < published_s <= now_s:
            return float(published_s)
    return now_s
