"""Load on a server that speaks the OpenAI completions protocol: vLLM, SGLang, TGI, llama.cpp or any other.

The generator runs in this process, on an event loop: it issues requests by the schedule or on completion,
reads each answer as a stream, and notes when the first and the last token came. Protocol:
https://platform.openai.com/docs/api-reference/completions (`stream: true`, server-sent events, `data:
[DONE]`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.outside import parse_json
from gpuproof.records.work.serving import EndpointSpec
from gpuproof.redaction import redacted
from gpuproof.worker.serving.generator import TrafficPlan
from gpuproof.worker.serving.http_stream import Address, Connection, ProtocolError

DATA = "data:"
DONE = "[DONE]"
OPTIONAL_FIELDS: Mapping[str, Any] = {
    "ignore_eos": True,  # of vLLM and SGLang: every answer has its full length
    "stream_options": {"include_usage": True},  # the server's own count of tokens
}
MOST_SAID = 200
"""Characters of a server's own words that are repeated."""
REFUSALS = ("HTTP 400", "HTTP 422")
"""How servers answer a field that they do not know, where they do not pass over it."""
PROMPT_WORDS = ("red", "day", "six", "sun", "tree", "run", "cold", "word", "sea", "house")
"""Short common words, about a token each in the usual vocabularies."""


@dataclass(slots=True)
class RequestTimes:
    """One request, in seconds from the window's begin."""

    scheduled_s: float
    issued_s: float
    begun_s: float
    """When it had a connection and was sent."""
    first_token_s: float | None = None
    done_s: float | None = None
    """None where it failed."""
    tokens_asked: int = 0
    tokens: int = 0
    """As the server counts them, else the events that carried text, which may hold several. A count of more
    than were asked for is not believed."""
    has_surplus: bool = False
    """Whether the server counts more tokens, or sent more of them, than were asked for."""
    is_resent: bool = False
    """Whether the server had closed the kept connection without a word, so that it was sent on a new one."""
    failure: str | None = None
    is_finished: bool = False
    """Whether the server said that this is the end: a torn stream is no answer."""

    def add_event(self, event: object, now_s: float) -> None:
        """Add an event of the stream; the last ones carry the reason of the end or the usage only.

        Raises:
            ProtocolError: it is none of the protocol's.
        """
        choices = _field(event, "choices", list) or []
        if any(_carries_text(choice) for choice in choices):
            self.first_token_s = now_s if self.first_token_s is None else self.first_token_s
            self.tokens += 1
            self.done_s = now_s
        self.is_finished |= any(_field(choice, "finish_reason", str) for choice in choices)
        counted = _field(_field(event, "usage", dict) or {}, "completion_tokens", int)
        if counted is not None and counted < 0:
            raise ProtocolError(f"the server counts {counted} tokens")
        self.has_surplus |= max(self.tokens, counted or 0) > self.tokens_asked
        if counted and counted <= self.tokens_asked:
            self.tokens = counted


@dataclass(slots=True)
class EndpointLoad:
    """Requests to one endpoint, over at most `max_connections` connections that are kept."""

    spec: EndpointSpec
    new_tokens: int
    prompt_tokens: int
    seed: int
    refused_fields: list[str] = field(default_factory=list)
    """What `try_out` found that the server takes no request with."""
    _understood: dict[str, Any] = field(default_factory=lambda: dict(OPTIONAL_FIELDS))
    _idle: list[Connection] = field(default_factory=list)
    _room: asyncio.Semaphore = field(init=False)
    _address: Address = field(init=False)
    _headers: Mapping[str, str] = field(init=False)
    _secrets: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Read the address and the key.

        Raises:
            EnvironmentUnfitError: the variable that should hold the key is not set.
        """
        assert self.spec.url is not None  # a rule of the recipe's
        self._address = Address.parse(self.spec.url)
        key = _key(self.spec)
        self._secrets = () if key is None else (key,)
        authorization = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **authorization}
        self._room = asyncio.Semaphore(self.spec.max_connections)

    def body(self, number: int) -> bytes:
        """Return the body of request `number`: a prompt of its own, so that no prefix cache answers it."""
        draw = random.Random(self.seed * 1_000_003 + number)  # noqa: S311  # a text, no secret
        prompt = " ".join(draw.choice(PROMPT_WORDS) for _ in range(self.prompt_tokens))
        return json.dumps(
            {
                "model": self.spec.model,
                "prompt": prompt,
                "max_tokens": self.new_tokens,
                "temperature": 0,
                "stream": True,
                **self._understood,
            }
        ).encode()

    async def try_out(self) -> None:
        """Make one request before the window, leaving out what the server refuses, a field after the other.

        Raises:
            EnvironmentUnfitError: the server answers none.
        """
        number = -1
        while True:
            tried = await self.request(number, scheduled_s=0.0, begin_s=monotonic())
            self._close()  # the window has an event loop of its own
            if tried.failure is None:
                return
            if not (tried.failure.startswith(REFUSALS) and self._understood):
                raise EnvironmentUnfitError(
                    f"{self.spec.url} answers no request: {tried.failure}",
                    place="serving.endpoint.url",
                    next_step="Try it with curl; look at address, model name, key, and the server's log",
                )
            named = [name for name in self._understood if name in tried.failure]
            refused = named[0] if named else next(iter(self._understood))
            del self._understood[refused]
            self.refused_fields.append(refused)
            number -= 1

    async def request(self, number: int, *, scheduled_s: float, begin_s: float) -> RequestTimes:
        """Make one request; whatever goes wrong is in its record."""
        issued_s = monotonic() - begin_s
        times = RequestTimes(
            scheduled_s=scheduled_s, issued_s=issued_s, begun_s=issued_s, tokens_asked=self.new_tokens
        )
        async with self._room:
            times.begun_s = monotonic() - begin_s
            try:
                await asyncio.wait_for(self._exchange(number, times, begin_s), self.spec.timeout_s)
            except (
                asyncio.TimeoutError,
                OSError,
                asyncio.IncompleteReadError,
                ProtocolError,
                ValueError,
                RecursionError,  # of JSON nested without end
            ) as error:
                times.failure = redacted(_failure_text(error, self.spec), secrets=self._secrets)
                times.done_s = None
        return times

    async def _exchange(self, number: int, times: RequestTimes, begin_s: float) -> None:
        connection = self._idle.pop() if self._idle else await Connection.open(self._address)
        body = self.body(number)
        try:
            try:
                answer = await connection.post(self._address, "/completions", self._headers, body)
            except (OSError, ProtocolError):
                if not connection.is_stale:
                    raise
                connection.close()
                times.is_resent = True
                connection = await Connection.open(self._address)
                answer = await connection.post(self._address, "/completions", self._headers, body)
            if answer.status != 200:
                words = [line[:MOST_SAID] async for line in answer.lines()]
                raise ProtocolError(f"HTTP {answer.status}: {' '.join(words)[:MOST_SAID]}")
            async for line in answer.lines():
                if not line.startswith(DATA):
                    continue
                data = line[len(DATA) :].strip()
                if data == DONE:
                    times.is_finished = True
                else:
                    times.add_event(parse_json(data), monotonic() - begin_s)
            if not times.is_finished:
                raise ProtocolError("the stream ended without a finish_reason and without [DONE]")
            if times.done_s is None:
                raise ProtocolError("no token came")
        finally:
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def run(self, plan: TrafficPlan, on_done: Callable[[int], None]) -> list[RequestTimes]:
        """Run a plan; return the requests in order of issue. `on_done` is given the number done so far."""
        await asyncio.sleep(max(0.0, plan.begin_monotonic_s - monotonic()))
        try:
            if plan.concurrency is not None:
                return await self._closed(plan, on_done)
            return await self._open(plan, on_done)
        finally:
            self._close()

    def _close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _open(self, plan: TrafficPlan, on_done: Callable[[int], None]) -> list[RequestTimes]:
        begin_s, tasks = plan.begin_monotonic_s, []
        num_done = 0

        def count(_: object) -> None:
            nonlocal num_done
            num_done += 1
            on_done(num_done)

        for number, due_s in enumerate(plan.schedule()):
            left_s = due_s - (monotonic() - begin_s)
            if left_s > 0:
                await asyncio.sleep(left_s)
            task = asyncio.ensure_future(self.request(number, scheduled_s=due_s, begin_s=begin_s))
            task.add_done_callback(count)
            tasks.append(task)
        return list(await asyncio.gather(*tasks))

    async def _closed(self, plan: TrafficPlan, on_done: Callable[[int], None]) -> list[RequestTimes]:
        begin_s = plan.begin_monotonic_s
        requests: list[RequestTimes] = []
        issued = 0

        def goes_on() -> bool:
            now_s = monotonic() - begin_s
            return now_s < plan.max_s and (now_s < plan.min_s or issued < plan.min_requests)

        async def one_after_the_other() -> None:
            nonlocal issued
            while goes_on():
                number, issued = issued, issued + 1
                requests.append(
                    await self.request(number, scheduled_s=monotonic() - begin_s, begin_s=begin_s)
                )
                on_done(len(requests))

        users: list[Awaitable[None]] = [one_after_the_other() for _ in range(plan.concurrency or 1)]
        await asyncio.gather(*users)
        return sorted(requests, key=lambda times: times.issued_s)


T = TypeVar("T")


def _field(event: object, name: str, kind: type[T]) -> T | None:
    """Read a field of an event; None where it is not there or null.

    Raises:
        ProtocolError: the event is no object, or the field of another type.
    """
    if not isinstance(event, dict):
        raise ProtocolError(f"an event of the stream is no object: {str(event)[:MOST_SAID]}")
    value = event.get(name)
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise ProtocolError(f"{name} of an event is no {kind.__name__}: {str(value)[:MOST_SAID]}")


def _carries_text(choice: object) -> bool:
    return bool(_field(choice, "text", str) or _field(_field(choice, "delta", dict) or {}, "content", str))


def _key(spec: EndpointSpec) -> str | None:
    if spec.api_key_variable is None:
        return None
    key = os.environ.get(spec.api_key_variable)
    if not key:
        raise EnvironmentUnfitError(
            f"the environment variable {spec.api_key_variable} is not set on this host",
            place="serving.endpoint.api_key_variable",
            next_step="Set it to the endpoint's key, or the recipe's key to null",
        )
    return key


def _failure_text(error: BaseException, spec: EndpointSpec) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"no whole answer within {spec.timeout_s:g} s"
    return f"{type(error).__name__}: {error}" if not isinstance(error, ProtocolError) else str(error)
