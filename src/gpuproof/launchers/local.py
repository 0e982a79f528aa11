"""Ranks on this host: one by exec or forked with torch imported, several by torch's own elastic agent.

Under a launcher of the user's (RANK and WORLD_SIZE are set), this process is rank 0 and starts its own
worker only; the other ranks join it (`gpuproof.worker.commands.attach`).
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuproof.launchers.attached import is_attached
from gpuproof.launchers.base import (
    LAUNCHER_OUTPUT,
    Launched,
    fork_server_words,
    interval_words,
    wants_fork,
)
from gpuproof.processes.fork import ForkServers
from gpuproof.processes.group import start_group
from gpuproof.records.case import Case

INSTALLED_WORKER = ("-m", "gpuproof.worker")
AGENT_GRACE_S = 8
"""Time that torch's agent gives ranks between SIGTERM and SIGKILL: less than a campaign gives the agent,
because each rank has a session of its own, and only the agent can kill it."""
SERVER_GRACE_S = 10.0
"""Time that a fork server gets to end: longer than it gives its children."""


class LocalLauncher:
    """Starts cases on this host with one Python; `worker` is how it finds the node side."""

    def __init__(
        self,
        *,
        python: str = sys.executable,
        worker: Sequence[str] = INSTALLED_WORKER,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._python = python
        self._worker = worker
        self._environment = environment
        self._fork_servers = ForkServers()

    def start(self, case: Case, folder: Path) -> Launched:
        """Start the case's ranks.

        Raises:
            CommandNotStartedError: the Python to run them with cannot be started.
        """
        if self.is_forked(case):
            return self._fork(case, folder)
        commands = [
            self.command(case, folder, port=_free_port() if case.placement.ranks_per_host > 1 else None)
        ]
        if case.monitor_interval_s is not None:
            sampler = self._sampler_words(case, folder)
            commands.append([self._python, *self._worker, *sampler, f"--parent-pid={os.getpid()}"])
        _write_commands(folder, commands)
        return start_group(
            commands, environment=self._environment_of_ranks(), output=folder / LAUNCHER_OUTPUT
        )

    def close(self) -> None:
        """End what is kept from case to case: the fork servers."""
        self._fork_servers.close(SERVER_GRACE_S)

    def is_forked(self, case: Case) -> bool:
        """Say whether the case is forked: asked to be, of one rank, and not under a user's launcher."""
        return wants_fork(case) and not is_attached(self._environment)

    def _fork(self, case: Case, folder: Path) -> Launched:
        """Fork the case from the server for its number of threads."""
        server = [self._python, *self._worker, *fork_server_words(case, str(folder.parents[2]))]
        by_hand = self.command(case, folder, port=None)
        commands = [by_hand[1 + len(self._worker) :]]
        if case.monitor_interval_s is not None:
            commands.append(self._sampler_words(case, folder))
        _write_commands(folder, [by_hand], forked_by=server)
        forked = self._fork_servers.start(
            server,
            key=case.parallel.threads_per_rank,
            environment=self._environment_of_ranks(),
            commands=commands,
            output=folder / LAUNCHER_OUTPUT,
        )
        forked.command = shlex.join(by_hand)
        return forked

    def _environment_of_ranks(self) -> dict[str, str]:
        return {
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(AGENT_GRACE_S),
            **self._environment,
            # What lies in the user's working directory, a random.py say, is not to be imported.
            "PYTHONSAFEPATH": "1",
        }

    def _sampler_words(self, case: Case, folder: Path) -> list[str]:
        out = folder / f"monitor-{socket.gethostname()}.jsonl"
        return ["sample", f"--out={out}", *interval_words(case)]

    def command(self, case: Case, folder: Path, *, port: int | None) -> list[str]:
        """Return the command line that runs the case; pure, so that it can be shown without running it."""
        worker = [
            *self._worker,
            "run",
            str(folder / "spec.json"),
            str(folder),
            "--parent-pid",
            str(os.getpid()),
        ]
        if is_attached(self._environment):
            return [self._python, *worker, "--attached"]
        if port is None:
            return [self._python, *worker]
        agent = ["-m", "torch.distributed.run", "--nnodes=1", "--node-rank=0"]
        agent += [f"--nproc-per-node={case.placement.ranks_per_host}", "--rdzv-backend=static"]
        agent += ["--master-addr=127.0.0.1", f"--master-port={port}"]
        return [self._python, *agent, *worker]


def _write_commands(
    folder: Path, commands: Sequence[Sequence[str]], *, forked_by: Sequence[str] = ()
) -> None:
    lines = [f"# forked by: {shlex.join(forked_by)}"] if forked_by else []
    lines += [shlex.join(command) for command in commands]
    (folder / "launch.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
