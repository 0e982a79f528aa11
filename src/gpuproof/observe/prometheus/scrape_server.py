"""The server of the exporter: few connections, each for a few seconds, and only under names of its own.

In: an application and how it is reached. Out: a running server. A client that says nothing, or a byte now and
then, holds one of a few places until its time is over, and no memory beyond them. A page of a stranger in the
browser of somebody who may reach us cannot read what we say: its name is not one of ours (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from gpuproof.observe.prometheus.access import Access

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

METRICS_PATH: Final = "/metrics"
MOST_CONNECTIONS: Final = 32
"""Prometheus keeps one, and a few more where several scrape."""
CONNECTION_S: Final = 10.0
"""From its first byte to its end: the time-out of a scrape, unless Prometheus is told otherwise."""


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
