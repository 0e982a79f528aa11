"""Argument lists for a host's processes: pure functions, so they can be shown without a host.

In: a case, and how to reach its node side. Out: the command lines for the ranks, their sampler and their fork
server, and the environment of a rank.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gpuproof.processes.start import SAFE_PATH
from gpuproof.records.case import Case
from gpuproof.records.work.window import MonitorSpec
from gpuproof.store import layout

INSTALLED_WORKER = ("-m", "gpuproof.worker")
AGENT_GRACE_S = 8
"""Time that torch's agent waits between sending SIGTERM and SIGKILL to ranks. It is less than the time that a
campaign allows the agent, because each rank has its own session and only the agent can kill it."""
EXAMPLE_PORT = 29500
"""Placeholder for a free port when commands are only shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSide:
    """How the node side is started on a host, and where it stores its files."""

    python: str
    worker: tuple[str, ...]
    """How that Python finds the node side's code."""
    run: str
    """The run directory on that host."""
    host: str
    """The host's own name."""
    pid: int | str
    """The process that starts everything; ranks exit when it does."""
    folder: str | None = None
    """The launch's folder on that host, if its name in the run directory is still unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The rank of a host within a job, and the rendezvous address.

    A string may be a placeholder for a value that is only known on the host itself.
    """

    node_rank: int | str = 0
    address: str = "127.0.0.1"
    port: int | str | None = None
    """None if there is only one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommands:
    """Everything that is started on one host for a case."""

    started: list[list[str]]
    """Command lines: for the ranks, and for the sampler if there is one."""
    server: list[str] | None
    """The server from which the case is forked; None if the case is started by exec."""
    forked: list[list[str]]
    """The request to that server, which enters itself as the parent of the sampler."""

    @property
    def text(self) -> str:
        """Return all commands as shell lines."""
        by = [] if self.server is None else [f"# forked by: {shlex.join(self.server)}"]
        return "".join(f"{line}\n" for line in [*by, *map(shlex.join, self.started)])


def commands_for(
    case: Case, node: NodeSide, rendezvous: Rendezvous, *, attached_launch: int | None = None
) -> LaunchCommands:
    """Return one host's commands; `attached_launch` counts launches under the user's own launcher."""
    start = [node.python, *node.worker]
    folder = node.folder or f"{node.run}/{layout.launch_path(case.case_id, case.replicate)}"
    rank = ["run", f"{folder}/{layout.SPEC}", folder, f"--parent-pid={node.pid}"]
    attached = [] if attached_launch is None else [f"--attached={attached_launch}"]
    ranks = [node.python, *_torchrun_words(case, rendezvous), *node.worker, *rank, *attached]
    samplers = [] if case.monitor is None else [_sampler_words(case.monitor, node, folder)]
    # Several ranks are started by torch's agent; they are not forked.
    is_forked = case.start == "fork" and case.placement.num_ranks == 1 and attached_launch is None
    threads = case.work.parallel.threads_per_rank
    server = ["serve-cases", node.run, *([] if threads is None else [f"--threads={threads}"])]
    return LaunchCommands(
        started=[ranks, *([*start, *words, f"--parent-pid={node.pid}"] for words in samplers)],
        server=[*start, *server] if is_forked else None,
        forked=[rank, *samplers],
    )


def _torchrun_words(case: Case, rendezvous: Rendezvous) -> list[str]:
    """Return the arguments for torch's elastic agent; none for a single rank."""
    if rendezvous.port is None:
        return []
    nodes = f"--nnodes={case.placement.num_hosts}"
    return [
        *("-m", "torch.distributed.run", nodes, f"--node-rank={rendezvous.node_rank}"),
        *(f"--nproc-per-node={case.placement.ranks_per_host}", "--rdzv-backend=static"),
        *(f"--master-addr={rendezvous.address}", f"--master-port={rendezvous.port}"),
        f"--log-dir={os.devnull}",  # or the agent leaves a torchelastic_* folder in the temporary folder
    ]


def _sampler_words(monitor: MonitorSpec, node: NodeSide, folder: str) -> list[str]:
    words = ["sample", f"--out={folder}/{layout.recording_name(node.host)}"]
    words.append(f"--interval={monitor.interval_s:g}")
    host_s = monitor.host_interval_s
    return words if host_s is None else [*words, f"--host-interval={host_s:g}"]


def rank_environment(interface: str | None = None) -> dict[str, str]:
    """Return the environment variables added for ranks; they communicate over `interface`."""
    talk = {f"{name}_SOCKET_IFNAME": interface for name in ("GLOO", "NCCL")} if interface else {}
    return {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(AGENT_GRACE_S), **SAFE_PATH, **talk}


@contextmanager
def node_side_for(python: str | None) -> Iterator[Sequence[str]]:
    """Return the command that starts the node side: as installed or, for another Python, as one file."""
    if python is None:
        yield INSTALLED_WORKER
        return
    from gpuproof.launchers.archive import built_node_side

    with built_node_side() as archive:
        yield (str(archive),)
