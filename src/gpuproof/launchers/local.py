"""Ranks on this host: one by exec, several by torch's own elastic agent.

Under a launcher of the user's (RANK and WORLD_SIZE are set), this process is rank 0 and starts its own
worker only; the other ranks join it (`gpuproof.worker.attach`).
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.launchers.attached import is_attached
from gpuproof.launchers.base import LAUNCHER_OUTPUT, Launched
from gpuproof.records.case import Case

WORKER = ("-m", "gpuproof.worker", "run")
AGENT_GRACE_S = 8
"""Time that torch's agent gives ranks between SIGTERM and SIGKILL: less than a campaign gives the agent,
because each rank has a session of its own, and only the agent can kill it."""


class LocalLauncher:
    """Starts cases on this host with one Python."""

    def __init__(self, *, python: str = sys.executable, environment: Mapping[str, str] = os.environ) -> None:
        self._python = python
        self._environment = environment

    def start(self, case: Case, folder: Path) -> Launched:
        """Start the case's ranks.

        Raises:
            EnvironmentUnfitError: the Python to run them with cannot be started.
        """
        command = self.command(case, folder, port=_free_port() if case.parallel.nproc > 1 else None)
        (folder / "launch.txt").write_text(f"{shlex.join(command)}\n", encoding="utf-8")
        with (folder / LAUNCHER_OUTPUT).open("ab") as output:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(AGENT_GRACE_S), **self._environment},
                    start_new_session=True,  # a Ctrl-C is for us; we pass it on in good order
                )
            except OSError as error:
                raise EnvironmentUnfitError(
                    f"cannot be started: {error.strerror}", place=command[0]
                ) from error
        return LocalProcesses(process, shlex.join(command))

    def command(self, case: Case, folder: Path, *, port: int | None) -> list[str]:
        """Return the command line that runs the case; pure, so that it can be shown without running it."""
        worker = [*WORKER, str(folder / "spec.json"), str(folder), "--parent-pid", str(os.getpid())]
        if is_attached(self._environment):
            return [self._python, *worker, "--attached"]
        if port is None:
            return [self._python, *worker]
        agent = ["-m", "torch.distributed.run", "--nnodes=1", "--node-rank=0"]
        agent += [f"--nproc-per-node={case.parallel.nproc}", "--rdzv-backend=static"]
        agent += ["--master-addr=127.0.0.1", f"--master-port={port}"]
        return [self._python, *agent, *worker]


class LocalProcesses:
    """The process that was started, and its process group. Ranks under an agent end when it does."""

    def __init__(self, process: subprocess.Popen[bytes], command: str) -> None:
        self.command = command
        self._process = process
        self._ended = threading.Event()
        threading.Thread(target=self._reap, name="gpuproof-reaper", daemon=True).start()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end without polling: a thread sleeps in waitpid and wakes this one."""
        return self._process.returncode if self._ended.wait(timeout_s) else None

    def end(self, grace_s: float) -> None:
        """End the whole group: SIGTERM, time for last words, SIGKILL; a second Ctrl-C cuts the time short."""
        try:
            self._signal(signal.SIGTERM)
            self._ended.wait(grace_s)
        finally:
            self._signal(signal.SIGKILL)
            self._ended.wait(grace_s)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def _reap(self) -> None:
        self._process.wait()
        self._ended.set()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
