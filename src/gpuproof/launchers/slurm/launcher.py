"""The launcher of `--on slurm`: jobs of the queue, or steps inside of the allocation that a run began in."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from gpuproof.launchers.archive import build_archive
from gpuproof.launchers.base import Launcher
from gpuproof.launchers.commands import INSTALLED_WORKER
from gpuproof.launchers.slurm.allocation import SlurmAllocation
from gpuproof.launchers.slurm.commands import SlurmCommands
from gpuproof.launchers.slurm.options import SlurmOptions
from gpuproof.launchers.slurm.queue import SlurmQueue
from gpuproof.launchers.slurm.site import SlurmSite
from gpuproof.launchers.slurm.text import SlurmNode

ARCHIVE = "gpuproof-node.pyz"


class SlurmLauncher:
    """Opens the one or the other."""

    @classmethod
    @contextmanager
    def opened(cls, *, slurm: SlurmSite, environment: Mapping[str, str], **_: object) -> Iterator[Launcher]:
        """Give a launcher for where the run takes place.

        Raises:
            EnvironmentUnfitError: Slurm's commands are not here, or nobody answers them.
            UsageError: the run takes place in an allocation, and this is not in it.
        """
        commands = SlurmCommands(environment)

        @cache
        def node_for(run: Path) -> SlurmNode:
            node = slurm_node(slurm.options, run)
            if node.worker != INSTALLED_WORKER:
                build_archive(run / ARCHIVE)  # anew on --resume: it may be another version's
            return node

        if slurm.hosts:
            yield SlurmAllocation(slurm, commands, node_for=node_for, environment=environment)
            return
        with closing(SlurmQueue(slurm.options, commands, node_for=node_for)) as queue:
            yield queue


def slurm_node(options: SlurmOptions, run: Path) -> SlurmNode:
    """Say how the node side is started on a node: as installed, or from one file in the run directory.

    The installed one is for the Python that runs this, on a disk that the nodes share. Another Python, and a
    container, take the file.
    """
    run = run.absolute()
    if options.python is None and options.container_image is None:
        return SlurmNode(python=sys.executable, worker=INSTALLED_WORKER, run=str(run))
    return SlurmNode(python=options.python or "python3", worker=(str(run / ARCHIVE),), run=str(run))
