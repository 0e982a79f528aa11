"""Which launcher started this process, and as which rank? Determined from environment variables.

Explicit ranks take precedence over Slurm's, Slurm's over Kubernetes', and Kubernetes' over MPI's; if none are
set, the process runs alone. Contradictions are rejected: a process that assumes a world size of one although
its job has other processes would pass on its own, without any communication being tested.

>>> ranks_around({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
...               "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})["RANK"]
'1'
>>> ranks_around({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"})
Traceback (most recent call last):
gpuproof.base.errors.UsageError: environment: this pod has index 3 in a job, but WORLD_SIZE is not set. \
Set WORLD_SIZE, MASTER_ADDR and MASTER_PORT for all pods (WORLD_SIZE=1 for a single pod).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace

from gpuproof.base.errors import UsageError

Environment = Mapping[str, str]
DEFAULT_PORT = "29500"
PORT, NUM_PORTS = 20_000, 12_000
"""Ports for the rendezvous of srun's ranks, derived from job and step, below the kernel's ephemeral ports."""
OF_LAUNCHERS = re.compile(
    r"(LOCAL_|GROUP_|NODE_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|JOB_COMPLETION_INDEX"
    r"|(SLURM|PMI|PMIX|MPI|OMPI|MV2|TORCHELASTIC|KUBERNETES)_.*"
)
"""Variables set by launchers to describe what they started."""
ORDINAL = re.compile(r".+-(\d{1,3})")
"""Matches the host name of a StatefulSet pod; other pods' names end in five random characters, which is too
long to match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiVariables:
    """The variables that a launcher, usually an MPI implementation, sets."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str


MPI = (
    MpiVariables(
        name="Open MPI",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    MpiVariables(
        name="MVAPICH",
        rank="MV2_COMM_WORLD_RANK",
        size="MV2_COMM_WORLD_SIZE",
        local_rank="MV2_COMM_WORLD_LOCAL_RANK",
        local_size="MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    MpiVariables(
        name="PMI",
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
    ),
)

SLURM_STEP = MpiVariables(
    name="Slurm",
    rank="SLURM_PROCID",
    size="SLURM_STEP_NUM_TASKS",
    local_rank="SLURM_LOCALID",
    local_size="SLURM_STEP_TASKS_PER_NODE",
)
"""The variables of srun tasks, which `ranks_of_srun` reads; here they are used to detect contradictions."""
SLURM_JOB = replace(SLURM_STEP, rank="RANK", size="SLURM_NTASKS")
"""The variables outside a step: the number of tasks in a job, but not which of them this process is."""


def ranks_around(environment: Environment) -> dict[str, str]:
    """Return RANK etc. as set by the launcher; empty if already set, or if the process is alone.

    Raises:
        UsageError: launchers contradict each other, or one reports other processes but not which one this is.
    """
    if environment.keys() & {"RANK", "WORLD_SIZE"}:
        _refuse_other_world(environment)
    if "RANK" in environment:
        return {}
    slurm = ranks_of_srun(environment)
    if slurm:
        _refuse_other_mpi(environment, slurm)
        return slurm
    pod = _ranks_of_pod(environment)
    if pod or "WORLD_SIZE" in environment:
        return pod
    return _ranks_of_mpi(environment)


def is_attached(environment: Environment) -> bool:
    """Return whether this process is one of several ranks started by another launcher.

    Raises:
        UsageError: the launcher's variables contradict each other.
    """
    world_size = number_in(environment, "WORLD_SIZE", default=1)
    if world_size > 1 and "RANK" not in environment:
        raise UsageError(
            f"WORLD_SIZE={world_size} is set but RANK is not",
            place="environment",
            next_step="Set RANK too, or unset WORLD_SIZE and use --nproc",
        )
    return world_size > 1


def attached_world_size(environment: Environment) -> int | None:
    """Return how many ranks the user's launcher started; None if there is no such launcher."""
    return number_in(environment, "WORLD_SIZE", default=1) if is_attached(environment) else None


def is_follower(environment: Environment) -> bool:
    """Return whether this process is a rank other than the first."""
    return is_attached(environment) and number_in(environment, "RANK", default=0) > 0


def take_ranks(environment: MutableMapping[str, str]) -> None:
    """Set RANK etc. in the environment, and warn about a pod that has no rank.

    Raises:
        UsageError: as for `ranks_around`.
    """
    ranks = ranks_around(environment)
    if (
        "KUBERNETES_SERVICE_HOST" in environment
        and not {"RANK", "WORLD_SIZE"} & {**environment, **ranks}.keys()
    ):
        sys.stderr.write(
            "gpuproof: this pod is assumed to be alone: nothing indicates that it is one of "
            "several. If it is, set WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT; WORLD_SIZE=1 "
            "confirms that it is alone.\n"
        )
    environment.update(ranks)


def without_launchers(environment: Environment) -> dict[str, str]:
    """Return an environment without launcher variables, for processes that only concern this machine.

    >>> without_launchers({"RANK": "1", "SLURM_JOB_ID": "7", "JOB_COMPLETION_INDEX": "0", "HOME": "/root"})
    {'HOME': '/root'}
    """
    return {name: value for name, value in environment.items() if OF_LAUNCHERS.fullmatch(name) is None}


def refuse_to_be_a_rank(environment: Environment, *, command: str) -> None:
    """Reject running as one of several ranks: a command that starts ranks must only be started once.

    Raises:
        UsageError: this process is one of a launcher's ranks, or launchers contradict each other.
    """
    if is_attached({**environment, **ranks_around(environment)}):
        raise UsageError(
            f"{command} starts its own ranks, but this process is already a rank of another launch",
            place="environment",
            next_step="Start it once, outside the launcher, or run `gpuproof run CONFIG` under the launcher",
        )


def _refuse_other_world(environment: Environment) -> None:
    """Reject ranks that do not match the processes that a launcher says it started."""
    if "WORLD_SIZE" not in environment and number_in(environment, "RANK"):
        raise UsageError(
            f"RANK={environment['RANK']} is set but WORLD_SIZE is not",
            place="environment",
            next_step="Set WORLD_SIZE too, or unset RANK",
        )
    size = number_in(environment, "WORLD_SIZE", default=1)
    for launcher in _launchers_around(environment):
        started = number_in(environment, launcher.size)
        contradiction = f"WORLD_SIZE={size} is set, but {launcher.name}'s {launcher.size} is {started}"
        if size < started and (launcher is not SLURM_JOB or "TORCHELASTIC_RUN_ID" not in environment):
            alone = "each process would run alone" if size == 1 else "some would not take part"
            raise _other_world(f"{contradiction}: {alone}", launcher)
        if _is_nested(environment, size, started):
            continue
        if size > started:
            raise _other_world(f"{contradiction}: ranks would wait for others that do not exist", launcher)
        if "RANK" in environment and number_in(environment, "RANK") != number_in(environment, launcher.rank):
            rank = f"RANK={environment['RANK']} is set, but {launcher.name}'s {launcher.rank} is"
            raise _other_world(f"{rank} {environment[launcher.rank]}: processes may share a rank", launcher)


def _is_nested(environment: Environment, size: int, started: int) -> bool:
    """Return whether started processes start ranks themselves: a single one, torchrun, or N each."""
    local = number_in(environment, "LOCAL_WORLD_SIZE", default=1)
    return started == 1 or "TORCHELASTIC_RUN_ID" in environment or (local > 1 and size == started * local)


def _other_world(cause: str, launcher: MpiVariables) -> UsageError:
    return UsageError(
        cause,
        place="environment",
        next_step="Unset RANK and WORLD_SIZE, or set them for all processes (with "
        f"LOCAL_WORLD_SIZE if each starts several ranks); or unset {launcher.size} if "
        "you start all of them yourself",
    )


def _launchers_around(environment: Environment) -> list[MpiVariables]:
    """Return the launchers that report the number of processes and this process's rank."""
    is_step = environment.keys() >= {"SLURM_STEP_ID", SLURM_STEP.size, SLURM_STEP.rank}
    launchers = (*MPI, SLURM_STEP if is_step else SLURM_JOB)
    return [launcher for launcher in launchers if environment.keys() >= {launcher.size, launcher.rank}]


def _refuse_other_mpi(environment: Environment, slurm: Environment) -> None:
    """Reject MPI ranks in a Slurm step that differ from its tasks, as with mpirun under srun."""
    for mpi in MPI:
        of_mpi = environment.get(mpi.size), environment.get(mpi.rank)
        if None not in of_mpi and of_mpi != (slurm["WORLD_SIZE"], slurm["RANK"]):
            of_slurm = f"rank {slurm['RANK']} of {slurm['WORLD_SIZE']}"
            raise UsageError(
                f"Slurm reports {of_slurm}, but {mpi.name} reports {of_mpi[1]} of {of_mpi[0]}",
                place="environment",
                next_step="Use srun alone, or set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
            )


def ranks_of_srun(environment: Environment) -> dict[str, str]:
    """Return RANK etc. for one of several srun tasks; empty if this is not one, or if RANK is set.

    A batch script also has SLURM_PROCID and SLURM_NTASKS, but is not a task: only a step counts. MASTER_ADDR
    and MASTER_PORT are kept if they are set.
    """
    named = ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
    if {"RANK", "WORLD_SIZE"} & environment.keys() or not environment.keys() >= set(named):
        return {}
    step, world_size, rank, local_rank, node = (environment[name] for name in named)
    if world_size == "1":
        return {}
    job, nodes = environment.get("SLURM_JOB_ID", "0"), environment.get("SLURM_STEP_NODELIST", "")
    tasks = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    ranks = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": local_rank, "NODE_RANK": node}
    if int(node) < len(tasks):
        ranks["LOCAL_WORLD_SIZE"] = str(tasks[int(node)])
    port = PORT + (7 * int(job) + int(step)) % NUM_PORTS
    meeting = {"MASTER_ADDR": first_node(nodes), "MASTER_PORT": str(port)}
    return {**ranks, **{name: value for name, value in meeting.items() if name not in environment}}


def first_node(nodes: str) -> str:
    """Return the first Slurm node without using `scontrol`, which is not available in a container.

    >>> first_node("node[01-04,07],login"), first_node("a-1,b"), first_node("r[2-3]n[08,10]")
    ('node01', 'a-1', 'r2n08')
    """
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", re.split(r",(?![^\[]*\])", nodes)[0])


def tasks_per_node(written: str) -> list[int]:
    """Expand Slurm's compact list of task counts.

    >>> tasks_per_node("2(x3),1"), tasks_per_node("8")
    ([2, 2, 2, 1], [8])
    """
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", written)
    return [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]


def _ranks_of_pod(environment: Environment) -> dict[str, str]:
    """Return the rank of a pod, from its index in a Job or its ordinal in a StatefulSet."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return {}
    ordinal = ORDINAL.fullmatch(environment.get("HOSTNAME", ""))
    index = environment.get("JOB_COMPLETION_INDEX", ordinal.group(1) if ordinal else None)
    size = environment.get("WORLD_SIZE")
    if size == "1" or (size is None and index is None):
        return {}
    if size is None:
        raise UsageError(
            f"this pod has index {index} in a job, but WORLD_SIZE is not set",
            place="environment",
            next_step="Set WORLD_SIZE, MASTER_ADDR and MASTER_PORT for all pods (WORLD_SIZE=1 for "
            "a single pod)",
        )
    if index is None:
        raise UsageError(
            f"WORLD_SIZE={size} is set, but nothing indicates which of the pods this is",
            place="environment",
            next_step="Use an Indexed Job or a StatefulSet, or set RANK",
        )
    local = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": index}
    return {"RANK": index, "WORLD_SIZE": size, **local, **_meeting(environment, is_one_host=False)}


def _ranks_of_mpi(environment: Environment) -> dict[str, str]:
    mpi = next((mpi for mpi in MPI if {mpi.rank, mpi.size} & environment.keys()), None)
    if mpi is None:
        return {}
    lacking = [name for name in (mpi.rank, mpi.size) if name not in environment]
    if lacking:
        raise UsageError(
            f"{mpi.name} started this process, but {' and '.join(lacking)} is not set",
            place="environment",
            next_step="Set RANK and WORLD_SIZE",
        )
    if number_in(environment, mpi.size) < 2:
        return {}
    lacking = [name for name in (mpi.local_rank, mpi.local_size) if name not in environment]
    if lacking:
        verb = "is" if len(lacking) == 1 else "are"
        raise UsageError(
            f"{mpi.name} does not assign GPUs to ranks: {' and '.join(lacking)} {verb} not set",
            place="environment",
            next_step="Set LOCAL_RANK and LOCAL_WORLD_SIZE in addition to RANK and WORLD_SIZE",
        )
    size, local = environment[mpi.size], environment[mpi.local_size]
    return {
        "RANK": environment[mpi.rank],
        "WORLD_SIZE": size,
        "LOCAL_RANK": environment[mpi.local_rank],
        "LOCAL_WORLD_SIZE": local,
        **_meeting(environment, is_one_host=size == local),
    }


def _meeting(environment: Environment, *, is_one_host: bool) -> dict[str, str]:
    """Return where ranks rendezvous; existing settings are kept, and are required with several hosts."""
    if "MASTER_ADDR" not in environment and not is_one_host:
        raise UsageError(
            "there are several hosts, but MASTER_ADDR is not set",
            place="environment",
            next_step="Set MASTER_ADDR to the host of rank 0, on all ranks",
        )
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": DEFAULT_PORT}
    return {name: value for name, value in meeting.items() if name not in environment}


def number_in(environment: Environment, name: str, *, default: int = 0) -> int:
    """Return the number in a variable, or the default if it is not set.

    Raises:
        UsageError: the variable does not contain a number.
    """
    try:
        return int(environment.get(name, default))
    except ValueError as error:
        raise UsageError(f"{name}={environment[name]!r} is not an integer", place="environment") from error
