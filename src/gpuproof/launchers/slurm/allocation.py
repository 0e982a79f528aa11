"""The nodes of an allocation as hosts: each launch is one srun step on them.

In: the environment of salloc or of a batch script. Nothing is submitted. The run directory must be on a file
system that the nodes share.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from gpuproof.base.errors import GpuproofError, UsageError
from gpuproof.launchers.base import HostError
from gpuproof.launchers.failures import launch_failure
from gpuproof.launchers.local.site import LocalLaunch
from gpuproof.launchers.slurm.commands import UNENDED, SlurmCommands, container_failure
from gpuproof.launchers.slurm.site import JOB, SlurmSite, allocated_nodes
from gpuproof.launchers.slurm.text import SlurmNode, step_environment, step_words
from gpuproof.processes.group import start_group
from gpuproof.records.case import Case, Placed
from gpuproof.store import layout
from gpuproof.store.run import append_record
from gpuproof.suites.base import HostPlace

PORT, NUM_PORTS = 20_000, 12_000
ANOTHER = "Finish the run with --resume in another allocation with the same nodes (salloc --nodelist=…)"
STEP_MARGIN_S = 5.0
"""Time added to the grace period, so that srun can notice that its tasks have exited."""


class SlurmAllocation:
    """Starts cases as steps on the nodes of the current allocation."""

    world_size: int | None = None
    max_busy: int | None = None

    def __init__(
        self,
        site: SlurmSite,
        slurm: SlurmCommands,
        *,
        node_for: Callable[[Path], SlurmNode],
        environment: Mapping[str, str],
    ) -> None:
        """Use the nodes of the current allocation.

        Raises:
            UsageError: there is no allocation, or it lacks nodes on which the run started.
        """
        here = slurm.host_names(allocated_nodes(environment) or "")
        missing = [host for host in site.hosts if host not in here]
        if missing:
            raise UsageError(
                f"the run uses nodes of an allocation, and {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} not in this one",
                place="--resume",
                next_step=f"Start it in an allocation with them: salloc --nodelist={','.join(site.hosts)}",
            )
        self._hosts = site.hosts
        self._options = site.options
        self._slurm = slurm
        self._node_for = node_for
        self._environment = environment
        self._num_started = 0
        self._lost: dict[str, HostError] = {}
        self._news = threading.Event()

    def places(self) -> Sequence[HostPlace]:
        """Return the nodes in Slurm's order."""
        return [HostPlace(name=host) for host in self._hosts]

    def lost(self) -> Mapping[str, HostError]:
        """Return the nodes that have died."""
        return self._lost

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> LocalLaunch:
        """Start the case's step.

        Raises:
            EnvironmentUnfitError: srun cannot be started, or Slurm does not respond.
        """
        node = self._node_for(layout.run_folder(folder))
        self._num_started += 1
        name = f"gpuproof-{os.getpid()}-{self._num_started}"
        launch_folder = str(folder.absolute())
        words = step_words(self._options, case, node, name=name, hosts=hosts, folder=launch_folder)
        port, address = self._meeting(case, hosts)
        environment = step_environment(self._options, self._environment, address=address, port=port)
        placed = Placed(
            hosts=tuple(hosts),
            ranks_per_host=case.placement.ranks_per_host,
            address=None if port is None else address,
            port=port,
        )
        command = f"{shlex.join(words)}\n"
        (folder / layout.LAUNCH_TEXT).write_text(command, encoding="utf-8")
        launch = StepLaunch(
            self._news,
            command=command,
            placed=placed,
            before_exit=partial(self._look_after, hosts, folder),
            tell_to_end=partial(self._slurm.end_step, self._environment[JOB], name),
        )
        output = folder / layout.LAUNCHER_OUTPUT
        launch.processes = start_group(
            [words], environment=environment, output=output, on_exit=launch.has_exited
        )
        return launch

    def _meeting(self, case: Case, hosts: Sequence[str]) -> tuple[int | None, str]:
        """Choose the rendezvous address, with a different port for each launch in this job."""
        if case.placement.num_ranks == 1:
            return None, ""
        number = 7 * int(self._environment[JOB]) + self._num_started
        return PORT + number % NUM_PORTS, self._slurm.address(hosts[0])

    def _look_after(self, hosts: Sequence[str], folder: Path, status: int) -> None:
        """Check whether a failed step lost a node, and report it."""
        if status == 0:
            return
        if (no_container := container_failure(folder, host="+".join(hosts))) is not None:
            append_record(folder, no_container)
        for name, reason in self._slurm.down(",".join(hosts)).items():
            self._lost[name] = HostError(f"node failure: {reason}", host=name, stage="execute")
            message = f"node failure: the step on {'+'.join(hosts)} lost {name} ({reason})"
            append_record(folder, launch_failure("lost_rank", message, host=name))
        if (cause := self._allocation_ended()) is not None:
            for name in self._hosts:
                self._lost[name] = HostError(
                    cause, host=name, stage="execute", next_step=ANOTHER, is_interruption=True
                )
            append_record(
                folder, launch_failure("interrupted", cause, next_step=ANOTHER, host="+".join(hosts))
            )

    def _allocation_ended(self) -> str | None:
        """Return how the allocation ended; None if it has not ended, or if Slurm does not report it."""
        job = self._environment[JOB]
        try:
            state = self._slurm.states([job]).get(job)
        except GpuproofError:
            return None
        if state is None or state.name in UNENDED - {"COMPLETING"}:
            return None
        how = "is being reclaimed" if state.name == "COMPLETING" else f"ended {state.name}"
        return f"the allocation, job {job}, {how}: no further step can start in it"

    def wait(self, timeout_s: float) -> None:
        """Wait for an event in any launch."""
        self._news.wait(timeout_s)
        self._news.clear()

    def notes(self) -> Sequence[str]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing: nothing is kept between cases."""


class StepLaunch(LocalLaunch):
    """A step: an srun process on this machine; its exit is examined before it is reported."""

    def __init__(
        self,
        news: threading.Event,
        *,
        command: str,
        placed: Placed,
        before_exit: Callable[[int], None],
        tell_to_end: Callable[[], None],
    ) -> None:
        super().__init__(news, command=command, placed=placed)
        self._before_exit = before_exit
        self._tell_to_end = tell_to_end

    def has_exited(self, status: int) -> None:
        """Handle the exit of srun, reported from another thread."""
        self._before_exit(status)
        super().has_exited(status)

    def _end(self, grace_s: float) -> None:
        """Give the step's processes time for last messages, then stop srun, which kills the rest."""
        if self.status is None:
            with suppress(GpuproofError):
                self._tell_to_end()
            self.processes.wait(grace_s + STEP_MARGIN_S)
        super()._end(STEP_MARGIN_S)
