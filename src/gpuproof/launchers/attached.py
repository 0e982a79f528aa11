"""Under a launcher of the user's: torchrun, srun, or RANK and WORLD_SIZE set by hand.

Every rank then starts `gpuproof run` with the same words. Rank 0 is the campaign; the others become
workers that wait for its case.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from gpuproof.config.models import RunConfig
from gpuproof.errors import UsageError
from gpuproof.launchers.local import LocalLauncher

PATIENCE_S = 300
"""Time that other ranks wait for rank 0's case …"""
DOWNLOAD_PATIENCE_S = 3600
"""… and where it may have to fetch a data set first."""


class AttachedLauncher(LocalLauncher):
    """Starts rank 0 of each case, which gives the case to the ranks that the user's launcher started."""

    def __init__(self, *, environment: Mapping[str, str], **options: Any) -> None:
        super().__init__(environment=environment, **options)
        self.world_size = attached_world_size(environment)


def is_attached(environment: Mapping[str, str]) -> bool:
    """Say whether this process is one rank of several that somebody else started.

    Raises:
        UsageError: the variables that say so contradict each other.
    """
    world_size = _number(environment, "WORLD_SIZE", default=1)
    if world_size > 1 and "RANK" not in environment:
        raise UsageError(
            f"WORLD_SIZE={world_size} is set and RANK is not",
            place="environment",
            next_step="Set RANK too, or unset WORLD_SIZE and use --nproc",
        )
    return world_size > 1


def attached_world_size(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks the user's launcher started; None where there is no such launcher."""
    return _number(environment, "WORLD_SIZE", default=1) if is_attached(environment) else None


def is_follower(environment: Mapping[str, str]) -> bool:
    """Say whether this process is a rank other than the first."""
    return is_attached(environment) and _number(environment, "RANK", default=0) > 0


def become_follower(config: RunConfig) -> NoReturn:
    """Turn this process into a worker that waits for rank 0's case, and for its download if there is one."""
    sys.stdout.flush()
    sys.stderr.flush()
    words = [sys.executable, "-m", "gpuproof.worker", "join"]
    words += [f"--patience-s={DOWNLOAD_PATIENCE_S if config.data.download else PATIENCE_S}"]
    words += [f"--prepare-data={json.dumps([sys.executable, '-m', 'gpuproof.datasets'])}"]
    os.execv(sys.executable, words)  # noqa: S606


def _number(environment: Mapping[str, str], name: str, *, default: int) -> int:
    try:
        return int(environment.get(name, default))
    except ValueError as error:
        raise UsageError(f"{name}={environment[name]!r} is no whole number", place="environment") from error
