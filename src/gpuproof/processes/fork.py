"""Processes forked from one that has torch imported: the other end of `gpuproof.worker serve-cases`.

In: the words of node-side commands. Out: for each a process that can be waited for and signalled, as if it
had been started here. A server that dies takes no case with it that is not ended: its children notice.
Used by both halves: the launcher on this machine, and the agent that a launcher started on another.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

from gpuproof.errors import EnvironmentUnfitError

LOST = 1
"""The exit status of a child whose server ended first: nobody was there to hear the true one."""


class ForkServer:
    """One running server. Its children are those of one environment and one number of threads."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], output: Path) -> None:
        """Start it; `command` is completed by the descriptor of its socket.

        Raises:
            EnvironmentUnfitError: the Python to run it with cannot be started.
        """
        self._control, theirs = socket.socketpair()
        self._children: dict[int, ForkedProcess] = {}
        self._num_children = 0
        self._is_lost = False
        self._lock = threading.Lock()
        try:
            with theirs, output.open("ab") as file:
                self._process = subprocess.Popen(
                    [*command, f"--control-fd={theirs.fileno()}"],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError as error:
            self._control.close()
            raise EnvironmentUnfitError(f"cannot be started: {error.strerror}", place=command[0]) from error
        threading.Thread(target=self._listen, name="gpuproof-fork-server", daemon=True).start()

    @property
    def pid(self) -> int:
        """The server's process, the parent of all that it forks."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Say whether it can fork more."""
        return self._process.poll() is None

    def fork(
        self, words: Sequence[str], *, output: Path, on_exit: Callable[[int], None] | None = None
    ) -> ForkedProcess:
        """Ask for a child that runs a node-side command; what it prints goes to `output`.

        `on_exit` hears its exit status, from another thread.
        """
        with self._lock:
            self._num_children += 1
            child = ForkedProcess(self, number=self._num_children, on_exit=on_exit)
            is_lost = self._is_lost
            if not is_lost:
                self._children[child.number] = child
        if is_lost:
            child.finish(LOST)
            return child
        self.send({"id": child.number, "words": list(words), "output": str(output)})
        return child

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request; a server that is gone is noticed by the listening thread."""
        with self._lock, suppress(OSError):
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def close(self, grace_s: float) -> None:
        """End the server, which ends its children first."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the server at once; its children notice and end by themselves."""
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        with self._control.makefile("rb") as lines, suppress(ConnectionError):
            for line in lines:
                self._hear(json.loads(line))
        with self._lock:
            self._is_lost = True
            self._control.close()
            orphans, self._children = tuple(self._children.values()), {}
        for orphan in orphans:
            orphan.outlive_the_server()

    def _hear(self, message: Mapping[str, Any]) -> None:
        child = self._children.get(message.get("id", 0))
        if child is None:
            return
        if "pid" in message:
            child.begin(message["pid"])
        else:
            with self._lock:
                del self._children[child.number]
            child.finish(message["status"])


class ForkedProcess:
    """One child of a fork server, with all that it starts."""

    def __init__(self, server: ForkServer, *, number: int, on_exit: Callable[[int], None] | None) -> None:
        self.number = number
        self._server = server
        self._on_exit = on_exit
        self._pid: int | None = None
        self._handle: int | None = None
        self._status = LOST
        self._ended = threading.Event()

    def begin(self, pid: int) -> None:
        """Hear that it runs. The handle names this process for good, where a number may be given again."""
        self._pid = pid
        with suppress(OSError, AttributeError):  # ended already, or not Linux
            self._handle = os.pidfd_open(pid)

    def finish(self, status: int) -> None:
        """Hear how it ended."""
        self._status = status
        self._ended.set()
        if self._handle is not None:
            os.close(self._handle)
        if self._on_exit is not None:
            self._on_exit(status)

    def outlive_the_server(self) -> None:
        """Wait for the end of a process that has no parent any more to tell of it."""
        if self._handle is not None:
            select.select([self._handle], [], [])
        self.finish(LOST)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end at most `timeout_s`; return the exit status, None if it still runs."""
        return self._status if self._ended.wait(timeout_s) else None

    def signal(self, which: Signals) -> None:
        """Signal the process and what it started."""
        if self._server.is_alive:
            self._server.send({"id": self.number, "signal": which})
        else:
            self._signal_group(which)

    def end(self, grace_s: float) -> None:
        """End it: SIGTERM, time for last words, SIGKILL; if the server answers no more, the server too."""
        try:
            if self.wait(0) is None:
                self.signal(SIGTERM)
                self.wait(grace_s)
        finally:
            if self.wait(0) is None:
                self.signal(SIGKILL)
            if self.wait(grace_s) is None:
                self._server.kill()
                self._signal_group(SIGKILL)
                self.wait(grace_s)

    def _signal_group(self, which: Signals) -> None:
        if self._pid is not None and not self._ended.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self._pid, which)


class ForkedCase:
    """The forked rank of one case, and its samplers."""

    def __init__(self, rank: ForkedProcess, samplers: Sequence[ForkedProcess], *, command: str) -> None:
        self.command = command
        """The words of the rank, until its launcher says how a person could type them."""
        self._rank = rank
        self._samplers = samplers

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the rank's end without polling."""
        return self._rank.wait(timeout_s)

    def end(self, grace_s: float) -> None:
        """End the rank, then the samplers, which write their last line."""
        try:
            self._rank.end(grace_s)
        finally:
            for sampler in self._samplers:
                sampler.end(grace_s)


class ForkServers:
    """Servers that are kept from case to case, and started anew when they are gone."""

    def __init__(self) -> None:
        self._servers: dict[Hashable, ForkServer] = {}

    def start(
        self,
        command: Sequence[str],
        *,
        key: Hashable,
        environment: Mapping[str, str],
        commands: Sequence[Sequence[str]],
        output: Path,
        on_exit: Callable[[int], None] | None = None,
    ) -> ForkedCase:
        """Fork a case from the server of `key`, which `command` starts where there is none.

        `commands` are the words of the rank, then those of samplers, which are forked first: a case may be
        over before a process that began with it reads. They end with their parent, which is the server.

        Raises:
            EnvironmentUnfitError: the Python to run the server with cannot be started.
        """
        server = self._servers.get(key)
        if server is None or not server.is_alive:
            server = self._servers[key] = ForkServer(command, environment=environment, output=output)
        words, *beside = commands
        samplers = [server.fork([*each, f"--parent-pid={server.pid}"], output=output) for each in beside]
        rank = server.fork([*words, "--forked"], output=output, on_exit=on_exit)
        return ForkedCase(rank, samplers, command=shlex.join(words))

    def close(self, grace_s: float) -> None:
        """End all servers, and with them what they forked."""
        servers, self._servers = tuple(self._servers.values()), {}
        for server in servers:
            server.close(grace_s)
