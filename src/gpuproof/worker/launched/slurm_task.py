"""`python -m gpuproof.worker slurm-task`: the one task of a node in a job of Slurm's.

It starts the node's ranks (by the first command) and the sampler beside them (by the others), ends all when
it is told to, and leaves with the ranks' status. In the commands' words `$NAME` stands for what only the node
knows; `$$` is a dollar.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.worker.commands.node_task import parted, run_commands

SUMMARY = "start a node's ranks in a job of Slurm's"


def main(arguments: Sequence[str]) -> int:
    """Start the commands and wait for the ranks, or until told to end; return the ranks' exit status.

    Raises:
        EnvironmentUnfitError: this is no task of Slurm's, or a command cannot be started.
    """
    options, *commands = parted(arguments)
    named = dict(option.removeprefix("--").split("=", 1) for option in options)
    return run_commands(commands, node_facts(os.environ, folder=named["folder"], nodes=named.get("nodes")))


def node_facts(environment: Mapping[str, str], *, folder: str, nodes: str | None) -> dict[str, str]:
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
