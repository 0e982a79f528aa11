"""What the tests of hosts share: running servers, an inventory of them, and who lives on a host."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.archive import build_archive
from gpuproof.launchers.ssh.launcher import SshLauncher
from gpuproof.launchers.ssh.site import SshOptions
from sshd import Server, SshWorld, inventory_entry

PATIENT_S = 300.0
"""To connect: a server that is gone refuses at once, and one of a busy machine takes its time."""


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Servers as hosts, each with a directory of an awkward name for our files."""

    world: SshWorld
    folder: Path
    archive: bytes

    def host(self, server: Server, **keys: object) -> InventoryHost:
        """Return a server as the inventory would give it."""
        directory = self.directory(server)
        directory.mkdir(parents=True, exist_ok=True)
        values: dict[str, Any] = {"python": sys.executable, "directory": str(directory), **keys}
        return InventoryHost(
            name=f'node "{server.address}"', address=server.address, port=server.port, place="x:1", **values
        )

    def directory(self, server: Server) -> Path:
        """Return where a host keeps our files."""
        return self.folder / f'it\'s a "dir" $HOME {server.address}'

    def left_behind(self, server: Server) -> list[str]:
        """Return what lies in a host's directory."""
        directory = self.directory(server)
        return sorted(os.listdir(directory)) if directory.exists() else []

    def options(self, **changes: object) -> SshOptions:
        """Return options that reach all servers."""
        usual = {"key": str(self.world.key), "known_hosts": str(self.world.known_hosts), "attempts": 1}
        values: dict[str, Any] = {**usual, "connect_timeout_s": PATIENT_S, **changes}
        return SshOptions(**values)

    @contextmanager
    def launcher(self, hosts: Sequence[InventoryHost], **options: object) -> Iterator[SshLauncher]:
        """Give a launcher for these hosts."""
        with closing(SshLauncher(hosts, self.options(**options), archive=self.archive)) as launcher:
            yield launcher

    def write_inventory(self, path: Path, servers: Sequence[Server], **keys: object) -> list[str]:
        """Write an inventory of these servers; return the words that a command needs to use it."""
        entries = [
            inventory_entry(server, name=f"node {number}", directory=self.host(server).directory, **keys)
            for number, server in enumerate(servers)
        ]
        content = {"defaults": {"python": sys.executable, "price_per_hour": 3.6}, "hosts": entries}
        path.write_text(json.dumps(content, indent=1))
        key, known = f"--ssh-key={self.world.key}", f"--known-hosts={self.world.known_hosts}"
        return [
            f"--deployment-file={path}",
            key,
            known,
            "--connect-attempts=1",
            f"--connect-timeout={PATIENT_S:g}",
        ]


def hosts_in(world: SshWorld) -> Hosts:
    """Make hosts of a world's servers."""
    archive = build_archive(world.folder / "gpuproof-node.pyz").read_bytes()
    return Hosts(world=world, folder=world.folder, archive=archive)


def processes_with(text: str) -> list[psutil.Process]:
    """Return living processes that have `text` in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or ())
        if text in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def kill_all_with(text: str) -> None:
    """Kill the living processes that have `text` in their command line."""
    for process in processes_with(text):
        with suppress(psutil.NoSuchProcess):
            process.kill()
