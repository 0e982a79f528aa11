"""How do control side and node side talk over one stream of bytes? In frames: a line of JSON, then raw bytes.

The line says how many bytes follow (`size`, 0 without it). A stream begins with `GREETING`: what a login
prints before it is no part of the talk. Both halves use this, over standard input and output of one process.

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
"""Of a spec or a command line; more is no frame of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message."""

    header: dict[str, Any]
    payload: bytes


def encode_frame(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """Write one frame; the payload is at most `MAX_PAYLOAD_BYTES`."""
    assert len(payload) <= MAX_PAYLOAD_BYTES
    sized = {**header, "size": len(payload)} if payload else dict(header)
    return json.dumps(sized, allow_nan=False, separators=(",", ":")).encode() + b"\n" + payload


class FrameDecoder:
    """Puts frames together from pieces of a stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._header: dict[str, Any] | None = None
        self._size = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take the next bytes; return the frames that are whole now.

        Raises:
            RecordError: the bytes are no frames.
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
                raise RecordError("a frame without an end of its first line", place="stream")
            return False
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            header = parse_json(line, is_order=True)
        except ValueError as error:
            raise RecordError(f"no frame: {line[:60]!r}", place="stream") from error
        size = header.get("size", 0) if isinstance(header, dict) else None
        if type(size) is not int or not 0 <= size <= MAX_PAYLOAD_BYTES:
            raise RecordError(f"no frame: {line[:60]!r}", place="stream")
        self._header, self._size = header, size
        return True
