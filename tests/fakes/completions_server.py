"""A server of OpenAI's protocols over real sockets, with the delays, chunks and faults asked for."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

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
    "redirect",
    "error_body",
    "error_event",
    "retry_after",
    "byte_by_byte",
    "empty_deltas",
    "garbage",
    "bad_chunk_length",
]
PATHS = ("/v1/completions", "/v1/chat/completions")


@dataclass
class CompletionsServer:
    """Answers POST /v1/completions and /v1/chat/completions as a stream; remembers what it was asked.

    An answer of chat begins with a chunk of the role alone.
    """

    first_token_s: float = 0.0
    token_s: float = 0.0
    fault: Fault = "none"
    unknown_fields: tuple[str, ...] = ()
    """Fields that it answers with 422, as servers with a strict schema do."""
    refusal: str | None = None
    """What it says then."""
    paths: tuple[str, ...] = PATHS
    """What it answers; 404 for the others."""
    good_first: int = 0
    """So many requests are answered without the fault, whole."""
    reasoning_tokens: int = 0
    """Tokens of an answer of chat that are reasoning, before its content."""
    reasoning_field: str = "reasoning_content"
    stops_after: int | None = None
    """Tokens after which every second answer ends, whatever was asked for."""
    sends_usage: bool = True
    is_usage_last: bool = True
    """Whether the count comes in a chunk of its own, not with the reason of the end."""
    words_per_token: float = 1.0
    template_tokens: int = 0
    """What its chat template adds to a prompt."""
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
        method, path, version = first.split()
        assert (method, version) == ("POST", "HTTP/1.1")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append(body)
        if path not in self.paths:
            writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 9\r\n\r\nnot found")
            return True
        self.headers.append(headers)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        if self._at_once >= self.together:
            self._are_together.set()
        try:
            await self._are_together.wait()
            unknown = [name for name in self.unknown_fields if name in body]
            if unknown:
                said = (self.refusal or f"unexpected fields: {unknown}").encode()
                writer.write(b"HTTP/1.1 422 No\r\nContent-Length: %d\r\n\r\n" % len(said) + said)
                return True
            asked = int(body.get("max_tokens") or body["max_completion_tokens"])
            is_short = self.stops_after is not None and len(self.requests) % 2 == 0
            made = min(asked, self.stops_after or 0) if is_short else asked
            return await self._stream(writer, body, made)
        finally:
            self._at_once -= 1

    @property
    def _is_faulty(self) -> bool:
        return len(self.requests) > self.good_first

    @property
    def _fault_now(self) -> Fault:
        return self.fault if self._is_faulty else "none"

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any], num_tokens: int) -> bool:
        if self._fault_now in NO_STREAM:
            return await self._no_stream(writer)
        if self.fault == "many_headers":
            writer.write(b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: 1\r\n" % place for place in range(1000)))
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        if self.fault in ("line_without_end", "huge_chunk"):
            await _flood(writer, chunk_bytes=2**40 if self.fault == "huge_chunk" else 2**16)
        is_chat, is_second = "messages" in body, len(self.requests) % 2 == 0
        if is_chat:
            send_event(writer, json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        for place in range(0, num_tokens, self.tokens_per_event):
            await asyncio.sleep(self.token_s if place else self.first_token_s)
            if self._fault_now == "cut_in_the_middle" and place:
                return False
            if self._fault_now in ODD_LINES and place:
                send_event(writer, ODD_LINES[self._fault_now])
            event = json.dumps({"choices": [self._choice(place, is_chat=is_chat)]})
            await _send(writer, event, is_slow=self._fault_now == "byte_by_byte")
            if self.odd_event is not None and is_second and self._is_faulty:
                send_event(writer, self.odd_event)
            await writer.drain()
        await self._end(writer, body, num_tokens)
        return True

    def _choice(self, place: int, *, is_chat: bool) -> dict[str, object]:
        text = "" if self._fault_now == "empty_deltas" else " word"
        if not is_chat:
            return {"text": text}
        name = self.reasoning_field if place < self.reasoning_tokens else "content"
        return {"delta": {name: text}}

    def _count(self, body: dict[str, Any]) -> int:
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        extra = self.template_tokens if "messages" in body else 0
        return extra + round(len(prompt.split()) / self.words_per_token)

    async def _no_stream(self, writer: asyncio.StreamWriter) -> bool:
        """Answer otherwise than by a stream; say whether the connection is kept."""
        if self.fault == "silent":
            await asyncio.sleep(60)
        if self.fault in NOT_HTTP:
            writer.write(NOT_HTTP[self.fault])
            return False
        head, said = NO_STREAM[self.fault]
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())
        return True

    async def _end(self, writer: asyncio.StreamWriter, body: dict[str, Any], num_tokens: int) -> None:
        counted = num_tokens if self.counted_tokens is None else self.counted_tokens
        usage = {"usage": {"completion_tokens": counted, "prompt_tokens": self._count(body)}}
        if not self.sends_usage and self._is_faulty:
            usage = {}
        if self.finish_reason:
            together = {} if self.is_usage_last else usage
            choice = {"text": "", "finish_reason": self.finish_reason}
            send_event(writer, json.dumps({"choices": [choice], **together}))
        if usage and self.is_usage_last:
            send_event(writer, json.dumps({"choices": [], **usage}))
        if self._fault_now != "no_done":
            send_event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        if self.fault == "answers_twice":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()


NO_STREAM: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("not_http", "bad_chunk_length", "silent"), ("200 OK", "")),
    "status_500": ("500 Oops", "out of memory"),
    "redirect": ("307 There\r\nLocation: http://elsewhere/v1", ""),
    "retry_after": ("429 Busy\r\nRetry-After: 7", "too many requests"),
    "error_body": ("200 OK\r\nContent-Type: application/json", '{"error": {"message": "no such model"}}'),
    "garbage": ("200 OK", "\x00\x01 not a stream"),
}
"""Faults that answer otherwise than by a stream: what follows HTTP/1.1, and the body."""
NOT_HTTP: dict[str, bytes] = {
    "not_http": b"hello\n",
    "bad_chunk_length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nmany\r\n",
}
ODD_LINES: dict[str, str] = {"error_event": '{"error": {"message": "out of blocks"}}'}
"""Faults that are an event in the middle."""


async def _send(writer: asyncio.StreamWriter, event: str, *, is_slow: bool) -> None:
    """Send an event, if slow a byte at a time, each in a chunk of its own."""
    if not is_slow:
        send_event(writer, event)
        return
    for byte in f"data: {event}\n\n".encode():
        writer.write(b"1\r\n%c\r\n" % byte)
        await writer.drain()
        await asyncio.sleep(0)


async def _flood(writer: asyncio.StreamWriter, *, chunk_bytes: int) -> None:
    """Send bytes without an end of line, in chunks of a stated size, as long as they are taken."""
    while True:
        writer.write(f"{chunk_bytes:x}\r\n".encode())
        for _ in range(chunk_bytes // 2**16):
            writer.write(b"x" * 2**16)
            await writer.drain()
        writer.write(b"\r\n")


def send_event(writer: asyncio.StreamWriter, data: str) -> None:
    """Send an event, in a chunk of its own."""
    text = f"data: {data}\n\n".encode()
    writer.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")


@contextmanager
def running(server: CompletionsServer, *, tls: ssl.SSLContext | None = None) -> Iterator[CompletionsServer]:
    """Run the server in a thread, on a port of its own."""
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def listen() -> None:
        listener = await asyncio.start_server(server.connected, "127.0.0.1", 0, ssl=tls)
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
