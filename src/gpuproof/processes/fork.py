"""Fork processes from one that has imported torch: the client of `gpuproof.worker serve-cases`.

Input: the arguments of node-side commands. Output: for each command, a process that can be waited for and
signalled as if it had been started here. If a server dies, running cases survive, and its children notice.
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
"""Exit status reported for a child if its server exited first; the real status is lost with the server."""


class ForkServer:
    """One running server. Its children share the same environment and number of threads."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], output: Path) -> None:
        """Start the server; the descriptor of its socket is added to `command`.

        Raises:
            CommandNotStartedError: its Python interpreter cannot be started.
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
        """The server process, which is the parent of every process it forks."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Return whether the server can still fork."""
        return self._process.poll() is None

    def fork(self, words: Sequence[str], *, output: Path, on_exit: OnExit | None = None) -> ForkedProcess:
        """Request a child process that runs a node-side command; its output goes to `output`."""
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
        """Send a request; if the server has exited, the listening thread notices."""
        with self._lock, suppress(OSError):
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def close(self, grace_s: float) -> None:
        """Stop the server, which first stops its children."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Stop the server immediately; its children notice and exit by themselves."""
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        """Read messages until the stream ends or a kill truncates one; all children then count as lost."""
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
        """Record that the child is running: its handle always identifies it, while a pid may be reused."""
        self._pid = pid
        with suppress(OSError, AttributeError):  # already exited, or not Linux
            self._handle = os.pidfd_open(pid)

    def finish(self, status: int) -> None:
        """Record the child's exit status and wake up waiters."""
        if self._handle is not None:
            os.close(self._handle)
        super().finish(status)

    def wait_without_server(self) -> None:
        """Wait for a process to exit when its parent, which would have reported the exit, has died."""
        if self._handle is not None:
            ended = select.poll()  # select() does not support descriptors of 1,024 and above
            ended.register(self._handle, select.POLLIN)
            ended.poll()
        self.finish(LOST)

    def signal(self, which: Signals) -> None:
        """Signal the process and its descendants."""
        if self._server.is_alive:
            self._server.send({"id": self.number, "signal": which})
        elif self._pid is not None and not self._ended.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self._pid, which)

    def end(self, grace_s: float) -> None:
        """Stop the child; if the server no longer responds, stop the server too."""
        try:
            super().end(grace_s)
        finally:
            if self.wait(0) is None:
                self._server.kill()
                self.signal(SIGKILL)
                self.wait(grace_s)


class ForkServers:
    """Servers that are reused across cases and restarted once they have died."""

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
        """Fork a case from the server for `key`; start that server with `command` if there is none.

        `commands` contains the rank's arguments, then the samplers' arguments. The samplers are forked first,
        because a case may finish before a process started with it takes a reading. They exit with their
        parent, the server.

        Raises:
            CommandNotStartedError: the server's Python interpreter cannot be started.
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
        """Stop all servers and every process that they forked."""
        servers, self._servers = tuple(self._servers.values()), {}
        for server in servers:
            server.close(grace_s)
