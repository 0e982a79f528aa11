"""Several hosts on one machine: network, host-name and mount namespaces, a bridge between them.

Each host has an address, a name, a folder of its own, and is shown nothing of the others' folders. Needs
root. Names carry this process's id, so that test runs beside each other do not meet.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

import pytest

from running import TIMEOUT_S, clean_environment
from waiting import eventually

INSIDE = """
hostname "$1" && shift
while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit 97; shift; done
shift
exec "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host: `node<K>`, with the interface `v<K>`."""

    rank: int
    namespace: str
    switch: str
    address: str
    folder: Path
    hidden: Sequence[Path]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"node{self.rank}"

    @property
    def within(self) -> tuple[str, ...]:
        """What goes before a command that needs the host's network, and nothing else of it."""
        return ("ip", "netns", "exec", self.namespace)

    @property
    def controller(self) -> tuple[str, ...]:
        """What goes before a command that runs beside the hosts, at the switch."""
        return ("ip", "netns", "exec", self.switch)

    @property
    def interface(self) -> str:
        return f"v{self.rank}"

    def start(self, command: Sequence[str], **environment: str) -> subprocess.Popen[str]:
        """Start a command on this host, in its folder."""
        inside = ["sh", "-c", INSIDE, "sh", self.name, *map(str, self.hidden), "--", *command]
        variables = {"GLOO_SOCKET_IFNAME": self.interface, "TMPDIR": str(self.folder / "tmp"), **environment}
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--mount", *inside],
            cwd=self.folder,
            env=clean_environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command on this host to its end."""
        return finish(self.start(command, **environment))

    def ip(self, *words: str) -> None:
        """Run `ip` in the host's network namespace."""
        _checked("ip", "-n", self.namespace, *words)

    def firewall(self, *words: str) -> None:
        """Add a rule of iptables to the host."""
        _checked("ip", "netns", "exec", self.namespace, "iptables", "-w", *words)

    def cut(self) -> None:
        """Pull the plug at the switch: the host's own interface stays up."""
        _checked("ip", "-n", self.switch, "link", "set", f"p{self.rank}", "down")

    def plug_in(self) -> None:
        """Undo `cut`."""
        _checked("ip", "-n", self.switch, "link", "set", f"p{self.rank}", "up")

    @contextmanager
    def slowed_down(self, rate: str) -> Iterator[None]:
        """Let so much through, in both directions."""
        shape = ("root", "tbf", "rate", rate, "burst", "16k", "latency", "400ms")
        ends = ((self.within, self.interface), (self.controller, f"p{self.rank}"))
        for prefix, device in ends:
            _checked(*prefix, "tc", "qdisc", "add", "dev", device, *shape)
        try:
            yield
        finally:
            for prefix, device in ends:
                _checked(*prefix, "tc", "qdisc", "del", "dev", device, "root")

    @contextmanager
    def filtered(self, *words: str) -> Iterator[None]:
        """Have a rule of iptables about what comes in."""
        self.firewall("-A", "INPUT", *words)
        try:
            yield
        finally:
            self.firewall("-D", "INPUT", *words)

    def wait_until_it_listens(self, port: int = 22) -> None:
        """Wait until it takes connections from beside the switch."""
        call = f"socket.create_connection(({self.address!r}, {port}), timeout=5).close()"
        attempt = [*self.controller, sys.executable, "-c", f"import socket; {call}"]
        eventually("its server", lambda: subprocess.run(attempt, capture_output=True).returncode == 0)

    def pids(self) -> list[int]:
        """Every process of this host."""
        listed = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True)
        return [int(word) for word in listed.stdout.split()]


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a command that was started."""
    output, errors = process.communicate(timeout=TIMEOUT_S)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@contextmanager
def hosts_on_a_switch(folder: Path, *, num_hosts: int) -> Iterator[list[Host]]:
    """Build hosts that reach each other, and leave nothing of them behind."""
    missing = [
        program for program in ("ip", "iptables", "tc", "unshare", "nsenter") if which(program) is None
    ]
    if missing or os.geteuid() != 0:
        pytest.skip(f"several hosts need root, and {', '.join(missing) or 'nothing else'}")
    switch = f"gp{os.getpid()}sw"
    folders = [folder / f"host {rank}" for rank in range(num_hosts)]
    hosts = [
        Host(
            rank=rank,
            namespace=f"gp{os.getpid()}h{rank}",
            switch=switch,
            address=f"198.18.7.{rank + 1}",
            folder=own,
            hidden=[other for other in folders if other != own],
        )
        for rank, own in enumerate(folders)
    ]
    try:
        _checked("ip", "netns", "add", switch)
        _checked("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _checked("ip", "-n", switch, "link", "set", "br0", "up")
        _checked("ip", "-n", switch, "addr", "add", "198.18.7.100/24", "dev", "br0")
        for host in hosts:
            _plug_in(host)
        yield hosts
    finally:
        for host in hosts:
            _remove(host)
        subprocess.run(["ip", "netns", "del", switch], capture_output=True)


def _plug_in(host: Host) -> None:
    (host.folder / "tmp").mkdir(parents=True)
    _checked("ip", "netns", "add", host.namespace)
    ends = ("link", "add", host.interface, "netns", host.namespace, "type", "veth")
    _checked("ip", *ends, "peer", "name", f"p{host.rank}", "netns", host.switch)
    _checked("ip", "-n", host.switch, "link", "set", f"p{host.rank}", "master", "br0", "up")
    host.ip("addr", "add", f"{host.address}/24", "dev", host.interface)
    for interface in (host.interface, "lo"):
        host.ip("link", "set", interface, "up")


def _remove(host: Host) -> None:
    for pid in host.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in host.started:
        process.communicate(timeout=TIMEOUT_S)
    subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)


def _checked(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
