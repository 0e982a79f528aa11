"""`python -m gpuproof.worker kubernetes-task`: what the container of a pod's ranks runs.

It copies what the launcher gave into the launch's folder, starts the node's ranks and the sampler, and leaves
with the ranks' status. Started a second time, as a container of a TrainJob is that has failed, it starts
nothing: the ranks would write over their records. `kubernetes-task --folder=F --end`, started beside it,
tells it to end.
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

SUMMARY = "start a pod's ranks, or end them"
RANKS = ("PET_NODE_RANK", "RANK", "JOB_COMPLETION_INDEX")
"""What says which node of a launch a pod is: Kubeflow's variables, then that of an Indexed Job."""
TASK = "task-{}.pid"
OUTPUT = "launcher-output-{}.txt"


def main(arguments: Sequence[str]) -> int:
    """Start the commands and wait for the ranks, or until told to end; return the ranks' exit status.

    Raises:
        EnvironmentUnfitError: this pod does not know its rank, or has begun before, or a command cannot be
            started.
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
            f"node {rank} of this launch has begun before, and does not begin again",
            place=socket.gethostname(),
            next_step="Look at what failed the first time; --resume launches the case again",
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
    """Return which node of the launch this pod is.

    Raises:
        EnvironmentUnfitError: nobody says, or it is none of them: such a pod would measure itself alone and
            look like a launch that went well.
    """
    name = next((name for name in RANKS if name in environment), None)
    value = environment[name] if name is not None else ""
    if re.fullmatch(r"\d+", value) and int(value) < num_nodes:
        return int(value)
    problem = f"{name} is {value!r}, of {num_nodes} nodes" if name else f"none of {', '.join(RANKS)} is set"
    raise EnvironmentUnfitError(
        f"this pod does not know its rank: {problem}",
        place=socket.gethostname(),
        next_step="Start it by an Indexed Job (completionMode: Indexed), a JobSet or Kubeflow's trainer",
    )


def _print_to(path: Path) -> None:
    """Have this process and all that it starts print to a file: a pod's log is cut off and gone with it."""
    with path.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


def _end(folder: Path, rank: int) -> int:
    """Tell the pod's task to end; one that has ended, or not begun, is no error."""
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((folder / TASK.format(rank)).read_text(encoding="utf-8")), signal.SIGTERM)
    return 0
