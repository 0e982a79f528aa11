"""How do the control and node sides talk over one byte stream? In frames: JSON, then raw bytes.

The JSON line specifies how many bytes follow (`size`, default 0). A stream starts with `GREETING`: anything
that a login prints before that is ignored. Both sides use this over the standard input and output of one
process.

>>> decoder = FrameDecoder()
>>> [(frame.header["say"], frame.payload) for frame in decoder.feed(encode_frame({"say": "file"}, b"abc"))]
[('file', b'abc')]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuproof.base.errors import RecordError
from gpuproof.base.outside import parse_json

GREETING = b"\ngpuproof-frames 1\n"
MAX_PAYLOAD_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 20
"""Maximum size of a spec or a command line; anything longer is not one of our frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message."""

    header: dict[str, Any]
    payload: bytes


def encode_frame(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """Write one frame; its payload may have at most `MAX_PAYLOAD_BYTES`."""
    assert len(payload) <= MAX_PAYLOAD_BYTES
    sized = {**header, "size": len(payload)} if payload else dict(header)
    return json.dumps(sized, allow_nan=False, separators=(",", ":")).encode() + b"\n" + payload


class FrameDecoder:
    """Assembles frames from pieces of a stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._header: dict[str, Any] | None = None
        self._size = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add the next bytes; return the frames that they complete.

        Raises:
            RecordError: the bytes are not frames.
        """
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        if self._header is None and not self._read_header():
            return None
        assert self._header is not None
        if len(self._buffer) < self._size:
            return None
        payload = bytes(self._buffer[: self._size])
        del self._buffer[: self._size]
        frame = Frame(header=self._header, payload=payload)
        self._header = None
        return frame

    def _read_header(self) -> bool:
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > MAX_HEADER_BYTES:
                raise RecordError("a frame whose first line does not end", place="stream")
            return False
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            header = parse_json(line, is_order=True)
        except ValueError as error:
            raise RecordError(f"not a frame: {line[:60]!r}", place="stream") from error
        size = header.get("size", 0) if isinstance(header, dict) else None
        if type(size) is not int or not 0 <= size <= MAX_PAYLOAD_BYTES:
            raise RecordError(f"not a frame: {line[:60]!r}", place="stream")
        self._header, self._size = header, size
        return True
