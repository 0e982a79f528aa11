"""Load on an HTTP endpoint: real sockets, a server whose delays and faults are known."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import pytest

from fakes.completions_server import PATHS, CompletionsServer, Fault, running
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.serving import ConversationSpec, EndpointSpec, ServingSpec
from gpuproof.worker.serving.answers import RequestTimes
from gpuproof.worker.serving.endpoint import OPTIONAL_FIELDS, EndpointLoad
from gpuproof.worker.serving.generator import TrafficPlan
from gpuproof.worker.serving.http_stream import Address
from gpuproof.worker.serving.prompts import Prompts
from waiting import PATIENCE_S

ApiChoice = Literal["completions", "chat", "auto"]


def load(
    server: CompletionsServer,
    *,
    num_requests: int = 4,
    rate_per_s: float | None = 200.0,
    concurrency: int | None = None,
    max_connections: int = 8,
    timeout_s: float = PATIENCE_S,
    key_variable: str | None = None,
    api: ApiChoice = "auto",
    scheme: str = "http",
    is_tried: bool = False,
    prompt_tokens: int = 6,
    conversation: ConversationSpec | None = None,
) -> list[RequestTimes]:
    spec = EndpointSpec(
        url=server.url.replace("http", scheme),
        model="tiny",
        api=api,
        api_key_variable=key_variable,
        timeout_s=timeout_s,
        max_connections=max_connections,
    )
    plan = TrafficPlan(
        begin_monotonic_s=monotonic() + 0.01,
        seed=5,
        arrivals="constant",
        rate_per_s=rate_per_s,
        num_requests=num_requests,
        concurrency=concurrency,
        min_requests=num_requests,
        min_s=0.0,
        max_s=3600.0,
    )
    serving = ServingSpec(
        new_tokens=3, prompt_tokens=prompt_tokens, conversation=conversation or ConversationSpec()
    )
    endpoint = EndpointLoad(spec, Prompts(serving, 5))
    if is_tried:
        asyncio.run(endpoint.try_out())
    return asyncio.run(endpoint.run(plan, lambda _: None))


def test_every_token_is_timed_from_the_stream() -> None:
    with running(CompletionsServer(first_token_s=0.05, token_s=0.02)) as server:
        rows = load(server)
    assert [row.tokens for row in rows] == [3] * 4
    assert [row.scheduled_s for row in rows] == pytest.approx([0.005, 0.010, 0.015, 0.020])
    for row in rows:
        assert row.failure is None
        assert row.first_token_s is not None
        assert row.done_s is not None
        assert row.first_token_s - row.scheduled_s >= 0.05
        assert row.done_s > row.first_token_s
        assert row.done_s - row.scheduled_s >= 0.05 + 0.04  # two further tokens, 20 ms each


def test_prompts_differ_and_ask_for_a_number_of_tokens() -> None:
    with running(CompletionsServer()) as server:
        load(server)
    prompts = [str(request["prompt"]) for request in server.requests]
    assert len(set(prompts)) == 4
    assert {len(prompt.split()) for prompt in prompts} == {6}
    assert {request["max_tokens"] for request in server.requests} == {3}


def test_connections_are_kept_and_limited() -> None:
    with running(CompletionsServer(first_token_s=0.01, together=3)) as server:
        rows = load(server, num_requests=12, rate_per_s=None, max_connections=3)
    assert server.num_connections == 3
    assert server.most_at_once == 3
    # The last ones waited for a connection: that is part of their latency, and not of the server's time.
    assert rows[-1].begun_s - rows[-1].scheduled_s > 0.02


def test_a_closed_loop_keeps_its_number_under_way() -> None:
    with running(CompletionsServer(first_token_s=0.005, together=2)) as server:
        rows = load(server, num_requests=10, rate_per_s=None, concurrency=2)
    assert server.most_at_once == 2
    assert len(rows) >= 10


def test_tokens_are_those_that_the_server_counts() -> None:
    with running(CompletionsServer(tokens_per_event=3)) as server:
        rows = load(server, num_requests=1)
    assert rows[0].tokens == 3


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("status_500", "HTTP 500: out of memory"),
        ("cut_in_the_middle", "closed in the middle"),
        ("no_done", "without [DONE]"),
        ("silent", "no complete answer within 0.3 s"),
        ("not_http", "no HTTP/1.1 status line"),
        ("many_headers", "more than 200 headers"),
        ("line_without_end", "a line without an end"),
        ("huge_chunk", "a line without an end"),
        ("redirect", "HTTP 307 to http://elsewhere/v1: redirects are not followed"),
        (
            "error_body",
            'HTTP 200 without an event (application/json): {"error": {"message": "no such model"}}',
        ),
        ("error_event", "the server reports an error in its stream: out of blocks"),
        ("retry_after", "HTTP 429 (Retry-After: 7): too many requests"),
        ("garbage", "HTTP 200 without an event"),
        ("bad_chunk_length", "not a valid length: 'many'"),
        ("empty_deltas", "no token arrived"),
    ],
)
def test_a_request_that_fails_says_how_and_has_no_latency(fault: Fault, words: str) -> None:
    with running(CompletionsServer(fault=fault)) as server:
        rows = load(server, num_requests=2, timeout_s=0.3 if fault == "silent" else PATIENCE_S)
    for row in rows:
        assert row.done_s is None
        assert words in str(row.failure)


def test_connections_that_the_server_closes_without_a_word_cost_no_request() -> None:
    with running(CompletionsServer(fault="closes_after_two")) as server:
        rows = load(server, num_requests=5, rate_per_s=20.0, max_connections=1)
    assert [row.failure for row in rows] == [None] * 5
    assert server.num_connections == 3


def test_a_request_on_a_stale_connection_is_sent_again_and_counted() -> None:
    with running(CompletionsServer(fault="breaks_on_the_second")) as server:
        rows = load(server, num_requests=3, rate_per_s=20.0, max_connections=1)
    assert [(row.failure, row.is_resent) for row in rows] == [(None, False), (None, True), (None, False)]


def test_a_request_is_sent_again_once_only() -> None:
    with running(CompletionsServer(fault="gone_after_the_first")) as server:
        rows = load(server, num_requests=3, rate_per_s=20.0, max_connections=1)
    assert [row.is_resent for row in rows] == [False, True, False]
    assert [row.failure is None for row in rows] == [True, False, False]
    assert server.num_connections == 3  # the first, the second request's other one, the third's


def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_one() -> None:
    with running(CompletionsServer(fault="answers_twice")) as server:
        rows = load(server, num_requests=6, rate_per_s=None, concurrency=1, max_connections=1)
    failed = [str(row.failure) for row in rows if row.failure]
    assert failed  # of the request itself where both answers came at once, else of the next one
    known = ("more than one answer", "without a finish_reason", "without an event")
    assert [text for text in failed if not any(words in text for words in known)] == []


ODD_EVENTS = (
    "5",
    "null",
    '"text"',
    "[]",
    "not JSON",
    '{"choices": 7}',
    '{"choices": [7]}',
    '{"choices": [{"text": 7}]}',
    '{"choices": [{"delta": "text"}]}',
    '{"usage": {"completion_tokens": -7}}',
    '{"usage": {"completion_tokens": "many"}}',
    '{"usage": {"completion_tokens": 1e999}}',
    '{"usage": 3}',
    '{"choices": ' + "[" * 100_000 + "]" * 100_000 + "}",
)


@pytest.mark.parametrize("event", ODD_EVENTS, ids=range(len(ODD_EVENTS)))
def test_an_odd_event_fails_its_own_request_only(event: str) -> None:
    with running(CompletionsServer(odd_event=event)) as server:
        rows = load(server, num_requests=4, rate_per_s=None, concurrency=1)
    assert [row.failure is None for row in rows[:4]] == [True, False, True, False]
    assert all(row.tokens == 3 for row in rows[:4:2])


@pytest.mark.parametrize(
    ("counted", "is_surplus"), [(400, True), (10**12, True), (4, True), (3, False), (2, False)]
)
def test_more_tokens_than_were_asked_for_are_not_believed(counted: int, is_surplus: bool) -> None:
    with running(CompletionsServer(counted_tokens=counted)) as server:
        (row,) = load(server, num_requests=1)
    assert row.failure is None
    assert row.has_surplus is is_surplus
    assert row.tokens == min(3, counted)


def test_the_reason_of_the_end_is_an_end_without_done() -> None:
    with running(CompletionsServer(fault="no_done", finish_reason="length")) as server:
        rows = load(server, num_requests=2)
    assert [(row.failure, row.tokens) for row in rows] == [(None, 3)] * 2


@pytest.mark.parametrize(
    ("unknown", "num_tries"),
    [((), 1), (("ignore_eos",), 2), (("stream_options",), 2), (("stream_options", "ignore_eos"), 3)],
)
def test_fields_that_a_server_refuses_are_left_out(unknown: tuple[str, ...], num_tries: int) -> None:
    with running(CompletionsServer(unknown_fields=unknown)) as server:
        endpoint = endpoint_of(server)
        asyncio.run(endpoint.try_out())
    assert sorted(endpoint.refused_fields) == sorted(unknown)
    assert [request["max_tokens"] for request in server.requests] == [3] * num_tries + [1] * 4
    assert not set(unknown) & set(server.requests[-1])
    assert set(OPTIONAL_FIELDS) - set(unknown) <= set(server.requests[-1])


@pytest.mark.parametrize(("fault", "words"), [("status_500", "HTTP 500"), ("no_done", "without \\[DONE\\]")])
def test_a_server_that_answers_nothing_is_said_before_the_window(fault: Fault, words: str) -> None:
    with (
        running(CompletionsServer(fault=fault)) as server,
        pytest.raises(EnvironmentUnfitError, match=f"does not answer requests: .*{words}"),
    ):
        asyncio.run(endpoint_of(server).try_out())
    assert len(server.requests) == 1


def test_a_server_that_refuses_everything_is_asked_no_further() -> None:
    with (
        running(CompletionsServer(unknown_fields=("model",))) as server,
        pytest.raises(EnvironmentUnfitError, match=r"HTTP 422.*tried /chat/completions"),
    ):
        asyncio.run(endpoint_of(server).try_out())
    assert len(server.requests) == 2 * (1 + len(OPTIONAL_FIELDS))  # of each path


@pytest.mark.parametrize(
    ("server", "api"),
    [
        (CompletionsServer(), "completions"),
        (CompletionsServer(paths=("/v1/chat/completions",)), "chat"),
        (CompletionsServer(unknown_fields=("prompt",)), "chat"),
    ],
)
def test_auto_asks_completions_and_then_chat(server: CompletionsServer, api: str) -> None:
    with running(server):
        endpoint = endpoint_of(server)
        asyncio.run(endpoint.try_out())
    assert endpoint.api == api
    assert endpoint.refused_fields == []
    assert ("messages" in server.requests[-1]) is (api == "chat")


def test_a_path_that_is_named_is_not_left() -> None:
    with (
        running(CompletionsServer(paths=("/v1/chat/completions",))) as server,
        pytest.raises(EnvironmentUnfitError, match="HTTP 404: not found"),
    ):
        asyncio.run(endpoint_of(server, api="completions").try_out())
    assert len(server.requests) == 1


def test_the_limit_is_called_as_the_server_wants_it() -> None:
    said = "max_tokens: use max_completion_tokens"
    with running(CompletionsServer(unknown_fields=("max_tokens",), refusal=said)) as server:
        asyncio.run(endpoint_of(server).try_out())
    assert [request.get("max_completion_tokens") for request in server.requests] == [None, 3, 1, 1, 1, 1]
    assert "max_tokens" not in server.requests[-1]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_no_content_and_the_role_no_token(name: str) -> None:
    server = CompletionsServer(first_token_s=0.02, token_s=0.03, reasoning_tokens=2, reasoning_field=name)
    with running(server):
        rows = load(server, num_requests=2, api="chat")
    for row in rows:
        assert (row.failure, row.tokens, len(row.chunks)) == (None, 3, 3)
        assert row.first_token_s is not None
        assert row.first_content_s is not None
        assert row.first_token_s - row.begun_s >= 0.02
        assert row.first_content_s - row.begun_s >= 0.02 + 2 * 0.03
        assert row.first_content_s == row.done_s
        assert list(row.chunks) == sorted(row.chunks)
        assert len(row.gaps_s) == 2
        assert sum(row.gaps_s) == pytest.approx(row.done_s - row.first_token_s)


def test_an_answer_of_reasoning_alone_has_no_content() -> None:
    with running(CompletionsServer(reasoning_tokens=3)) as server:
        (row,) = load(server, num_requests=1, api="chat")
    assert row.failure is None
    assert row.first_token_s is not None
    assert row.first_content_s is None


def test_chunks_and_tokens_are_counted_separately() -> None:
    with running(CompletionsServer(tokens_per_event=2)) as server:
        (row,) = load(server, num_requests=1, api="chat")
    assert (row.tokens, len(row.chunks), len(row.gaps_s)) == (3, 2, 1)


@pytest.mark.parametrize("is_last", [True, False])
def test_usage_counts_in_whichever_chunk_it_comes(is_last: bool) -> None:
    server = CompletionsServer(tokens_per_event=2, finish_reason="length", is_usage_last=is_last)
    with running(server):
        (row,) = load(server, num_requests=1)
    assert (row.failure, row.tokens, row.prompt_tokens) == (None, 3, 6)


def test_tokens_that_no_server_counts_are_not_known() -> None:
    with running(CompletionsServer(sends_usage=False)) as server:
        (row,) = load(server, num_requests=1)
    assert (row.failure, row.tokens, row.prompt_tokens, len(row.chunks)) == (None, None, None, 3)


def test_bytes_that_come_one_at_a_time_are_an_answer() -> None:
    with running(CompletionsServer(fault="byte_by_byte")) as server:
        (row,) = load(server, num_requests=1, api="chat")
    assert (row.failure, row.tokens, len(row.chunks)) == (None, 3, 3)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (CompletionsServer(good_first=1, sends_usage=False), "no usage arrived"),
        (CompletionsServer(good_first=1, fault="no_done", finish_reason="length"), "ended without [DONE]"),
    ],
)
def test_what_the_server_sent_before_the_window_must_come_in_it(
    server: CompletionsServer, words: str
) -> None:
    with running(server):
        rows = load(server, num_requests=3, is_tried=True)
    for row in rows:
        assert words in str(row.failure)
        assert (row.done_s, row.gaps_s) == (None, [])


def test_a_certificate_that_is_not_trusted_fails_each_request(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ("-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(certificate))
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names)
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with running(CompletionsServer(), tls=tls) as server:
        rows = load(server, num_requests=2, scheme="https")
    assert all("certificate verify failed" in str(row.failure) for row in rows)
    assert server.requests == []


def test_prompts_get_the_length_that_the_server_counts() -> None:
    server = CompletionsServer(paths=PATHS[1:], words_per_token=2.0, template_tokens=9)
    with running(server):
        rows = load(server, num_requests=4, is_tried=True, prompt_tokens=100)
    assert [(row.prompt_tokens_asked, row.prompt_tokens) for row in rows] == [(100, 100)] * 4
    # The other path refused, one answered, and two of each of two lengths to fit, of a token each.
    assert [request["max_tokens"] for request in server.requests[:6]] == [3, 3, 1, 1, 1, 1]


def test_prompts_that_no_server_counts_are_words() -> None:
    with running(CompletionsServer(sends_usage=False)) as server:
        rows = load(server, num_requests=2, is_tried=True)
    assert [row.prompt_tokens for row in rows] == [None, None]
    assert len(server.requests) == 3  # one before the window: nothing to be fitted
    assert {len(str(request["prompt"]).split()) for request in server.requests} == {6}


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_turn_repeats_the_conversation_before_it(api: ApiChoice) -> None:
    conversation = ConversationSpec(turns=3, think_s=0.001)
    server = CompletionsServer(reasoning_tokens=1)
    with running(server):
        rows = load(
            server, num_requests=7, rate_per_s=None, concurrency=1, api=api, conversation=conversation
        )
    assert [row.failure for row in rows] == [None] * 7
    assert all(earlier.done_s < later.issued_s for earlier, later in pairwise(rows) if earlier.done_s)
    # Only first turns have a length that is asked for: what a template adds to the others is not known.
    assert [row.prompt_tokens_asked for row in rows] == [6, 0, 0, 6, 0, 0, 6]
    if api == "completions":
        texts = [str(request["prompt"]) for request in server.requests]
        assert [text.startswith(before) for before, text in pairwise(texts)] == [True, True, False] * 2
        return
    talks: list[Any] = [request["messages"] for request in server.requests]
    assert [len(talk) for talk in talks] == [1, 3, 5, 1, 3, 5, 1]
    assert talks[2][:3] == talks[1]
    assert talks[1][1] == {"role": "assistant", "content": " word word"}  # its reasoning is not repeated


def test_a_conversation_ends_with_a_failure() -> None:
    server = CompletionsServer(good_first=1, fault="error_event")
    with running(server):
        rows = load(
            server, num_requests=4, rate_per_s=None, concurrency=1, conversation=ConversationSpec(turns=9)
        )
    assert [row.failure is None for row in rows] == [True, False, False, False]
    texts = [str(request["prompt"]) for request in server.requests]
    assert [len(text.split()) for text in texts] == [6, 6 + 3 + 6, 6, 6]


def endpoint_of(server: CompletionsServer, api: ApiChoice = "auto") -> EndpointLoad:
    spec = EndpointSpec(url=server.url, model="tiny", api=api, timeout_s=PATIENCE_S, max_connections=1)
    return EndpointLoad(spec, Prompts(ServingSpec(new_tokens=3, prompt_tokens=6), 5))


def test_nobody_there_is_a_failure_of_each_request() -> None:
    server = CompletionsServer()
    with running(server):
        pass
    rows = load(server, num_requests=2)
    assert all("Connect" in str(row.failure) for row in rows)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_KEY", "secret")
    with running(CompletionsServer()) as server:
        load(server, num_requests=1, key_variable="TINY_KEY")
    assert server.headers[0]["authorization"] == "Bearer secret"
    monkeypatch.delenv("TINY_KEY")
    with pytest.raises(EnvironmentUnfitError, match="TINY_KEY is not set"):
        load(server, num_requests=1, key_variable="TINY_KEY")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host:8000/v1", ("host", 8000, "/v1", False)),
        ("https://host/v1/", ("host", 443, "/v1", True)),
        ("http://[::1]:80", ("::1", 80, "", False)),
    ],
)
def test_addresses(url: str, address: tuple[str, int, str, bool]) -> None:
    found = Address.parse(url)
    assert (found.host, found.port, found.path, found.is_tls) == address


@pytest.mark.parametrize("url", ["ftp://host", "http://", "host:8000"])
def test_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="not a URL"):
        Address.parse(url)
