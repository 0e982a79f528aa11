"""Ranks on this host: one by exec or forked with torch imported, several by torch's own elastic agent."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuproof.launchers.base import HostError
from gpuproof.launchers.commands import (
    INSTALLED_WORKER,
    LaunchCommands,
    NodeSide,
    Rendezvous,
    commands_for,
    rank_environment,
)
from gpuproof.processes.fork import ForkServers
from gpuproof.processes.group import ProcessGroup, start_group
from gpuproof.processes.start import safe_environment
from gpuproof.records.case import Case, Placed
from gpuproof.store import layout
from gpuproof.suites.base import HostPlace

SERVER_GRACE_S = 10.0
"""Time that a fork server gets to end: longer than it gives its children."""


class LocalLauncher:
    """Starts cases on this host with one Python; `worker` is how it finds the node side."""

    world_size: int | None = None
    max_busy: int | None = None
    attached_launch: int | None = None
    """The number of the next launch of which other ranks are started by a launcher not ours."""

    def __init__(
        self,
        *,
        python: str = sys.executable,
        worker: Sequence[str] = INSTALLED_WORKER,
        environment: Mapping[str, str] = os.environ,
        many_launches: bool = False,
    ) -> None:
        self._python = python
        self._worker = tuple(worker)
        self._environment = environment
        self._many_launches = many_launches
        self._fork_servers = ForkServers()
        self._news = threading.Event()

    def places(self) -> Sequence[HostPlace]:
        """Return this machine."""
        return (HostPlace(name=""),)

    def lost(self) -> Mapping[str, HostError]:
        """Return nothing: this machine cannot be lost."""
        return {}

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> LocalLaunch:
        """Start the case's ranks.

        Raises:
            CommandNotStartedError: the Python to run them with cannot be started.
        """
        del hosts
        port = _free_port() if case.placement.num_ranks > 1 and self.world_size is None else None
        rendezvous = Rendezvous(port=port)
        commands = commands_for(
            case, self._node_side(folder), rendezvous, attached_launch=self.attached_launch
        )
        (folder / layout.LAUNCH_TEXT).write_text(commands.text, encoding="utf-8")
        placed = Placed(
            hosts=(socket.gethostname(),),
            ranks_per_host=case.placement.ranks_per_host,
            address=None if port is None else rendezvous.address,
            port=port,
        )
        launch = LocalLaunch(self._news, command=commands.text, placed=placed)
        launch.processes = self._processes(case, commands, folder, launch)
        return launch

    def wait(self, timeout_s: float) -> None:
        """Wait for news of any launch."""
        self._news.wait(timeout_s)
        self._news.clear()

    def notes(self) -> Sequence[str]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """End what is kept from case to case: the fork servers."""
        self._fork_servers.close(SERVER_GRACE_S)

    def _node_side(self, folder: Path) -> NodeSide:
        return NodeSide(
            python=self._python,
            worker=self._worker,
            run=str(layout.run_folder(folder)),
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    def _processes(
        self, case: Case, commands: LaunchCommands, folder: Path, launch: LocalLaunch
    ) -> ProcessGroup:
        environment, output = self._rank_environment(), folder / layout.LAUNCHER_OUTPUT
        if commands.server is None:
            return start_group(
                commands.started, environment=environment, output=output, on_exit=launch.has_exited
            )
        return self._fork_servers.start(
            commands.server,
            key=case.work.parallel.threads_per_rank,
            environment=environment,
            commands=commands.forked,
            output=output,
            on_exit=launch.has_exited,
        )

    def _rank_environment(self) -> dict[str, str]:
        return safe_environment({**rank_environment(), **self._environment})


class LocalLaunch:
    """One launch on this machine."""

    processes: ProcessGroup
    error: HostError | None = None
    waits_for: str | None = None

    def __init__(self, news: threading.Event, *, command: str, placed: Placed) -> None:
        self.command = command
        self.placed: Placed | None = placed
        self.status: int | None = None
        self.is_over = False
        self._news = news
        self._is_ending = False

    def has_exited(self, status: int) -> None:
        """Hear that the ranks have ended, from another thread."""
        self.status = status
        self._news.set()

    def end(self, grace_s: float) -> None:
        """End all processes, in a thread."""
        ending = self.processes.end if self._is_ending else self._end
        self._is_ending = True
        threading.Thread(target=ending, args=(grace_s,), name="gpuproof-end").start()

    def _end(self, grace_s: float) -> None:
        try:
            self.processes.end(grace_s)
        finally:
            self.status = self.processes.wait(0.0)
            self.is_over = True
            self._news.set()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
