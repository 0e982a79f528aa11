"""The Prometheus exporter: serves the latest readings of all devices and the host at `/metrics`.

In: an iterator of records. Out: an HTTP server, on loopback unless another address is given. A missing
reading produces no line. If the sampler stops, all readings are removed and `gpuproof_sampler_up` shows this,
because a stale value would look like a healthy device. A client that sends nothing, or only a byte now and
then, occupies one of a few slots until its time is up, and uses no other memory. A page from another site in
a browser that can reach us cannot read our responses, because we do not respond to its host name (DNS
rebinding).
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
"""Maximum number of connections: Prometheus keeps one open; several scraping servers need a few more."""
CONNECTION_S: Final = 10.0
"""Maximum duration of a connection, from its first byte: Prometheus' default scrape timeout."""


@dataclass(slots=True)
class Feed:
    """The state that one thread writes and that scrapes read."""

    state: LiveState = field(default_factory=LiveState)
    lock: threading.Lock = field(default_factory=threading.Lock)
    fresh_until_s: float = 0.0
    failure: GpuproofError | None = None
    stopping: bool = False


class DeviceCollector(Collector):
    """Converts the state into metric families at scrape time."""

    def __init__(self, feed: Feed, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Return all families, each with a line for every device that has this reading."""
        with self._feed.lock:
            yield from families(self._feed.state, fresh=self._clock() < self._feed.fresh_until_s)

    def describe(self) -> Iterable[Metric]:
        """Declare no metric names in advance, because they depend on the devices."""
        return ()


def feed_from(records: Records, feed: Feed, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Update the feed until the records end; a failure is stored in the feed."""
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
        """Close the reader, which stops the sampler that writes its records, and stop serving."""
        self.feed.stopping = True
        self.reader.join()
        self.close()

    def close(self) -> None:
        """Stop serving; the reader stops once its records end."""
        self.server.shutdown()
        self.server.server_close()
        self.server_thread.join()


def serve(records: Records, *, address: str, port: int, access: Access = OPEN) -> RunningExporter:
    """Start reading records and answering scrapes; port 0 picks a free port.

    Raises:
        EnvironmentUnfitError: the address cannot be bound.
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
            next_step="Choose another with --address or --port",
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="scrapes", daemon=True)
    thread.start()
    return server, thread


@dataclass(frozen=True, slots=True)
class TextfileExporter:
    """Writes what a scrape would return to a file, for node_exporter's textfile collector."""

    path: Path
    feed: Feed
    reader: threading.Thread
    registry: CollectorRegistry

    def write(self) -> None:
        """Write the file atomically: write a temporary file, then rename it.

        Raises:
            EnvironmentUnfitError: the file cannot be written.
        """
        try:
            write_to_textfile(str(self.path), self.registry)
        except OSError as error:
            raise EnvironmentUnfitError(
                error.strerror or str(error), place=str(self.path), next_step="Choose another with --textfile"
            ) from error

    def stop(self) -> None:
        """Close the reader, and write a final file that reports that there are no more readings."""
        self.feed.stopping = True
        self.reader.join()
        self.write()


def serve_textfile(records: Records, folder: Path) -> TextfileExporter:
    """Start reading records for `gpuproof.prom` in a folder; `write` writes the file.

    Raises:
        EnvironmentUnfitError: the file cannot be written.
    """
    feed = Feed()
    exporter = TextfileExporter(folder / TEXTFILE, feed, _reader(records, feed), _registry(feed))
    exporter.write()
    exporter.reader.start()
    return exporter


class ScrapeHandler(WSGIRequestHandler):
    """Handles one connection and prints nothing."""

    timeout = CONNECTION_S

    def log_message(self, *_: Any) -> None:
        """Log nothing: scrapes are frequent."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """One thread per connection, up to a small limit; further connections are closed immediately."""

    daemon_threads = True
    connection_s = CONNECTION_S

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, ScrapeHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle the connection in a thread if a slot is free."""
        if not self._free.acquire(blocking=False):
            self.close_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and close the connection at its deadline, however slowly its client sends."""
        limit = threading.Timer(self.connection_s, _cut_off, (request,))
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about a client that disconnected or was cut off."""


def _cut_off(request: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(request, socket.SHUT_RDWR)  # also for TLS, without sending its closing message


def listen(application: WSGIApplication, *, address: str, port: int, access: Access) -> ScrapeServer:
    """Open a server that answers once `serve_forever` is called; port 0 picks a free port.

    Raises:
        OSError: the address cannot be bound.
    """
    server = ScrapeServer((address, port))
    server.set_app(restricted(application, {address, *access.hosts}))
    if access.certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(access.certificate, access.key)
        # Otherwise one silent client would block all others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


def restricted(application: WSGIApplication, names: Collection[str]) -> WSGIApplication:
    """Return an application that serves `METRICS_PATH` to requests for an IP, this host or `names`."""
    hosts = {name.lower().rstrip(".") for name in (*names, "localhost", socket.gethostname())}

    def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        name = host_name(str(environ.get("HTTP_HOST", "")))
        status, text = "404 Not Found", f"readings are at {METRICS_PATH}\n"
        if name and name not in hosts and not _is_address(name):
            status = "403 Forbidden"
            text = "unknown host name; start gpuproof monitor serve with --allowed-host NAME\n"
        elif environ["PATH_INFO"] == METRICS_PATH:
            return application(environ, start_response)
        start_response(status, [("Content-Type", "text/plain")])
        return [text.encode()]

    return answer


def host_name(header: str) -> str:
    """Return the host name in a Host header, without its port.

    >>> [host_name(text) for text in ("Node7.site.:9837", "[::1]:9837", "10.0.0.1", "")]
    ['node7.site', '::1', '10.0.0.1', '']
    """
    text = header.strip().lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    return name.rstrip(".")


def _is_address(name: str) -> bool:
    """Check whether the name is an IP address, which needs no DNS lookup."""
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False
