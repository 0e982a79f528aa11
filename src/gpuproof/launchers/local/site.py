"""This machine as the place of a run; under a launcher of the user's, the ranks that it started."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.base import Facts
from gpuproof.launchers.base import Launcher
from gpuproof.launchers.commands import (
    EXAMPLE_PORT,
    INSTALLED_WORKER,
    NodeSide,
    Rendezvous,
    commands_for,
    node_side_for,
)
from gpuproof.launchers.local.launcher import LocalLauncher
from gpuproof.launchers.registry import HostChoice, file_options
from gpuproof.launchers.site import LaunchSite
from gpuproof.launchers.surroundings import is_attached, is_follower
from gpuproof.records.case import Case
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import THIS_MACHINE, HostPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisMachine(LaunchSite):
    """This machine, and the Python that runs the ranks."""

    launcher: ClassVar[str] = "local"
    is_here: ClassVar[bool] = True
    libraries: ClassVar[Mapping[str, str]] = {"torch": "torch"}

    python: str | None = None
    """None is the one that runs gpuproof."""

    @classmethod
    def chosen(cls, choice: HostChoice, *, python: str | None) -> Self:
        """Return it.

        Raises:
            UsageError: several hosts are asked for.
        """
        if choice.one_job:
            raise UsageError(
                "the hosts of the one job are not given",
                place="--one-job",
                next_step=f"Name them: {file_options()} FILE",
            )
        return cls(python=python)

    @classmethod
    def recorded(cls, run: RunDirectory, choice: HostChoice, *, python: str | None) -> Self:
        """Return it: a run that names no hosts took place here."""
        del run, choice
        return cls(python=python)

    def facts(self, choice: HostChoice) -> Facts:
        """Return that there are no other hosts, and what the environment says."""
        del choice
        return Facts(hosts=(), is_attached=is_attached(os.environ), environment=os.environ)

    def places(self) -> Sequence[HostPlace]:
        """Return this machine."""
        return THIS_MACHINE

    @property
    def text(self) -> str:
        """This machine."""
        ranks = ", in the ranks that your launcher started" if is_attached(os.environ) else ""
        return f"this machine{ranks}" + (f", with {self.python}" if self.python else "")

    def missing(self) -> Iterator[str]:
        """Yield torch where the Python of gpuproof runs the ranks and lacks it; another is not asked."""
        return LaunchSite.missing(self) if self.python is None else iter(())

    def described(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def follow(self, config: RunConfig) -> None:
        """Wait as a worker for the cases of the first rank's run, where this process is another rank."""
        if is_follower(os.environ):
            from gpuproof.launchers.local.attached import become_follower

            become_follower(config)

    def shown(self, cases: Iterable[Case], run: Path) -> Iterator[str]:
        """Yield the command line of each launch.

        Raises:
            UsageError: there is no such Python.
        """
        if self.python is not None and shutil.which(self.python) is None:
            raise UsageError(
                "there is no such program", place="--python", next_step="Give the path of a Python"
            )
        for case in cases:
            yield f"{shlex.join(self._command(case, run))}\n"

    def _command(self, case: Case, run: Path) -> list[str]:
        attached = 0 if is_attached(os.environ) else None
        worker = INSTALLED_WORKER if self.python is None else ("DIRECTORY/gpuproof-node.pyz",)
        python = self.python or sys.executable
        node = NodeSide(python=python, worker=worker, run=str(run), host="HOST", pid=os.getpid())
        port = None if attached is not None or case.placement.num_ranks == 1 else EXAMPLE_PORT
        return commands_for(case, node, Rendezvous(port=port), attached_launch=attached).started[0]

    @contextmanager
    def opened(self, *, environment: Mapping[str, str], many_launches: bool) -> Iterator[Launcher]:
        """Give a launcher of ranks of our own, or of those that were started."""
        launchers: type[LocalLauncher] = LocalLauncher
        if is_attached(environment):
            from gpuproof.launchers.local.attached import AttachedLauncher

            launchers = AttachedLauncher
        python = self.python or sys.executable
        with node_side_for(self.python) as worker:  # as installed, or as one file for another Python
            launcher = launchers(
                python=python, worker=worker, environment=environment, many_launches=many_launches
            )
            with closing(launcher):
                yield launcher
