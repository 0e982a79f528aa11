"""Several hosts as one job: one elastic agent of torch's a host, node ranks in the order of the inventory.

The ranks meet at the first host (its `internal_address`, else its address) on a port that was free there.
All files of all hosts come into the one folder of the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gpuproof.errors import UsageError
from gpuproof.launchers.base import LAUNCHER_OUTPUT
from gpuproof.launchers.commands import Place
from gpuproof.launchers.ssh.launch import RemoteLaunch
from gpuproof.launchers.ssh.launcher import RemoteHost, RemoteProcesses, SshFleet
from gpuproof.records.case import Case
from gpuproof.suites.fleet import folder_name


class OneJobLauncher:
    """Starts each case over all of these hosts."""

    def __init__(self, fleet: SshFleet, hosts: Sequence[RemoteHost]) -> None:
        self._fleet = fleet
        self._hosts = hosts

    def start(self, case: Case, folder: Path) -> RemoteProcesses:
        """Start the ranks on every host.

        Raises:
            HostError: a host cannot start its ranks; those that did are ended.
            UsageError: the case is for another number of hosts.
        """
        nodes = case.placement.num_hosts
        if nodes != len(self._hosts):
            raise UsageError(
                f"a case for {nodes} hosts, and there are {len(self._hosts)}", place=case.case_id
            )
        first = self._hosts[0]
        meeting = first.host.internal_address or first.host.address
        port = first.free_port()
        parts: list[tuple[RemoteHost, str, RemoteLaunch]] = []
        commands = []
        try:
            for rank, remote in enumerate(self._hosts):
                part = RemoteLaunch(remote.host.name, folder, rename=_renaming(self._hosts, rank))
                place = Place(nodes=nodes, node_rank=rank, address=meeting, port=port)
                about, command = remote.start_part(case, folder, part, place=place)
                parts.append((remote, about, part))
                commands.append(f"# on {remote.host.name}\n{command}\n")
        except BaseException:
            RemoteProcesses(self._fleet, parts, command="").end(0.0)
            raise
        (folder / "launch.txt").write_text("".join(commands), encoding="utf-8")
        return RemoteProcesses(self._fleet, parts, command="".join(commands))


def _renaming(hosts: Sequence[RemoteHost], rank: int) -> Callable[[str], str]:
    """Keep apart what hosts call the same: their output, and recordings of hosts of one name."""
    name = folder_name(hosts[rank].host.name)
    own = hosts[rank].node.host
    twin = any(remote.node.host == own for remote in hosts[:rank])

    def rename(file: str) -> str:
        stem, dot, end = file.rpartition(".")
        if rank and (file == LAUNCHER_OUTPUT or (twin and file == f"monitor-{own}.jsonl")):
            return f"{stem}@{name}{dot}{end}"
        return file

    return rename
