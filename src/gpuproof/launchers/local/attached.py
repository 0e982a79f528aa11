"""Under a launcher of the user's: torchrun, srun with a task a rank, or RANK and WORLD_SIZE set by hand.

Every rank then starts `gpuproof run` with the same words. Rank 0 is the campaign; the others become
workers that wait for its case, or for one after the other until they are told that there are no more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpuproof.config.models import RunConfig
from gpuproof.launchers.local.launcher import LocalLaunch, LocalLauncher
from gpuproof.launchers.surroundings import attached_world_size, number_in
from gpuproof.processes.start import safe_environment
from gpuproof.records.case import Case
from gpuproof.suites.base import HostPlace

PATIENCE_S = 300
"""Time that other ranks wait for rank 0's case …"""
DOWNLOAD_PATIENCE_S = 3600
"""… and where it may have to fetch a data set first."""
DISMISSAL_S = 90
"""Time in which the other ranks are told that there is no further case; else they wait for it in vain."""


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
        per_host = number_in(self._environment, "LOCAL_WORLD_SIZE", default=self.world_size)
        hosts = -(-self.world_size // max(1, per_host))
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
