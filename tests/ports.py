"""Ports for what tests start, where something else has to know one before anybody can listen on it."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack

FIRST, NUM_PORTS = 10_000, 10_000
"""Below those that gpuproof draws (20,000 and up) and those that the kernel gives out (32,768 and up)."""
MIN_BLOCKS = 10


class _Block:
    """The ports of this process alone, among all workers of a run of tests."""

    def __init__(self) -> None:
        workers = max(MIN_BLOCKS, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
        self._size = NUM_PORTS // workers
        self._first = FIRST + self._size * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
        self._place = os.getpid() % self._size  # another run of tests may be under way
        self._lock = threading.Lock()

    def take(self, number: int) -> int:
        """Return the first of the next ports in a row, which come again after all others."""
        with self._lock:
            if self._place + number > self._size:
                self._place = 0
            taken = self._first + self._place
            self._place += number
        return taken

    @property
    def num_tries(self) -> int:
        return self._size


_BLOCK = _Block()


def free_ports(number: int = 1, address: str = "127.0.0.1") -> int:
    """Return the first of so many ports in a row that nobody listens on, and that no other test is given."""
    for _ in range(_BLOCK.num_tries):
        first = _BLOCK.take(number)
        if _are_free(range(first, first + number), address):
            return first
    raise AssertionError("no free ports")


def _are_free(ports: range, address: str) -> bool:
    with ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.socket()).bind((address, port))
        except OSError:
            return False
    return True
