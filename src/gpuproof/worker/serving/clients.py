"""Load one endpoint from several client processes, each sending a part of the same schedule.

Python uses at most one CPU, which limits what one client can send. With n clients, the i-th client sends
requests i, i + n, …, with the same prompts that a single client would send. All times are relative to one
point in time on the host's monotonic clock, which processes share, so the records only need sorting. If there
is only one client, it is this process itself. Each client runs in an event loop with precise timers
(`run_precisely`). `epoll_wait` accepts only whole milliseconds, and `selectors` rounds up, so a request due
in 0.1 ms would be sent 1 ms late. Here, `select` waits for the epoll object itself, with microsecond
resolution. On two busy cores, the median delay of a sleep of 2.37 ms was 0.78 ms with asyncio's loop, and
0.14 ms with this loop.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import select
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.serving import ServingSpec
from gpuproof.worker.serving.answers import RequestTimes
from gpuproof.worker.serving.endpoint import EndpointLoad
from gpuproof.worker.serving.generator import TrafficPlan
from gpuproof.worker.serving.http_stream import Address

CPUS, CPUS_BESIDE_SERVER = 2, 4
"""Number of CPUs per client, without and with a server on this host. The server, or the twin that replaces
it, uses the others."""
MOST = 16
BEAT_S = 0.25
Run: TypeAlias = Callable[[TrafficPlan, Callable[[int], None]], list[RequestTimes]]
"""Runs a plan; its second argument receives the number of requests done so far."""
T = TypeVar("T")


def num_clients(spec: ServingSpec, *, cpus: int) -> int:
    """Return the number of clients: as requested, or else as `cpus` allow; each has a connection.

    >>> from gpuproof.records.work.serving import EndpointSpec
    >>> here, there = (ServingSpec(endpoint=EndpointSpec(url=f"http://{x}/v1")) for x in ("[::1]:80", "gpu1"))
    >>> [(num_clients(here, cpus=cpus), num_clients(there, cpus=cpus)) for cpus in (1, 2, 4, 8)]
    [(1, 1), (1, 1), (1, 2), (2, 4)]
    """
    for_each = CPUS_BESIDE_SERVER if _is_here(spec.endpoint.url or "") else CPUS
    wanted = spec.clients or min(MOST, cpus // for_each)
    users = spec.concurrency if spec.scenario == "closed_loop" else wanted
    return max(1, min(wanted, users, spec.endpoint.max_connections))


def _is_here(url: str) -> bool:
    host = Address.parse(url).host
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host in ("localhost", socket.gethostname())


@contextmanager
def clients(loads: Sequence[EndpointLoad]) -> Iterator[Run]:
    """Prepare a client per load, for one endpoint or for twins; yield a function that runs a plan.

    Raises:
        EnvironmentUnfitError: one of the clients exited.
    """
    if len(loads) == 1:
        yield lambda plan, on_done: run_precisely(loads[0].run(plan, on_done))
        return
    with ExitStack() as stack:
        shares = [load.share_of(part, len(loads)) for part, load in enumerate(loads)]
        ends = [stack.enter_context(_client(share)) for share in shares]
        for end in ends:
            _receive(end)
        yield lambda plan, on_done: _run_there(ends, plan, on_done)


@contextmanager
def _client(load: EndpointLoad) -> Iterator[Connection]:
    """Start a client; it reports when it is ready, and is stopped when the block ends."""
    ours, its = Pipe()
    words = ("-m", "gpuproof.worker", "client", str(its.fileno()))
    process = subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.PIPE, pass_fds=(its.fileno(),), start_new_session=True
    )
    its.close()
    try:
        ours.send(load)
        yield ours
    finally:
        process.kill()
        process.communicate()
        ours.close()


def _receive(end: Connection) -> Any:
    try:
        return end.recv()
    except (EOFError, OSError):
        raise EnvironmentUnfitError(
            "a client process exited before its requests were done",
            place="serving.clients",
            next_step="Check the client's last output on standard error; set serving.clients to 1",
        ) from None


def _run_there(
    ends: Sequence[Connection], plan: TrafficPlan, on_done: Callable[[int], None]
) -> list[RequestTimes]:
    num_done, rows = dict.fromkeys(ends, 0), list[RequestTimes]()
    for end, part in zip(ends, plan.split(len(ends)), strict=True):
        end.send(part)
    under_way = set(ends)
    while under_way:
        for end in under_way.intersection(wait(list(under_way))):
            told = _receive(end)
            if isinstance(told, list):
                rows += told
                under_way.remove(end)
            num_done[end] = len(told) if isinstance(told, list) else told
            on_done(sum(num_done.values()))
    return sorted(rows, key=lambda row: (row.scheduled_s, row.issued_s))


def main(arguments: Sequence[str]) -> int:
    """Run plans as requested by the parent process, which starts this command; not for users."""
    end_with_the_parent()
    with Connection(int(arguments[0])) as end, suppress(EOFError):
        load = end.recv()
        end.send(0)
        gc.disable()
        while True:
            end.send(run_precisely(load.run(end.recv(), _Beat(end).update)))
    return 0


def end_with_the_parent() -> None:
    """Exit when standard input closes (nothing is sent on it), i.e. when the parent process exits."""

    def watch() -> None:
        while os.read(0, 1):  # not through sys.stdin, because its lock would be held during a regular exit
            pass
        os._exit(0)

    threading.Thread(target=watch, name="gpuproof-watch", daemon=True).start()


class _Beat:
    """Reports the number of completed requests, a few times a second."""

    def __init__(self, end: Connection) -> None:
        self._end, self._told_s = end, monotonic()

    def update(self, num_done: int) -> None:
        now_s = monotonic()
        if now_s - self._told_s >= BEAT_S:
            self._told_s = now_s
            self._end.send(num_done)


class PreciseSelector(selectors.EpollSelector):
    """A selector that waits with microsecond resolution when it has a timeout."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the events that are ready, after at most `timeout` seconds."""
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def run_precisely(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion in its own loop, as `asyncio.run` does."""
    loop = asyncio.SelectorEventLoop(PreciseSelector())
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(_end_others())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
