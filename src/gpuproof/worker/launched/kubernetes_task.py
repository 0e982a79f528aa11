"""`python -m gpuproof.worker kubernetes-task`: runs in the container with a pod's ranks.

It copies the launcher's files into the launch's folder, starts the node's ranks and the sampler, and exits
with the ranks' status. If it is started a second time, as happens to a failed container of a TrainJob, it
starts nothing, because the ranks would overwrite their records. `kubernetes-task --folder=F --end`, started
alongside, asks it to stop.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.worker.commands.node_task import parted, run_commands

SUMMARY = "start a pod's ranks, or stop them"
RANKS = ("PET_NODE_RANK", "RANK", "JOB_COMPLETION_INDEX")
"""Variables for a pod's node number in a launch: Kubeflow's, then an Indexed Job's."""
TASK = "task-{}.pid"
OUTPUT = "launcher-output-{}.txt"


def main(arguments: Sequence[str]) -> int:
    """Start the commands and wait for the ranks to exit or a stop request; return the ranks' status.

    Raises:
        EnvironmentUnfitError: this pod does not know its rank, has already been started before, or cannot
            start a command.
    """
    options, *commands = parted(arguments)
    named = dict(option.removeprefix("--").partition("=")[::2] for option in options)
    rank = node_rank(os.environ, num_nodes=int(named.get("nodes", "1")))
    folder = Path(named["folder"])
    if "end" in named:
        return _end(folder, rank)
    if "given" in named:
        shutil.copytree(named["given"], named["run"], dirs_exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / OUTPUT.format(rank)
    if output.exists():
        raise EnvironmentUnfitError(
            f"node {rank} of this launch has started before, and does not start again",
            place=socket.gethostname(),
            next_step="Check what failed the first time; --resume reruns the case",
        )
    task = folder / TASK.format(rank)
    task.write_text(str(os.getpid()), encoding="utf-8")
    _print_to(output)
    try:
        variables = {
            "NODE_RANK": str(rank),
            "GPUPROOF_HOST": socket.gethostname(),
            "GPUPROOF_PID": str(os.getpid()),
            "GPUPROOF_FOLDER": str(folder),
        }
        return run_commands(commands, variables)
    finally:
        task.unlink()


def node_rank(environment: Mapping[str, str], *, num_nodes: int) -> int:
    """Return this pod's node number in the launch.

    Raises:
        EnvironmentUnfitError: the index is not set, or is out of range. Such a pod would measure only itself,
            and the result would look like a successful launch.
    """
    name = next((name for name in RANKS if name in environment), None)
    value = environment[name] if name is not None else ""
    if re.fullmatch(r"\d+", value) and int(value) < num_nodes:
        return int(value)
    problem = (
        f"{name} is {value!r}, but there are {num_nodes} nodes"
        if name
        else f"none of {', '.join(RANKS)} is set"
    )
    raise EnvironmentUnfitError(
        f"this pod does not know its rank: {problem}",
        place=socket.gethostname(),
        next_step="Start it with an Indexed Job (completionMode: Indexed), a JobSet or Kubeflow's trainer",
    )


def _print_to(path: Path) -> None:
    """Redirect output of this process and its children to a file: a pod's log is lost with the pod."""
    with path.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


def _end(folder: Path, rank: int) -> int:
    """Ask the pod's task to stop; it is not an error if it has already ended or was never started."""
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((folder / TASK.format(rank)).read_text(encoding="utf-8")), signal.SIGTERM)
    return 0
