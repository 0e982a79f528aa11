"""What every launcher provides: hosts, launches on them, and events from everything it started.

A launcher starts node-side processes and copies their files to the case's folder. It does not evaluate
anything: the records show what happened.

There are two kinds of launcher. A *places* launcher (this host, hosts over SSH, an allocation) lists what is
available, and receives a place for each case. A *queue* launcher (sbatch, Kubernetes) has no places of its
own: it accepts cases that state how many hosts they need, and reports where they ran (`Launched.placed`) once
that is known. It provides `start(case, (), folder)` and `wait`, and its `places()` is empty: everything that
the suite requests is submitted, even if nothing is free, up to `max_busy` launches at a time.
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
    """A host cannot be used: which host, at which stage, and why."""

    def __init__(
        self,
        cause: str,
        *,
        host: str,
        stage: HostStage,
        next_step: str | None = None,
        is_interruption: bool = False,
    ) -> None:
        """Store the cause; an interruption means that a host was reclaimed, but nothing is wrong."""
        super().__init__(cause, place=f"{host}: {stage}", next_step=next_step)
        self.host = host
        self.stage = stage
        self.is_interruption = is_interruption


class Launched(Protocol):
    """The processes of one case, from the start until the last byte of their files has arrived."""

    @property
    def command(self) -> str:
        """The command that was started, as a user would type it; empty until then."""

    @property
    def placed(self) -> Placed | None:
        """The hosts on which the launch runs, once it is running."""

    @property
    def status(self) -> int | None:
        """Exit status of the ranks, or of the first host with failed ranks; None while they run."""

    @property
    def error(self) -> HostError | None:
        """Why the launch could not start."""

    @property
    def waits_for(self) -> str | None:
        """What keeps the launch from starting, in the scheduler's words; None if unknown."""

    @property
    def is_over(self) -> bool:
        """Whether all processes have exited and all files have arrived."""

    def end(self, grace_s: float) -> None:
        """Stop all processes: SIGTERM, `grace_s` for last messages, then SIGKILL. Returns immediately.

        The caller that starts a launch also stops it, whatever its outcome. Another call may shorten the
        grace period.
        """


@runtime_checkable
class Launcher(Protocol):
    """Starts cases on the hosts that the launcher provides."""

    world_size: int | None
    """Number of ranks per launch, if this launcher does not start all of them."""
    max_busy: int | None
    """Maximum number of hosts or queued launches that may be busy at the same time; None means no limit."""

    def places(self) -> Sequence[HostPlace]:
        """Return the hosts in order of preference; a host without a name is this machine.

        A queue has no hosts of its own.
        """

    def lost(self) -> Mapping[str, HostError]:
        """Return the hosts that can no longer be used, with the reasons."""

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> Launched:
        """Start the case's ranks on these hosts, in node-rank order.

        The ranks write to `folder`, which contains spec.json. This does not wait for hosts: an unreachable
        host is reported later, like any other event.

        Raises:
            EnvironmentUnfitError: no processes can be started here.
        """

    def wait(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for an event in any launch: it starts, its ranks exit, or it finishes.

        Raises:
            GpuproofError: a queue rejects a submission, or no longer responds.
        """

    def notes(self) -> Sequence[str]:
        """Return final notes for the user, each as one line."""

    def close(self) -> None:
        """Stop everything that keeps running between cases, and leave nothing behind."""
