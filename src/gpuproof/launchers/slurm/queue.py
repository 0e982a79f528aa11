"""Jobs in Slurm's queue: each launch is one job, or one element of an array of similar launches.

In: cases that state how many nodes they need. Out: events that report where each ran and how it finished. A
separate thread talks to Slurm: it submits the launches requested since its last round, queries all jobs in
one call (less often while nothing changes), and cancels jobs. The run directory must be on a file system that
the nodes share.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gpuproof.base.errors import GpuproofError
from gpuproof.base.outside import parse_json
from gpuproof.launchers.failures import launch_failure
from gpuproof.launchers.queue import FAILED_STATUS, LaunchQueue, QueuedLaunch
from gpuproof.launchers.slurm.commands import (
    FORGOTTEN,
    UNENDED,
    WAITING,
    JobState,
    SlurmCommands,
    job_failure,
)
from gpuproof.launchers.slurm.options import SlurmOptions
from gpuproof.launchers.slurm.text import LOG, SlurmNode, job_text
from gpuproof.records.case import Case, Placed
from gpuproof.store import layout
from gpuproof.store.run import append_record

FILES_S = 60.0
"""Time for files written by a node to become visible here on a shared file system."""
END_S = 120.0
"""Time for a cancelled job to end: more than Slurm's KillWait (30 s) plus an epilog."""
PORTS = range(20_000, 32_000)
"""Rendezvous ports, lower than the ports that the kernel assigns automatically."""
MISSED = 3
"""Number of polls after which a job that is not in the queue counts as forgotten."""
JOB_FILE = "slurm-job.json"
_SUSPENDED = "job {} was suspended for a while: what it measured during that time is not valid"


class SlurmLaunch(QueuedLaunch):
    """One job, or one array element."""

    def __init__(self, case: Case, folder: Path, *, wake: Callable[[], object]) -> None:
        super().__init__(case, folder, wake=wake)
        self.job = ""
        """The job's ID; empty before it is submitted."""
        self.ending_since_s: float | None = None
        """When the job was cancelled: Slurm sends SIGTERM and, after its own KillWait, SIGKILL."""
        self.num_missed = 0
        """Number of consecutive polls of the queue that did not find the job."""


class SlurmQueue(LaunchQueue[SlurmLaunch]):
    """Submits cases as jobs, and similar launches as one array."""

    end_s = END_S

    def __init__(
        self, options: SlurmOptions, slurm: SlurmCommands, *, node_for: Callable[[Path], SlurmNode]
    ) -> None:
        """Start the thread; `node_for` defines how the node side is started for a run directory."""
        super().__init__(SlurmLaunch, name="slurm", max_busy=options.max_jobs)
        self._options = options
        self._slurm = slurm
        self._node_for = node_for
        self._thread.start()

    # The methods below run in the thread.

    def _begin(self, launches: Sequence[SlurmLaunch]) -> None:
        groups: dict[str, list[SlurmLaunch]] = defaultdict(list)
        for launch in launches:
            if launch.num_end_requests:
                self._end_with(launch, None)
            else:
                groups[self._text([launch], folders=[""])].append(launch)
        for group in groups.values():
            self._submit(group)

    def _text(self, group: Sequence[SlurmLaunch], *, folders: Sequence[str], port: int = 0) -> str:
        first = group[0]
        node = self._node_for(layout.run_folder(first.folder))
        name = f"gpuproof-{Path(node.run).name}"
        return job_text(self._options, first.case, node, name=name, folders=folders, port=port)

    def _submit(self, group: Sequence[SlurmLaunch]) -> None:
        port = random.choice(PORTS)  # noqa: S311  # no secret
        text = self._text(group, folders=[str(launch.folder) for launch in group], port=port)
        try:
            self._cancel_earlier(group)
            job = self._slurm.submit(text)
        except GpuproofError as error:
            if not self._has_begun:
                raise
            for launch in group:
                failure = launch_failure(
                    "environment", f"not submitted: {error.cause}", next_step=error.next_step
                )
                self._end_with(launch, failure)
            return
        self._has_begun = True
        self._heard_s = time.monotonic()
        for index, launch in enumerate(group):
            launch.job = job if len(group) == 1 else f"{job}_{index}"
        for launch in group:
            launch.command = text
            launch.waits_for = "the queue"
            (launch.folder / layout.LAUNCH_TEXT).write_text(text, encoding="utf-8")
            (launch.folder / JOB_FILE).write_text(json.dumps({"job": launch.job}) + "\n", encoding="utf-8")

    def _cancel_earlier(self, group: Iterable[SlurmLaunch]) -> None:
        """Cancel jobs for these launches that an earlier, killed campaign left in the queue."""
        files = [
            file
            for launch in group
            for file in launch.folder.parent.glob(f"{launch.folder.name}{layout.ASIDE}*/{JOB_FILE}")
        ]
        jobs = [str(parse_json(file.read_text(encoding="utf-8"))["job"]) for file in files]
        states = self._slurm.states(jobs) if jobs else {}
        left = [job for job in jobs if job in states and states[job].name in UNENDED]
        if left:
            self._slurm.cancel(left)

    def _tell_ends(self) -> None:
        """Cancel jobs as requested, all in one call; a second request sends SIGKILL immediately."""
        ending = [launch for launch in self._open if launch.num_end_requests > launch.num_end_signals]
        hurried = [launch.job for launch in ending if launch.num_end_signals]
        if hurried:
            self._slurm.cancel(hurried, "--signal=KILL", "--full")
        first = [launch.job for launch in ending if not launch.num_end_signals]
        if first:
            self._slurm.cancel(first)
        for launch in ending:
            launch.num_end_signals = launch.num_end_requests
            launch.ending_since_s = launch.ending_since_s or time.monotonic()

    def _look(self) -> bool:
        jobs = [launch.job for launch in self._open]
        states = self._slurm.states(jobs)
        self._heard_s = time.monotonic()
        missing = [job for job in jobs if job not in states]
        states |= self._slurm.accounted(missing)
        changed = [
            self._heard(launch, state) for launch in list(self._open) if (state := _of(launch, states))
        ]
        return any(changed)

    def _heard(self, launch: SlurmLaunch, state: JobState) -> bool:
        """Record the state of a job; return whether it has changed."""
        before = launch.waits_for, launch.placed, launch.is_over
        if state.name == "SUSPENDED" and (note := _SUSPENDED.format(launch.job)) not in self._notes:
            self._notes.append(note)
        if state.name in WAITING:
            launch.waits_for = f"the queue: {state.reason}" if state.reason else "the queue"
            self._has_waited(launch)
        elif launch.placed is None and state.nodes:
            launch.placed = self._placed(launch, state)
            launch.waits_for = None
        if state.name not in UNENDED and self._files_are_here(launch, state):
            self._has_ended(launch, state)
        elif launch.ending_since_s is not None and time.monotonic() - launch.ending_since_s > END_S:
            self._notes.append(f"job {launch.job} did not end within {END_S:g} s: scancel {launch.job}")
            self._end_with(launch, None)
        return (launch.waits_for, launch.placed, launch.is_over) != before

    def _has_waited(self, launch: SlurmLaunch) -> None:
        """Cancel a job that has been waiting too long."""
        limit_s = self._options.pending_limit_s
        if limit_s is None or launch.num_end_requests or time.monotonic() - launch.since_s < limit_s:
            return
        message = f"job {launch.job} has not started within {limit_s:g} s: {launch.waits_for}"
        next_step = f"`scontrol show job {launch.job}` shows more; raise pending_limit_s, or request less"
        append_record(launch.folder, launch_failure("environment", message, next_step=next_step))
        launch.end(0.0)

    def _placed(self, launch: SlurmLaunch, state: JobState) -> Placed:
        hosts = launch.case.placement.hosts or self._slurm.host_names(state.nodes)
        is_alone = launch.case.placement.num_ranks == 1
        return Placed(
            hosts=hosts,
            ranks_per_host=launch.case.placement.ranks_per_host,
            address=None if is_alone else self._slurm.address(hosts[0]),
        )

    def _files_are_here(self, launch: SlurmLaunch, state: JobState) -> bool:
        """Check whether the files that the ranks of a successful job wrote are visible here."""
        num_there = len(layout.rank_journals(launch.folder))
        is_complete = num_there >= launch.case.placement.num_ranks
        if state.name != "COMPLETED" or launch.num_end_requests or is_complete:
            return True
        if launch.waits_for != "its files":
            launch.waits_for, launch.since_s = "its files", time.monotonic()
        return time.monotonic() - launch.since_s > FILES_S

    def _has_ended(self, launch: SlurmLaunch, state: JobState) -> None:
        _take_log(launch, state)
        failure = None
        if not launch.num_end_requests:
            may_have_lost = state.nodes and state.name in ("NODE_FAIL", "FAILED", "CANCELLED", FORGOTTEN)
            down = self._slurm.down(state.nodes) if may_have_lost else {}
            failure = job_failure(state, folder=launch.folder, down=down)
        if failure is None and state.name == "COMPLETED":
            launch.finish(0)
            self._open.remove(launch)
        else:
            self._end_with(launch, failure)

    def _end_with(self, launch: SlurmLaunch, failure: object | None) -> None:
        if failure is not None:
            append_record(launch.folder, failure)
        launch.finish(FAILED_STATUS)
        self._open.remove(launch)

    def _abandon(self) -> None:
        jobs = [launch.job for launch in self._open if launch.job]
        try:
            if jobs:
                self._slurm.cancel(jobs)
        except GpuproofError:
            self._notes.append(f"jobs may be left in the queue: scancel {' '.join(jobs)}")
        for launch in self._open:
            launch.finish(FAILED_STATUS)


def _of(launch: SlurmLaunch, states: Mapping[str, JobState]) -> JobState | None:
    """Return a job's state; None if it was not found, but might still appear."""
    launch.num_missed = 0 if launch.job in states else launch.num_missed + 1
    if launch.num_missed < MISSED:
        return states.get(launch.job)
    return JobState(job=launch.job, number="", name=FORGOTTEN, nodes="", reason="")


def _take_log(launch: SlurmLaunch, state: JobState) -> None:
    """Append Slurm's own messages about a job to the output of the job."""
    log = layout.run_folder(launch.folder) / LOG.replace("%j", state.number)
    if not log.is_file():
        return
    content = log.read_bytes()
    if content:
        with (launch.folder / layout.LAUNCHER_OUTPUT).open("ab") as output:
            output.write(content)
    log.unlink()
