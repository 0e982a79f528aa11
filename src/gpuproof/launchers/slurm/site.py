"""Where on a Slurm cluster a run takes place, as run.json keeps it: `--resume` needs no file of options.

Loads nothing heavy: Slurm's commands are for those who start something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuproof.errors import UsageError
from gpuproof.launchers.slurm.options import SlurmOptions

JOB, NODES = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """The options of a run's jobs, and the allocation that it runs in, if any."""

    options: SlurmOptions = field(default_factory=SlurmOptions)
    hosts: tuple[str, ...] = ()
    """The nodes of the allocation; none where each launch is a job of the queue."""


def allocated_nodes(environment: Mapping[str, str]) -> str | None:
    """Return the nodes of the allocation that this process is in, in Slurm's notation; None outside of one.

    Raises:
        UsageError: this is one of several processes that srun started.
    """
    if JOB not in environment or NODES not in environment:
        return None
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        raise UsageError(
            f"srun started {environment['SLURM_STEP_NUM_TASKS']} of this command, and one is enough",
            place="--on slurm",
            next_step="Start it without srun; it starts the tasks of the nodes itself",
        )
    return environment[NODES]
