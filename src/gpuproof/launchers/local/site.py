"""The site for runs on this machine, with ranks started by us or by the user's own launcher.

gpuproof starts a single rank by exec or by forking a process that has imported torch, and several ranks with
torch's own elastic agent. The user's own launcher is torchrun, srun with one task per rank, or RANK and
WORLD_SIZE set by hand: every rank then runs the same `gpuproof run` command. Rank 0 runs the campaign; the
others become workers that wait for its case, or for one case after another until there are no more.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.base import Facts
from gpuproof.launchers.base import HostError, Launcher
from gpuproof.launchers.commands import (
    EXAMPLE_PORT,
    INSTALLED_WORKER,
    LaunchCommands,
    NodeSide,
    Rendezvous,
    commands_for,
    node_side_for,
    rank_environment,
)
from gpuproof.launchers.registry import HostChoice, file_options
from gpuproof.launchers.site import LaunchSite
from gpuproof.launchers.surroundings import attached_world_size, is_attached, is_follower, number_in
from gpuproof.processes.fork import ForkServers
from gpuproof.processes.group import ProcessGroup, start_group
from gpuproof.processes.start import safe_environment
from gpuproof.records.case import Case, Placed
from gpuproof.store import layout
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import THIS_MACHINE, HostPlace

SERVER_GRACE_S = 10.0
"""Time for a fork server to exit; it is longer than the time that the server allows its children."""
PATIENCE_S = 300
"""How long the other ranks wait for rank 0's case."""
DOWNLOAD_PATIENCE_S = 3600
"""Time for which the other ranks wait if rank 0 may have to download a data set first."""
DISMISSAL_S = 90
"""Time allowed to tell the other ranks that there are no more cases; they would time out otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisMachine(LaunchSite):
    """This machine, with the Python that runs the ranks."""

    launcher: ClassVar[str] = "local"
    is_here: ClassVar[bool] = True
    libraries: ClassVar[Mapping[str, str]] = {"torch": "torch"}

    python: str | None = None
    """Python that runs the ranks; None means the Python that runs gpuproof."""

    @classmethod
    def chosen(cls, choice: HostChoice, *, python: str | None) -> Self:
        """Return this machine.

        Raises:
            UsageError: several hosts are requested.
        """
        if choice.one_job:
            raise UsageError(
                "the hosts for the single job are not set",
                place="--one-job",
                next_step=f"Name them: {file_options()} FILE",
            )
        return cls(python=python)

    @classmethod
    def recorded(cls, run: RunDirectory, choice: HostChoice, *, python: str | None) -> Self:
        """Return this machine, because a run without named hosts ran here."""
        del run, choice
        return cls(python=python)

    def facts(self, choice: HostChoice) -> Facts:
        """Return the environment variables, and report that there are no other hosts."""
        del choice
        return Facts(hosts=(), is_attached=is_attached(os.environ), environment=os.environ)

    def places(self) -> Sequence[HostPlace]:
        """Return this machine."""
        return THIS_MACHINE

    @property
    def text(self) -> str:
        """This machine."""
        ranks = ", in the ranks that your launcher started" if is_attached(os.environ) else ""
        return f"this machine{ranks}" + (f", with {self.python}" if self.python else "")

    def missing(self) -> Iterator[str]:
        """Yield torch if gpuproof's own Python runs the ranks but lacks it; no other Python is checked."""
        return LaunchSite.missing(self) if self.python is None else iter(())

    def described(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def follow(self, config: RunConfig) -> None:
        """If this process is another rank, wait as a worker for cases from the run of the first rank."""
        if is_follower(os.environ):
            become_follower(config)

    def shown(self, cases: Iterable[Case], run: Path) -> Iterator[str]:
        """Yield the command line for each launch.

        Raises:
            UsageError: the Python interpreter does not exist.
        """
        if self.python is not None and shutil.which(self.python) is None:
            raise UsageError(
                "there is no such program", place="--python", next_step="Specify the path of one"
            )
        for case in cases:
            yield f"{shlex.join(self._command(case, run))}\n"

    def _command(self, case: Case, run: Path) -> list[str]:
        attached = 0 if is_attached(os.environ) else None
        worker = INSTALLED_WORKER if self.python is None else ("DIRECTORY/gpuproof-node.pyz",)
        python = self.python or sys.executable
        node = NodeSide(python=python, worker=worker, run=str(run), host="HOST", pid=os.getpid())
        port = None if attached is not None or case.placement.num_ranks == 1 else EXAMPLE_PORT
        return commands_for(case, node, Rendezvous(port=port), attached_launch=attached).started[0]

    @contextmanager
    def opened(self, *, environment: Mapping[str, str], many_launches: bool) -> Iterator[Launcher]:
        """Yield a launcher for ranks that we start, or for those that are already running."""
        launchers: type[LocalLauncher] = LocalLauncher
        if is_attached(environment):
            launchers = AttachedLauncher
        python = self.python or sys.executable
        with node_side_for(self.python) as worker:  # installed package, or one file for another Python
            launcher = launchers(
                python=python, worker=worker, environment=environment, many_launches=many_launches
            )
            with closing(launcher):
                yield launcher


class LocalLauncher:
    """Starts cases here with one Python interpreter; `worker` is how that Python finds the node side."""

    world_size: int | None = None
    max_busy: int | None = None
    attached_launch: int | None = None
    """Number of the next launch for which the user's own launcher has started the other ranks."""

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
            CommandNotStartedError: the Python that runs the ranks cannot be started.
        """
        del hosts
        port = _free_port() if case.placement.num_ranks > 1 and self.world_size is None else None
        rendezvous = Rendezvous(port=port)
        node = NodeSide(
            python=self._python,
            worker=self._worker,
            run=str(layout.run_folder(folder)),
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        commands = commands_for(case, node, rendezvous, attached_launch=self.attached_launch)
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
        """Wait for an event of any launch."""
        self._news.wait(timeout_s)
        self._news.clear()

    def notes(self) -> Sequence[str]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Stop the fork servers, which are kept between cases."""
        self._fork_servers.close(SERVER_GRACE_S)

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
        """Handle the exit of the ranks, reported from another thread."""
        self.status = status
        self._news.set()

    def end(self, grace_s: float) -> None:
        """Stop all processes in a separate thread."""
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


class AttachedLauncher(LocalLauncher):
    """Starts rank 0 of each case, which sends the case to the other ranks of the user's own launcher."""

    attached_launch: int = 0

    def __init__(self, *, environment: Mapping[str, str], **options: Any) -> None:
        super().__init__(environment=environment, **options)
        self.world_size = attached_world_size(environment)

    def places(self) -> Sequence[HostPlace]:
        """Return a single entry: everything the user's launcher started, on any number of hosts."""
        if not self._many_launches or self.world_size is None:
            return super().places()
        per_host = number_in(self._environment, "LOCAL_WORLD_SIZE", default=self.world_size)
        hosts = -(-self.world_size // max(1, per_host))
        return (HostPlace(name="", num_devices=self.world_size, attached_hosts=hosts),)

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> LocalLaunch:
        """Start rank 0; the other ranks get the case from it."""
        launch = super().start(case, hosts, folder)
        self.attached_launch += 1
        return launch

    def close(self) -> None:
        """Tell the other ranks that there are no more cases, if they are waiting for one."""
        super().close()
        if self._many_launches:
            words = [self._python, *self._worker, "dismiss", f"--launch={self.attached_launch}"]
            try:
                subprocess.run(words, env=self._rank_environment(), timeout=DISMISSAL_S, check=False)
            except subprocess.TimeoutExpired:
                sys.stderr.write(f"gpuproof: the other ranks were not reached within {DISMISSAL_S} s\n")


def become_follower(config: RunConfig) -> NoReturn:
    """Turn this process into a worker that waits for rank 0's case and any download before it.

    A suite has several cases, so the worker waits for each in turn.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    words = [sys.executable, "-m", "gpuproof.worker", "join" if config.suite is None else "follow"]
    words += [f"--patience-s={DOWNLOAD_PATIENCE_S if config.data.download else PATIENCE_S}"]
    words += [f"--prepare-data={json.dumps([sys.executable, '-m', 'gpuproof.datasets'])}"]
    os.execve(sys.executable, words, safe_environment())  # noqa: S606
