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
from gpuproof.store import layout

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
