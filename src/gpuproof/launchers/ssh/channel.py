"""One host's agent as seen from this side: one SSH channel, with frames in both directions.

In: an open connection. Out: responses to requests, and the output and end of each launch, passed to its
follower. Everything runs in the event loop, including callbacks.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import asyncssh

from gpuproof.base.errors import RecordError
from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.base import HostError
from gpuproof.launchers.ssh.boot import boot_command, removal_command
from gpuproof.records.frames import GREETING, MAX_PAYLOAD_BYTES, Frame, FrameDecoder, encode_frame
from gpuproof.records.run import HostStage

BEATS_PER_LEASE = 3
START_TIMEOUT_S = 120.0
"""Time for Python to start on a busy host."""
LEAVE_TIMEOUT_S = 15.0
NOISE_BYTES = 1 << 16
"""Maximum login output before the agent starts; also the maximum amount of its stderr that is stored."""


AGENT_FACTS = {"python": str, "archive": str, "directory": str, "pid": int, "host": str}
"""What an agent reports about itself once it has started."""
COMMAND_FACTS = {"status": int, "stdout": str, "stderr": str}


class Follower(Protocol):
    """Receives the events of one launch."""

    def file_grew(self, name: str, offset: int, content: bytes) -> None:
        """Receive new bytes; if there are none, the file has been truncated to `offset`."""

    def has_exited(self, status: int) -> None:
        """Handle the exit of the ranks."""

    def has_ended(self) -> None:
        """Handle the end of the launch: everything has stopped, and every byte has been delivered."""

    def is_lost(self, cause: str) -> None:
        """Handle the loss of the host; no events follow."""


class AgentChannel(asyncssh.SSHClientSession[bytes]):
    """The session with one agent."""

    def __init__(self, host: InventoryHost) -> None:
        self.host = host
        self.ready: dict[str, Any] = {}
        """What the agent reported about itself: python, archive, directory, pid, host."""
        self._channel: asyncssh.SSHClientChannel[bytes]
        self._decoder = FrameDecoder()
        self._noise: bytes | None = b""
        self._stderr = b""
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._followers: dict[str, Follower] = {}
        self._numbers = itertools.count()
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.get_running_loop().create_future()
        self._beat: asyncio.TimerHandle | None = None
        self.cause = ""
        """Why the agent stopped; empty while it is running."""

    @classmethod
    async def start(
        cls, connection: asyncssh.SSHClientConnection, host: InventoryHost, archive: bytes, *, lease_s: float
    ) -> AgentChannel:
        """Transfer the node side and start the agent.

        Raises:
            HostError: the agent cannot be started on the host.
        """
        command = boot_command(host.python or "python3", archive, directory=host.directory, lease_s=lease_s)
        session = cls(host)
        session._channel, _ = await connection.create_session(lambda: session, command, encoding=None)
        session._answers["boot"] = asyncio.get_running_loop().create_future()
        await session._write(archive)
        session._keep_beating(lease_s / BEATS_PER_LEASE)
        session.ready = await session._answer("boot", START_TIMEOUT_S, stage="deploy")
        session._refuse_ill_typed(session.ready, AGENT_FACTS, stage="deploy")
        return session

    @property
    def is_closed(self) -> bool:
        """Check whether the agent's channel is closed."""
        return self._closed.done()

    async def put(self, source: Path, path: str) -> None:
        """Transfer a file, and verify it by its checksum.

        Raises:
            HostError: the file cannot be stored on the host.
        """
        digest, offset = hashlib.sha256(), 0
        about = self._expect()
        with source.open("rb") as file:
            piece = file.read(MAX_PAYLOAD_BYTES)
            while True:
                digest.update(piece)
                following = file.read(MAX_PAYLOAD_BYTES)
                last = {} if following else {"sha256": digest.hexdigest()}
                header = {"do": "put", "about": about, "path": path, "offset": offset, **last}
                await self._write(encode_frame(header, piece))
                offset += len(piece)
                if not following:
                    break
                piece = following
        await self._answer(about, None, stage="deploy")

    async def launch(
        self,
        follower: Follower,
        *,
        folder: str,
        files: Mapping[str, str],
        commands: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        fork_server: Sequence[str] | None = None,
    ) -> str:
        """Start commands in a folder below the agent's directory; return the launch's name.

        If `fork_server` is given (the command that starts one), the commands are for the node side, and the
        server forks them.

        Raises:
            HostError: the commands cannot be started.
        """
        about = self._expect()
        self._followers[about] = follower
        order = {
            "do": "launch",
            "about": about,
            "folder": folder,
            "files": dict(files),
            "commands": [list(command) for command in commands],
            "environment": dict(environment),
            "fork_server": None if fork_server is None else list(fork_server),
        }
        await self._write(encode_frame(order))
        try:
            await self._answer(about, None, stage="execute")
        except HostError:
            self._followers.pop(about, None)
            raise
        return about

    async def end(self, about: str, grace_s: float) -> None:
        """Ask a launch to stop; the result goes to the follower of the launch."""
        await self._write(encode_frame({"do": "end", "about": about, "grace_s": grace_s}))

    async def ask(self, command: Sequence[str], *, timeout_s: float) -> dict[str, Any]:
        """Run a short command on the host; return its status, stdout and stderr.

        Raises:
            HostError: the command cannot be run, or does not respond in time.
        """
        about = self._expect()
        order = {"do": "ask", "about": about, "command": list(command), "timeout_s": timeout_s}
        await self._write(encode_frame(order))
        answer = await self._answer(about, timeout_s + START_TIMEOUT_S, stage="execute")
        self._refuse_ill_typed(answer, COMMAND_FACTS, stage="execute")
        return answer

    async def free_port(self) -> int:
        """Return a port that is currently free on the host."""
        about = self._expect()
        await self._write(encode_frame({"do": "port", "about": about}))
        answer = await self._answer(about, START_TIMEOUT_S, stage="execute")
        self._refuse_ill_typed(answer, {"port": int}, stage="execute")
        return int(answer["port"])

    async def leave(self, connection: asyncssh.SSHClientConnection) -> None:
        """Have the agent stop all remaining processes, remove its directory, and exit."""
        if not self._closed.done():
            await self._write(encode_frame({"do": "leave"}))
            await asyncio.wait({self._closed}, timeout=LEAVE_TIMEOUT_S)
        elif not connection.is_closed() and (command := removal_command(self.ready.get("directory", ""))):
            # The agent was killed, so what it would have removed still exists.
            await asyncio.wait_for(connection.run(command, check=False), LEAVE_TIMEOUT_S)
        if self._beat is not None:
            self._beat.cancel()

    def _expect(self) -> str:
        about = str(next(self._numbers))
        self._answers[about] = asyncio.get_running_loop().create_future()
        if self._closed.done():
            self._answers[about].set_result({"say": "failed", "cause": self.cause})
        return about

    async def _answer(self, about: str, timeout_s: float | None, *, stage: HostStage) -> dict[str, Any]:
        future = self._answers[about]
        try:
            answer = await asyncio.wait_for(future, timeout_s)
        except TimeoutError as error:
            cause = f"no response within {timeout_s:.0f} s"
            raise HostError(cause, host=self.host.name, stage=stage) from error
        finally:
            self._answers.pop(about, None)
        if answer["say"] == "failed":
            raise HostError(str(answer.get("cause")), host=self.host.name, stage=stage)
        return answer

    def _refuse_ill_typed(
        self, reply: Mapping[str, Any], facts: Mapping[str, type], stage: HostStage
    ) -> None:
        """Reject a response in which a value is missing or has the wrong type.

        Raises:
            HostError: the response is invalid; the message says why.
        """
        for name, kind in facts.items():
            if type(reply.get(name)) is not kind:
                raise HostError(
                    f"the agent's answer cannot be read: {name} is {reply.get(name)!r:.60}",
                    host=self.host.name,
                    stage=stage,
                )

    async def _write(self, data: bytes) -> None:
        """Send bytes; do nothing if the remote side has exited: its last message contains the reason."""
        await self._writable.wait()
        if self._closed.done():
            return
        try:
            self._channel.write(data)
        except BrokenPipeError:  # the agent has exited; its last message may still be on its way
            await asyncio.wait({self._closed}, timeout=LEAVE_TIMEOUT_S)
            self._lose("the agent no longer accepts any data")

    def _keep_beating(self, interval_s: float) -> None:
        if self._closed.done():
            return
        if self._writable.is_set():
            with suppress(BrokenPipeError):  # the exit is reported once the last message has arrived
                self._channel.write(encode_frame({"do": "beat"}))
        loop = asyncio.get_running_loop()
        self._beat = loop.call_later(interval_s, self._keep_beating, interval_s)

    # Callbacks of asyncssh.

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Receive bytes from standard output or standard error."""
        if datatype is not None:
            self._stderr = (self._stderr + data)[-NOISE_BYTES:]
            return
        if self._noise is not None:
            self._noise += data
            before, greeting, data = self._noise.partition(GREETING)
            if not greeting:
                self._noise = before[-NOISE_BYTES:]
                return
            self._noise = None
        try:
            for frame in self._decoder.feed(data):
                self._hear(frame)
        except (RecordError, KeyError, TypeError, ValueError, OverflowError) as error:
            self._lose(f"the agent's answer cannot be read: {error}")
            self._channel.abort()
        except OSError as error:
            self._lose(f"the received data cannot be stored here: {error.strerror}")
            self._channel.abort()

    def _hear(self, frame: Frame) -> None:
        words = frame.header
        what, about = words["say"], str(words.get("about", "boot"))
        if what in ("answer", "failed", "ready"):
            future = self._answers.get(about)
            if future is not None and not future.done():
                future.set_result(words)
            return
        follower = self._followers[about]
        if what == "file":
            follower.file_grew(str(words["name"]), int(words["offset"]), frame.payload)
        elif what == "exited":
            follower.has_exited(_exit_status(words["status"]))
        elif what == "ended":
            self._followers.pop(about).has_ended()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the channel being closed."""
        self._lose(None if exc is None else f"the connection is lost: {exc}")

    def _lose(self, cause: str | None) -> None:
        if self._closed.done():
            return
        self._closed.set_result(None)
        self._writable.set()
        words = self.cause = cause or self._last_words()
        for future in self._answers.values():
            if not future.done():
                future.set_result({"say": "failed", "cause": words})
        for follower in self._followers.values():
            follower.is_lost(words)
        self._followers.clear()

    def _last_words(self) -> str:
        """Return why the channel closed, with the remote side's last message if there is one."""
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        return f"the agent exited: {lines[-1]}" if lines else "the agent exited without an error message"

    def pause_writing(self) -> None:
        """Pause writing, since the link is slower than this side."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Resume writing."""
        self._writable.set()


def _exit_status(status: Any) -> int:
    """Return the exit status of a process if it is valid: a negative signal number, or eight bits.

    Raises:
        ValueError: it is not a valid exit status.
    """
    if type(status) is not int or not -128 <= status <= 255:
        raise ValueError(f"an exit status of {status!r:.60}")
    return status
