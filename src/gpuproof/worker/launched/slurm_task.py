"""`python -m gpuproof.worker slurm-task`: the single task of a node in a Slurm job.

It starts the node's ranks (with the first command) and the sampler alongside (with the others), stops
everything when asked to, and exits with the ranks' status. In the commands' arguments, `$NAME` is a
placeholder for a value that only the node knows; `$$` is a dollar sign.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.worker.commands.node_task import parted, run_commands

SUMMARY = "start a node's ranks in a Slurm job"


def main(arguments: Sequence[str]) -> int:
    """Start the commands and wait for the ranks, or until asked to stop; return the ranks' status.

    Raises:
        EnvironmentUnfitError: this is not a Slurm task, or a command cannot be started.
    """
    options, *commands = parted(arguments)
    named = dict(option.removeprefix("--").split("=", 1) for option in options)
    return run_commands(commands, node_facts(os.environ, folder=named["folder"], nodes=named.get("nodes")))


def node_facts(environment: Mapping[str, str], *, folder: str, nodes: str | None) -> dict[str, str]:
    """Return the value of each `$NAME`; `nodes` is the order of node ranks, if not Slurm's own.

    Raises:
        EnvironmentUnfitError: this is not a Slurm task.
    """
    try:
        rank = environment["SLURM_NODEID"]
        if nodes is not None:
            rank = str(nodes.split(",").index(environment["SLURMD_NODENAME"]))
    except (KeyError, ValueError) as error:
        raise EnvironmentUnfitError(
            f"not a task of the intended job: {error}",
            place=socket.gethostname(),
            next_step="srun starts this command, with one task per node",
        ) from error
    return {
        **{name: value for name, value in environment.items() if name.startswith("GPUPROOF_")},
        "SLURM_NODEID": rank,
        "GPUPROOF_HOST": socket.gethostname(),
        "GPUPROOF_PID": str(os.getpid()),
        "GPUPROOF_FOLDER": folder,
    }
