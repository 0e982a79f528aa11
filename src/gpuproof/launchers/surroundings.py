"""Who started this process, and as which of how many? Read from what launchers leave in the environment.

Explicit ranks come before Slurm's, those before Kubernetes', those before MPI's; without any the process is
alone. What contradicts that is refused: a process that takes itself for a world of one, while others of its
job do the same, would pass by itself, and nothing would have been tried between them.

>>> ranks_around({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
...               "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})["RANK"]
'1'
>>> ranks_around({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"})
Traceback (most recent call last):
gpuproof.base.errors.UsageError: environment: this pod is number 3 of a job, and WORLD_SIZE does not say of \
how many. Set WORLD_SIZE, MASTER_ADDR and MASTER_PORT for all pods (WORLD_SIZE=1 for a pod by itself).
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
"""Where ranks of srun's meet: by their job and step, below the ports that a kernel gives out by itself."""
OF_LAUNCHERS = re.compile(
    r"(LOCAL_|GROUP_|NODE_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|JOB_COMPLETION_INDEX"
    r"|(SLURM|PMI|PMIX|MPI|OMPI|MV2|TORCHELASTIC|KUBERNETES)_.*"
)
"""Variables by which launchers say what they started."""
ORDINAL = re.compile(r".+-(\d{1,3})")
"""The host name of a pod of a StatefulSet; the five random characters of other pods are longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiVariables:
    """Where a launcher, mostly an implementation of MPI, puts what."""

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
"""Of a task of srun's, which `ranks_of_srun` reads; by these names what contradicts it."""
SLURM_JOB = replace(SLURM_STEP, rank="RANK", size="SLURM_NTASKS")
"""Outside of a step: a job's tasks, of which a process does not know which one it is."""


def ranks_around(environment: Environment) -> dict[str, str]:
    """Return RANK and its like as the launcher has them; nothing where they are set, or the process is alone.

    Raises:
        UsageError: launchers contradict each other, or one says that there are others and not who this is.
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
    """Say whether this process is one rank of several that somebody else started.

    Raises:
        UsageError: the variables that say so contradict each other.
    """
    world_size = number_in(environment, "WORLD_SIZE", default=1)
    if world_size > 1 and "RANK" not in environment:
        raise UsageError(
            f"WORLD_SIZE={world_size} is set and RANK is not",
            place="environment",
            next_step="Set RANK too, or unset WORLD_SIZE and use --nproc",
        )
    return world_size > 1


def attached_world_size(environment: Environment) -> int | None:
    """Return how many ranks the user's launcher started; None where there is no such launcher."""
    return number_in(environment, "WORLD_SIZE", default=1) if is_attached(environment) else None


def is_follower(environment: Environment) -> bool:
    """Say whether this process is a rank other than the first."""
    return is_attached(environment) and number_in(environment, "RANK", default=0) > 0


def take_ranks(environment: MutableMapping[str, str]) -> None:
    """Put RANK and its like where everything reads them; of a pod that nobody gave a rank, say that.

    Raises:
        UsageError: as `ranks_around`.
    """
    ranks = ranks_around(environment)
    if (
        "KUBERNETES_SERVICE_HOST" in environment
        and not {"RANK", "WORLD_SIZE"} & {**environment, **ranks}.keys()
    ):
        sys.stderr.write(
            "gpuproof: this pod is taken to be alone: nothing says that it is one of several. Where it is, "
            "set WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT; WORLD_SIZE=1 says that it is alone.\n"
        )
    environment.update(ranks)


def without_launchers(environment: Environment) -> dict[str, str]:
    """Return an environment in which no launcher says anything: for what is about this machine alone.

    >>> without_launchers({"RANK": "1", "SLURM_JOB_ID": "7", "JOB_COMPLETION_INDEX": "0", "HOME": "/root"})
    {'HOME': '/root'}
    """
    return {name: value for name, value in environment.items() if OF_LAUNCHERS.fullmatch(name) is None}


def refuse_to_be_a_rank(environment: Environment, *, command: str) -> None:
    """Refuse to be one of several: what starts ranks of its own is started once.

    Raises:
        UsageError: this process is a rank of a launcher's, or launchers contradict each other.
    """
    if is_attached({**environment, **ranks_around(environment)}):
        raise UsageError(
            f"{command} starts ranks of its own, and this process is one of another launch",
            place="environment",
            next_step="Start it once, outside of the launcher, or `gpuproof run CONFIG` under it",
        )


def _refuse_other_world(environment: Environment) -> None:
    """Refuse ranks that were set for other processes than a launcher says that it started."""
    if "WORLD_SIZE" not in environment and number_in(environment, "RANK"):
        raise UsageError(
            f"RANK={environment['RANK']} is set and WORLD_SIZE is not",
            place="environment",
            next_step="Set WORLD_SIZE too, or unset RANK",
        )
    size = number_in(environment, "WORLD_SIZE", default=1)
    for launcher in _launchers_around(environment):
        started = number_in(environment, launcher.size)
        contradiction = f"WORLD_SIZE={size} is set, and {launcher.name}'s {launcher.size} says {started}"
        if size < started and (launcher is not SLURM_JOB or "TORCHELASTIC_RUN_ID" not in environment):
            alone = "each process would run alone" if size == 1 else "some would take part in nothing"
            raise _other_world(f"{contradiction}: {alone}", launcher)
        if _is_nested(environment, size, started):
            continue
        if size > started:
            raise _other_world(f"{contradiction}: others would be waited for in vain", launcher)
        if "RANK" in environment and number_in(environment, "RANK") != number_in(environment, launcher.rank):
            rank = f"RANK={environment['RANK']} is set, and {launcher.name}'s {launcher.rank} is"
            raise _other_world(f"{rank} {environment[launcher.rank]}: two may take the same place", launcher)


def _is_nested(environment: Environment, size: int, started: int) -> bool:
    """Say whether processes that were started start ranks of their own: one, torchrun, or as many on each."""
    local = number_in(environment, "LOCAL_WORLD_SIZE", default=1)
    return started == 1 or "TORCHELASTIC_RUN_ID" in environment or (local > 1 and size == started * local)


def _other_world(cause: str, launcher: MpiVariables) -> UsageError:
    return UsageError(
        cause,
        place="environment",
        next_step="Unset RANK and WORLD_SIZE, or set them for all that were started (with LOCAL_WORLD_SIZE "
        f"where each starts several); or unset {launcher.size}, where you start all of these by yourself",
    )


def _launchers_around(environment: Environment) -> list[MpiVariables]:
    """Return the launchers that say how many processes they started, and which of them this is."""
    is_step = environment.keys() >= {"SLURM_STEP_ID", SLURM_STEP.size, SLURM_STEP.rank}
    launchers = (*MPI, SLURM_STEP if is_step else SLURM_JOB)
    return [launcher for launcher in launchers if environment.keys() >= {launcher.size, launcher.rank}]


def _refuse_other_mpi(environment: Environment, slurm: Environment) -> None:
    """Refuse MPI ranks inside a Slurm step that are other than its tasks: mpirun under srun."""
    for mpi in MPI:
        of_mpi = environment.get(mpi.size), environment.get(mpi.rank)
        if None not in of_mpi and of_mpi != (slurm["WORLD_SIZE"], slurm["RANK"]):
            of_slurm = f"rank {slurm['RANK']} of {slurm['WORLD_SIZE']}"
            raise UsageError(
                f"Slurm says {of_slurm}, and {mpi.name} says {of_mpi[1]} of {of_mpi[0]}",
                place="environment",
                next_step="Start it by srun alone, or set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
            )


def ranks_of_srun(environment: Environment) -> dict[str, str]:
    """Return RANK and its like for one of several tasks of srun's; nothing where it is none, or RANK is set.

    A batch script has SLURM_PROCID and SLURM_NTASKS, too, and is no task: only a step counts. What is set of
    MASTER_ADDR and MASTER_PORT is kept.
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
    """Return the first of Slurm's nodes; `scontrol`, which could tell, is not in a container.

    >>> first_node("node[01-04,07],login"), first_node("a-1,b"), first_node("r[2-3]n[08,10]")
    ('node01', 'a-1', 'r2n08')
    """
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", re.split(r",(?![^\[]*\])", nodes)[0])


def tasks_per_node(written: str) -> list[int]:
    """Write out Slurm's numbers of tasks.

    >>> tasks_per_node("2(x3),1"), tasks_per_node("8")
    ([2, 2, 2, 1], [8])
    """
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", written)
    return [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]


def _ranks_of_pod(environment: Environment) -> dict[str, str]:
    """Return the rank of a pod, from the index of its Job or the ordinal of its StatefulSet."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return {}
    ordinal = ORDINAL.fullmatch(environment.get("HOSTNAME", ""))
    index = environment.get("JOB_COMPLETION_INDEX", ordinal.group(1) if ordinal else None)
    size = environment.get("WORLD_SIZE")
    if size == "1" or (size is None and index is None):
        return {}
    if size is None:
        raise UsageError(
            f"this pod is number {index} of a job, and WORLD_SIZE does not say of how many",
            place="environment",
            next_step="Set WORLD_SIZE, MASTER_ADDR and MASTER_PORT for all pods "
            "(WORLD_SIZE=1 for a pod by itself)",
        )
    if index is None:
        raise UsageError(
            f"WORLD_SIZE={size} is set, and nothing says which of the pods this is",
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
            f"{mpi.name} started this process, and {' and '.join(lacking)} is not set",
            place="environment",
            next_step="Set RANK and WORLD_SIZE",
        )
    if number_in(environment, mpi.size) < 2:
        return {}
    lacking = [name for name in (mpi.local_rank, mpi.local_size) if name not in environment]
    if lacking:
        raise UsageError(
            f"{mpi.name} does not say which GPU is whose: {' and '.join(lacking)} is not set",
            place="environment",
            next_step="Set LOCAL_RANK and LOCAL_WORLD_SIZE beside RANK and WORLD_SIZE",
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
    """Return where ranks meet; what is set is kept, and on several hosts it has to be."""
    if "MASTER_ADDR" not in environment and not is_one_host:
        raise UsageError(
            "there are several hosts, and MASTER_ADDR does not say where they meet",
            place="environment",
            next_step="Set MASTER_ADDR to the host of rank 0, for all ranks",
        )
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": DEFAULT_PORT}
    return {name: value for name, value in meeting.items() if name not in environment}


def number_in(environment: Environment, name: str, *, default: int = 0) -> int:
    """Return the number that a variable holds, else the default.

    Raises:
        UsageError: it holds another word.
    """
    try:
        return int(environment.get(name, default))
    except ValueError as error:
        raise UsageError(f"{name}={environment[name]!r} is no whole number", place="environment") from error
