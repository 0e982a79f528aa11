"""A server of the OpenAI completions protocol over real sockets, with the delays and faults asked for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from waiting import PATIENCE_S

Fault = Literal[
    "none",
    "status_500",
    "cut_in_the_middle",
    "no_done",
    "silent",
    "not_http",
    "answers_twice",
    "line_without_end",
    "many_headers",
    "huge_chunk",
    "closes_after_two",
    "breaks_on_the_second",
    "gone_after_the_first",
]


@dataclass
class CompletionsServer:
    """Answers POST /v1/completions as a stream; remembers what it was asked."""

    first_token_s: float = 0.0
    token_s: float = 0.0
    fault: Fault = "none"
    unknown_fields: tuple[str, ...] = ()
    """Fields that it answers with 422, as servers with a strict schema do."""
    finish_reason: str | None = None
    """What its last token comes with; with it, no [DONE] need follow."""
    tokens_per_event: int = 1
    counted_tokens: object = None
    """What it says that it made, instead of what it was asked for."""
    odd_event: str | None = None
    """Sent as it stands, after the first token of every second request."""
    requests: list[dict[str, object]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    together: int = 1
    """Nothing is answered before so many requests have been under way at once."""
    num_connections: int = 0
    most_at_once: int = 0
    _at_once: int = 0
    _are_together: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    @property
    def url(self) -> str:
        """The endpoint's address."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it is closed."""
        self.num_connections += 1
        is_first, num_answered = self.num_connections == 1, 0
        try:
            while (is_first or self.fault != "gone_after_the_first") and await self._answer(reader, writer):
                num_answered += 1
                if self.fault == "closes_after_two" and num_answered == 2:
                    break
                if is_first and self.fault in ("breaks_on_the_second", "gone_after_the_first"):
                    await reader.readexactly(1)
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().strip().split("\r\n")
        assert first == "POST /v1/completions HTTP/1.1"
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append(body)
        self.headers.append(headers)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        if self._at_once >= self.together:
            self._are_together.set()
        try:
            await self._are_together.wait()
            unknown = [name for name in self.unknown_fields if name in body]
            if unknown:
                said = f"unexpected fields: {unknown}".encode()
                writer.write(b"HTTP/1.1 422 No\r\nContent-Length: %d\r\n\r\n" % len(said) + said)
                return True
            return await self._stream(writer, int(body["max_tokens"]))
        finally:
            self._at_once -= 1

    async def _stream(self, writer: asyncio.StreamWriter, num_tokens: int) -> bool:
        if self.fault in ("not_http", "status_500", "silent"):
            return await self._no_stream(writer)
        if self.fault == "many_headers":
            writer.write(b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: 1\r\n" % place for place in range(1000)))
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        if self.fault in ("line_without_end", "huge_chunk"):
            await _flood(writer, chunk_bytes=2**40 if self.fault == "huge_chunk" else 2**16)
        for place in range(0, num_tokens, self.tokens_per_event):
            await asyncio.sleep(self.token_s if place else self.first_token_s)
            if self.fault == "cut_in_the_middle" and place:
                return False
            _event(writer, json.dumps({"choices": [{"text": " word"}]}))
            if self.odd_event is not None and len(self.requests) % 2 == 0:
                _event(writer, self.odd_event)
            await writer.drain()
        await self._end(writer, num_tokens)
        return True

    async def _no_stream(self, writer: asyncio.StreamWriter) -> bool:
        """Answer otherwise than by a stream; say whether the connection is kept."""
        if self.fault == "silent":
            await asyncio.sleep(60)
        if self.fault == "not_http":
            writer.write(b"hello\n")
            return False
        writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 13\r\n\r\nout of memory")
        return True

    async def _end(self, writer: asyncio.StreamWriter, num_tokens: int) -> None:
        if self.finish_reason:
            _event(writer, json.dumps({"choices": [{"text": "", "finish_reason": self.finish_reason}]}))
        counted = num_tokens if self.counted_tokens is None else self.counted_tokens
        _event(writer, json.dumps({"choices": [], "usage": {"completion_tokens": counted}}))
        if self.fault != "no_done":
            _event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        if self.fault == "answers_twice":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()


async def _flood(writer: asyncio.StreamWriter, *, chunk_bytes: int) -> None:
    """Send bytes without an end of line, in chunks of a stated size, as long as they are taken."""
    while True:
        writer.write(f"{chunk_bytes:x}\r\n".encode())
        for _ in range(chunk_bytes // 2**16):
            writer.write(b"x" * 2**16)
            await writer.drain()
        writer.write(b"\r\n")


def _event(writer: asyncio.StreamWriter, data: str) -> None:
    text = f"data: {data}\n\n".encode()
    writer.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")


@contextmanager
def running(server: CompletionsServer) -> Iterator[CompletionsServer]:
    """Run the server in a thread, on a port of its own."""
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def listen() -> None:
        listener = await asyncio.start_server(server.connected, "127.0.0.1", 0)
        server.port = listener.sockets[0].getsockname()[1]
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            listener.close()

    def run() -> None:
        asyncio.set_event_loop(loop)
        main = loop.create_task(listen())
        server_tasks.append(main)
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(main)
        others = asyncio.all_tasks(loop)
        for task in others:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*others, return_exceptions=True))
        loop.close()

    server_tasks: list[asyncio.Task[None]] = []
    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(server_tasks[0].cancel)
        thread.join()
