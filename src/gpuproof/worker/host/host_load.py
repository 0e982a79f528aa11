"""Changes in kernel counters between two points in time: CPU use and TCP retransmissions.

The counters are read from /proc just outside the measured window, so that another process that used the CPU
during the window is detected afterwards, at no cost inside it. Other systems provide only the data that
Python offers, with the reason why the rest is missing. The kernel counts segments for each TCP connection
(`tcp_info` in linux/tcp.h, as shown by `ss -ti`), and a process may query its own connections without
privileges: this covers gloo's sockets, and NCCL's if it uses sockets.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from multiprocessing import active_children
from pathlib import Path

from gpuproof.records.run import HostLoad
from gpuproof.records.what_ran import Connections, CountedConnection

BUSY_FIELDS = (1, 2, 3, 6, 7)
"""Columns user, nice, system, irq and softirq in the first line of /proc/stat; idle and iowait do not count
as busy."""
STEAL_FIELD = 8
UTIME_FIELD = 11
"""Position in /proc/PID/stat after the name in parentheses: user time, then system time."""
TOTAL_RETRANS = struct.Struct("@100xI")
"""Field `tcpi_total_retrans`: segments retransmitted since the connection was opened."""
DATA_SEGS_OUT = struct.Struct("@156xI")
"""Field `tcpi_data_segs_out`: segments with data; available since Linux 4.6."""
TCP_INFO_BYTES = 256
MOST_KEPT = 32
"""Maximum number of connections recorded per rank: first those with the most retransmissions, then those that
sent the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReading:
    """Cumulative counts at one point in time."""

    monotonic_s: float
    own_cpu_s: float
    busy_cpu_s: float | None
    steal_cpu_s: float | None
    run_queue_wait_s: float | None
    missing: str | None


def read_load(proc: Path = Path("/proc")) -> LoadReading:
    """Read the current totals, including this process's children, both running and exited.

    Values that the system does not provide are None, with the reason in `missing`.
    """
    busy_cpu_s: float | None = None
    steal_cpu_s: float | None = None
    run_queue_wait_s: float | None = None
    missing: str | None = None
    ended = os.times()
    own_cpu_s = time.process_time() + ended.children_user + ended.children_system
    children = [proc / str(child.pid) for child in active_children()]
    try:
        fields = (proc / "stat").read_text().split("\n", 1)[0].split()
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        busy_cpu_s = sum(int(fields[i]) for i in BUSY_FIELDS) / ticks_per_s
        steal_cpu_s = int(fields[STEAL_FIELD]) / ticks_per_s
        own_cpu_s += sum(_cpu_ticks(child / "stat") for child in children) / ticks_per_s
        run_queue_wait_s = _run_queue_wait_s(proc / "self" / "task")
        run_queue_wait_s += sum(_run_queue_wait_s(child / "task") for child in children if child.exists())
    except (OSError, IndexError, ValueError) as error:
        missing = f"{proc}: {error}"
    return LoadReading(
        monotonic_s=time.monotonic(),
        own_cpu_s=own_cpu_s,
        busy_cpu_s=busy_cpu_s,
        steal_cpu_s=steal_cpu_s,
        run_queue_wait_s=run_queue_wait_s,
        missing=missing,
    )


def _cpu_ticks(stat: Path) -> int:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it exited after it was listed
    return int(fields[UTIME_FIELD]) + int(fields[UTIME_FIELD + 1])


def _run_queue_wait_s(tasks: Path) -> float:
    """Sum, over this process's threads, the time spent runnable without a CPU (schedstat, ns)."""
    return sum(_wait_ns(task) for task in tasks.iterdir()) / 1e9


def _wait_ns(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        if task.exists():
            raise
        return 0  # the thread exited after it was listed


def load_between(begin: LoadReading, end: LoadReading) -> HostLoad:
    """Return the load in the interval between two readings."""
    wait_s = _difference(begin.run_queue_wait_s, end.run_queue_wait_s)
    missing = begin.missing or end.missing
    if wait_s is not None and wait_s < 0:  # when a thread exits, its total is lost
        wait_s, missing = None, "threads that had waited for a CPU exited in the window"
    return HostLoad(
        num_cpus=os.cpu_count() or 1,  # the total for the host, which busy_cpu_s covers
        busy_cpu_s=_difference(begin.busy_cpu_s, end.busy_cpu_s),
        own_cpu_s=end.own_cpu_s - begin.own_cpu_s,
        run_queue_wait_s=wait_s,
        steal_cpu_s=_difference(begin.steal_cpu_s, end.steal_cpu_s),
        missing=missing,
        span_s=end.monotonic_s - begin.monotonic_s,
    )


def _difference(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


def read_connections(rank: int) -> Connections:
    """Read the counts of all connections that this process has open, keyed by both addresses."""
    if sys.platform != "linux":
        return _unknown(rank, f"connection counts are available only on Linux, and this is {sys.platform}")
    # inspecting a connection through a socket object would set that timeout on it
    if socket.getdefaulttimeout() is not None:
        return _unknown(rank, "this process has a default socket timeout")
    sent: Counter[tuple[str, str]] = Counter()
    again: Counter[tuple[str, str]] = Counter()
    try:
        for ends, num_sent, num_again in _counted():
            sent[ends] += num_sent
            again[ends] += num_again
    except (OSError, struct.error) as error:
        return _unknown(rank, f"the kernel does not report it: {error}")
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
    """Yield each connection's two addresses, the segments it sent, and those it retransmitted."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError, NotADirectoryError):  # closed since it was listed, or not a socket
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                ends = _ends(connection)
                if ends is not None:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
                    yield ends, DATA_SEGS_OUT.unpack_from(info)[0], TOTAL_RETRANS.unpack_from(info)[0]


def _ends(connection: socket.socket) -> tuple[str, str] | None:
    """Return the addresses of both ends; None if it is not a TCP connection."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return None
    try:
        return _address(connection.getsockname()[0]), _address(connection.getpeername()[0])
    except OSError:  # it is a listening socket, or the other end has closed
        return None


def _address(text: str) -> str:
    """Format an IPv4 address as IPv4, even if it comes from an IPv6 socket."""
    address = ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
