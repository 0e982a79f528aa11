"""How a job of Slurm's ended, as a record: what its ranks could not say.

A time limit and a preemption are interruptions: `--resume` launches the case again. A node that died is a
lost rank, and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuproof.launchers.failures import launch_failure
from gpuproof.launchers.slurm.commands import JobState
from gpuproof.records.run import Failure, FailureCause

UNENDED = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"}
) | {*("STAGE_OUT", "RESIZING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD")}
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
FORGOTTEN = "FORGOTTEN"
"""Not a word of Slurm's: neither the queue nor an accounting knows the job any more."""
_RESUME = "Finish the run with --resume"
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
    if state.name == "COMPLETED" or any(folder.glob("launcher-output.txt")):
        return None
    return launch_failure(
        "environment",
        f"{job} ended {state.name} and wrote nothing to {folder}",
        next_step="The nodes must see that folder: set run.save_dir to a file system that they share",
        host=state.nodes or "slurm",
    )


def _lost_nodes(job: str, down: Mapping[str, str]) -> Failure:
    named = " and ".join(f"{name} ({reason})" for name, reason in down.items())
    return launch_failure(
        "lost_rank",
        f"node failure: {job} lost {named}",
        next_step=_ENDINGS["NODE_FAIL"][2],
        host="+".join(down),
    )
