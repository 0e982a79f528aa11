"""What is started on a host, as argument lists: pure, so that it can be shown without a host.

In: a case, and what a host's agent said of itself. Out: the ranks' command line and the sampler's.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.launchers.base import fork_server_words, interval_words
from gpuproof.launchers.local import AGENT_GRACE_S
from gpuproof.records.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A host's place among those of one job, and where the ranks meet."""

    nodes: int = 1
    node_rank: int = 0
    address: str = "127.0.0.1"
    port: int | None = None
    """None where one rank is alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSide:
    """What an agent said of itself."""

    python: str
    archive: str
    directory: str
    host: str
    pid: int


def folder_of(case: Case) -> str:
    """Return where a launch keeps its files, below the agent's directory."""
    return f"run/cases/{case.case_id}/{case.replicate}"


def commands_of(case: Case, node: NodeSide, place: Place) -> list[list[str]]:
    """Return the ranks' command line, and the sampler's if there is one."""
    folder = f"{node.directory}/{folder_of(case)}"
    ranks = [node.python, *_agent_words(case, place), node.archive, "run", f"{folder}/spec.json", folder]
    commands = [[*ranks, f"--parent-pid={node.pid}"]]
    if case.monitor_interval_s is not None:
        sampler = [node.python, node.archive, "sample", f"--out={folder}/monitor-{node.host}.jsonl"]
        commands.append([*sampler, *interval_words(case), f"--parent-pid={node.pid}"])
    return commands


def fork_commands_of(case: Case, node: NodeSide) -> tuple[list[str], list[list[str]]]:
    """Return the command of the server that a case is forked from, and the words of what it forks.

    The sampler's parent is the server, whose number is known there only.
    """
    server = [node.python, node.archive, *fork_server_words(case, f"{node.directory}/run")]
    ranks, *samplers = (command[2:] for command in commands_of(case, node, Place()))
    return server, [ranks, *(words[:-1] for words in samplers)]


def _agent_words(case: Case, place: Place) -> list[str]:
    """Return the words of torch's elastic agent; none for a single rank."""
    if place.port is None:
        return []
    return [
        *("-m", "torch.distributed.run", f"--nnodes={place.nodes}", f"--node-rank={place.node_rank}"),
        *(f"--nproc-per-node={case.placement.ranks_per_host}", "--rdzv-backend=static"),
        *(f"--master-addr={place.address}", f"--master-port={place.port}"),
    ]


def environment_for(interface: str | None) -> dict[str, str]:
    """Return the variables that ranks get beside the host's own."""
    talk = {f"{name}_SOCKET_IFNAME": interface for name in ("GLOO", "NCCL")} if interface else {}
    # What lies in the user's working directory, a random.py say, is not to be imported.
    return {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(AGENT_GRACE_S), "PYTHONSAFEPATH": "1", **talk}
