"""HTTP/1.1 as a load generator needs it: one POST on a kept connection, the answer line by line as it comes.

The standard library's client blocks a thread a request, and thousands may be under way at once; so this
speaks the protocol over asyncio streams (RFC 9112): status line, headers, and a body that is chunked, of a
given length, or ended by the end of the connection. No redirects, no compression: none is asked for.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import SupportsIndex
from urllib.parse import urlsplit

from gpuproof.worker.serving.answers import ProtocolError

MAX_LINE_BYTES = 2**20
MAX_ANSWER_BYTES = 2**26
"""Of one answer; 64 MiB are millions of tokens, and more would only fill the memory."""
MAX_HEADERS = 200
PIECE_BYTES = 2**16
"""Read at a time, however much the server says will come."""
CLOSED = "the connection was closed in the middle of an answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an endpoint is."""

    host: str
    port: int
    path: str
    """Of the endpoint itself, without a slash at its end."""
    is_tls: bool

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL as http://host:8000/v1.

        Raises:
            ValueError: it is no http or https URL with a host.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL as http://host:8000/v1")
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        return cls(host=parts.hostname, port=port, path=parts.path.rstrip("/"), is_tls=is_tls)


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    """Return the context of all connections: reading the host's certificates takes milliseconds."""
    return ssl.create_default_context()


class CountingReader(asyncio.StreamReader):
    """Counts what has come, read or not."""

    num_fed = 0

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """Take what came."""
        came = bytes(data)
        self.num_fed += len(came)
        super().feed_data(came)


class Connection:
    """One connection, one request at a time."""

    def __init__(self, reader: CountingReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._num_taken = 0
        self._num_before = 0
        self.is_reusable = True

    @property
    def is_stale(self) -> bool:
        """Whether it had served requests before, and nothing came of the last one."""
        return 0 < self._num_before == self._reader.num_fed

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Connect; OSError where nobody answers, or with a certificate that is not trusted."""
        context = _tls_context() if address.is_tls else None
        loop = asyncio.get_running_loop()
        reader = CountingReader(limit=MAX_LINE_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, address.host, address.port, ssl=context)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def post(self, address: Address, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a request; return when the answer's status and headers are there.

        Raises:
            ProtocolError: what came is no answer, or had come before anything was asked.
        """
        self.is_reusable = False  # until the whole answer is read
        self._refuse_surplus()
        self._num_before = self._num_taken
        host = f"[{address.host}]" if ":" in address.host else address.host
        lines = [f"POST {address.path}{path} HTTP/1.1", f"Host: {host}:{address.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        self._writer.write("\r\n".join(lines).encode("latin-1") + body)
        await self._writer.drain()
        status = await self._line()
        words = status.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise ProtocolError(f"no HTTP/1.1 status line: {status[:80]!r}")
        fields: dict[str, str] = {}
        while line := await self._line():
            if len(fields) >= MAX_HEADERS:
                raise ProtocolError(f"over {MAX_HEADERS} headers")
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        return Answer(status=int(words[1]), headers=fields, connection=self)

    async def body_lines(self, headers: Mapping[str, str]) -> AsyncIterator[str]:
        """Give the body's lines as they come, without their ends; then the connection may be used again.

        Raises:
            ProtocolError: the body or a line of it is too long, or more than one answer came.
        """
        rest, num_bytes = bytearray(), 0
        async for data in self._body(headers):
            num_bytes += len(data)
            rest += data
            *lines, rest = rest.split(b"\n") if b"\n" in data else (rest,)
            if num_bytes > MAX_ANSWER_BYTES or len(rest) > MAX_LINE_BYTES:
                raise ProtocolError(f"an answer of over {num_bytes:,} bytes, or a line without end")
            for line in lines:
                yield line.rstrip(b"\r").decode("utf-8", "replace")
        if rest:
            yield rest.decode("utf-8", "replace")
        self._refuse_surplus()
        self.is_reusable = headers.get("connection", "").lower() != "close" and not self._reader.at_eof()

    async def _body(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := _length((await self._line()).partition(";")[0], base=16):
                async for piece in self._pieces(size):
                    yield piece
                await self._line()
            for _ in range(MAX_HEADERS):  # trailers
                if not await self._line():
                    return
            raise ProtocolError(f"over {MAX_HEADERS} trailers")
        if "content-length" in headers:
            async for piece in self._pieces(_length(headers["content-length"], base=10)):
                yield piece
            return
        while data := await self._reader.read(PIECE_BYTES):
            self._num_taken += len(data)
            yield data

    async def _pieces(self, size: int) -> AsyncIterator[bytes]:
        """Read so many bytes, as they come: a piece at a time, and no more than is there."""
        while size:
            piece = await self._reader.read(min(size, PIECE_BYTES))
            if not piece:
                raise ProtocolError(CLOSED)
            self._num_taken += len(piece)
            size -= len(piece)
            yield piece

    def _refuse_surplus(self) -> None:
        if self._reader.num_fed > self._num_taken:
            raise ProtocolError("the server sent more than one answer to a request")

    async def _line(self) -> str:
        try:
            line = await self._reader.readline()
        except ValueError:
            raise ProtocolError(f"a header line of over {MAX_LINE_BYTES:,} bytes") from None
        self._num_taken += len(line)
        if not line.endswith(b"\n"):
            raise ProtocolError(CLOSED)
        return line.rstrip(b"\r\n").decode("latin-1")

    def close(self) -> None:
        """Close at once."""
        self._writer.close()


def _length(text: str, *, base: int) -> int:
    """Read the length of a chunk or a body.

    Raises:
        ProtocolError: it is none.
    """
    try:
        length = int(text, base)
    except ValueError:
        length = -1
    if length < 0:
        raise ProtocolError(f"a length that is none: {text[:80]!r}")
    return length


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer whose body is still to be read."""

    status: int
    headers: Mapping[str, str]
    connection: Connection

    def lines(self) -> AsyncIterator[str]:
        """Give the body's lines as they come."""
        return self.connection.body_lines(self.headers)
