"""Who this process is among the ranks and how many threads it gets, before torch is imported.

torchrun, srun or a person set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; without them the
process is alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.records.case import ParallelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """The place of this process among the ranks."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def identity_from(environment: Mapping[str, str]) -> RankIdentity:
    """Read the identity that a launcher, or a person, put into the environment.

    Raises:
        EnvironmentUnfitError: a variable is no number, or the rank is not below the world size.
    """
    try:
        world_size = int(environment.get("WORLD_SIZE", "1"))
        rank = int(environment.get("RANK", "0"))
        local_world_size = int(environment.get("LOCAL_WORLD_SIZE", str(world_size)))
        local_rank = int(environment.get("LOCAL_RANK", str(rank % max(1, local_world_size))))
    except ValueError as error:
        raise EnvironmentUnfitError(
            f"RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE must be whole numbers ({error})",
            place="environment",
        ) from error
    if not 0 <= rank < world_size:
        raise EnvironmentUnfitError(
            f"RANK={rank} does not fit WORLD_SIZE={world_size}",
            place="environment",
            next_step="Ranks count from 0 to WORLD_SIZE - 1",
        )
    return RankIdentity(
        rank=rank, world_size=world_size, local_rank=local_rank, local_world_size=local_world_size
    )


def effective_threads(parallel: ParallelSpec, identity: RankIdentity) -> int:
    """Return the threads of one rank: the number asked for, else an equal share of the processors."""
    if parallel.threads_per_rank is not None:
        return parallel.threads_per_rank
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // identity.local_world_size)
