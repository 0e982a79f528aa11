"""What every launcher offers: places, launches on them, and news of all that it started.

A launcher starts node-side processes and brings their files into the case's folder. It judges nothing:
what happened is in the records.

Launchers come in two shapes. One of *places* (this one: this host, hosts over SSH, an allocation) says what
there is, and is told where each case goes. One of *queue* (sbatch, Kubernetes) has no places of its own: it
takes cases that say how many hosts they need, and reports where they ran (`Launched.placed`) once they do.
It offers `start(case, (), folder)` and `wait`, with `places()` empty: the scheduler starts what the suite
asks for without waiting for room, up to `max_busy` launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.case import Case, Placed
from gpuproof.records.run import HostStage
from gpuproof.suites.base import HostPlace


class HostError(EnvironmentUnfitError):
    """A host cannot be used: which, at which stage, and why."""

    def __init__(
        self,
        cause: str,
        *,
        host: str,
        stage: HostStage,
        next_step: str | None = None,
        is_interruption: bool = False,
    ) -> None:
        """Take the cause; an interruption is a host that was taken back, with which nothing is wrong."""
        super().__init__(cause, place=f"{host}: {stage}", next_step=next_step)
        self.host = host
        self.stage = stage
        self.is_interruption = is_interruption


class Launched(Protocol):
    """The processes of one case, from its start to the last byte of its files."""

    @property
    def command(self) -> str:
        """What was started, as a person could type it; empty until then."""

    @property
    def placed(self) -> Placed | None:
        """Where it runs, once it does."""

    @property
    def status(self) -> int | None:
        """Exit status of the ranks, or of the first host whose ranks failed; None while they run."""

    @property
    def error(self) -> HostError | None:
        """Why it could not begin."""

    @property
    def waits_for(self) -> str | None:
        """What keeps it from beginning, in the scheduler's words; None where nothing is known to."""

    @property
    def is_over(self) -> bool:
        """Whether all processes have ended and all files are here."""

    def end(self, grace_s: float) -> None:
        """Have all processes end: asked to, given `grace_s` for last words, then killed. Does not wait.

        Whoever started a launch ends it, however it went. Called again, it may cut the time short.
        """


@runtime_checkable
class Launcher(Protocol):
    """Starts cases on the places that it offers."""

    world_size: int | None
    """Ranks of each launch where it is not this launcher that starts them all."""
    max_busy: int | None
    """Places that may be busy at the same time, of a queue launches; None is all."""

    def places(self) -> Sequence[HostPlace]:
        """Return the places in the order of preference; a single one without a name is this machine.

        A queue has none.
        """

    def lost(self) -> Mapping[str, HostError]:
        """Return the places that cannot be used any more, and why."""

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> Launched:
        """Begin to start the case's ranks on these places, in the order of node ranks.

        They write into `folder`, which holds spec.json. It does not wait for hosts: that one cannot be
        reached is news like any other.

        Raises:
            EnvironmentUnfitError: no processes can be started here.
        """

    def wait(self, timeout_s: float) -> None:
        """Wait for news of any launch: it begins, its ranks end, it is over; at most `timeout_s`.

        Raises:
            GpuproofError: a queue does not take what it was given, or does not answer any more.
        """

    def notes(self) -> Sequence[str]:
        """Return what a person should know of it in the end, a line each."""

    def close(self) -> None:
        """End what is kept from case to case, and leave no trace."""
