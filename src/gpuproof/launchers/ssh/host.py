"""One host over SSH: connected at its first use, used for any number of launches, left clean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncssh

from gpuproof.base.outside import parse_json
from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.base import HostError
from gpuproof.launchers.commands import LaunchCommands, NodeSide, rank_environment
from gpuproof.launchers.ssh.channel import AgentChannel
from gpuproof.launchers.ssh.connect import Connector
from gpuproof.launchers.ssh.launch import HostPart, RemoteLaunch
from gpuproof.records.case import Case
from gpuproof.records.codec import to_json
from gpuproof.store import layout

PROBE_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 15.0


class RemoteHost:
    """A host, in the event loop's hands."""

    def __init__(self, host: InventoryHost, connector: Connector, *, archive: bytes, lease_s: float) -> None:
        self.host = host
        self.name = host.name
        self.error: HostError | None = None
        """Why it could not be connected."""
        self._connector = connector
        self._archive = archive
        self._lease_s = lease_s
        self._opening: asyncio.Task[AgentChannel] | None = None
        self._connection: asyncssh.SSHClientConnection
        self._channel: AgentChannel | None = None
        self._carried: dict[str, asyncio.Task[None]] = {}

    async def agent(self) -> AgentChannel:
        """Return the channel to its agent, connecting at the first use.

        Raises:
            HostError: it cannot be reached, or the agent cannot be started there.
        """
        if self._opening is None or self._opening.cancelled():
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> AgentChannel:
        try:
            self._connection = await self._connector.connect(self.host)
            self._channel = await self._start_agent()
        except HostError as error:
            self.error = error
            raise
        return self._channel

    async def _start_agent(self) -> AgentChannel:
        try:
            return await AgentChannel.start(self._connection, self.host, self._archive, lease_s=self._lease_s)
        except BaseException as error:
            self._connection.abort()
            if isinstance(error, (OSError, asyncssh.Error)):
                raise HostError(str(error), host=self.host.name, stage="deploy") from error
            raise

    @property
    def lost(self) -> HostError | None:
        """Why it cannot be used any more; None where it can."""
        if self._channel is not None and self._channel.is_closed:
            return HostError(self._channel.cause, host=self.host.name, stage="download")
        return self.error

    @property
    def node(self) -> NodeSide:
        """How the node side is started there."""
        assert self._channel is not None
        ready = self._channel.ready
        return NodeSide(
            python=ready["python"],
            worker=(ready["archive"],),
            run=f"{ready['directory']}/run",
            host=ready["host"],
            pid=ready["pid"],
        )

    async def start_case(
        self, launch: RemoteLaunch, case: Case, commands: LaunchCommands, part: HostPart, folder: Path
    ) -> None:
        """Start this host's ranks of a case, and the sampler beside them.

        Raises:
            HostError: they cannot be started.
        """
        await self._carry(case.data_file, layout.run_folder(folder))
        await self.start(
            launch,
            part,
            folder=layout.launch_path(case.case_id, case.replicate),
            files={layout.SPEC: json.dumps(to_json(case))},
            commands=commands.started if commands.server is None else commands.forked,
            environment=rank_environment(self.host.interface),
            fork_server=commands.server,
        )

    async def start(self, launch: RemoteLaunch, part: HostPart, *, folder: str, **order: Any) -> None:
        """Start any commands in a folder of the run there.

        Raises:
            HostError: they cannot be started.
        """
        channel = await self.agent()
        about = await channel.launch(part, folder=f"run/{folder}", **order)
        launch.add(channel, about, part)

    async def _carry(self, name: str | None, run: Path) -> None:
        """Carry the samples over that the control side prepared, once a host."""
        if name is None:
            return
        if name not in self._carried:
            channel = await self.agent()
            self._carried[name] = asyncio.create_task(channel.put(run / name, f"run/{name}"))
        await asyncio.shield(self._carried[name])

    async def probe(self) -> dict[str, Any]:
        """Return the host's facts, as its own Python sees them.

        Raises:
            HostError: it gives none.
        """
        await self.agent()
        answer = await self.ask([self.node.python, *self.node.worker, "probe"], timeout_s=PROBE_TIMEOUT_S)
        try:
            facts: dict[str, Any] = dict(parse_json(answer["stdout"]))
        except (ValueError, TypeError) as error:
            last = (str(answer["stderr"]).strip().splitlines() or ["it printed nothing"])[-1]
            raise HostError(f"the probe failed: {last}", host=self.host.name, stage="execute") from error
        return facts

    async def ask(self, command: Sequence[str], *, timeout_s: float) -> dict[str, Any]:
        """Run a short command of the host's own; return status, stdout and stderr.

        Raises:
            HostError: it cannot be run, or does not end in time.
        """
        return await (await self.agent()).ask(command, timeout_s=timeout_s)

    def give_up(self) -> None:
        """Stop connecting, where that is still going on."""
        if self._opening is not None:
            self._opening.cancel()

    async def close(self) -> None:
        """Have the agent end what is left and remove its directory, and disconnect."""
        self.give_up()
        if self._channel is None:
            return
        with suppress(OSError, asyncssh.Error):
            await self._channel.leave(self._connection)
        self._connection.close()
        with suppress(OSError, asyncssh.Error, TimeoutError):
            await asyncio.wait_for(self._connection.wait_closed(), CLOSE_TIMEOUT_S)
