"""HTTP/1.1 as a load generator needs it: one POST on a kept connection, the answer line by line as it comes.

The standard library's client blocks a thread a request, and thousands may be under way at once; so this
speaks the protocol over asyncio streams (RFC 9112): status line, headers, and a body that is chunked, of a
given length, or ended by the end of the connection. No redirects, no compression: none is asked for.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_LINE_BYTES = 2**20


class ProtocolError(Exception):
    """The other side does not speak HTTP/1.1 as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an endpoint is."""

    host: str
    port: int
    path: str
    """Of the endpoint itself, without a slash at its end."""
    is_tls: bool

    @property
    def authority(self) -> str:
        """Host and port as a URL has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

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


class Connection:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_reusable = True

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Connect; OSError where nobody answers."""
        context = ssl.create_default_context() if address.is_tls else None
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=context, limit=MAX_LINE_BYTES
        )
        return cls(reader, writer)

    async def post(self, address: Address, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a request; return when the answer's status and headers are there."""
        self.is_reusable = False  # until the whole answer is read
        lines = [f"POST {address.path}{path} HTTP/1.1", f"Host: {address.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        self._writer.write("\r\n".join(lines).encode("latin-1") + body)
        await self._writer.drain()
        status = await self._line()
        words = status.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise ProtocolError(f"no HTTP/1.1 status line: {status[:80]!r}")
        found: dict[str, str] = {}
        while line := await self._line():
            name, _, value = line.partition(":")
            found[name.strip().lower()] = value.strip()
        return Answer(status=int(words[1]), headers=found, connection=self)

    async def body_lines(self, headers: Mapping[str, str]) -> AsyncIterator[str]:
        """Give the body's lines as they come, without their ends; then the connection may be used again."""
        rest = b""
        async for data in self._body(headers):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line.rstrip(b"\r").decode("utf-8", "replace")
        if rest:
            yield rest.decode("utf-8", "replace")
        self.is_reusable = headers.get("connection", "").lower() != "close" and not self._reader.at_eof()

    async def _body(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self._line()).partition(";")[0] or "0", 16):
                yield await self._reader.readexactly(size)
                await self._line()
            while await self._line():  # trailers
                pass
            return
        if "content-length" in headers:
            yield await self._reader.readexactly(int(headers["content-length"]))
            return
        while data := await self._reader.read(2**16):
            yield data

    async def _line(self) -> str:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise ProtocolError("the connection was closed in the middle of an answer")
        return line.rstrip(b"\r\n").decode("latin-1")

    def close(self) -> None:
        """Close at once."""
        self._writer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer whose body is still to be read."""

    status: int
    headers: Mapping[str, str]
    connection: Connection

    def lines(self) -> AsyncIterator[str]:
        """Give the body's lines as they come."""
        return self.connection.body_lines(self.headers)
