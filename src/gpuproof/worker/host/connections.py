"""Over which TCP connections does this process talk, and how much of what it sent was sent again?

The kernel counts for each connection (`tcp_info` in linux/tcp.h, what `ss -ti` shows); a process may ask for
its own without any right. gloo's sockets are among them, and those of NCCL where it talks over sockets.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address

from gpuproof.records.what_ran import Connections, CountedConnection

TOTAL_RETRANS = struct.Struct("@100xI")
"""`tcpi_total_retrans`: segments sent again since the connection was opened."""
DATA_SEGS_OUT = struct.Struct("@156xI")
"""`tcpi_data_segs_out`: segments with data, since Linux 4.6."""
TCP_INFO_BYTES = 256
MOST_KEPT = 32
"""Of the connections of one rank: those of which most was sent again, and then those that sent most."""


def read_connections(rank: int) -> Connections:
    """Read the counts of all connections that this process has open now, by the addresses of their ends."""
    if sys.platform != "linux":
        return _unknown(rank, f"connections are counted by Linux alone, and this is {sys.platform}")
    if socket.getdefaulttimeout() is not None:  # to look at a connection would give it that time-out
        return _unknown(rank, "this process has a default time-out of sockets")
    sent: Counter[tuple[str, str]] = Counter()
    again: Counter[tuple[str, str]] = Counter()
    try:
        for ends, num_sent, num_again in _counted():
            sent[ends] += num_sent
            again[ends] += num_again
    except (OSError, struct.error) as error:
        return _unknown(rank, f"the kernel does not tell: {error}")
    busiest = sorted(sent, key=lambda ends: (-again[ends], -sent[ends], ends))[:MOST_KEPT]
    connections = tuple(
        CountedConnection(
            local=ends[0], peer=ends[1], segments_sent=sent[ends], segments_sent_again=again[ends]
        )
        for ends in busiest
    )
    return Connections(rank=rank, connections=connections, missing=None)


def _unknown(rank: int, missing: str) -> Connections:
    return Connections(rank=rank, connections=(), missing=missing)


def _counted() -> Iterator[tuple[tuple[str, str], int, int]]:
    """Yield each connection's two addresses, the segments sent, and those sent again."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError, NotADirectoryError):  # closed since it was listed, or no socket
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                ends = _ends(connection)
                if ends is not None:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
                    yield ends, DATA_SEGS_OUT.unpack_from(info)[0], TOTAL_RETRANS.unpack_from(info)[0]


def _ends(connection: socket.socket) -> tuple[str, str] | None:
    """Return the addresses of both ends; None of what is no TCP connection."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return None
    try:
        return _address(connection.getsockname()[0]), _address(connection.getpeername()[0])
    except OSError:  # it listens, or the other end is gone
        return None


def _address(text: str) -> str:
    """Write an IPv4 address as one, also where the socket is of IPv6."""
    address = ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
