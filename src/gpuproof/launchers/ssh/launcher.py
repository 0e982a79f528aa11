"""SSH hosts as launch targets: a case runs on a single host, or on several as one job.

In: an inventory and options. The launcher connects to each host on first use, uses it for any number of
launches, and leaves nothing behind. All communication runs in one event loop on a separate thread, even for
hundreds of hosts. The ranks of a multi-host job rendezvous on its first host (at its `internal_address`, else
its address), on a port that was free there, with one torch elastic agent per host.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import asyncssh

from gpuproof.base.outside import parse_json
from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.archive import built_node_side
from gpuproof.launchers.base import HostError
from gpuproof.launchers.commands import LaunchCommands, NodeSide, Rendezvous, commands_for, rank_environment
from gpuproof.launchers.ssh.channel import AgentChannel
from gpuproof.launchers.ssh.connect import AskPassphrase, Connector
from gpuproof.launchers.ssh.launch import HostPart, RemoteLaunch, host_file_names
from gpuproof.launchers.ssh.site import SshHosts, SshOptions, host_places, meeting_address
from gpuproof.records.case import Case, Placed
from gpuproof.records.codec import to_json
from gpuproof.store import layout
from gpuproof.suites.base import HostPlace

T = TypeVar("T")
PROBE_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 15.0


class SshLauncher:
    """Starts cases on hosts, connecting to each on first use; closing it leaves nothing behind."""

    world_size: int | None = None

    def __init__(
        self,
        hosts: Sequence[InventoryHost],
        options: SshOptions,
        *,
        archive: bytes,
        ask: AskPassphrase | None = None,
    ) -> None:
        """Read keys and known hosts, without connecting.

        Raises:
            UsageError: a key or the known hosts file cannot be read.
        """
        self.max_busy = options.max_workers
        self._connector = Connector(hosts, options, ask=ask)
        self._hosts = {
            host.name: RemoteHost(host, self._connector, archive=archive, lease_s=options.lease_s)
            for host in hosts
        }
        self._news = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gpuproof-ssh", daemon=True)
        gc.freeze()  # existing objects are not garbage, and scanning them again for every host would be slow
        self._thread.start()

    @classmethod
    @contextmanager
    def opened(cls, *, hosts: SshHosts) -> Iterator[SshLauncher]:
        """Yield a launcher for the hosts of a run."""
        with built_node_side() as archive:
            content = archive.read_bytes()
        with closing(cls(hosts.hosts, hosts.options, archive=content)) as launcher:
            yield launcher

    def places(self) -> Sequence[HostPlace]:
        """Return the hosts in order."""
        return host_places(at.host for at in self._hosts.values())

    def lost(self) -> Mapping[str, HostError]:
        """Return the hosts that could not be connected to, or were lost later."""
        return {name: error for name, at in self._hosts.items() if (error := at.lost) is not None}

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> RemoteLaunch:
        """Start the case's ranks."""
        return self._begin(hosts, lambda launch, chosen: _start_case(launch, case, chosen, folder))

    def start_command(self, command: Sequence[str], host: str, folder: Path) -> RemoteLaunch:
        """Start any command in a separate folder on a host; the files in it are copied to `folder`."""
        return self._begin([host], lambda launch, chosen: _start_command(launch, command, chosen[0], folder))

    def start_worker(self, words: Sequence[str], host: str, folder: Path) -> RemoteLaunch:
        """Start the node side with these arguments on a host; `folder` receives files as they grow."""
        return self._begin([host], lambda launch, chosen: _start_worker(launch, words, chosen[0], folder))

    def _begin(
        self,
        names: Sequence[str],
        start: Callable[[RemoteLaunch, Sequence[RemoteHost]], Coroutine[Any, Any, None]],
    ) -> RemoteLaunch:
        hosts = [self._hosts[name] for name in names]
        launch = RemoteLaunch(hosts, loop=self._loop, on_news=self._news.set)
        self._loop.call_soon_threadsafe(launch.begin, start(launch, hosts))
        return launch

    def wait(self, timeout_s: float) -> None:
        """Wait for an event in any launch."""
        self._news.wait(timeout_s)
        self._news.clear()

    def connect(self, host: str) -> RemoteHost:
        """Connect to a host now, and wait until that is done.

        Raises:
            HostError: the host cannot be reached, or the agent cannot be started on it.
        """
        self.wait_for(self._hosts[host].agent())
        return self._hosts[host]

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop, and wait for the result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Clean up every host, and stop the event loop."""
        self.wait_for(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        gc.unfreeze()

    async def _close(self) -> None:
        await asyncio.gather(*(host.close() for host in self._hosts.values()))
        await self._connector.close()

    def notes(self) -> Sequence[str]:
        """Return a note for each new host key."""
        note = "its key {} was new and is trusted from now on"
        return [f"{host}: {note.format(fingerprint)}" for host, fingerprint in self.accepted_keys.items()]

    @property
    def accepted_keys(self) -> Mapping[str, str]:
        """InventoryHost → fingerprint of each new key that was stored."""
        return self._connector.host_keys.accepted


async def _start_command(
    launch: RemoteLaunch, command: Sequence[str], host: RemoteHost, folder: Path
) -> None:
    part = HostPart(host.name, folder, on_news=launch.on_news)
    await host.start(launch, part, folder=folder.name, files={}, commands=[command], environment={})
    launch.placed = Placed(hosts=(host.name,), ranks_per_host=1)


async def _start_worker(launch: RemoteLaunch, words: Sequence[str], host: RemoteHost, folder: Path) -> None:
    await host.agent()
    await _start_command(launch, [host.node.python, *host.node.worker, *words], host, folder)


async def _start_case(launch: RemoteLaunch, case: Case, hosts: Sequence[RemoteHost], folder: Path) -> None:
    """Connect to all hosts, then start the ranks on each; node ranks follow the order of the hosts.

    Raises:
        HostError: a host cannot start its ranks.
    """
    first, *_ = await asyncio.gather(*(host.agent() for host in hosts))
    is_alone = case.placement.num_ranks == 1
    port = None if is_alone else await first.free_port()
    address = meeting_address([host.host for host in hosts])
    names = [host.node.host for host in hosts]
    starting, texts = [], []
    for rank, host in enumerate(hosts):
        rename = host_file_names(host.name, names[rank], names[:rank])
        part = HostPart(host.name, folder, rename=rename, on_news=launch.on_news)
        commands = commands_for(case, host.node, Rendezvous(node_rank=rank, address=address, port=port))
        texts.append(f"# on {host.name}\n{commands.text}")
        starting.append(host.start_case(launch, case, commands, part, folder))
    started = await asyncio.gather(*starting, return_exceptions=True)
    for error in started:
        if error is not None:
            raise error
    launch.command = "".join(texts)
    (folder / layout.LAUNCH_TEXT).write_text(launch.command, encoding="utf-8")
    launch.placed = Placed(
        hosts=tuple(host.name for host in hosts),
        ranks_per_host=case.placement.ranks_per_host,
        address=None if port is None else address,
        port=port,
    )


class RemoteHost:
    """A host, managed by the event loop."""

    def __init__(self, host: InventoryHost, connector: Connector, *, archive: bytes, lease_s: float) -> None:
        self.host = host
        self.name = host.name
        self.error: HostError | None = None
        """Why connecting to the host failed."""
        self._connector = connector
        self._archive = archive
        self._lease_s = lease_s
        self._opening: asyncio.Task[AgentChannel] | None = None
        self._connection: asyncssh.SSHClientConnection
        self._channel: AgentChannel | None = None
        self._carried: dict[str, asyncio.Task[None]] = {}

    async def agent(self) -> AgentChannel:
        """Return the channel to the host's agent, connecting on first use.

        Raises:
            HostError: the host cannot be reached, or the agent cannot be started on it.
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
        """Why the host can no longer be used; None if it can."""
        if self._channel is not None and self._channel.is_closed:
            return HostError(self._channel.cause, host=self.host.name, stage="download")
        return self.error

    @property
    def node(self) -> NodeSide:
        """How the node side is started on the host."""
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
        """Start this host's ranks of a case, and the sampler for them.

        Raises:
            HostError: the ranks cannot be started.
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
        """Start commands in a subfolder of the run's folder on the host.

        Raises:
            HostError: the commands cannot be started.
        """
        channel = await self.agent()
        about = await channel.launch(part, folder=f"run/{folder}", **order)
        launch.add(channel, about, part)

    async def _carry(self, name: str | None, run: Path) -> None:
        """Transfer the samples that the control side prepared, once per host."""
        if name is None:
            return
        if name not in self._carried:
            channel = await self.agent()
            self._carried[name] = asyncio.create_task(channel.put(run / name, f"run/{name}"))
        await asyncio.shield(self._carried[name])

    async def probe(self) -> dict[str, Any]:
        """Return the facts about the host, as seen by its own Python.

        Raises:
            HostError: the host reports no facts.
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
        """Run a short command on the host itself; return status, stdout and stderr.

        Raises:
            HostError: the command cannot be run, or does not finish in time.
        """
        return await (await self.agent()).ask(command, timeout_s=timeout_s)

    def give_up(self) -> None:
        """Stop connecting, if that is still in progress."""
        if self._opening is not None:
            self._opening.cancel()

    async def close(self) -> None:
        """Have the agent stop whatever is still running and remove its directory, then disconnect."""
        self.give_up()
        if self._channel is None:
            return
        with suppress(OSError, asyncssh.Error):
            await self._channel.leave(self._connection)
        self._connection.close()
        with suppress(OSError, asyncssh.Error, TimeoutError):
            await asyncio.wait_for(self._connection.wait_closed(), CLOSE_TIMEOUT_S)
