"""Real SSH servers for tests: one `sshd` a loopback address, each with a host key of its own.

Needs openssh-server and root, as `.ci/run` installs it. Nothing of the user's home is read or written,
not ~/.ssh and not what a shell reads at its start, which may take longer than what is tested.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ports import free_ports

CONFIG = """
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {authorized}
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
AllowTcpForwarding yes
MaxStartups 200:30:400
LogLevel ERROR
SetEnv "HOME={folder}"
"""
PATIENCE_S = 300.0


@dataclass(kw_only=True)
class Server:
    """One sshd."""

    address: str
    port: int
    folder: Path
    prefix: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def public_key(self) -> str:
        """Its host key."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def pattern(self) -> str:
        """Its name in known_hosts."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"

    def start(self) -> None:
        """Start listening."""
        command = [*self.prefix, shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f"]
        with (self.folder / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, str(self.folder / "config")], stderr=log, start_new_session=True
            )
        if not self.prefix:
            self.wait_until_it_listens()

    def wait_until_it_listens(self) -> None:
        """Wait until connections are taken."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection((self.address, self.port), timeout=1).close()
            except OSError:  # noqa: PERF203  # waiting is the point
                assert time.monotonic() < deadline_s, (self.folder / "sshd.log").read_text()
                time.sleep(0.02)
            else:
                return

    def family(self) -> list[psutil.Process]:
        """Return the server and all that it started, however they regrouped."""
        assert self.process is not None
        try:
            server = psutil.Process(self.process.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill_host(self) -> None:
        """End everything at once, as a power cut would."""
        for process in self.family():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:  # noqa: PERF203  # gone already
                continue
        if self.process is not None:
            self.process.wait()


@dataclass(kw_only=True)
class SshWorld:
    """Servers and the keys that open them."""

    folder: Path
    key: Path
    known_hosts: Path
    servers: list[Server] = field(default_factory=list)

    def add(self, address: str, *, port: int | None = None, prefix: Sequence[str] = ()) -> Server:
        """Start a server and know its key."""
        folder = self.folder / f"sshd-{address}"
        folder.mkdir()
        generate_key(folder / "host_key")
        server = Server(
            address=address, port=port or free_ports(address=address), folder=folder, prefix=prefix
        )
        text = CONFIG.format(
            address=address, port=server.port, folder=folder, authorized=self.folder / "authorized_keys"
        )
        (folder / "config").write_text(text)
        self.servers.append(server)
        self.trust(server)
        server.start()
        return server

    def trust(self, server: Server) -> None:
        """Add a server's key to known_hosts."""
        with self.known_hosts.open("a") as file:
            file.write(f"{server.pattern} {server.public_key}\n")

    def authorize(self, public_key: Path) -> None:
        """Let the owner of a key in, everywhere."""
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(public_key.read_text())


@contextmanager
def ssh_world(folder: Path, addresses: Sequence[str]) -> Iterator[SshWorld]:
    """Give running servers at these loopback addresses; end them and all that they started."""
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd puts its unprivileged half
    folder.mkdir(parents=True, exist_ok=True)
    key = folder / "id_ed25519"
    generate_key(key)
    world = SshWorld(folder=folder, key=key, known_hosts=folder / "known_hosts")
    world.known_hosts.touch()
    world.authorize(key.with_suffix(".pub"))
    try:
        for address in addresses:
            world.add(address)
        yield world
    finally:
        for server in world.servers:
            server.kill_host()


def generate_key(path: Path, *, passphrase: str = "") -> None:
    """Make an ed25519 key pair."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "gpuproof test", "-f", str(path)]
    subprocess.run(command, check=True)


def inventory_entry(server: Server, **keys: object) -> Mapping[str, object]:
    """Return the entry of a server in an inventory."""
    return {"host": server.address, "port": server.port, **keys}


def can_serve() -> str | None:
    """Say why no sshd can be started here; None where it can."""
    if shutil.which("sshd") is None and not Path("/usr/sbin/sshd").exists():
        return "openssh-server is not installed"
    return None if os.geteuid() == 0 else "sshd on addresses of one's own needs root"
