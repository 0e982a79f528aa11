"""A twin of an endpoint: our own server that answers as configured, to measure only the client.

In: the number of chunks per response, and the seconds to the first chunk and between chunks. Out: the port,
as the first line on standard output, and then responses to POST requests on any path, in the form of
`/completions`. Times are measured from when the request was fully received. The twin is a separate process,
and exits with its parent.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from time import monotonic

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.serving import ClientAlone
from gpuproof.records.work.serving import NEW_TOKENS, EndpointSpec, ServingSpec
from gpuproof.worker.serving.clients import clients, end_with_the_parent, run_precisely
from gpuproof.worker.serving.endpoint import EndpointLoad
from gpuproof.worker.serving.generator import TrafficPlan
from gpuproof.worker.serving.prompts import Prompts

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
USERS = 32
"""Concurrency of the closed loop that finds the highest rate, chosen so that there is always a request to
read."""
LOOP_S, SCHEDULE_S = 2.0, 1.0
LEAD_S = 0.2
NEAR = 0.5
"""Fraction of the highest rate at which lateness is measured; above this fraction, results may reflect the
client instead of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinAnswer:
    """Number and timing of the chunks in a response."""

    chunks: int
    first_s: float = 0.0
    gap_s: float = 0.0


def event_chunk(data: bytes) -> bytes:
    """Return an HTTP chunk with one event."""
    return b"%x\r\ndata: %s\n\n\r\n" % (len(data) + 8, data)


class Answering(asyncio.Protocol):
    """One connection to a twin."""

    def __init__(self, told: TwinAnswer) -> None:
        self._told = told
        self._came = b""
        usage = {"choices": [], "usage": {"completion_tokens": told.chunks}}
        self._text = event_chunk(b'{"object":"text_completion","choices":[{"text":" word"}]}')
        self._end = event_chunk(json.dumps(usage).encode()) + event_chunk(b"[DONE]") + b"0\r\n\r\n"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport for responses."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Respond to a request once it has fully arrived; the client sends one at a time."""
        self._came += data
        head, mark, body = self._came.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if mark and length is not None and len(body) >= int(length[1]):
            self._came = b""
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        told, loop = self._told, asyncio.get_running_loop()
        if not told.first_s and not told.gap_s:
            self._transport.write(HEAD + self._text * told.chunks + self._end)
            return
        begin_s = loop.time() + told.first_s
        for place in range(told.chunks):
            before = b"" if place else HEAD
            # calls due at the same time run in any order
            behind = self._end if place == told.chunks - 1 else b""
            loop.call_at(begin_s + place * told.gap_s, self._transport.write, before + self._text + behind)


def main(arguments: Sequence[str]) -> int:
    """Serve until standard input closes, i.e. until the parent process exits; not started by users."""
    told = TwinAnswer(**json.loads(arguments[0]))
    end_with_the_parent()

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Answering(told), "127.0.0.1", 0)
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await server.serve_forever()

    run_precisely(serve())
    return 0


@contextmanager
def twin(told: TwinAnswer) -> Iterator[str]:
    """Start a twin and yield its address; the twin is stopped when the block ends.

    Raises:
        EnvironmentUnfitError: the twin did not start.
    """
    words = ("-m", "gpuproof.worker", "twin", json.dumps(asdict(told)))
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().decode().strip()
        if not port:
            raise EnvironmentUnfitError(f"the twin of the endpoint exited with {process.wait()}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def measure_client(spec: ServingSpec, *, seed: int, num: int = 1) -> ClientAlone:
    """Load an instantly responding twin the way this client loads its endpoint: how fast, how late?

    If there are several clients, each has its own twin.

    Raises:
        EnvironmentUnfitError: a twin did not start.
    """
    prompts = Prompts(replace(spec, trace=None, arrivals="poisson"), seed)
    with ExitStack() as stack:
        urls = [
            stack.enter_context(twin(TwinAnswer(chunks=spec.new_tokens or NEW_TOKENS))) for _ in range(num)
        ]
        connections = spec.endpoint.max_connections
        endpoints = [EndpointSpec(url=url, model="twin", max_connections=connections) for url in urls]
        run = stack.enter_context(clients([EndpointLoad(endpoint, prompts) for endpoint in endpoints]))
        loop = TrafficPlan(begin_monotonic_s=monotonic() + LEAD_S, seed=seed, concurrency=USERS * num)
        rows = run(replace(loop, min_s=LOOP_S, max_s=LOOP_S), lambda _: None)
        highest_per_s = sum(row.done_s is not None for row in rows) / LOOP_S
        rate_per_s = max(1.0, NEAR * highest_per_s)
        schedule = TrafficPlan(
            begin_monotonic_s=monotonic() + LEAD_S,
            seed=seed,
            arrivals="poisson",
            rate_per_s=rate_per_s,
            num_requests=max(1, round(rate_per_s * SCHEDULE_S)),
        )
        rows = run(schedule, lambda _: None)
    late_s = sorted(row.issued_s - row.scheduled_s for row in rows)
    return ClientAlone(
        highest_per_s=highest_per_s, rate_per_s=rate_per_s, p99_late_s=late_s[int(0.99 * len(late_s))]
    )
