"""Jobs in Slurm's queue: each launch is one, or an element of an array where several are alike.

In: cases that say how many nodes they need. Out: news of where each ran and how it ended. A thread of its
own talks to Slurm: it submits what was started since it last looked, asks for all jobs by one call, ever less
often while nothing changes, and cancels. The run's directory must lie on a file system that the nodes share.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from gpuproof.config.slurm import SlurmOptions
from gpuproof.errors import GpuproofError
from gpuproof.launchers.base import HostError
from gpuproof.launchers.failures import launch_failure
from gpuproof.launchers.pauses import FIRST_POLL_S, next_pause_s
from gpuproof.launchers.slurm.commands import JobState, SlurmCommands, SlurmSilentError
from gpuproof.launchers.slurm.endings import FORGOTTEN, UNENDED, WAITING, job_failure
from gpuproof.launchers.slurm.text import LOG, SlurmNode, job_text
from gpuproof.outside import parse_json
from gpuproof.records.case import Case
from gpuproof.records.work.placed import Placed
from gpuproof.store import layout
from gpuproof.store.run import append_record
from gpuproof.suites.base import HostPlace

SILENT_S = 600.0
"""Time that slurmctld may be away, as for a restart, before a run is given up."""
FILES_S = 60.0
"""Time that a shared file system may take to show here what a node has written."""
END_S = 120.0
"""Time that a cancelled job may take to end: over Slurm's KillWait (30 s) and an epilog."""
PORTS = range(20_000, 32_000)
"""Below those that a kernel gives out by itself."""
MISSED = 3
"""Looks at the queue after which a job that is not in it counts as forgotten."""
JOB_FILE = "slurm-job.json"
FAILED_STATUS = 1
_SUSPENDED = "job {} was suspended for a while: what it measured then is no good"


class QueuedLaunch:
    """One job, or one element of an array."""

    def __init__(self, case: Case, folder: Path, *, wake: Callable[[], object]) -> None:
        self.case = case
        self.folder = folder
        self.job = ""
        """Its id; empty before it is submitted."""
        self.command = ""
        self.placed: Placed | None = None
        self.status: int | None = None
        self.error: HostError | None = None
        self.is_over = False
        self.waits_for: str | None = "to be submitted"
        self.since_s = time.monotonic()
        """Since when it waits: for its begin, then for its files."""
        self.end_asked: list[float] = []
        """When its end was asked for, each time."""
        self.num_cancelled = 0
        self.num_missed = 0
        """Looks at the queue in a row that did not find it."""
        self._wake = wake

    def end(self, grace_s: float) -> None:
        """Have the job cancelled: Slurm sends SIGTERM, and SIGKILL after its own KillWait. Does not wait."""
        del grace_s
        if not self.is_over:
            self.end_asked.append(time.monotonic())
            self._wake()

    def finish(self, status: int) -> None:
        """Note that it is over."""
        self.status = status
        self.waits_for = None
        self.is_over = True


class SlurmQueue:
    """Submits cases as jobs; offers no places of its own."""

    world_size: int | None = None

    def __init__(
        self, options: SlurmOptions, slurm: SlurmCommands, *, node_for: Callable[[Path], SlurmNode]
    ) -> None:
        """Begin to listen; `node_for` says how the node side of a run directory is started."""
        self.max_busy: int | None = options.max_jobs
        self._options = options
        self._slurm = slurm
        self._node_for = node_for
        self._new: SimpleQueue[QueuedLaunch] = SimpleQueue()
        self._open: list[QueuedLaunch] = []
        self._notes: list[str] = []
        self._has_submitted = False
        self._heard_s = time.monotonic()
        self._fault: BaseException | None = None
        self._news, self._wake = threading.Event(), threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="gpuproof-slurm", daemon=True)
        self._thread.start()

    def places(self) -> Sequence[HostPlace]:
        """Return none: the queue chooses."""
        return ()

    def lost(self) -> Mapping[str, HostError]:
        """Return nothing: the queue has other nodes."""
        return {}

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> QueuedLaunch:
        """Take a case; it is submitted with what is started before the next `wait`."""
        del hosts
        launch = QueuedLaunch(case, folder.absolute(), wake=self._wake.set)
        self._new.put(launch)
        return launch

    def wait(self, timeout_s: float) -> None:
        """Wait for news of any launch.

        Raises:
            SlurmRefusalError: the first job is not taken.
            EnvironmentUnfitError: Slurm does not answer any more.
        """
        if not self._new.empty():
            self._wake.set()
        self._news.wait(timeout_s)
        self._news.clear()
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def notes(self) -> Sequence[str]:
        """Return what a person should know of jobs that were stopped on their way, or did not end."""
        return tuple(self._notes)

    def close(self) -> None:
        """Stop listening."""
        self._is_closing = True
        self._wake.set()
        self._thread.join()

    # In the thread.

    def _work(self) -> None:
        pause_s = FIRST_POLL_S
        while not self._is_closing:
            is_awake = self._wake.wait(pause_s if self._open else None)
            self._wake.clear()
            try:
                has_changed = self._submit_new() | self._cancel_asked() | self._look()
            except SlurmSilentError as error:
                has_changed = False
                self._is_silent(error)
            except BaseException as error:  # noqa: BLE001  # told to whoever waits, in the main thread
                self._give_up(error)
                has_changed = True
            pause_s = next_pause_s(pause_s, is_news=has_changed or is_awake)
            if has_changed:
                self._news.set()

    def _submit_new(self) -> bool:
        """Submit what was started, launches that are alike as one array."""
        taken: list[QueuedLaunch] = []
        with suppress(Empty):
            while True:
                taken.append(self._new.get_nowait())
        groups: dict[str, list[QueuedLaunch]] = defaultdict(list)
        self._open += taken
        for launch in taken:
            if launch.end_asked:
                self._end_with(launch, None)
            else:
                groups[self._text([launch], folders=[""])].append(launch)
        for group in groups.values():
            self._submit(group)
        return bool(taken)

    def _text(self, group: Sequence[QueuedLaunch], *, folders: Sequence[str], port: int = 0) -> str:
        first = group[0]
        node = self._node_for(layout.run_folder(first.folder))
        name = f"gpuproof-{Path(node.run).name}"
        return job_text(self._options, first.case, node, name=name, folders=folders, port=port)

    def _submit(self, group: Sequence[QueuedLaunch]) -> None:
        port = random.choice(PORTS)  # noqa: S311  # no secret
        text = self._text(group, folders=[str(launch.folder) for launch in group], port=port)
        try:
            self._cancel_earlier(group)
            job = self._slurm.submit(text)
        except GpuproofError as error:
            if not self._has_submitted:
                raise
            for launch in group:
                failure = launch_failure(
                    "environment", f"not submitted: {error.cause}", next_step=error.next_step
                )
                self._end_with(launch, failure)
            return
        self._has_submitted = True
        self._heard_s = time.monotonic()
        for index, launch in enumerate(group):
            launch.job = job if len(group) == 1 else f"{job}_{index}"
        for launch in group:
            launch.command = text
            launch.waits_for = "the queue"
            (launch.folder / layout.LAUNCH_TEXT).write_text(text, encoding="utf-8")
            (launch.folder / JOB_FILE).write_text(json.dumps({"job": launch.job}) + "\n", encoding="utf-8")

    def _cancel_earlier(self, group: Iterable[QueuedLaunch]) -> None:
        """Cancel what an earlier campaign, which was killed, left in the queue for these launches."""
        files = [
            file
            for launch in group
            for file in launch.folder.parent.glob(f"{launch.folder.name}{layout.ASIDE}*/{JOB_FILE}")
        ]
        jobs = [str(parse_json(file.read_text(encoding="utf-8"))["job"]) for file in files]
        known = self._slurm.states(jobs) if jobs else {}
        left = [job for job in jobs if job in known and known[job].name in UNENDED]
        if left:
            self._slurm.cancel(left)

    def _cancel_asked(self) -> bool:
        """Cancel the jobs whose end was asked for, all by one call; asked again, they get SIGKILL at once."""
        asked = [launch for launch in self._open if len(launch.end_asked) > launch.num_cancelled]
        hurried = [launch.job for launch in asked if launch.num_cancelled]
        if hurried:
            self._slurm.cancel(hurried, "--signal=KILL", "--full")
        first = [launch.job for launch in asked if not launch.num_cancelled]
        if first:
            self._slurm.cancel(first)
        for launch in asked:
            launch.num_cancelled = len(launch.end_asked)
        return False

    def _look(self) -> bool:
        """Ask how all jobs stand; return whether anything is new."""
        jobs = [launch.job for launch in self._open]
        if not jobs:
            return False
        states = self._slurm.states(jobs)
        self._heard_s = time.monotonic()
        missing = [job for job in jobs if job not in states]
        states |= self._slurm.accounted(missing)
        changed = [
            self._heard(launch, state) for launch in list(self._open) if (state := _of(launch, states))
        ]
        return any(changed)

    def _heard(self, launch: QueuedLaunch, state: JobState) -> bool:
        """Take in how a job stands; return whether that is new."""
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
        elif launch.end_asked and time.monotonic() - launch.end_asked[0] > END_S:
            self._notes.append(f"job {launch.job} did not end within {END_S:g} s: scancel {launch.job}")
            self._end_with(launch, None)
        return (launch.waits_for, launch.placed, launch.is_over) != before

    def _has_waited(self, launch: QueuedLaunch) -> None:
        """Cancel a job that has been waiting for too long."""
        limit_s = self._options.pending_limit_s
        if limit_s is None or launch.end_asked or time.monotonic() - launch.since_s < limit_s:
            return
        message = f"job {launch.job} has not begun within {limit_s:g} s: {launch.waits_for}"
        next_step = f"`scontrol show job {launch.job}` says more; raise pending_limit_s, or ask for less"
        append_record(launch.folder, launch_failure("environment", message, next_step=next_step))
        launch.end(0.0)

    def _placed(self, launch: QueuedLaunch, state: JobState) -> Placed:
        hosts = launch.case.placement.hosts or self._slurm.host_names(state.nodes)
        is_alone = launch.case.placement.num_ranks == 1
        return Placed(
            hosts=hosts,
            ranks_per_host=launch.case.placement.ranks_per_host,
            address=None if is_alone else self._slurm.address(hosts[0]),
        )

    def _files_are_here(self, launch: QueuedLaunch, state: JobState) -> bool:
        """Say whether what the ranks of a job that went well have written can be seen from here."""
        num_there = len(layout.rank_journals(launch.folder))
        is_complete = num_there >= launch.case.placement.num_ranks
        if state.name != "COMPLETED" or launch.end_asked or is_complete:
            return True
        if launch.waits_for != "its files":
            launch.waits_for, launch.since_s = "its files", time.monotonic()
        return time.monotonic() - launch.since_s > FILES_S

    def _has_ended(self, launch: QueuedLaunch, state: JobState) -> None:
        _take_log(launch, state)
        failure = None
        if not launch.end_asked:
            may_have_lost = state.nodes and state.name in ("NODE_FAIL", "FAILED", "CANCELLED", FORGOTTEN)
            down = self._slurm.down(state.nodes) if may_have_lost else {}
            failure = job_failure(state, folder=launch.folder, down=down)
        if failure is None and state.name == "COMPLETED":
            launch.finish(0)
            self._open.remove(launch)
        else:
            self._end_with(launch, failure)

    def _end_with(self, launch: QueuedLaunch, failure: object | None) -> None:
        if failure is not None:
            append_record(launch.folder, failure)
        launch.finish(FAILED_STATUS)
        self._open.remove(launch)

    def _is_silent(self, error: SlurmSilentError) -> None:
        """Wait for a scheduler that does not answer, for a while."""
        limit_s = END_S if all(launch.end_asked for launch in self._open) else SILENT_S
        if not self._has_submitted or time.monotonic() - self._heard_s > limit_s:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Tell of a fault, and leave nothing in the queue if that can be done."""
        jobs = [launch.job for launch in self._open if launch.job]
        try:
            if jobs:
                self._slurm.cancel(jobs)
        except GpuproofError:
            self._notes.append(f"jobs may be left in the queue: scancel {' '.join(jobs)}")
        for launch in self._open:
            launch.finish(FAILED_STATUS)
        self._open, self._fault = [], error


def _of(launch: QueuedLaunch, states: Mapping[str, JobState]) -> JobState | None:
    """Return how a job stands; None where it was not found, and may be yet."""
    launch.num_missed = 0 if launch.job in states else launch.num_missed + 1
    if launch.num_missed < MISSED:
        return states.get(launch.job)
    return JobState(job=launch.job, number="", name=FORGOTTEN, nodes="", reason="")


def _take_log(launch: QueuedLaunch, state: JobState) -> None:
    """Move what Slurm itself said of a job behind what the job printed."""
    log = layout.run_folder(launch.folder) / LOG.replace("%j", state.number)
    if not log.is_file():
        return
    said = log.read_bytes()
    if said:
        with (launch.folder / layout.LAUNCHER_OUTPUT).open("ab") as output:
            output.write(said)
    log.unlink()
