"""Under a launcher of the user's: torchrun, srun with a task a rank, or RANK and WORLD_SIZE set by hand.

Every rank then starts `gpuproof run` with the same words. Rank 0 is the campaign; the others become
workers that wait for its case, or for one after the other until they are told that there are no more.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpuproof.config.models import RunConfig
from gpuproof.errors import UsageError
from gpuproof.launchers.local import LocalLaunch, LocalLauncher
from gpuproof.processes.start import safe_environment
from gpuproof.records.case import Case
from gpuproof.suites.base import HostPlace

PATIENCE_S = 300
"""Time that other ranks wait for rank 0's case …"""
DOWNLOAD_PATIENCE_S = 3600
"""… and where it may have to fetch a data set first."""
DISMISSAL_S = 90
"""Time in which the other ranks are told that there is no further case; else they wait for it in vain."""


PORT, NUM_PORTS = 20_000, 12_000
"""Where ranks of srun's meet: by their job and step, below the ports that a kernel gives out by itself."""


class AttachedLauncher(LocalLauncher):
    """Starts rank 0 of each case, which gives the case to the ranks that the user's launcher started."""

    attached_launch: int = 0

    def __init__(self, *, environment: Mapping[str, str], **options: Any) -> None:
        super().__init__(environment=environment, **options)
        self.world_size = attached_world_size(environment)

    def places(self) -> Sequence[HostPlace]:
        """Return one place: all that the user's launcher started, over however many hosts."""
        if not self._many_launches or self.world_size is None:
            return super().places()
        on_each = number_in(self._environment, "LOCAL_WORLD_SIZE", default=self.world_size)
        hosts = -(-self.world_size // max(1, on_each))
        return (HostPlace(name="", num_devices=self.world_size, attached_hosts=hosts),)

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> LocalLaunch:
        """Start rank 0; the others get the case from it."""
        launch = super().start(case, hosts, folder)
        self.attached_launch += 1
        return launch

    def close(self) -> None:
        """Tell the other ranks that there is no further case, where they wait for one."""
        super().close()
        if self._many_launches:
            words = [self._python, *self._worker, "dismiss", f"--launch={self.attached_launch}"]
            try:
                subprocess.run(words, env=self._rank_environment(), timeout=DISMISSAL_S, check=False)
            except subprocess.TimeoutExpired:
                sys.stderr.write(f"gpuproof: the other ranks were not reached within {DISMISSAL_S} s\n")


def ranks_of_srun(environment: Mapping[str, str]) -> dict[str, str]:
    """Return RANK and its like for one of several tasks of srun's; nothing where it is none, or RANK is set.

    A batch script has SLURM_PROCID and SLURM_NTASKS, too, and is no task: only a step counts. What is set of
    MASTER_ADDR and MASTER_PORT is kept.
    """
    named = ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
    if {"RANK", "WORLD_SIZE"} & environment.keys() or not environment.keys() >= set(named):
        return {}
    step, world_size, rank, local_rank, node = (environment[name] for name in named)
    if world_size == "1":
        return {}
    job, nodes = environment.get("SLURM_JOB_ID", "0"), environment.get("SLURM_STEP_NODELIST", "")
    tasks = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    ranks = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": local_rank, "NODE_RANK": node}
    if int(node) < len(tasks):
        ranks["LOCAL_WORLD_SIZE"] = str(tasks[int(node)])
    port = PORT + (7 * int(job) + int(step)) % NUM_PORTS
    meeting = {"MASTER_ADDR": first_node(nodes), "MASTER_PORT": str(port)}
    return {**ranks, **{name: value for name, value in meeting.items() if name not in environment}}


def first_node(nodes: str) -> str:
    """Return the first of Slurm's nodes; `scontrol`, which could tell, is not in a container.

    >>> first_node("node[01-04,07],login"), first_node("a-1,b"), first_node("r[2-3]n[08,10]")
    ('node01', 'a-1', 'r2n08')
    """
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", re.split(r",(?![^\[]*\])", nodes)[0])


def tasks_per_node(written: str) -> list[int]:
    """Write out Slurm's numbers of tasks.

    >>> tasks_per_node("2(x3),1"), tasks_per_node("8")
    ([2, 2, 2, 1], [8])
    """
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", written)
    return [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]


def is_attached(environment: Mapping[str, str]) -> bool:
    """Say whether this process is one rank of several that somebody else started.

    Raises:
        UsageError: the variables that say so contradict each other.
    """
    world_size = number_in(environment, "WORLD_SIZE", default=1)
    if world_size > 1 and "RANK" not in environment:
        raise UsageError(
            f"WORLD_SIZE={world_size} is set and RANK is not",
            place="environment",
            next_step="Set RANK too, or unset WORLD_SIZE and use --nproc",
        )
    return world_size > 1


def attached_world_size(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks the user's launcher started; None where there is no such launcher."""
    return number_in(environment, "WORLD_SIZE", default=1) if is_attached(environment) else None


def is_follower(environment: Mapping[str, str]) -> bool:
    """Say whether this process is a rank other than the first."""
    return is_attached(environment) and number_in(environment, "RANK", default=0) > 0


def become_follower(config: RunConfig) -> NoReturn:
    """Turn this process into a worker that waits for rank 0's case, and for its download if there is one.

    A suite has several cases: then it waits for one after the other.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    words = [sys.executable, "-m", "gpuproof.worker", "join" if config.suite is None else "follow"]
    words += [f"--patience-s={DOWNLOAD_PATIENCE_S if config.data.download else PATIENCE_S}"]
    words += [f"--prepare-data={json.dumps([sys.executable, '-m', 'gpuproof.datasets'])}"]
    os.execve(sys.executable, words, safe_environment())  # noqa: S606


def number_in(environment: Mapping[str, str], name: str, *, default: int = 0) -> int:
    """Return the number that a variable holds, else the default.

    Raises:
        UsageError: it holds another word.
    """
    try:
        return int(environment.get(name, default))
    except ValueError as error:
        raise UsageError(f"{name}={environment[name]!r} is no whole number", place="environment") from error
