"""Hosts over SSH: connected once, used for any number of launches, left clean.

In: an inventory and options. Out: for each host a `Launcher` as for this machine, so that the same campaign
drives it, from a thread a host or from one. All talk runs in one event loop on a thread of its own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import shlex
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import asyncssh

from gpuproof.config.inventory import Host
from gpuproof.launchers.base import wants_fork
from gpuproof.launchers.commands import (
    NodeSide,
    Place,
    commands_of,
    environment_for,
    folder_of,
    fork_commands_of,
)
from gpuproof.launchers.ssh.channel import AgentChannel
from gpuproof.launchers.ssh.connect import Connector
from gpuproof.launchers.ssh.credentials import AskPassphrase
from gpuproof.launchers.ssh.hosts import HostError, SshOptions
from gpuproof.launchers.ssh.launch import RemoteLaunch
from gpuproof.records.case import Case
from gpuproof.records.codec import to_json

log = logging.getLogger(__name__)
T = TypeVar("T")

PROBE_TIMEOUT_S = 120.0
END_MARGIN_S = 15.0
"""Over the time for last words, for the last bytes to come."""


class SshFleet:
    """Connections to hosts, made when they are asked for. Use as a context; leaving it leaves no trace."""

    def __init__(
        self,
        hosts: Sequence[Host],
        options: SshOptions,
        *,
        archive: bytes,
        ask: AskPassphrase | None = None,
    ) -> None:
        """Read keys and known hosts; connect to nothing yet.

        Raises:
            UsageError: a key or the known hosts cannot be read.
        """
        self.hosts = tuple(hosts)
        self.options = options
        self.interrupted = threading.Event()
        self._archive = archive
        self._connector = Connector(hosts, options, ask=ask)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gpuproof-ssh", daemon=True)
        self._connecting: set[asyncio.Task[Any]] = set()
        self._followed: WeakSet[RemoteLaunch] = WeakSet()

    def __enter__(self) -> SshFleet:
        """Start the event loop."""
        gc.freeze()  # what is there by now is no garbage, and every host would have it walked over
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close what is open and stop."""
        self.wait_for(self._connector.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        gc.unfreeze()

    @contextmanager
    def connected(self, host: Host) -> Iterator[RemoteHost]:
        """Give a host with its agent started; both ends are clean afterwards.

        Raises:
            HostError: it cannot be reached, or the agent cannot be started there.
            KeyboardInterrupt: the fleet was interrupted meanwhile.
        """
        if self.interrupted.is_set():
            raise KeyboardInterrupt
        connection, channel = self.wait_for(self._open(host))
        try:
            yield RemoteHost(self, host, channel)
        finally:
            self.wait_for(_close(connection, channel))

    async def _open(self, host: Host) -> tuple[asyncssh.SSHClientConnection, AgentChannel]:
        task = asyncio.current_task()
        assert task is not None
        self._connecting.add(task)
        try:
            connection = await self._connector.connect(host)
            try:
                channel = await AgentChannel.start(
                    connection, host, self._archive, lease_s=self.options.lease_s
                )
            except BaseException as error:
                connection.abort()
                if isinstance(error, (OSError, asyncssh.Error)):
                    raise HostError(str(error), host=host.name, stage="deploy") from error
                raise
            return connection, channel
        finally:
            self._connecting.discard(task)

    def interrupt(self) -> None:
        """Make every thread that waits for a host raise KeyboardInterrupt."""
        self.interrupted.set()
        for task in list(self._connecting):
            self._loop.call_soon_threadsafe(task.cancel)
        for part in list(self._followed):
            part.news.set()

    def follow(self, part: RemoteLaunch) -> None:
        """Wake whoever waits for this launch when the fleet is interrupted."""
        self._followed.add(part)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the event loop and wait for it in this thread."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise KeyboardInterrupt from None

    @property
    def accepted_keys(self) -> Mapping[str, str]:
        """Host → fingerprint of each key that was new and is stored now."""
        return self._connector.host_keys.accepted


async def _close(connection: asyncssh.SSHClientConnection, channel: AgentChannel) -> None:
    with suppress(OSError, asyncssh.Error):
        await channel.leave(connection)
    connection.close()
    with suppress(OSError, asyncssh.Error, TimeoutError):
        await asyncio.wait_for(connection.wait_closed(), END_MARGIN_S)


class RemoteHost:
    """A host that is connected: a launcher for cases that run on it alone."""

    def __init__(self, fleet: SshFleet, host: Host, channel: AgentChannel) -> None:
        self.host = host
        self._fleet = fleet
        self._channel = channel
        self._carried: set[str] = set()
        self.node = NodeSide(
            **{key: channel.ready[key] for key in ("python", "archive", "directory", "host", "pid")}
        )

    @property
    def is_lost(self) -> bool:
        """Say whether the host's agent is gone, so that nothing more can be started there."""
        return self._channel.is_closed

    def probe(self) -> dict[str, Any]:
        """Return the host's facts, as its own Python sees them.

        Raises:
            HostError: it gives none.
        """
        command = [self.node.python, self.node.archive, "probe"]
        said = self._fleet.wait_for(self._channel.ask(command, timeout_s=PROBE_TIMEOUT_S))
        try:
            facts: dict[str, Any] = json.loads(said["stdout"])
        except ValueError as error:
            last = (str(said["stderr"]).strip().splitlines() or ["it printed nothing"])[-1]
            raise HostError(f"the probe failed: {last}", host=self.host.name, stage="execute") from error
        return facts

    def run(self, command: Sequence[str], *, timeout_s: float) -> dict[str, Any]:
        """Run a short command of the host's own; return status, stdout and stderr.

        Raises:
            HostError: it cannot be run, or does not end in time.
        """
        return self._fleet.wait_for(self._channel.ask(command, timeout_s=timeout_s))

    def start(self, case: Case, folder: Path) -> RemoteProcesses:
        """Start the case's ranks, and the sampler beside them.

        Raises:
            HostError: they cannot be started.
        """
        port = self.free_port() if case.placement.ranks_per_host > 1 else None
        part = RemoteLaunch(self.host.name, folder)
        about, command = self.start_part(case, folder, part, place=Place(port=port))
        (folder / "launch.txt").write_text(f"# on {self.host.name}\n{command}\n", encoding="utf-8")
        return RemoteProcesses(self._fleet, [(self, about, part)], command=command)

    def start_part(self, case: Case, folder: Path, part: RemoteLaunch, *, place: Place) -> tuple[str, str]:
        """Start this host's ranks of a case; return the launch's name there and its command lines.

        Raises:
            HostError: they cannot be started.
        """
        commands = commands_of(case, self.node, place)
        shown = "\n".join(map(shlex.join, commands))
        server = None
        if wants_fork(case):
            server, commands = fork_commands_of(case, self.node)
            shown = f"# forked by: {shlex.join(server)}\n{shown}"
        self._fleet.wait_for(self._carry(case, folder))
        about = self._fleet.wait_for(
            self._channel.launch(
                part,
                folder=folder_of(case),
                files={"spec.json": json.dumps(to_json(case))},
                commands=commands,
                environment=environment_for(self.host.interface),
                fork_server=server,
            )
        )
        return about, shown

    async def _carry(self, case: Case, folder: Path) -> None:
        """Carry the samples over that the control side prepared, once a host."""
        name = case.data.file
        if name is None or name in self._carried:
            return
        await self._channel.put(folder.parents[2] / name, f"run/{name}")
        self._carried.add(name)

    def start_command(self, command: Sequence[str], folder: Path) -> RemoteProcesses:
        """Start any command in a folder of its own there; its files come to `folder`."""
        part = RemoteLaunch(self.host.name, folder)
        launching = self._channel.launch(
            part, folder=f"run/{folder.name}", files={}, commands=[command], environment={}
        )
        about = self._fleet.wait_for(launching)
        return RemoteProcesses(self._fleet, [(self, about, part)], command=shlex.join(command))

    async def end(self, about: str, grace_s: float) -> None:
        """Ask one of its launches to end."""
        await self._channel.end(about, grace_s)

    def free_port(self) -> int:
        """Return a port that is free there now."""
        return self._fleet.wait_for(self._channel.free_port())


class RemoteProcesses:
    """The processes of one case, on one host or on several."""

    def __init__(
        self,
        fleet: SshFleet,
        parts: Sequence[tuple[RemoteHost, str, RemoteLaunch]],
        *,
        command: str,
    ) -> None:
        self.command = command
        self._fleet = fleet
        self._parts = parts
        for _, _, part in parts:
            fleet.follow(part)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end of all parts, or of the first that failed; return its status.

        Raises:
            KeyboardInterrupt: the fleet was interrupted.
        """
        self._next_to_wait_for().news.wait(timeout_s)
        if self._fleet.interrupted.is_set():
            raise KeyboardInterrupt
        statuses = [part.status for _, _, part in self._parts if part.exited.is_set()]
        failed = next((status for status in statuses if status), None)
        if failed is not None:
            return failed
        return 0 if len(statuses) == len(self._parts) else None

    def _next_to_wait_for(self) -> RemoteLaunch:
        parts = [part for _, _, part in self._parts]
        return next((part for part in parts if not part.exited.is_set()), parts[0])

    def end(self, grace_s: float) -> None:
        """End all parts at once: SIGTERM, time for last words, SIGKILL; and wait for their last bytes."""
        self._fleet.wait_for(self._ask_to_end(grace_s))
        for _, _, part in self._parts:
            if not part.ended.wait(2 * grace_s + END_MARGIN_S):
                part.is_lost("the host does not answer any more")

    async def _ask_to_end(self, grace_s: float) -> None:
        open_parts = [(host, about) for host, about, part in self._parts if not part.ended.is_set()]
        await asyncio.gather(*(host.end(about, grace_s) for host, about in open_parts))
