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
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

from gpuproof.processes.group import OnExit, ProcessGroup, WatchedProcess
from gpuproof.processes.start import CommandNotStartedError, start_process

LOST = 1
"""The exit status of a child whose server ended first: the true one is lost with it."""


class ForkServer:
    """One running server. Its children are those of one environment and one number of threads."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], output: Path) -> None:
        """Start it; `command` is completed by the descriptor of its socket.

        Raises:
            CommandNotStartedError: the Python to run it with cannot be started.
        """
        self._control, theirs = socket.socketpair()
        self._children: dict[int, ForkedProcess] = {}
        self._num_children = 0
        self._is_lost = False
        self._lock = threading.Lock()
        try:
            with theirs:
                self._process = start_process(
                    [*command, f"--control-fd={theirs.fileno()}"],
                    environment=environment,
                    output=output,
                    pass_fds=[theirs.fileno()],
                )
        except CommandNotStartedError:
            self._control.close()
            raise
        threading.Thread(target=self._listen, name="gpuproof-fork-server", daemon=True).start()

    @property
    def pid(self) -> int:
        """The server's process, the parent of all that it forks."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Say whether it can fork more."""
        return self._process.poll() is None

    def fork(self, words: Sequence[str], *, output: Path, on_exit: OnExit | None = None) -> ForkedProcess:
        """Ask for a child that runs a node-side command; what it prints goes to `output`."""
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
        """Take news until there is none: after a line that a kill cut off, too, children are over."""
        try:
            with self._control.makefile("rb") as lines, suppress(ConnectionError, ValueError):
                for line in lines:
                    self._receive(json.loads(line))
        finally:
            self._end_children()

    def _end_children(self) -> None:
        with self._lock:
            self._is_lost = True
            self._control.close()
            orphans, self._children = tuple(self._children.values()), {}
        for orphan in orphans:
            orphan.wait_without_server()

    def _receive(self, message: Mapping[str, Any]) -> None:
        child = self._children.get(message.get("id", 0))
        if child is None:
            return
        if "pid" in message:
            child.begin(message["pid"])
        else:
            with self._lock:
                del self._children[child.number]
            child.finish(message["status"])


class ForkedProcess(WatchedProcess):
    """One child of a fork server."""

    def __init__(self, server: ForkServer, *, number: int, on_exit: OnExit | None) -> None:
        super().__init__(on_exit)
        self.number = number
        self._server = server
        self._pid: int | None = None
        self._handle: int | None = None

    def begin(self, pid: int) -> None:
        """Record that it runs. The handle names this process for good, where a number may be given again."""
        self._pid = pid
        with suppress(OSError, AttributeError):  # ended already, or not Linux
            self._handle = os.pidfd_open(pid)

    def finish(self, status: int) -> None:
        """Record its exit status and wake who waits for it."""
        if self._handle is not None:
            os.close(self._handle)
        super().finish(status)

    def wait_without_server(self) -> None:
        """Wait for the end of a process whose parent, which would report it, is gone."""
        if self._handle is not None:
            ended = select.poll()  # select() knows no descriptor from 1,024 on
            ended.register(self._handle, select.POLLIN)
            ended.poll()
        self.finish(LOST)

    def signal(self, which: Signals) -> None:
        """Signal the process and what it started."""
        if self._server.is_alive:
            self._server.send({"id": self.number, "signal": which})
        elif self._pid is not None and not self._ended.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self._pid, which)

    def end(self, grace_s: float) -> None:
        """End it; if the server does not answer any more, the server too."""
        try:
            super().end(grace_s)
        finally:
            if self.wait(0) is None:
                self._server.kill()
                self.signal(SIGKILL)
                self.wait(grace_s)


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
        on_exit: OnExit | None = None,
    ) -> ProcessGroup:
        """Fork a case from the server of `key`, which `command` starts where there is none.

        `commands` are the words of the rank, then those of samplers, which are forked first: a case may be
        over before a process that began with it reads. They end with their parent, which is the server.

        Raises:
            CommandNotStartedError: the Python to run the server with cannot be started.
        """
        server = self._servers.get(key)
        if server is None or not server.is_alive:
            server = self._servers[key] = ForkServer(command, environment=environment, output=output)
        words, *beside = commands
        samplers = [
            server.fork([*sampler, f"--parent-pid={server.pid}"], output=output) for sampler in beside
        ]
        rank = server.fork([*words, "--forked"], output=output, on_exit=on_exit)
        return ProcessGroup(rank, samplers, command=shlex.join(words))

    def close(self, grace_s: float) -> None:
        """End all servers, and with them what they forked."""
        servers, self._servers = tuple(self._servers.values()), {}
        for server in servers:
            server.close(grace_s)
