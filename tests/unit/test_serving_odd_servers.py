"""Servers that report errors in their own way, or answer with what HTTP allows and few servers send."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import re
from collections.abc import Sequence
from time import monotonic

import pytest

from gpuproof.records.work.serving import ConversationSpec, EndpointSpec, ServingSpec
from gpuproof.worker.serving.answers import RequestTimes
from gpuproof.worker.serving.endpoint import LIMIT, EndpointLoad, _failure_text
from gpuproof.worker.serving.generator import TrafficPlan
from gpuproof.worker.serving.prompts import Calibration, Prompts
from gpuproof.worker.serving.session import _wall_s

TIMEOUT_S = 20.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
WORD = {"choices": [{"text": " word"}]}
COUNT = {"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 6}}
DONE = b"data: [DONE]\n\n"


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


WHOLE = chunked(event(WORD), event(WORD), event(COUNT), DONE) + END


def answers(said: bytes, *, num: int = 2, closes: bool = False) -> list[RequestTimes]:
    """Send requests to a server that answers each of them with these bytes."""

    serving: list[asyncio.Task[None] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
                writer.write(said)
                await writer.drain()
                if closes:
                    writer.close()
        writer.close()

    async def load() -> list[RequestTimes]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        spec = EndpointSpec(url=url, model="m", api="completions", timeout_s=TIMEOUT_S, max_connections=1)
        plan = TrafficPlan(
            begin_monotonic_s=monotonic(), seed=1, arrivals="constant", rate_per_s=50.0, num_requests=num
        )
        load = EndpointLoad(spec, Prompts(ServingSpec(new_tokens=2, prompt_tokens=6), 1))
        rows = await load.run(plan, lambda _: None)
        server.close()
        await asyncio.gather(*filter(None, serving))
        return rows

    return asyncio.run(load())


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (
            event({"error": {"message": "lost"}, "choices": [{"text": "", "finish_reason": "error"}]}),
            "error in its stream: lost",
        ),
        (b'error: {"message": "slot lost"}\n\n', "error in its stream: .*slot lost"),
        (b'event: error\ndata: {"message": "overloaded"}\n\n', "error in its stream: .*overloaded"),
        (event({"object": "error", "message": "out of memory"}), "error in its stream: out of memory"),
        (event({"choices": [{"text": "", "finish_reason": "abort"}]}), "finish_reason abort"),
        (event({"choices": [{"text": "", "finish_reason": "error"}]}), "finish_reason error"),
        (event({"choices": [], "usage": {"prompt_tokens": 10**400}}), "the server counts 1000"),
    ],
)
def test_an_answer_that_the_server_gave_up_is_no_answer(last: bytes, words: str) -> None:
    rows = answers(HEAD + chunked(event(WORD), last, DONE) + END)
    assert [row.done_s for row in rows] == [None, None]
    for row in rows:
        assert row.failure is not None
        assert re.search(words, row.failure)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + HEAD + WHOLE,
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + WHOLE,
        HEAD + chunked(b"\xef\xbb\xbf" + event(WORD), event(WORD), event(COUNT), DONE) + END,
        HEAD
        + chunked(b"event: message\n" + event(WORD), event(WORD), event({**COUNT, "error": None}), DONE)
        + END,
    ],
)
def test_what_http_and_event_streams_allow_is_an_answer(said: bytes) -> None:
    assert [(row.failure, row.tokens, len(row.chunks)) for row in answers(said)] == [(None, 2, 2)] * 2


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP 204"),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "HTTP 304"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
            "'gzip, chunked'",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx", "compressed (br)"),
        (HEAD + chunked(event(WORD)).rstrip() + b"more\r\n" + END, "a chunk is longer than announced"),
    ],
)
def test_what_is_no_answer_says_so_at_once(said: bytes, words: str) -> None:
    began_s = monotonic()
    rows = answers(said)
    assert all(words in str(row.failure) for row in rows)
    assert monotonic() - began_s < TIMEOUT_S


def test_a_server_of_http_1_0_closes_its_connections_as_it_should() -> None:
    body = event(WORD) + event(WORD) + event(COUNT) + DONE
    said = b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    rows = answers(said, num=3, closes=True)
    assert [(row.failure, row.is_resent) for row in rows] == [(None, False)] * 3


def test_the_systems_own_time_limit_is_not_taken_for_ours() -> None:
    said = _failure_text(TimeoutError(errno.ETIMEDOUT, "Connection timed out"), EndpointSpec(timeout_s=600.0))
    assert "600 s" not in said
    assert "Connection timed out" in said


@pytest.mark.parametrize("counts", [[(100, 1), (50, 0)], [(10, 9_000), (5, 3)]])
def test_counts_that_do_not_depend_on_words_fit_no_line(counts: Sequence[tuple[int, int]]) -> None:
    assert Calibration.fit(counts) == Calibration()


def test_a_limit_that_is_too_large_is_not_renamed() -> None:
    load = EndpointLoad(EndpointSpec(url="http://h/v1", model="m"), Prompts(ServingSpec(), 1))
    said = "HTTP 400: 'max_tokens' or 'max_completion_tokens' is too large: 64. This model's maximum context"
    assert load._gives_way(said)
    assert (load._limit, load.refused_fields) == (LIMIT, ["ignore_eos"])


def test_users_that_think_do_not_outlast_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ServingSpec(new_tokens=2, prompt_tokens=6, conversation=ConversationSpec(turns=3, think_s=600.0))
    load = EndpointLoad(EndpointSpec(url="http://127.0.0.1:9/v1", model="m"), Prompts(spec, 1))
    monkeypatch.setattr(EndpointLoad, "_history", lambda *_: (("user", "a"), ("assistant", "b")))
    plan = TrafficPlan(
        begin_monotonic_s=monotonic(), seed=1, concurrency=2, min_requests=2, min_s=0.2, max_s=2.0
    )
    began_s = monotonic()
    assert len(asyncio.run(load.run(plan, lambda _: None))) == 2
    assert monotonic() - began_s < TIMEOUT_S


def test_long_requests_are_reported_while_they_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuproof.worker.serving.endpoint.REPORT_S", 0.02)
    load = EndpointLoad(EndpointSpec(url="http://127.0.0.1:9/v1", model="m"), Prompts(ServingSpec(), 1))
    plan = TrafficPlan(
        begin_monotonic_s=monotonic(), seed=1, arrivals="constant", rate_per_s=4.0, num_requests=1
    )
    told: list[int] = []
    asyncio.run(load.run(plan, told.append))
    assert told[:3] == [0, 0, 0]


def row(due_s: float, done_s: float | None) -> RequestTimes:
    return RequestTimes(scheduled_s=due_s, issued_s=due_s, begun_s=due_s, done_s=done_s)


@pytest.mark.parametrize(
    ("rows", "wall_s"),
    [
        ([row(0.0, 1.0), row(1.0, 1.5)], 1.5),
        ([row(0.0, 1.0), row(8.0, None)], 8.0),  # a server that died early
        ([row(0.0, None), row(8.0, None)], 0.0),
        ([], 0.0),
    ],
)
def test_a_window_lasts_to_its_last_request(rows: list[RequestTimes], wall_s: float) -> None:
    assert _wall_s(rows) == wall_s
