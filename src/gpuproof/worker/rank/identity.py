"""Which rank this process is and how many threads it gets; known before torch is imported.

torchrun, srun or the user sets RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; without them, the process
is the only rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.processes.granted import threads_per_rank, users_threads
from gpuproof.records.work.parallel import ParallelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """This process's global and local rank."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def identity_from(environment: Mapping[str, str]) -> RankIdentity:
    """Read the rank identity that a launcher or a user has set in the environment.

    Raises:
        EnvironmentUnfitError: a variable is not a number, or a rank is not less than the number of ranks.
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
    _check_place("RANK", rank, "WORLD_SIZE", world_size)
    _check_place("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world_size)
    if local_world_size > world_size:
        raise EnvironmentUnfitError(
            f"LOCAL_WORLD_SIZE={local_world_size} exceeds WORLD_SIZE={world_size}", place="environment"
        )
    return RankIdentity(
        rank=rank, world_size=world_size, local_rank=local_rank, local_world_size=local_world_size
    )


def _check_place(name: str, place: int, size_name: str, size: int) -> None:
    if not 0 <= place < size:
        raise EnvironmentUnfitError(
            f"{name}={place} does not fit {size_name}={size}",
            place="environment",
            next_step=f"Ranks are numbered from 0 to {size_name} - 1",
        )


def effective_threads(parallel: ParallelSpec, identity: RankIdentity) -> int:
    """Return the thread count of one rank: as requested, or else its share of the usable CPUs."""
    return threads_per_rank(
        parallel.threads_per_rank, num_ranks=identity.local_world_size, users=users_threads()
    )
