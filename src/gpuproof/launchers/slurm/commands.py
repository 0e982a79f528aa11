"""Slurm's own commands, each run with a time limit, and what they say turned into values or errors of ours.

In: arguments. Out: job ids, states, names of hosts, and of a job that ended the failure that its ranks could
not record. All that Slurm cannot do is told in its own words. A time limit and a preemption are
interruptions: `--resume` launches the case again. A node that died is a lost rank, and named.
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
"""For one command. slurmctld answers in milliseconds; where it is away, a command says so after some 20 s,
and where the cluster's configuration is, after 60."""
NEEDED = ("sbatch", "srun", "squeue", "scancel", "scontrol")
UNKNOWN_JOB = "Invalid job id specified"
ANY_JOB = "1"
"""Asked for to see whether anybody answers."""
LAID_ASIDE = frozenset(
    f"SBATCH_{name}" for name in ("OUTPUT", "ERROR", "ARRAY_INX", "REQUEUE", "NO_REQUEUE", "WAIT", "EXPORT")
)
"""Variables that would change what the launcher works by."""
_NOTHING = ("None", "None assigned", "(null)", "null")
_UNREACHABLE = ("Unable to contact slurm", "Socket timed out", "Connection refused", "configuration source")
_OF_QUEUE, _OF_ACCOUNTING = "%i|%A|%T|%N|%r", "JobID,JobIDRaw,State,NodeList,Reason"
_LOOK = "Look at what would be submitted with --dry-run, and change the options of --on slurm:FILE"
_REMEDIES = {
    "SubmitJob": "Lower max_jobs in the file of --on slurm:FILE",
    "violates accounting": "`sacctmgr show associations user=$USER` and `sacctmgr show qos` list your "
    "limits; ask for less, or set account or qos in the file of --on slurm:FILE",
    "ccount": "`sacctmgr show associations user=$USER` lists your accounts; set account (and partition) in "
    "the file of --on slurm:FILE",
    "partition": "`sinfo` lists the partitions; set partition in the file of --on slurm:FILE",
    "qos": "Set qos in the file of --on slurm:FILE",
    "generic resource": "Ask for GPUs as this cluster names them (gres), or for none with gpus_per_node: 0 "
    "or --distributed.device=cpu",
    "node configuration": "`sinfo -o '%P %D %c %m %G'` shows what there is; ask for fewer nodes or GPUs "
    "(--distributed.nodes, --nproc, gpus_per_node), or none with --distributed.device=cpu",
    "node count": "Lower --distributed.nodes, or choose another partition",
    "ime limit": "Lower time in the file of --on slurm:FILE, or choose another partition",
}
"""By what sbatch says (as in Slurm 22.05), the next step; the first that fits."""
UNENDED = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"}
) | {*("STAGE_OUT", "RESIZING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD")}
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
FORGOTTEN = "FORGOTTEN"
"""Not a word of Slurm's: neither the queue nor an accounting knows the job any more."""
_RESUME = "Finish the run with --resume"
_PYXIS = "error: pyxis: "
_NO_PYXIS = "Have Pyxis installed on the cluster, or leave container_image out of the file of --on slurm:FILE"
_LOOK_AT_IMAGE = (
    "Look at container_image in the file of --on slurm:FILE, and at your credentials in "
    "~/.config/enroot/.credentials; launcher-output.txt beside the launch has all that was said"
)
_ENDINGS: Mapping[str, tuple[FailureCause, str, str]] = {
    "TIMEOUT": (
        "interrupted",
        "time limit: {job} was ended by Slurm at its time limit",
        f"{_RESUME} --on slurm:FILE, where `time` in FILE is a longer limit",
    ),
    "PREEMPTED": ("interrupted", "preempted: {job} gave way to another", _RESUME),
    "CANCELLED": ("interrupted", "cancelled: {job} was cancelled, and not by gpuproof", _RESUME),
    "DEADLINE": ("interrupted", "deadline: {job} was ended by Slurm at its deadline", _RESUME),
    "REVOKED": ("interrupted", "revoked: another cluster took {job}", _RESUME),
    "OUT_OF_MEMORY": (
        "out_of_memory",
        "{job} took more memory of its host than it was given",
        "Raise `mem` in the file of --on slurm:FILE (0 is all of the node)",
    ),
    "BOOT_FAIL": ("environment", "{job} did not begin: its nodes did not boot", _RESUME),
    "NODE_FAIL": (
        "lost_rank",
        "node failure: {job} lost a node",
        f"{_RESUME}; `sinfo -R` lists nodes that are down",
    ),
}


class SlurmRefusalError(UsageError):
    """Slurm does not take a job as it is asked for."""


class SlurmSilentError(SchedulerSilentError):
    """A command of Slurm's does not do what it is for: nobody answers it."""

    def __init__(self, program: str, cause: str) -> None:
        super().__init__(cause, place=program, next_step="`scontrol ping` says whether slurmctld is up")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """How a job stands, in Slurm's words."""

    job: str
    """Its id; of an element of an array with the index after it, as in 12_3."""
    number: str
    """Its own number, which an element of an array has, too."""
    name: str
    """PENDING, RUNNING, COMPLETED …"""
    nodes: str
    """Where it runs, in Slurm's notation; empty before."""
    reason: str
    """Why it waits, or ended."""


class SlurmCommands:
    """Runs Slurm's commands with one environment."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Find the commands.

        Raises:
            EnvironmentUnfitError: they are not here, or nobody answers them.
        """
        self._environment = {key: value for key, value in environment.items() if key not in LAID_ASIDE}
        path = self._environment.get("PATH")
        missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
        if missing:
            raise EnvironmentUnfitError(
                f"no {', '.join(missing)} here: this is no machine that submits to Slurm",
                place="--on slurm",
                next_step="Start gpuproof on a login node of the cluster, or load its module",
            )
        self._has_accounting = shutil.which("sacct", path=path) is not None
        self.states(())

    def submit(self, text: str) -> str:
        """Submit a script; return the id of its job.

        Raises:
            SlurmRefusalError: it is not taken as it is.
            EnvironmentUnfitError: nobody answers.
        """
        output = self._ask("sbatch", "--parsable", stdin=text)
        return output.strip().partition(";")[0]

    def would_submit(self, options: Sequence[str]) -> None:
        """Ask whether a job with these options of sbatch's would be taken; nothing is submitted.

        Raises:
            SlurmRefusalError: it would not.
            EnvironmentUnfitError: nobody answers.
        """
        self._ask("sbatch", "--test-only", *options, stdin="#!/bin/sh\n")

    def states(self, jobs: Iterable[str]) -> dict[str, JobState]:
        """Return how these jobs stand, asked for in one call; those that Slurm has forgotten are left out.

        Raises:
            EnvironmentUnfitError: nobody answers.
        """
        ids = sorted({job.partition("_")[0] for job in jobs}) or [ANY_JOB]
        words = ("squeue", f"--jobs={','.join(ids)}", "--states=all", "--noheader", "--array")
        return _states(self._ask(*words, f"--format={_OF_QUEUE}", fine=UNKNOWN_JOB))

    def accounted(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return how jobs ended that the queue has forgotten, as far as there is an accounting that knows."""
        if not jobs or not self._has_accounting:
            return {}
        words = ("sacct", f"--jobs={','.join(jobs)}", "--allocations", "--noheader", "--parsable2")
        try:
            return _states(self._ask(*words, f"--format={_OF_ACCOUNTING}"))
        except EnvironmentUnfitError:
            self._has_accounting = False  # "Slurm accounting storage is disabled"
            return {}

    def cancel(self, jobs: Sequence[str], *options: str) -> None:
        """Cancel jobs; what has ended is no error.

        Raises:
            EnvironmentUnfitError: nobody answers.
        """
        self._ask("scancel", *options, *jobs, fine=UNKNOWN_JOB)

    def end_step(self, job: str, name: str) -> None:
        """Send SIGTERM to the processes of a job's step; one that is not there is no error.

        A signal to srun itself will not do: it kills the step at once.

        Raises:
            EnvironmentUnfitError: nobody answers.
        """
        words = ("squeue", "--steps", f"--jobs={job}", "--noheader", "--format=%i|%j")
        steps = (line.strip().partition("|") for line in self._ask(*words, fine=UNKNOWN_JOB).splitlines())
        matching = [step for step, _, called in steps if called == name]
        if matching:
            self.cancel(matching, "--signal=TERM")

    def host_names(self, nodes: str) -> tuple[str, ...]:
        """Write out Slurm's notation of nodes, in their order.

        Raises:
            EnvironmentUnfitError: it is none.
        """
        return tuple(self._ask("scontrol", "show", "hostnames", nodes).split()) if nodes else ()

    def address(self, host: str) -> str:
        """Return where a node is reached: its own name where Slurm does not tell."""
        try:
            words = self._ask("scontrol", "show", "node", host, "--oneliner").split()
        except EnvironmentUnfitError:
            return host
        addresses = (word.removeprefix("NodeAddr=") for word in words if word.startswith("NodeAddr="))
        return next(addresses, host)

    def down(self, nodes: str) -> dict[str, str]:
        """Return those of these nodes that do not work any more, and why, as far as Slurm tells."""
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
        """Run a command in a session of its own, where no Ctrl-C reaches it; return what it prints.

        Raises:
            EnvironmentUnfitError: it fails, unless it says what is `fine`.
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
            raise SlurmSilentError(words[0], f"no answer within {TIMEOUT_S:g} s") from error
        except OSError as error:
            raise SlurmSilentError(words[0], f"cannot be started: {error.strerror}") from error
        if answer.returncode != 0 and not (fine and fine in answer.stderr):
            raise _error(words[0], answer.stderr)
        return answer.stdout


def _error(program: str, text: str) -> GpuproofError:
    """Turn what a command says to its failure into an error with its next step."""
    lines = [line.strip().removeprefix(f"{program}: ").removeprefix("error: ") for line in text.splitlines()]
    words = "; ".join(dict.fromkeys(filter(None, lines))) or "it failed without an error message"
    if program != "sbatch" or any(sign in text for sign in _UNREACHABLE):
        return SlurmSilentError(program, words)
    next_step = next((step for sign, step in _REMEDIES.items() if sign in text), _LOOK)
    return SlurmRefusalError(words, place="sbatch", next_step=next_step)


def _states(output: str) -> dict[str, JobState]:
    """Read lines of `JOB|NUMBER|STATE|NODES|REASON`; "CANCELLED by 1000" is a state, too."""
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
    """Say how a job's end failed its launch; None where the ranks know better.

    `down` are those of its nodes that do not work any more, and why.
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
        f"{job} ended {state.name} and wrote nothing to {folder}",
        next_step="The nodes must see that folder: set run.save_dir to a file system that they share",
        host=state.nodes or "slurm",
    )


def container_failure(folder: Path, *, host: str) -> Failure | None:
    """Say why no container began, in the words of Pyxis and Enroot; None where it is not that.

    They come before srun's own last line, which says only that a task has exited.
    """
    if layout.rank_journals(folder):
        return None
    output = (folder / layout.LAUNCHER_OUTPUT).read_text(encoding="utf-8", errors="replace").splitlines()
    unknown = next((line for line in output if "unrecognized option '--container-image" in line), None)
    if unknown is not None:
        message = f"this Slurm starts no containers: {unknown}"
        return launch_failure("environment", message, next_step=_NO_PYXIS, host=host)
    messages = [line.partition(_PYXIS)[2].strip() for line in output if _PYXIS in line]
    if not messages:
        return None
    signs = ("[ERROR]", "failed to import", "")
    why = next(line for sign in signs for line in messages if sign in line)
    return launch_failure(
        "environment", f"the container did not begin: {why}", next_step=_LOOK_AT_IMAGE, host=host
    )


def _lost_nodes(job: str, down: Mapping[str, str]) -> Failure:
    named = " and ".join(f"{name} ({reason})" for name, reason in down.items())
    return launch_failure(
        "lost_rank",
        f"node failure: {job} lost {named}",
        next_step=_ENDINGS["NODE_FAIL"][2],
        host="+".join(down),
    )
