"""Load-test a server with OpenAI's protocol: vLLM, SGLang, TGI, llama.cpp or any other.

The generator runs on an event loop, in this process or in several (`clients.py`). It issues requests on
schedule or whenever one completes, and reads each response as a stream (`answers.py`). Protocol for both:
https://platform.openai.com/docs/api-reference/completions (`stream: true`, server-sent events, `data:
[DONE]`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import islice
from time import monotonic
from typing import Any, TypeVar

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.base.outside import parse_json
from gpuproof.base.redaction import redacted
from gpuproof.records.work.serving import Api, EndpointSpec
from gpuproof.worker.serving.answers import MOST_SAID, ProtocolError, RequestTimes, reported_error
from gpuproof.worker.serving.generator import TrafficPlan
from gpuproof.worker.serving.http_stream import Address, Answer, Connection
from gpuproof.worker.serving.prompts import Ask, Calibration, Prompts, trial_numbers

PATHS: Mapping[Api, str] = {"completions": "/completions", "chat": "/chat/completions"}
DATA = "data:"
DONE = "[DONE]"
BOM = "\ufeff"
"""May precede the first event."""
OPTIONAL_FIELDS: Mapping[str, Any] = {
    "ignore_eos": True,  # for vLLM and SGLang, so that every response reaches its full length
    "stream_options": {"include_usage": True},  # makes the server send its own token count
    "temperature": 0,  # reasoning models use a different name for this field
}
REFUSALS = ("HTTP 400", "HTTP 422")
"""Status codes with which servers reject an unknown field, unless they ignore it."""
NO_SUCH_PATH = ("HTTP 404", "HTTP 405", "HTTP 501")
LIMIT, LIMIT_SINCE = "max_tokens", "max_completion_tokens"
"""Names of the field for the response's token limit: for nearly all servers, and for OpenAI's reasoning
models."""
TOO_LARGE = "too large"
"""In a rejection that names both fields: the limit itself is wrong, whatever it is called (vLLM)."""
REPORT_S = 1.0
"""Seconds between reports that requests are still being waited for."""
T = TypeVar("T")
CALIBRATIONS = 2
"""Number of requests at each of two prompt lengths."""


@dataclass(slots=True)
class EndpointLoad:
    """Requests to one endpoint, over at most `max_connections` keep-alive connections."""

    spec: EndpointSpec
    prompts: Prompts
    refused_fields: list[str] = field(default_factory=list)
    """Fields that the server rejects, as found by `try_out`."""
    api: Api = field(init=False)
    """API in use; if `auto` was requested, the one that `try_out` found."""
    expects_usage: bool = False
    """Whether `try_out` received a token count, so that a response without a count is incomplete …"""
    expects_done: bool = False
    """… and whether it received [DONE]."""
    counts_prompts: bool = False
    """Whether the server reported the number of prompt tokens."""
    _limit: str = LIMIT
    _understood: dict[str, Any] = field(default_factory=lambda: dict(OPTIONAL_FIELDS))
    _idle: list[Connection] = field(default_factory=list)
    _connections: int = field(init=False)
    _room: asyncio.Semaphore = field(init=False)
    """Belongs to the event loop in which requests first waited for it."""
    _address: Address = field(init=False)
    _headers: Mapping[str, str] = field(init=False)
    _secrets: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Read the address and the key.

        Raises:
            EnvironmentUnfitError: the variable that should contain the key is not set.
        """
        assert self.spec.url is not None  # a rule of the recipe guarantees it
        self._address = Address.parse(self.spec.url)
        self.api = "chat" if self.spec.api == "chat" else "completions"
        key = _key(self.spec)
        self._secrets = () if key is None else (key,)
        authorization = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **authorization}
        self._connections = self.spec.max_connections
        self._room = asyncio.Semaphore(self._connections)

    def share_of(self, part: int, num_parts: int) -> EndpointLoad:
        """Return the load for one of several clients: the same, with its share of the connections."""
        share, connections = copy(self), self.spec.max_connections
        share._idle = []
        share._connections = connections // num_parts + (part < connections % num_parts)
        share._room = asyncio.Semaphore(share._connections)
        return share

    def body(self, ask: Ask) -> bytes:
        """Return the body of a request."""
        said = (*ask.history, ("user", ask.prompt))
        if self.api == "chat":
            prompt: dict[str, Any] = {"messages": [{"role": role, "content": text} for role, text in said]}
        else:
            prompt = {"prompt": " ".join(text for _, text in said)}
        fixed = {"model": self.spec.model, **prompt, self._limit: ask.new_tokens, "stream": True}
        return json.dumps({**fixed, **self._understood}).encode()

    async def try_out(self) -> None:
        """Send requests before the window, and remove the fields that the server rejects, one by one.

        Then, if the server counts tokens, estimate how many words of a prompt make up a token.

        Raises:
            EnvironmentUnfitError: the server does not answer any request.
        """
        try:
            numbers = trial_numbers()
            await self._find_accepted(numbers)
            await self._calibrate(numbers)
        finally:
            self._close()  # the window has its own event loop

    async def _find_accepted(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            tried = await self.request(number, scheduled_s=0.0, begin_s=monotonic())
            if tried.failure is None:
                self.expects_usage, self.expects_done = tried.tokens is not None, tried.is_closed_by_done
                self.counts_prompts = tried.prompt_tokens is not None
                return
            if not self._gives_way(tried.failure):
                raise EnvironmentUnfitError(
                    f"{self.spec.url} does not answer requests: {tried.failure} (tried {PATHS[self.api]})",
                    place="serving.endpoint.url",
                    next_step="Try it with curl; check address, model name, key, and the server's log",
                )

    async def _calibrate(self, numbers: Iterator[int]) -> None:
        if not self.counts_prompts:
            return
        counts = []
        for words in self.prompts.trial_words() * CALIBRATIONS:
            ask = self.prompts.trial(next(numbers), words)
            tried = await self._timed(ask, scheduled_s=0.0, begin_s=monotonic())
            if tried.failure is None and tried.prompt_tokens is not None:
                counts.append((words, tried.prompt_tokens))
        self.prompts.calibration = Calibration.fit(counts)

    def _gives_way(self, failure: str) -> bool:
        """Change the request after a rejection: another path, or one field fewer; False if none is left."""
        may_switch = self.spec.api == "auto" and self.api == "completions"
        is_refusal = failure.startswith(REFUSALS)
        if may_switch and (failure.startswith(NO_SUCH_PATH) or (is_refusal and not self._understood)):
            self.api, self._understood = "chat", dict(OPTIONAL_FIELDS)
            self.refused_fields.clear()
            return True
        if is_refusal and self._limit == LIMIT and LIMIT_SINCE in failure and TOO_LARGE not in failure:
            self._limit = LIMIT_SINCE
            return True
        if not (is_refusal and self._understood):
            return False
        refused = next((name for name in self._understood if name in failure), next(iter(self._understood)))
        del self._understood[refused]
        self.refused_fields.append(refused)
        return True

    async def request(self, number: int, *, scheduled_s: float, begin_s: float) -> RequestTimes:
        """Send request `number`; any error is in its record."""
        return await self._timed(self.prompts.ask(number), scheduled_s=scheduled_s, begin_s=begin_s)

    async def _timed(self, ask: Ask, *, scheduled_s: float, begin_s: float) -> RequestTimes:
        issued_s = monotonic() - begin_s
        times = RequestTimes(
            scheduled_s=scheduled_s,
            issued_s=issued_s,
            begun_s=issued_s,
            tokens_asked=ask.new_tokens,
            prompt_tokens_asked=0 if ask.history else ask.prompt_tokens,
            answer=[] if self.prompts.spec.conversation.turns > 1 else None,
        )
        async with self._room:
            times.begun_s = monotonic() - begin_s
            try:
                await asyncio.wait_for(self._exchange(self.body(ask), times, begin_s), self.spec.timeout_s)
            except (asyncio.TimeoutError, OSError, ProtocolError, ValueError) as error:
                times.fail(redacted(_failure_text(error, self.spec), secrets=self._secrets))
        return times

    async def _exchange(self, body: bytes, times: RequestTimes, begin_s: float) -> None:
        connection = self._idle.pop() if self._idle else await Connection.open(self._address)
        path = PATHS[self.api]
        try:
            try:
                answer = await connection.post(self._address, path, self._headers, body)
            except (OSError, ProtocolError):
                if not connection.is_stale:
                    raise
                connection.close()
                times.is_resent = True
                connection = await Connection.open(self._address)
                answer = await connection.post(self._address, path, self._headers, body)
            if answer.status != 200:
                raise ProtocolError(await _refusal(answer))
            await _read_stream(answer, times, begin_s)
            self._refuse_part(times)
        finally:
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                connection.close()

    def _refuse_part(self, times: RequestTimes) -> None:
        """Reject an incomplete response.

        Raises:
            ProtocolError: the tokens, the token count or the end of the stream is missing.
        """
        if not times.is_finished:
            raise ProtocolError("the stream ended without a finish_reason and without [DONE]")
        if self.expects_done and not times.is_closed_by_done:
            raise ProtocolError("the stream ended without [DONE], which the server had sent before")
        if times.done_s is None:
            raise ProtocolError("no token arrived")
        if self.expects_usage and times.tokens is None:
            raise ProtocolError("no usage arrived, although the server had sent it before")

    async def run(self, plan: TrafficPlan, on_done: Callable[[int], None]) -> list[RequestTimes]:
        """Run a plan and return its requests in order of issue; `on_done` receives how many are complete."""
        self._room = asyncio.Semaphore(self._connections)  # each run has its own event loop
        times_s = plan.schedule() if plan.concurrency is None else None
        await asyncio.sleep(max(0.0, plan.begin_monotonic_s - monotonic()))
        num_done = 0

        def count(number: int) -> None:
            nonlocal num_done
            num_done = number
            on_done(number)

        loop = self._closed(plan, count) if times_s is None else self._open(times_s, plan, count)
        try:
            return await reporting(loop, lambda: on_done(num_done))
        finally:
            self._close()

    def _close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _open(
        self, times_s: Sequence[float], plan: TrafficPlan, on_done: Callable[[int], None]
    ) -> list[RequestTimes]:
        tasks = []
        num_done, begin_s = 0, plan.begin_monotonic_s

        def count(_: object) -> None:
            nonlocal num_done
            num_done += 1
            on_done(num_done)

        for number, due_s in islice(enumerate(times_s), plan.part, None, plan.num_parts):
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

        async def think() -> None:
            """Wait before the next turn, but not beyond the end of the loop."""
            end_s = monotonic() - begin_s + self.prompts.spec.conversation.think_s
            for limit_s in (plan.min_s, plan.max_s):
                await asyncio.sleep(max(0.0, min(end_s, limit_s) - (monotonic() - begin_s)))
                if not goes_on():
                    return

        async def one_after_the_other() -> None:
            nonlocal issued
            history: tuple[tuple[str, str], ...] = ()
            while goes_on():
                number, issued = plan.part + plan.num_parts * issued, issued + 1
                ask = replace(self.prompts.ask(number), history=history)
                times = await self._timed(ask, scheduled_s=monotonic() - begin_s, begin_s=begin_s)
                requests.append(times)
                on_done(len(requests))
                history = self._history(ask, times)
                if history:
                    await think()

        users: list[Awaitable[None]] = [one_after_the_other() for _ in range(plan.concurrency or 1)]
        await asyncio.gather(*users)
        return sorted(requests, key=lambda times: times.issued_s)

    def _history(self, ask: Ask, times: RequestTimes) -> tuple[tuple[str, str], ...]:
        """Return the history that the next turn repeats; empty if the conversation has ended or failed."""
        is_last = len(ask.history) // 2 + 1 >= self.prompts.spec.conversation.turns
        if is_last or times.failure is not None or times.answer is None:
            return ()
        return (*ask.history, ("user", ask.prompt), ("assistant", "".join(times.answer)))


async def reporting(work: Awaitable[T], report: Callable[[], None]) -> T:
    """Wait for `work`, and report every second that it is no hang: requests have their own time limit."""

    async def report_often() -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            report()

    task = asyncio.ensure_future(report_often())
    try:
        return await work
    finally:
        task.cancel()


async def _read_stream(answer: Answer, times: RequestTimes, begin_s: float) -> None:
    """Read a response until it is complete.

    Raises:
        ProtocolError: the response is not an event stream, or one of its events does not follow the protocol.
    """
    if (coding := answer.headers.get("content-encoding", "identity").lower()) != "identity":
        raise ProtocolError(f"the response is compressed ({coding[:MOST_SAID]}), which was not requested")
    has_event, is_error, other = False, False, ""
    async for line in answer.lines():
        if not line.startswith(DATA) and not (line := line.removeprefix(BOM)).startswith(DATA):
            name, _, value = line.partition(":")
            if name == "error":  # the field of llama.cpp's errors, after which it sends [DONE]
                raise reported_error(value.strip())
            is_error = (is_error and bool(line)) or (name == "event" and value.strip() == "error")
            other = other or line.strip()
            continue
        has_event, data = True, line[len(DATA) :].strip()
        if is_error:
            raise reported_error(data)
        if data == DONE:
            times.is_finished = times.is_closed_by_done = True
            continue
        try:
            event = parse_json(data)
        except (ValueError, RecursionError):
            raise ProtocolError(f"an event in the stream is not JSON: {data[:MOST_SAID]}") from None
        times.add_event(event, monotonic() - begin_s)
    if not has_event:
        kind = answer.headers.get("content-type", "no content type")
        raise ProtocolError(f"HTTP 200 without an event ({kind}): {other[:MOST_SAID]}")


async def _refusal(answer: Answer) -> str:
    """Return a server's response in place of a stream: its status, any redirect, its message."""
    words = [line[:MOST_SAID] async for line in answer.lines()]
    headers = answer.headers
    if 300 <= answer.status < 400 and "location" in headers:
        return f"HTTP {answer.status} to {headers['location'][:MOST_SAID]}: redirects are not followed"
    again = f" (Retry-After: {headers['retry-after'][:MOST_SAID]})" if "retry-after" in headers else ""
    return f"HTTP {answer.status}{again}: {' '.join(words)[:MOST_SAID]}"


def _key(spec: EndpointSpec) -> str | None:
    if spec.api_key_variable is None:
        return None
    key = os.environ.get(spec.api_key_variable)
    if not key:
        raise EnvironmentUnfitError(
            f"the environment variable {spec.api_key_variable} is not set on this host",
            place="serving.endpoint.api_key_variable",
            next_step="Set it to the endpoint's key, or set the key in the recipe to null",
        )
    return key


def _failure_text(error: BaseException, spec: EndpointSpec) -> str:
    # the operating system's own time limit for a connection is a TimeoutError too, with an errno
    if isinstance(error, asyncio.TimeoutError) and getattr(error, "errno", None) is None:
        return f"no complete answer within {spec.timeout_s:g} s"
    return f"{type(error).__name__}: {error}" if not isinstance(error, ProtocolError) else str(error)
