"""Slurm's commands, each run with a time limit; the output becomes values or our own errors.

In: arguments. Out: job IDs, states, host names and, for a job that ended, the failure that its ranks could
not record. Everything that Slurm cannot do is reported with Slurm's own message. A time limit and a
preemption are
interruptions: `--resume` launches the case again. A node that died is reported by name, as a lost rank.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError, UsageError
from gpuproof.launchers.failures import launch_failure
from gpuproof.launchers.queue import SchedulerSilentError
from gpuproof.records.run import Failure, FailureCause
from gpuproof.store import layout

TIMEOUT_S = 90.0
"""Time limit for one command. slurmctld responds in milliseconds; a command reports an unavailable slurmctld
after about 20 s, and an unavailable cluster configuration after 60 s."""
NEEDED = ("sbatch", "srun", "squeue", "scancel", "scontrol")
UNKNOWN_JOB = "Invalid job id specified"
ANY_JOB = "1"
"""ID of a job that is queried to find out whether Slurm responds."""
LAID_ASIDE = frozenset(
    f"SBATCH_{name}" for name in ("OUTPUT", "ERROR", "ARRAY_INX", "REQUEUE", "NO_REQUEUE", "WAIT", "EXPORT")
)
"""Variables that would change settings on which the launcher depends."""
_NOTHING = ("None", "None assigned", "(null)", "null")
_UNREACHABLE = ("Unable to contact slurm", "Socket timed out", "Connection refused", "configuration source")
_OF_QUEUE, _OF_ACCOUNTING = "%i|%A|%T|%N|%r", "JobID,JobIDRaw,State,NodeList,Reason"
_LOOK = "Check what would be submitted with --dry-run, and change the options of --on slurm:FILE"
_REMEDIES = {
    "SubmitJob": "Lower max_jobs in the file passed to --on slurm:FILE",
    "violates accounting": "`sacctmgr show associations user=$USER` and `sacctmgr show qos` list "
    "your limits; request less, or set account or qos in the file passed "
    "to --on slurm:FILE",
    "ccount": "`sacctmgr show associations user=$USER` lists your accounts; set account (and "
    "partition) in the file passed to --on slurm:FILE",
    "partition": "`sinfo` lists the partitions; set partition in the file passed to --on slurm:FILE",
    "qos": "Set qos in the file passed to --on slurm:FILE",
    "generic resource": "Request GPUs by the names used on this cluster (gres), or none with "
    "gpus_per_node: 0 or --distributed.device=cpu",
    "node configuration": "`sinfo -o '%P %D %c %m %G'` shows what is available; request fewer "
    "nodes or GPUs (--distributed.nodes, --nproc, gpus_per_node), or none "
    "with --distributed.device=cpu",
    "node count": "Lower --distributed.nodes, or choose another partition",
    "ime limit": "Lower time in the file passed to --on slurm:FILE, or choose another partition",
}
"""Text in an sbatch message (as in Slurm 22.05) → the next step; the first match applies."""
UNENDED = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"}
) | {*("STAGE_OUT", "RESIZING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD")}
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
FORGOTTEN = "FORGOTTEN"
"""Not a Slurm state: the job is no longer in the queue or in the accounting records."""
_RESUME = "Finish the run with --resume"
_PYXIS = "error: pyxis: "
_NO_PYXIS = "Have Pyxis installed, or remove container_image from the file passed to --on slurm:FILE"
_LOOK_AT_IMAGE = (
    "Check container_image in the file passed to --on slurm:FILE, and your credentials in "
    "~/.config/enroot/.credentials; launcher-output.txt next to the launch has the full output"
)
_ENDINGS: Mapping[str, tuple[FailureCause, str, str]] = {
    "TIMEOUT": (
        "interrupted",
        "time limit: {job} was stopped by Slurm at its time limit",
        f"{_RESUME} --on slurm:FILE, with a longer limit as `time` in FILE",
    ),
    "PREEMPTED": ("interrupted", "preempted: {job} was preempted by another job", _RESUME),
    "CANCELLED": ("interrupted", "cancelled: {job} was cancelled, but not by gpuproof", _RESUME),
    "DEADLINE": ("interrupted", "deadline: {job} was stopped by Slurm at its deadline", _RESUME),
    "REVOKED": ("interrupted", "revoked: another cluster started {job}", _RESUME),
    "OUT_OF_MEMORY": (
        "out_of_memory",
        "{job} used more of its host's memory than it was allowed to",
        "Raise `mem` in the file passed to --on slurm:FILE (0 means all memory of the node)",
    ),
    "BOOT_FAIL": ("environment", "{job} did not start: its nodes did not boot", _RESUME),
    "NODE_FAIL": (
        "lost_rank",
        "node failure: {job} lost a node",
        f"{_RESUME}; `sinfo -R` lists nodes that are down",
    ),
}


class SlurmRefusalError(UsageError):
    """Slurm rejects the job as requested."""


class SlurmSilentError(SchedulerSilentError):
    """A Slurm command fails because it gets no response."""

    def __init__(self, program: str, cause: str) -> None:
        super().__init__(cause, place=program, next_step="`scontrol ping` shows whether slurmctld is up")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job, in Slurm's terms."""

    job: str
    """The job ID; for an array element, the array's ID followed by the index, e.g. 12_3."""
    number: str
    """The job's own number; each array element has one, too."""
    name: str
    """PENDING, RUNNING, COMPLETED …"""
    nodes: str
    """Nodes on which the job runs, in Slurm's notation; empty before it starts."""
    reason: str
    """Why the job is waiting, or why it ended."""


class SlurmCommands:
    """Runs Slurm's commands, all with the same environment."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Find Slurm's commands.

        Raises:
            EnvironmentUnfitError: the commands are not installed here, or get no response.
        """
        self._environment = {key: value for key, value in environment.items() if key not in LAID_ASIDE}
        path = self._environment.get("PATH")
        missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
        if missing:
            raise EnvironmentUnfitError(
                f"no {', '.join(missing)} here: this machine cannot submit to Slurm",
                place="--on slurm",
                next_step="Start gpuproof on a login node of the cluster, or load its module",
            )
        self._has_accounting = shutil.which("sacct", path=path) is not None
        self.states(())

    def submit(self, text: str) -> str:
        """Submit a script; return its job ID.

        Raises:
            SlurmRefusalError: the script is rejected.
            EnvironmentUnfitError: Slurm does not respond.
        """
        output = self._ask("sbatch", "--parsable", stdin=text)
        return output.strip().partition(";")[0]

    def would_submit(self, options: Sequence[str]) -> None:
        """Check whether a job with these sbatch options would be accepted, without submitting anything.

        Raises:
            SlurmRefusalError: the job would be rejected.
            EnvironmentUnfitError: Slurm does not respond.
        """
        self._ask("sbatch", "--test-only", *options, stdin="#!/bin/sh\n")

    def states(self, jobs: Iterable[str]) -> dict[str, JobState]:
        """Return the states of these jobs, with one query; jobs that Slurm no longer lists are omitted.

        Raises:
            EnvironmentUnfitError: Slurm does not respond.
        """
        ids = sorted({job.partition("_")[0] for job in jobs}) or [ANY_JOB]
        words = ("squeue", f"--jobs={','.join(ids)}", "--states=all", "--noheader", "--array")
        return _states(self._ask(*words, f"--format={_OF_QUEUE}", fine=UNKNOWN_JOB))

    def accounted(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return how jobs that are no longer in the queue ended, if Slurm's accounting recorded it."""
        if not jobs or not self._has_accounting:
            return {}
        words = ("sacct", f"--jobs={','.join(jobs)}", "--allocations", "--noheader", "--parsable2")
        try:
            return _states(self._ask(*words, f"--format={_OF_ACCOUNTING}"))
        except EnvironmentUnfitError:
            self._has_accounting = False  # "Slurm accounting storage is disabled"
            return {}

    def cancel(self, jobs: Sequence[str], *options: str) -> None:
        """Cancel jobs; it is not an error if one has already ended.

        Raises:
            EnvironmentUnfitError: Slurm does not respond.
        """
        self._ask("scancel", *options, *jobs, fine=UNKNOWN_JOB)

    def end_step(self, job: str, name: str) -> None:
        """Send SIGTERM to the processes of a job's step; it is not an error if the step has ended.

        Signalling srun itself is not an option: it would kill the step immediately.

        Raises:
            EnvironmentUnfitError: Slurm does not respond.
        """
        words = ("squeue", "--steps", f"--jobs={job}", "--noheader", "--format=%i|%j")
        steps = (line.strip().partition("|") for line in self._ask(*words, fine=UNKNOWN_JOB).splitlines())
        matching = [step for step, _, called in steps if called == name]
        if matching:
            self.cancel(matching, "--signal=TERM")

    def host_names(self, nodes: str) -> tuple[str, ...]:
        """Expand node names in Slurm's notation, keeping their order.

        Raises:
            EnvironmentUnfitError: the notation is not valid.
        """
        return tuple(self._ask("scontrol", "show", "hostnames", nodes).split()) if nodes else ()

    def address(self, host: str) -> str:
        """Return a node's address, or its own name if Slurm does not report one."""
        try:
            words = self._ask("scontrol", "show", "node", host, "--oneliner").split()
        except EnvironmentUnfitError:
            return host
        addresses = (word.removeprefix("NodeAddr=") for word in words if word.startswith("NodeAddr="))
        return next(addresses, host)

    def down(self, nodes: str) -> dict[str, str]:
        """Return which of these nodes no longer work and, as far as Slurm reports it, why."""
        try:
            output = self._ask("sinfo", "--Node", f"--nodes={nodes}", "--noheader", "--format=%N|%T|%E")
        except EnvironmentUnfitError:
            return {}
        rows = (line.strip().split("|", 2) for line in output.splitlines())
        return {
            name: f"{state.strip('*')}: {reason}"
            for name, state, reason in rows
            if state.startswith(("down", "fail")) or state.endswith("*")
        }

    def _ask(self, *words: str, stdin: str | None = None, fine: str | None = None) -> str:
        """Run a command in a new session, which Ctrl-C does not reach; return the output.

        Raises:
            EnvironmentUnfitError: the command fails, unless its message is `fine`.
        """
        try:
            answer = subprocess.run(
                words,
                input=stdin or "",
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                env=self._environment,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmSilentError(words[0], f"no response within {TIMEOUT_S:g} s") from error
        except OSError as error:
            raise SlurmSilentError(words[0], f"cannot be started: {error.strerror}") from error
        if answer.returncode != 0 and not (fine and fine in answer.stderr):
            raise _error(words[0], answer.stderr)
        return answer.stdout


def _error(program: str, text: str) -> GpuproofError:
    """Convert a failed command's message to an error that includes the next step."""
    lines = [line.strip().removeprefix(f"{program}: ").removeprefix("error: ") for line in text.splitlines()]
    words = "; ".join(dict.fromkeys(filter(None, lines))) or "it failed without an error message"
    if program != "sbatch" or any(sign in text for sign in _UNREACHABLE):
        return SlurmSilentError(program, words)
    next_step = next((step for sign, step in _REMEDIES.items() if sign in text), _LOOK)
    return SlurmRefusalError(words, place="sbatch", next_step=next_step)


def _states(output: str) -> dict[str, JobState]:
    """Parse lines of the form `JOB|NUMBER|STATE|NODES|REASON`; "CANCELLED by 1000" is also a state."""
    states = {}
    for line in output.splitlines():
        parts = line.strip().split("|", 4)
        if len(parts) < 5:
            continue
        job, number, state, nodes, reason = parts
        if reason.startswith("(") and reason.endswith(")"):
            reason = reason[1:-1]
        where, why = ("" if text in _NOTHING else text for text in (nodes, reason))
        states[job] = JobState(job=job, number=number, name=state.split()[0], nodes=where, reason=why)
    return states


def job_failure(state: JobState, *, folder: Path, down: Mapping[str, str]) -> Failure | None:
    """Report how a job's end caused its launch to fail; None if the ranks report it themselves.

    `down` are the job's nodes that no longer work, with the reasons.
    """
    job = f"job {state.job}" + (f" on {state.nodes}" if state.nodes else "")
    if down:
        return _lost_nodes(job, down)
    if state.name in _ENDINGS:
        cause, message, next_step = _ENDINGS[state.name]
        return launch_failure(
            cause, message.format(job=job), next_step=next_step, host=state.nodes or "slurm"
        )
    if state.name == "COMPLETED":
        return None
    if (folder / layout.LAUNCHER_OUTPUT).is_file():
        return container_failure(folder, host=state.nodes or "slurm")
    return launch_failure(
        "environment",
        f"{job} ended as {state.name} and wrote nothing to {folder}",
        next_step="The nodes must see that folder: set run.save_dir to a file system that they share",
        host=state.nodes or "slurm",
    )


def container_failure(folder: Path, *, host: str) -> Failure | None:
    """Return why no container started, as reported by Pyxis and Enroot; None for any other cause.

    Their messages precede srun's own last line, which only says that a task has exited.
    """
    if layout.rank_journals(folder):
        return None
    output = (folder / layout.LAUNCHER_OUTPUT).read_text(encoding="utf-8", errors="replace").splitlines()
    unknown = next((line for line in output if "unrecognized option '--container-image" in line), None)
    if unknown is not None:
        message = f"this Slurm does not support containers: {unknown}"
        return launch_failure("environment", message, next_step=_NO_PYXIS, host=host)
    messages = [line.partition(_PYXIS)[2].strip() for line in output if _PYXIS in line]
    if not messages:
        return None
    signs = ("[ERROR]", "failed to import", "")
    why = next(line for sign in signs for line in messages if sign in line)
    return launch_failure(
        "environment", f"the container did not start: {why}", next_step=_LOOK_AT_IMAGE, host=host
    )


def _lost_nodes(job: str, down: Mapping[str, str]) -> Failure:
    named = " and ".join(f"{name} ({reason})" for name, reason in down.items())
    return launch_failure(
        "lost_rank",
        f"node failure: {job} lost {named}",
        next_step=_ENDINGS["NODE_FAIL"][2],
        host="+".join(down),
    )
