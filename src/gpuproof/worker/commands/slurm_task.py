"""`python -m gpuproof.worker slurm-task`: the one task of a node in a job of Slurm's.

It starts the node's ranks (by the first command) and the sampler beside them (by the others), ends all when
it is told to, and leaves with the ranks' status. In the commands' words `$NAME` stands for what only the node
knows; `$$` is a dollar.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue
from string import Template

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.processes.group import start_group
from gpuproof.processes.start import exit_status

GRACE_S = 9.0
"""Time for last words: over what torch's agent gives its ranks, and less than Slurm's KillWait of 30 s."""


def main(arguments: Sequence[str]) -> int:
    """Start the commands and wait for the ranks, or until told to end; return the ranks' exit status.

    Raises:
        EnvironmentUnfitError: this is no task of Slurm's, or a command cannot be started.
    """
    options, *commands = _parted(arguments)
    named = dict(option.removeprefix("--").split("=", 1) for option in options)
    values = known_here(os.environ, folder=named["folder"], nodes=named.get("nodes"))
    started = [[Template(word).substitute(values) for word in command] for command in commands]
    news: SimpleQueue[int | None] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: news.put(None))
    # The standard output of ranks is nobody's: each has files of its own, and in need standard error.
    group = start_group(started, environment=os.environ, output=None, on_exit=news.put)
    news.get()
    group.end(GRACE_S)
    status = group.wait(0.0)
    return 1 if status is None else exit_status(status)


def _parted(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words between each `--` and the next."""
    part: list[str] = []
    for word in words:
        if word == "--":
            yield part
            part = []
        else:
            part.append(word)
    yield part


def known_here(environment: Mapping[str, str], *, folder: str, nodes: str | None) -> dict[str, str]:
    """Return what stands for each `$NAME`; `nodes` is the order of node ranks where it is not Slurm's own.

    Raises:
        EnvironmentUnfitError: this is no task of Slurm's.
    """
    try:
        rank = environment["SLURM_NODEID"]
        if nodes is not None:
            rank = str(nodes.split(",").index(environment["SLURMD_NODENAME"]))
    except (KeyError, ValueError) as error:
        raise EnvironmentUnfitError(
            f"no task of the job that was meant: {error}",
            place=socket.gethostname(),
            next_step="srun starts this, with one task a node",
        ) from error
    return {
        **{name: value for name, value in environment.items() if name.startswith("GPUPROOF_")},
        "SLURM_NODEID": rank,
        "GPUPROOF_HOST": socket.gethostname(),
        "GPUPROOF_PID": str(os.getpid()),
        "GPUPROOF_FOLDER": folder,
    }
