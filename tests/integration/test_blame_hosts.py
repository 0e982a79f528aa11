"""The search over hosts in network namespaces: a slow host, a lossy link, ranks that stand still."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from hosts import Host, hosts_on_a_switch
from ssh_hosts import Hosts, hosts_in
from sshd import can_serve, ssh_world

WHY_NOT = can_serve()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
PROGRAM = Path(__file__).parents[1] / "blaming_hosts.py"
WORDS = (
    *("--distributed.device=cpu", "--distributed.backend=gloo", "--distributed.threads_per_rank=1"),
    *("--monitoring.enabled=false", "--run.capture_env=false", "--run.commit_hash=null", "--run.run_id=b"),
    *("--collective.min_bytes=256K", "--collective.max_bytes=256K", "--collective.iterations=9"),
    *("--collective.warmup_iterations=2", "--run.repeats=1"),
)
PATIENCE_S = 1500.0
NOISE, SLOWDOWN = 0.15, 0.7
"""All hosts are one machine, which others use, too: figures scatter. The faults are slower by far more."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Hosts, and how the search reaches them."""

    links: list[Host]
    hosts: Hosts

    def describe(self, folder: Path, *words: str) -> Path:
        """Write down what the search needs to know."""
        hosts = [
            {
                "name": link.name,
                "address": server.address,
                "port": 22,
                "directory": str(self.hosts.directory(server)),
                "interface": link.interface,
            }
            for link, server in zip(self.links, self.hosts.world.servers, strict=True)
        ]
        for server in self.hosts.world.servers:
            self.hosts.directory(server).mkdir(exist_ok=True)
        asked = {
            "hosts": hosts,
            "key": str(self.hosts.world.key),
            "known_hosts": str(self.hosts.world.known_hosts),
            "archive": str(self.hosts.folder / "gpuproof-node.pyz"),
            "words": [*WORDS, f"--run.save_dir='{folder}'", *words],
            "noise": NOISE,
            "slowdown": SLOWDOWN,
        }
        description = folder / "search.json"
        description.write_text(json.dumps(asked))
        return description

    def search(self, folder: Path, *words: str) -> Any:
        """Search, beside the hosts at the switch."""
        command = [
            *self.links[0].controller,
            sys.executable,
            str(PROGRAM),
            str(self.describe(folder, *words)),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        *_, last = ended.stdout.splitlines()
        print(ended.stdout)
        return json.loads(last)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with (
        hosts_on_a_switch(tmp_path / "hosts", num_hosts=3) as links,
        ssh_world(tmp_path / "servers", []) as world,
    ):
        for link in links:
            world.add(link.address, port=22, prefix=link.within)
        for link in links:
            wait_for(link)
        yield Fleet(links=links, hosts=hosts_in(world))


def wait_for(link: Host) -> None:
    """Wait until the host's sshd takes connections."""
    program = (
        "import socket, time\nfor _ in range(600):\n try:\n"
        f"  raise SystemExit(socket.create_connection(({link.address!r}, 22), timeout=5).close())\n"
        " except OSError: time.sleep(0.05)\nraise SystemExit(1)"
    )
    assert subprocess.run([*link.controller, sys.executable, "-c", program]).returncode == 0


def subjects(found: Any) -> list[str]:
    return [named["subject"] for named in found["named"]]


def test_the_host_behind_a_slow_link_is_named_and_not_its_partners(fleet: Fleet, tmp_path: Path) -> None:
    fleet.links[1].slow_down("20mbit")
    found = fleet.search(tmp_path)
    assert subjects(found) == ["host/node1"], found
    assert "in pairs with" in found["named"][0]["evidence"]


def test_a_link_that_loses_packets_is_named_and_not_its_ends(fleet: Fleet, tmp_path: Path) -> None:
    from_node0 = ("-s", fleet.links[0].address, "-p", "tcp", "!", "--sport", "22")
    lost = ("-m", "statistic", "--mode", "random", "--probability", "0.3", "-j", "DROP")
    fleet.links[2].firewall("-A", "INPUT", *from_node0, *lost)
    found = fleet.search(tmp_path)
    (subject,) = {frozenset(named.removeprefix("link/").split(">")) for named in subjects(found)}
    assert subject == {"node0", "node2"}, found


class Stopper(Thread):
    """Stops every rank of a host as soon as it is there, as a host that stands still would."""

    def __init__(self, host: Host) -> None:
        super().__init__(daemon=True)
        self.host, self.over = host, Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            for pid in self.host.pids():
                if is_rank(pid):
                    os.kill(pid, signal.SIGSTOP)


def is_rank(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"spec.json") for word in words) and b"torch.distributed.run" not in words


def test_the_host_whose_ranks_stand_still_is_named(fleet: Fleet, tmp_path: Path) -> None:
    stopper = Stopper(fleet.links[2])
    stopper.start()
    try:
        found = fleet.search(tmp_path, "--distributed.timeout_s=25", "--distributed.hang_timeout_s=20")
    finally:
        stopper.over.set()
    assert subjects(found) == ["host/node2"], found
    assert "nothing got through" in found["named"][0]["evidence"]
