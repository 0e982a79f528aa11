"""The text passed to Slurm for a case: pure functions, so it can be shown without a cluster.

In: options, a case, and how to reach its node side. Out: the arguments for `srun`, and the script for
`sbatch`. There is one task per node, which starts that node's ranks and their sampler. Values that only the
node knows are written as `$NAME` and filled in there by `worker slurm-task`, not by a shell; a literal `$` is
doubled.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuproof.launchers.commands import NodeSide, Rendezvous, commands_for, rank_environment
from gpuproof.launchers.slurm.options import SlurmOptions
from gpuproof.records.case import Case
from gpuproof.store import layout

ADDRESS, PORT = "GPUPROOF_ADDRESS", "GPUPROOF_PORT"
LOG = "slurm-%j.txt"
"""File with Slurm's own messages about a job, in the run directory until the job has ended."""
_OF_SBATCH = ("partition", "account", "qos", "reservation", "constraint", "exclude", "time")
_NEXT_LINE = " \\\n  "
_FIRST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_MEET = f"""\
head={{head}}
address=$(scontrol show node "$head" -o | grep -o ' NodeAddr=[^ ]*' | cut -d = -f 2)
export {ADDRESS}=${{{{address:-$head}}}} {PORT}={{port}}
while (: < "/dev/tcp/127.0.0.1/${PORT}") 2> /dev/null; do {PORT}=$(({PORT} + 1)); done"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """How to start the node side on every node, and the directory that all nodes share."""

    python: str
    worker: tuple[str, ...]
    run: str


def job_text(
    options: SlurmOptions, case: Case, node: SlurmNode, *, name: str, folders: Sequence[str], port: int
) -> str:
    """Return the script for `sbatch`: one launch, or an array of launches in different folders.

    `folders` are the folders of the launches. Each header line is one option, quoted as in a shell.
    """
    head = [f"#SBATCH {shlex.quote(option)}" for option in _sbatch_options(options, case, node, name=name)]
    if len(folders) == 1:
        where = [f"folder={shlex.quote(folders[0])}"]
    else:
        head.append(f"#SBATCH --array=0-{len(folders) - 1}")
        where = ["folders=(", *map(shlex.quote, folders), ")", "folder=${folders[$SLURM_ARRAY_TASK_ID]}"]
    variables = rank_environment(options.interface)
    lines = [
        "#!/bin/bash",
        *head,
        *where,
        f'exec >> "$folder/{layout.LAUNCHER_OUTPUT}" 2>&1',
        f"export {' '.join(f'{key}={shlex.quote(value)}' for key, value in variables.items())}",
        *options.setup,
        *([_meeting_text(case, port)] if case.placement.num_ranks > 1 else []),
        f"exec {_srun_text(options, case, node)}",
    ]
    return "".join(f"{line}\n" for line in lines)


def salloc_words(options: SlurmOptions, *, ranks_per_host: int, device: str) -> list[str]:
    """Return the arguments that request an allocation for a run with several launches."""
    words = ["salloc", "--job-name=gpuproof"]
    if options.nodes is not None or options.nodelist is None:
        words.append(f"--nodes={options.nodes or 1}")
    keys = (*_OF_SBATCH, "nodelist")
    words += [f"--{key}={value}" for key in keys if (value := getattr(options, key)) is not None]
    gpus = options.gpus_per_node
    if gpus is None:
        gpus = 0 if device == "cpu" else ranks_per_host
    words += _resource_options(options, gpus)
    words += ["--exclusive"] if options.exclusive else []
    words += [] if options.pending_limit_s is None else [f"--immediate={round(options.pending_limit_s)}"]
    return [*words, *options.extra]


def _meeting_text(case: Case, port: int) -> str:
    hosts = case.placement.hosts
    return _MEET.format(head=shlex.quote(hosts[0]) if hosts else _FIRST, port=port)


def _sbatch_options(options: SlurmOptions, case: Case, node: SlurmNode, *, name: str) -> Iterator[str]:
    placement = case.placement
    yield f"--job-name={name}"
    yield f"--nodes={placement.num_hosts}"
    yield "--ntasks-per-node=1"
    if nodes := ",".join(placement.hosts) or options.nodelist:
        yield f"--nodelist={nodes}"
    for key in _OF_SBATCH:
        if (value := getattr(options, key)) is not None:
            yield f"--{key}={value}"
    yield from _resource_options(options, gpus_per_node(options, case))
    if options.exclusive and placement.exclusive == "hosts":
        yield "--exclusive"
    # A job that Slurm itself restarts would overwrite its own records; --resume does not do so.
    yield "--no-requeue"
    yield f"--output={node.run.replace('%', '%%')}/{LOG}"
    yield from options.extra


def _resource_options(options: SlurmOptions, gpus: int) -> Iterator[str]:
    """Yield the options that request resources on each node."""
    if options.gres is not None:
        yield f"--gres={options.gres}"
    elif gpus:
        yield f"--gpus-per-node={gpus}"
    if options.cpus_per_task is not None:
        yield f"--cpus-per-task={options.cpus_per_task}"
    if options.mem is not None:
        yield f"--mem={options.mem}"


def gpus_per_node(options: SlurmOptions, case: Case) -> int:
    """Return the number of GPUs to request per node: the given number, else one per rank."""
    return case.placement.gpus_per_host if options.gpus_per_node is None else options.gpus_per_node


def step_words(
    options: SlurmOptions, case: Case, node: SlurmNode, *, name: str, hosts: Sequence[str], folder: str
) -> list[str]:
    """Return the command that starts a launch on the allocated hosts, in the order of node ranks."""
    task = [*_task(node, hosts), f"--folder={folder}"]
    placed = [f"--job-name={name}", f"--nodelist={','.join(hosts)}", "--overlap"]
    started = [word for command in _started(case, node) for word in command]
    return [*_srun(options, case, node), *placed, *task, *started]


def _srun_text(options: SlurmOptions, case: Case, node: SlurmNode) -> str:
    """Return the command for the script; the shell expands only the folder."""
    task = f'{shlex.join(_task(node, case.placement.hosts))} "--folder=$folder"'
    started = map(shlex.join, _started(case, node))
    return _NEXT_LINE.join([shlex.join(_srun(options, case, node)), task, *started])


def _srun(options: SlurmOptions, case: Case, node: SlurmNode) -> list[str]:
    nodes = case.placement.num_hosts
    words = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    if options.cpus_per_task is not None:
        # since Slurm 22.05, srun no longer inherits this from sbatch
        words.append(f"--cpus-per-task={options.cpus_per_task}")
    words += ["--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=1"]
    if options.container_image is None:
        return words
    mounts = ",".join([f"{node.run}:{node.run}", *options.container_mounts])
    return [*words, f"--container-image={options.container_image}", f"--container-mounts={mounts}"]


def _task(node: SlurmNode, hosts: Sequence[str]) -> list[str]:
    """Return how each node's task starts; named hosts are listed, since Slurm drops their order."""
    order = [f"--nodes={','.join(hosts)}"] if hosts else []
    return [node.python, *node.worker, "slurm-task", *order]


def _started(case: Case, node: SlurmNode) -> list[list[str]]:
    """Return each node's commands, each after a `--`, with `$NAME` for values only it knows."""
    side = NodeSide(
        python=_literal(node.python),
        worker=tuple(map(_literal, node.worker)),
        run=_literal(node.run),
        host="$GPUPROOF_HOST",
        pid="$GPUPROOF_PID",
        folder="$GPUPROOF_FOLDER",
    )
    port = None if case.placement.num_ranks == 1 else f"${PORT}"
    meeting = Rendezvous(node_rank="$SLURM_NODEID", address=f"${ADDRESS}", port=port)
    return [["--", *command] for command in commands_for(case, side, meeting).started]


def _literal(word: str) -> str:
    return word.replace("$", "$$")


def step_environment(
    options: SlurmOptions, environment: Mapping[str, str], *, address: str, port: int | None
) -> dict[str, str]:
    """Return the environment for `srun` inside an allocation, which its tasks inherit."""
    meeting = {} if port is None else {ADDRESS: address, PORT: str(port)}
    return {**environment, **rank_environment(options.interface), **meeting}
