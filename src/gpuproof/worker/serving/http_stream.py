"""HTTP/1.1 for a load generator: one POST on a keep-alive connection, the response line by line.

The standard library's client blocks one thread per request, and thousands of requests may be in flight at
once. So this module implements the protocol (RFC 9112) over asyncio streams: status line, headers, and a body
that is chunked, of a given length, or ended by closing the connection. Redirects and compression are not
supported; neither is requested.
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
"""Maximum number of bytes per response: 64 MiB suffice for about 300,000 tokens in events of their own, and
more would only fill memory."""
MAX_HEADERS = 200
INFORMATIONAL = (100, *range(102, 200))
"""Status codes that precede the response, e.g. 103 (early hints); 101 would be another protocol."""
WITHOUT_BODY = (204, 304)
PIECE_BYTES = 2**16
"""Maximum number of bytes read at a time, regardless of how many the server announces."""
CLOSED = "the connection was closed in the middle of a response"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of an endpoint."""

    host: str
    port: int
    path: str
    """Path of the endpoint itself, without a trailing slash."""
    is_tls: bool

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse a URL, e.g. http://host:8000/v1.

        Raises:
            ValueError: it is not an http or https URL with a host.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a URL like http://host:8000/v1")
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        return cls(host=parts.hostname, port=port, path=parts.path.rstrip("/"), is_tls=is_tls)


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    """Return a context for all connections, since reading the host's certificates takes milliseconds."""
    return ssl.create_default_context()


class CountingReader(asyncio.StreamReader):
    """Counts the bytes that have arrived, read or not."""

    num_fed = 0

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """Buffer received data."""
        came = bytes(data)
        self.num_fed += len(came)
        super().feed_data(came)


class Connection:
    """One connection, used for one request at a time."""

    def __init__(self, reader: CountingReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._num_taken = 0
        self._num_before = 0
        self.is_reusable = True

    @property
    def is_stale(self) -> bool:
        """Whether the connection had served requests before, but got no response to the latest one."""
        return 0 < self._num_before == self._reader.num_fed

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Connect; OSError if the server does not answer, or its certificate is not trusted."""
        context = _tls_context() if address.is_tls else None
        loop = asyncio.get_running_loop()
        reader = CountingReader(limit=MAX_LINE_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, address.host, address.port, ssl=context)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def post(self, address: Address, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a request; return once the status and headers of the response have arrived.

        Raises:
            ProtocolError: the received data is not a response, or arrived before the request was sent.
        """
        self.is_reusable = False  # until the whole response has been read
        self._refuse_surplus()
        self._num_before = self._num_taken
        host = f"[{address.host}]" if ":" in address.host else address.host
        lines = [f"POST {address.path}{path} HTTP/1.1", f"Host: {host}:{address.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        self._writer.write("\r\n".join(lines).encode("latin-1") + body)
        await self._writer.drain()
        status, fields = await self._head()
        while status in INFORMATIONAL:
            status, fields = await self._head()
        return Answer(status=status, headers=fields, connection=self)

    async def _head(self) -> tuple[int, dict[str, str]]:
        """Read a status line and the headers after it."""
        line = await self._line()
        words = line.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise ProtocolError(f"no HTTP/1.1 status line: {line[:80]!r}")
        status, fields = int(words[1]), dict[str, str]()
        while line := await self._line():
            if len(fields) >= MAX_HEADERS:
                raise ProtocolError(f"more than {MAX_HEADERS} headers")
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        if words[0] == "HTTP/1.0":
            fields.setdefault("connection", "close")
        if status in WITHOUT_BODY:
            fields.pop("transfer-encoding", None)
            fields["content-length"] = "0"
        return status, fields

    async def body_lines(self, headers: Mapping[str, str]) -> AsyncIterator[str]:
        """Yield the body's lines as they arrive, without line endings; the connection is then reusable.

        Raises:
            ProtocolError: the body or one of its lines is too long, or more than one response arrived.
        """
        rest, num_bytes = bytearray(), 0
        async for data in self._body(headers):
            num_bytes += len(data)
            rest += data
            *lines, rest = rest.split(b"\n") if b"\n" in data else (rest,)
            if num_bytes > MAX_ANSWER_BYTES or len(rest) > MAX_LINE_BYTES:
                raise ProtocolError(f"an answer of more than {num_bytes:,} bytes, or a line without an end")
            for line in lines:
                yield line.rstrip(b"\r").decode("utf-8", "replace")
        if rest:
            yield rest.decode("utf-8", "replace")
        self._refuse_surplus()
        self.is_reusable = headers.get("connection", "").lower() != "close" and not self._reader.at_eof()

    async def _body(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        if _is_chunked(headers):
            while size := _length((await self._line()).partition(";")[0], base=16):
                async for piece in self._pieces(size):
                    yield piece
                if await self._line():
                    raise ProtocolError("a chunk is longer than announced")
            for _ in range(MAX_HEADERS):  # trailers
                if not await self._line():
                    return
            raise ProtocolError(f"more than {MAX_HEADERS} trailers")
        if "content-length" in headers:
            async for piece in self._pieces(_length(headers["content-length"], base=10)):
                yield piece
            return
        while data := await self._reader.read(PIECE_BYTES):
            self._num_taken += len(data)
            yield data

    async def _pieces(self, size: int) -> AsyncIterator[bytes]:
        """Read this many bytes as they arrive, in pieces no longer than what is available."""
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
            raise ProtocolError(f"a header line of more than {MAX_LINE_BYTES:,} bytes") from None
        self._num_taken += len(line)
        if not line.endswith(b"\n"):
            raise ProtocolError(CLOSED)
        return line.rstrip(b"\r\n").decode("latin-1")

    def close(self) -> None:
        """Close immediately."""
        self._writer.close()


def _is_chunked(headers: Mapping[str, str]) -> bool:
    """Report whether a body is sent in chunks.

    Raises:
        ProtocolError: it has another transfer encoding.
    """
    coding = headers.get("transfer-encoding", "identity").lower()
    if coding not in ("identity", "chunked"):
        raise ProtocolError(f"transfer encoding {coding[:80]!r} is not supported, and was not requested")
    return coding == "chunked"


def _length(text: str, *, base: int) -> int:
    """Parse the length of a chunk or a body.

    Raises:
        ProtocolError: the text is not a length.
    """
    try:
        length = int(text, base)
    except ValueError:
        length = -1
    if length < 0:
        raise ProtocolError(f"not a valid length: {text[:80]!r}")
    return length


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response with a body that has not been read yet."""

    status: int
    headers: Mapping[str, str]
    connection: Connection

    def lines(self) -> AsyncIterator[str]:
        """Yield the body's lines as they arrive."""
        return self.connection.body_lines(self.headers)
