"""One host's agent, seen from here: one SSH channel, frames in both directions.

In: an open connection. Out: answers to what is asked, and the growth and end of each launch, told to whoever
follows it. Runs in the event loop; what it hands on is taken in there.
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
"""For a Python to start on a host that is busy."""
LEAVE_TIMEOUT_S = 15.0
NOISE_BYTES = 1 << 16
"""What a login may print before the agent begins; and as much of its standard error is kept."""


AGENT_FACTS = {"python": str, "archive": str, "directory": str, "pid": int, "host": str}
"""What an agent says of itself, once it is there."""
COMMAND_FACTS = {"status": int, "stdout": str, "stderr": str}


class Follower(Protocol):
    """Hears what becomes of one launch."""

    def file_grew(self, name: str, offset: int, content: bytes) -> None:
        """Hear of new bytes; with none, the file was cut back to `offset`."""

    def has_exited(self, status: int) -> None:
        """Hear that the ranks have ended."""

    def has_ended(self) -> None:
        """Hear that all has ended, and every byte has been told."""

    def is_lost(self, cause: str) -> None:
        """Hear that nothing more will be heard."""


class AgentChannel(asyncssh.SSHClientSession[bytes]):
    """The session of an agent."""

    def __init__(self, host: InventoryHost) -> None:
        self.host = host
        self.ready: dict[str, Any] = {}
        """What the agent said of itself: python, archive, directory, pid, host."""
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
        """Why it is gone; empty while it is not."""

    @classmethod
    async def start(
        cls, connection: asyncssh.SSHClientConnection, host: InventoryHost, archive: bytes, *, lease_s: float
    ) -> AgentChannel:
        """Carry the node side over and start its agent.

        Raises:
            HostError: it cannot be started there.
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
        """Say whether the agent is gone."""
        return self._closed.done()

    async def put(self, source: Path, path: str) -> None:
        """Carry a file over, checked by its checksum.

        Raises:
            HostError: it cannot be kept there.
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
        """Start commands in a folder below the agent's directory; return the name of the launch.

        With a `fork_server`, the command that starts one, they are node-side commands that it forks.

        Raises:
            HostError: they cannot be started.
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
        """Ask a launch to end; its follower hears of it."""
        await self._write(encode_frame({"do": "end", "about": about, "grace_s": grace_s}))

    async def ask(self, command: Sequence[str], *, timeout_s: float) -> dict[str, Any]:
        """Run a short command there; return its status, stdout and stderr.

        Raises:
            HostError: it cannot be run, or gives no answer in time.
        """
        about = self._expect()
        order = {"do": "ask", "about": about, "command": list(command), "timeout_s": timeout_s}
        await self._write(encode_frame(order))
        answer = await self._answer(about, timeout_s + START_TIMEOUT_S, stage="execute")
        self._refuse_ill_typed(answer, COMMAND_FACTS, stage="execute")
        return answer

    async def free_port(self) -> int:
        """Return a port that is free there now."""
        about = self._expect()
        await self._write(encode_frame({"do": "port", "about": about}))
        answer = await self._answer(about, START_TIMEOUT_S, stage="execute")
        self._refuse_ill_typed(answer, {"port": int}, stage="execute")
        return int(answer["port"])

    async def leave(self, connection: asyncssh.SSHClientConnection) -> None:
        """Let the agent end what is left, remove its directory and go."""
        if not self._closed.done():
            await self._write(encode_frame({"do": "leave"}))
            await asyncio.wait({self._closed}, timeout=LEAVE_TIMEOUT_S)
        elif not connection.is_closed() and (command := removal_command(self.ready.get("directory", ""))):
            # The agent was killed, and what it would have removed is still there.
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
            cause = f"no answer within {timeout_s:.0f} s"
            raise HostError(cause, host=self.host.name, stage=stage) from error
        finally:
            self._answers.pop(about, None)
        if answer["say"] == "failed":
            raise HostError(str(answer.get("cause")), host=self.host.name, stage=stage)
        return answer

    def _refuse_ill_typed(
        self, reply: Mapping[str, Any], facts: Mapping[str, type], stage: HostStage
    ) -> None:
        """Refuse an answer that lacks something or has it in another type.

        Raises:
            HostError: naming what is wrong.
        """
        for name, kind in facts.items():
            if type(reply.get(name)) is not kind:
                raise HostError(
                    f"what the agent says cannot be read: {name} is {reply.get(name)!r:.60}",
                    host=self.host.name,
                    stage=stage,
                )

    async def _write(self, data: bytes) -> None:
        """Send bytes; none once the far side has ended, whose last words say why."""
        await self._writable.wait()
        if self._closed.done():
            return
        try:
            self._channel.write(data)
        except BrokenPipeError:  # it has ended, and what it said may still be on its way
            await asyncio.wait({self._closed}, timeout=LEAVE_TIMEOUT_S)
            self._lose("the agent takes nothing any more")

    def _keep_beating(self, interval_s: float) -> None:
        if self._closed.done():
            return
        if self._writable.is_set():
            with suppress(BrokenPipeError):  # that it has ended is told when its last words are here
                self._channel.write(encode_frame({"do": "beat"}))
        loop = asyncio.get_running_loop()
        self._beat = loop.call_later(interval_s, self._keep_beating, interval_s)

    # What asyncssh calls.

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Take bytes of standard output or error."""
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
            self._lose(f"what the agent says cannot be read: {error}")
            self._channel.abort()
        except OSError as error:
            self._lose(f"what came cannot be kept here: {error.strerror}")
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
        """Hear that the channel is closed."""
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
        """Say why the channel closed, in the last words of the far side where it had any."""
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        return f"the agent ended: {lines[-1]}" if lines else "the agent ended without an error message"

    def pause_writing(self) -> None:
        """Wait with writing: the link is slower than we are."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on writing."""
        self._writable.set()


def _exit_status(status: Any) -> int:
    """Return what a process can end with: minus a signal, or eight bits.

    Raises:
        ValueError: it is something else.
    """
    if type(status) is not int or not -128 <= status <= 255:
        raise ValueError(f"an exit status of {status!r:.60}")
    return status
