"""Can a run's hosts reach each other? Node 0 listens as its ranks will; other hosts contact it.

A host that is reachable is also contacted on a port chosen by its operating system, in both directions,
because ranks use such ports after the rendezvous. To distinguish a firewall, a host that is down, and a port
without a listener, the error is combined with the response from another port on the same host.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

GREETING = "gpuproof doctor"
CONNECT_S = 3.0
ANSWER_S = 30.0
"""Timeout for hosts that are already connected: no firewall blocks them, but a busy host responds slowly."""
RETRY_S = 0.5
MAPPED = "::ffff:"
"""Prefix of an IPv4 address seen on a dual-stack socket."""
MAX_LINE = 65_536
UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingPoint:
    """Where the hosts rendezvous, and which host this is."""

    master: str
    port: int
    node_rank: int
    num_nodes: int
    wait_s: float


def meet(place: MeetingPoint) -> dict[str, Any]:
    """Rendezvous with the other hosts; return the result as JSON."""
    try:
        addresses = sorted(
            {str(a[4][0]) for a in socket.getaddrinfo(place.master, place.port, type=socket.SOCK_STREAM)}
        )
    except OSError as error:
        return {"addresses": [], "unresolved": str(error)}
    facts: dict[str, Any] = {"addresses": addresses, "unresolved": None}
    return facts | (_receive(place) if place.node_rank == 0 else _visit(place))


def _receive(place: MeetingPoint) -> dict[str, Any]:
    """Listen on all interfaces, as torch's store does, until every other host has connected."""
    try:
        listener = _listen(place.port, backlog=place.num_nodes)
    except OSError as error:
        reason_against = os.strerror(error.errno) if error.errno else str(error)
        return {
            "listening": False,
            "reason_against": reason_against,
            "in_use": error.errno == errno.EADDRINUSE,
        }
    visitors: list[dict[str, Any]] = []
    threads = []
    with listener, _any_port() as data:
        deadline_s = time.monotonic() + place.wait_s
        while (left_s := deadline_s - time.monotonic()) > 0 and len(visitors) < place.num_nodes - 1:
            listener.settimeout(min(left_s, RETRY_S))
            try:
                connection, address = listener.accept()
            except TimeoutError:
                continue
            arguments = (connection, str(address[0]).removeprefix(MAPPED), data.getsockname()[1], visitors)
            threads.append(threading.Thread(target=_greet, args=arguments, daemon=True))
            threads[-1].start()
        until_s = time.monotonic() + CONNECT_S + ANSWER_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
    return {"listening": True, "visitors": sorted(visitors, key=lambda visitor: int(visitor["node_rank"]))}


def _greet(connection: socket.socket, address: str, data_port: int, visitors: list[dict[str, Any]]) -> None:
    """Answer a node, connect back to its own port, and record it; ignore other connections."""
    with connection:
        connection.settimeout(ANSWER_S)
        try:
            hello = _read(connection)
            if hello.get("greeting") != GREETING:
                return
            _write(connection, {"greeting": GREETING, "host": socket.gethostname(), "data_port": data_port})
            called_back = _try_port(address, int(hello["data_port"]))
            visitor = {"node_rank": int(hello["node_rank"]), "host": str(hello["host"]), "address": address}
            visitors.append({**visitor, "called_back": called_back})
            _write(connection, {"called_back": called_back})
            connection.recv(1)  # until the other node has read the reply and disconnected
        except (OSError, ValueError, KeyError):
            return


def _visit(place: MeetingPoint) -> dict[str, Any]:
    """Contact node 0 until it answers or time runs out; then find out what blocks the connection."""
    deadline_s = time.monotonic() + place.wait_s
    while True:
        visit = _attempt(place)
        if visit["outcome"] == "answered" or time.monotonic() + RETRY_S > deadline_s:
            break
        time.sleep(RETRY_S)
    if visit["outcome"] in ("timed out", "no route"):
        other_port = place.port + 1 if place.port < 65_535 else place.port - 1
        visit |= {"other_port": other_port, "other_outcome": _try_port(place.master, other_port)}
    return visit


def _attempt(place: MeetingPoint) -> dict[str, Any]:
    def talk(connection: socket.socket) -> dict[str, Any]:
        with _any_port() as data:
            greeting = {"node_rank": place.node_rank, "host": socket.gethostname()}
            connection.settimeout(ANSWER_S)
            _write(connection, {"greeting": GREETING, **greeting, "data_port": data.getsockname()[1]})
            answer = _read(connection)
            if answer.get("greeting") != GREETING:
                return {"outcome": "wrong answer"}
            other_way = _try_port(str(connection.getpeername()[0]), int(answer["data_port"]))
            called_back = _read(connection)["called_back"]
        source = str(connection.getsockname()[0])
        reached = {"outcome": "answered", "host": answer["host"], "from_address": source}
        return {**reached, "data_port": other_way, "called_back": called_back}

    def converse(connection: socket.socket) -> dict[str, Any]:
        try:
            return talk(connection)
        except (OSError, ValueError, KeyError):
            return {"outcome": "wrong answer"}

    return _connected(place.master, place.port, converse)


def _try_port(host: str, port: int) -> str:
    return str(_connected(host, port, lambda _connection: {"outcome": "connected"})["outcome"])


def _connected(host: str, port: int, use: Callable[[socket.socket], dict[str, Any]]) -> dict[str, Any]:
    try:
        connection = socket.create_connection((host, port), timeout=CONNECT_S)
    except TimeoutError:
        return {"outcome": "timed out"}
    except ConnectionRefusedError:
        return {"outcome": "refused"}
    except OSError as error:
        if error.errno in UNREACHABLE:
            return {"outcome": "no route"}
        return {"outcome": error.strerror or str(error)}
    with connection:
        return use(connection)


def _any_port() -> socket.socket:
    """Listen on a port chosen by the system; the kernel accepts connections by itself."""
    return _listen(0, backlog=64)


def _listen(port: int, *, backlog: int) -> socket.socket:
    """Listen on IPv4 and IPv6 addresses if the system has both.

    Raises:
        OSError: the port is in use or may not be opened.
    """
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
            )
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # IPv6 is compiled in but disabled
                raise
    return socket.create_server(("", port), backlog=backlog)


def _write(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _read(connection: socket.socket) -> dict[str, Any]:
    """Read one line of JSON.

    Raises:
        ValueError: the line is not JSON, or is too long.
        OSError: the line does not arrive in time.
    """
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > MAX_LINE:
            raise ValueError("no complete line arrived")
        line += byte
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message
