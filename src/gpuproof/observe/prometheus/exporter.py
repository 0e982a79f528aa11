"""The Prometheus exporter: the latest readings of all devices and the host, at `/metrics`.

In: an iterator of records. Out: an HTTP server, on loopback unless another address is given. A reading that
is not there has no line, and a sampler that stopped takes all readings away with it and shows in
`gpuproof_sampler_up`: a stale value looks like a healthy device. A client that says nothing, or a byte now
and then, holds one of a few places until its time is over, and no memory beyond them. A page of a stranger in
the browser of somebody who may reach us cannot read what we say: its name is not one of ours (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app, write_to_textfile
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError
from gpuproof.observe.live_state import LiveState
from gpuproof.observe.prometheus.access import OPEN, Access, guarded
from gpuproof.observe.prometheus.families import families
from gpuproof.observe.stream import Records, batches
from gpuproof.records.readings import Sample

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication


TEXTFILE: Final = "gpuproof.prom"
_STALE_FACTOR: Final = 5.0
"""Readings older than this many intervals are no longer served."""
METRICS_PATH: Final = "/metrics"
MOST_CONNECTIONS: Final = 32
"""Prometheus keeps one, and a few more where several scrape."""
CONNECTION_S: Final = 10.0
"""From its first byte to its end: the time-out of a scrape, unless Prometheus is told otherwise."""


@dataclass(slots=True)
class Feed:
    """The state that one thread writes and scrapes read."""

    state: LiveState = field(default_factory=LiveState)
    lock: threading.Lock = field(default_factory=threading.Lock)
    fresh_until_s: float = 0.0
    failure: GpuproofError | None = None
    stopping: bool = False


class DeviceCollector(Collector):
    """Turns the state at the moment of a scrape into metric families."""

    def __init__(self, feed: Feed, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Give all families, each with a line for every device that has the reading."""
        with self._feed.lock:
            yield from families(self._feed.state, fresh=self._clock() < self._feed.fresh_until_s)

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand: what there is depends on the devices."""
        return ()


def feed_from(records: Records, feed: Feed, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Keep the feed up to date until the records end; a failure is kept in it."""
    try:
        with closing(batches(records)) as incoming:
            for batch in incoming:
                _take(batch, feed, clock())
                if feed.stopping:
                    break
    except GpuproofError as error:
        feed.failure = error
    with feed.lock:
        feed.fresh_until_s = 0.0


def _take(batch: list[Any], feed: Feed, now_s: float) -> None:
    with feed.lock:
        feed.state.apply(batch)
        if any(isinstance(record, Sample) for record in batch):
            header = feed.state.header
            interval_s = 1.0 if header is None else header.fast_interval_s
            feed.fresh_until_s = now_s + max(2.0, interval_s * _STALE_FACTOR)


@dataclass(frozen=True, slots=True)
class RunningExporter:
    """A running exporter."""

    url: str
    feed: Feed
    reader: threading.Thread
    server: ScrapeServer
    server_thread: threading.Thread

    def stop(self) -> None:
        """Let the reader go, which ends the sampler behind its records, and stop to answer."""
        self.feed.stopping = True
        self.reader.join()
        self.close()

    def close(self) -> None:
        """Stop to answer; the reader ends with its records."""
        self.server.shutdown()
        self.server.server_close()
        self.server_thread.join()


def serve(records: Records, *, address: str, port: int, access: Access = OPEN) -> RunningExporter:
    """Start to read records and to answer scrapes; port 0 takes a free one.

    Raises:
        EnvironmentUnfitError: the address cannot be listened on.
    """
    feed = Feed()
    server, server_thread = _listen(_registry(feed), address=address, port=port, access=access)
    reader = _reader(records, feed)
    reader.start()
    shown = f"[{address}]" if ":" in address else address
    return RunningExporter(
        url=f"{access.scheme}://{shown}:{server.server_port}/metrics",
        feed=feed,
        reader=reader,
        server=server,
        server_thread=server_thread,
    )


def _registry(feed: Feed) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DeviceCollector(feed))
    return registry


def _reader(records: Records, feed: Feed) -> threading.Thread:
    return threading.Thread(target=feed_from, args=(records, feed), name="readings", daemon=True)


def _listen(
    registry: CollectorRegistry, *, address: str, port: int, access: Access
) -> tuple[ScrapeServer, threading.Thread]:
    application = make_wsgi_app(registry)
    if access.password is not None:
        application = guarded(application, access.password)
    try:
        server = listen(application, address=address, port=port, access=access)
    except OSError as error:
        raise EnvironmentUnfitError(
            error.strerror or str(error),
            place=f"{address}:{port}",
            next_step="Name another with --address or --port",
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="scrapes", daemon=True)
    thread.start()
    return server, thread


@dataclass(frozen=True, slots=True)
class TextfileExporter:
    """Writes what a scrape would get to a file, for node_exporter's textfile collector."""

    path: Path
    feed: Feed
    reader: threading.Thread
    registry: CollectorRegistry

    def write(self) -> None:
        """Write the file whole: aside, then renamed.

        Raises:
            EnvironmentUnfitError: it cannot be written.
        """
        try:
            write_to_textfile(str(self.path), self.registry)
        except OSError as error:
            raise EnvironmentUnfitError(
                error.strerror or str(error), place=str(self.path), next_step="Name another with --textfile"
            ) from error

    def stop(self) -> None:
        """Let the reader go, and leave a file that says that readings stopped."""
        self.feed.stopping = True
        self.reader.join()
        self.write()


def serve_textfile(records: Records, folder: Path) -> TextfileExporter:
    """Start to read records for `gpuproof.prom` in a folder; `write` writes it.

    Raises:
        EnvironmentUnfitError: it cannot be written.
    """
    feed = Feed()
    exporter = TextfileExporter(folder / TEXTFILE, feed, _reader(records, feed), _registry(feed))
    exporter.write()
    exporter.reader.start()
    return exporter


class ScrapeHandler(WSGIRequestHandler):
    """Answers one connection and prints nothing."""

    timeout = CONNECTION_S

    def log_message(self, *_: Any) -> None:
        """Say nothing: scrapes are many."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection, of which there are few; more are closed at once."""

    daemon_threads = True
    connection_s = CONNECTION_S

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, ScrapeHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread if a place is free."""
        if not self._free.acquire(blocking=False):
            self.close_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and cut the connection off when its time is over, however slowly its client goes on."""
        limit = threading.Timer(self.connection_s, _cut_off, (request,))
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away, or was cut off."""


def _cut_off(request: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(request, socket.SHUT_RDWR)  # of TLS, too, without its last words


def listen(application: WSGIApplication, *, address: str, port: int, access: Access) -> ScrapeServer:
    """Open a server that answers once `serve_forever` is called; port 0 takes a free one.

    Raises:
        OSError: the address cannot be listened on.
    """
    server = ScrapeServer((address, port))
    server.set_app(restricted(application, {address, *access.hosts}))
    if access.certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(access.certificate, access.key)
        # Else one client that says nothing would hold up all others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


def restricted(application: WSGIApplication, names: Collection[str]) -> WSGIApplication:
    """Return the application at `METRICS_PATH`, for who asks an address, this machine's name or `names`."""
    hosts = {name.lower().rstrip(".") for name in (*names, "localhost", socket.gethostname())}

    def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        name = host_name(str(environ.get("HTTP_HOST", "")))
        status, text = "404 Not Found", f"readings are at {METRICS_PATH}\n"
        if name and name not in hosts and not _is_address(name):
            status = "403 Forbidden"
            text = "not known by that name; start gpuproof monitor serve with --allowed-host NAME\n"
        elif environ["PATH_INFO"] == METRICS_PATH:
            return application(environ, start_response)
        start_response(status, [("Content-Type", "text/plain")])
        return [text.encode()]

    return answer


def host_name(header: str) -> str:
    """Return the name in a Host header, without its port.

    >>> [host_name(text) for text in ("Node7.site.:9837", "[::1]:9837", "10.0.0.1", "")]
    ['node7.site', '::1', '10.0.0.1', '']
    """
    text = header.strip().lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    return name.rstrip(".")


def _is_address(name: str) -> bool:
    """Say whether it is an address: no server of names stands behind one."""
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False
