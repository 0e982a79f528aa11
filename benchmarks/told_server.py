"""A server with specified response times that reports the actual ones, to compare load clients with.

`python benchmarks/told_server.py '{"chunks": 16, "first_s": 0.02, "gap_s": 0.005}'` prints its port and
answers POST on any path like `/completions`. When its standard input ends, it prints what happened as one
line of JSON: medians of the time to the first chunk and of the gaps, timed when they are written, and what
was requested. On a busy machine, chunks are written later than specified, which is not an error of the
client.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from threading import Thread

from gpuproof.worker.serving.clients import run_precisely
from gpuproof.worker.serving.twin import HEAD, Answering, TwinAnswer, event_chunk

INNER = 0.1
"""Fraction of requests at each end excluded from the rate: trials before a window, and stragglers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a server actually did for one client."""

    num_requests: int
    answered_per_s: float
    first_s: float
    gap_s: float
    lengths: tuple[int, int]
    """Prompt words and response tokens requested, for most requests."""
    share_of_lengths: float


@dataclass(slots=True)
class Log:
    """Times of all connections, on one clock."""

    done_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    lengths: Counter[tuple[int, int]] = field(default_factory=Counter)

    def truth(self) -> Truth | None:
        """Combine the results; return None if there were too few responses."""
        if len(self.done_s) < 10:
            return None
        cut = max(1, round(INNER * len(self.done_s)))
        times_s = sorted(self.done_s)[cut:-cut]
        lengths, number = self.lengths.most_common(1)[0]
        return Truth(
            num_requests=len(self.done_s),
            answered_per_s=(len(times_s) - 1) / (times_s[-1] - times_s[0]),
            first_s=median(self.first_s),
            gap_s=median(self.gaps_s),
            lengths=lengths,
            share_of_lengths=number / self.lengths.total(),
        )


class Witness(Answering):
    """A connection that records its write times."""

    def __init__(self, told: TwinAnswer, log: Log) -> None:
        super().__init__(told)
        self._log = log
        self._streams: set[asyncio.Task[None]] = set()

    def _answer(self, body: bytes) -> None:
        stream = asyncio.get_running_loop().create_task(self._stream(body))
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)

    async def _stream(self, body: bytes) -> None:
        loop, told, log = asyncio.get_running_loop(), self._told, self._log
        begin_s = before_s = loop.time()
        request = json.loads(body)
        words = len(request["prompt"].split())
        log.lengths[words, request.get("max_tokens", 0)] += 1
        usage = {
            "prompt_tokens": words,
            "completion_tokens": told.chunks,
            "total_tokens": words + told.chunks,
        }
        for place in range(told.chunks):
            due_s = begin_s + told.first_s + place * told.gap_s
            await asyncio.sleep(due_s - loop.time())
            if self._transport.is_closing():  # the client gave up
                return
            now_s = loop.time()
            (log.gaps_s if place else log.first_s).append(now_s - before_s)
            before_s = now_s
            self._transport.write((b"" if place else HEAD) + self._text)
        end = {"object": "text_completion", "choices": [], "usage": usage}
        self._transport.write(event_chunk(json.dumps(end).encode()) + event_chunk(b"[DONE]") + b"0\r\n\r\n")
        log.done_s.append(before_s)


async def serve(told: TwinAnswer, log: Log) -> None:
    """Respond until standard input ends."""
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    server = await loop.create_server(lambda: Witness(told, log), "127.0.0.1", 0, backlog=4096)

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(is_over.set)

    Thread(target=wait_for_the_end, daemon=True).start()
    print(server.sockets[0].getsockname()[1], flush=True)
    await is_over.wait()


class Served:
    """A running server and, once it has exited, what it did."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.truth: Truth | None = None


@contextmanager
def told_server(told: TwinAnswer) -> Iterator[Served]:
    """Start a server in a separate process; after the block its actual times are known.

    Raises:
        SystemExit: the server did not start.
    """
    command = [sys.executable, str(Path(__file__).resolve()), json.dumps(asdict(told))]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise SystemExit(f"the server exited with {process.wait()}")
        served = Served(f"http://127.0.0.1:{port}")
        try:
            yield served
        finally:
            line = json.loads(process.communicate()[0])
        if line is not None:
            served.truth = Truth(**{**line, "lengths": tuple(line["lengths"])})


def main(arguments: Sequence[str]) -> None:
    """Serve; report what happened."""
    log = Log()
    run_precisely(serve(TwinAnswer(**json.loads(arguments[0])), log))
    truth = log.truth()
    print(json.dumps(None if truth is None else asdict(truth)))


if __name__ == "__main__":
    main(sys.argv[1:])
