"""`gpuproof doctor --multi-node` between hosts: namespaces, a real firewall, interfaces that are down."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts import Host, finish, hosts_on_a_switch
from running import gpuproof_command

PORT = 29544
MEETING_S = 300.0
"""For two hosts that both come: the meeting is over once they have."""
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    with hosts_on_a_switch(tmp_path_factory.mktemp("hosts"), num_hosts=2) as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def no_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Doctor as on a login node: without torch, which takes long to import. The first test has it."""
    folder = tmp_path_factory.mktemp("no torch")
    (folder / "torch.py").write_text("raise ImportError('not here')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{SOURCE}")
        yield


@pytest.fixture(autouse=True)
def open_firewalls(hosts: list[Host]) -> Iterator[None]:
    yield
    for host in hosts:
        host.firewall("-F")


def start_doctor(
    host: Host, *, wait_s: float = MEETING_S, master: str = "198.18.7.1"
) -> subprocess.Popen[str]:
    meeting = ("--master", master, "--port", str(PORT), "--nodes=2", f"--node-rank={host.rank}")
    command = gpuproof_command("doctor", "--json", "--multi-node", *meeting, f"--wait={wait_s:g}")
    return host.start(command)


def read(result: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """Return the outcomes by name. The exit code is 5, be it for want of torch."""
    assert result.returncode == 5, result.stderr
    return {item["name"]: item["outcome"] for item in json.loads(result.stdout)["multi_node"]}


def both(hosts: list[Host], *, wait_s: float = MEETING_S) -> list[dict[str, dict[str, Any]]]:
    return [read(finish(process)) for process in [start_doctor(host, wait_s=wait_s) for host in hosts]]


def visit(host: Host, **options: Any) -> dict[str, Any]:
    """What node 1 says of the way to node 0."""
    (found,) = [
        outcome
        for name, outcome in read(finish(start_doctor(host, wait_s=1, **options))).items()
        if name.startswith("way to")
    ]
    return found


def test_hosts_that_reach_each_other(hosts: list[Host]) -> None:
    first, second = both(hosts)
    assert first["MASTER_ADDR"]["status"] == "PASS"
    assert first[f"port {PORT}"]["status"] == "PASS"
    assert first["node 1"]["measured"] == "node1 connected from 198.18.7.2, and could be reached from here"
    assert second[f"way to 198.18.7.1:{PORT}"]["measured"] == "node0 answered 198.18.7.2"
    assert [second[f"other ports {where}"]["status"] for where in ("here", "there")] == ["PASS", "PASS"]
    assert second["interfaces"]["measured"].startswith("v1 up 198.18.7.2")
    assert second["GLOO_SOCKET_IFNAME"]["status"] == "PASS"


def test_the_exit_code_is_0_where_all_is_well(hosts: list[Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    results = [finish(process) for process in [start_doctor(host) for host in hosts]]
    assert [result.returncode for result in results] == [0, 0]
    assert [result.stderr for result in results] == ["", ""]


@pytest.mark.promise("S1.25")
def test_a_firewall_that_drops_is_told_from_a_host_that_is_away(hosts: list[Host]) -> None:
    hosts[0].firewall("-A", "INPUT", "-p", "tcp", "--dport", str(PORT), "-j", "DROP")
    assert "a firewall blocks port 29544" in visit(hosts[1])["measured"]
    hosts[0].firewall("-A", "INPUT", "-j", "DROP")
    assert "no port responds" in visit(hosts[1])["measured"]


def test_a_firewall_that_rejects_as_prohibited(hosts: list[Host]) -> None:
    prohibited = ("-j", "REJECT", "--reject-with", "icmp-host-prohibited")
    hosts[0].firewall("-A", "INPUT", "-p", "tcp", "--dport", str(PORT), *prohibited)
    assert "a firewall blocks port 29544" in visit(hosts[1])["measured"]


def test_where_nothing_listens_it_is_said_and_a_rejecting_firewall_looks_the_same(hosts: list[Host]) -> None:
    for _ in range(2):
        found = visit(hosts[1])
        assert found["measured"].startswith("refused: the host is up, but nothing listens")
        assert "If node 0's doctor reports its port as free, a firewall is the cause" in found["next_step"]
        hosts[0].firewall("-A", "INPUT", "-p", "tcp", "--dport", str(PORT), "-j", "REJECT")


@pytest.mark.parametrize(("closed", "where"), [(0, "there"), (1, "here")])
def test_a_firewall_that_lets_the_one_port_through_only(closed: int, where: str, hosts: list[Host]) -> None:
    hosts[closed].firewall("-A", "INPUT", "-p", "tcp", "--dport", str(PORT), "-j", "ACCEPT")
    hosts[closed].firewall("-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
    hosts[closed].firewall("-A", "INPUT", "-j", "DROP")
    first, second = both(hosts)
    assert second[f"way to 198.18.7.1:{PORT}"]["status"] == "PASS"
    judged = second[f"other ports {where}"]
    assert (judged["status"], judged["measured"]) == ("FAIL", "timed out")
    firewall = "the firewall of node0" if closed == 0 else "this host's firewall"
    assert judged["next_step"] == f"Open all ports between the hosts in {firewall}"
    assert first["node 1"]["status"] == ("PASS" if closed == 0 else "FAIL")


def test_an_interface_that_is_down(hosts: list[Host]) -> None:
    hosts[1].ip("link", "set", "v1", "down")
    try:
        found = read(finish(start_doctor(hosts[1], wait_s=1)))
    finally:
        hosts[1].ip("link", "set", "v1", "up")
    assert found["interfaces"]["status"] == "FAIL"
    assert "v1 down" in found["interfaces"]["measured"]
    assert found["GLOO_SOCKET_IFNAME"]["measured"] == "v1: v1 is down or has no address"
    assert found[f"way to 198.18.7.1:{PORT}"]["measured"].startswith("no route")


def test_a_port_that_is_taken(hosts: list[Host]) -> None:
    listen = f"import socket; listener = socket.create_server(('', {PORT})); print('here', flush=True)"
    answer = "while True: listener.accept()[0].sendall(b'220 ready\\n')"
    listening = hosts[0].start(["python3", "-c", f"{listen}\n{answer}"])
    assert listening.stdout is not None
    assert listening.stdout.readline() == "here\n"
    found = read(finish(start_doctor(hosts[0])))
    assert found[f"port {PORT}"]["measured"] == "cannot be listened on: Address already in use"
    assert visit(hosts[1])["measured"].startswith("wrong answer: something other than gpuproof doctor")
    listening.kill()


def test_an_address_of_nobody_and_one_of_the_wrong_host(hosts: list[Host]) -> None:
    unknown = read(finish(start_doctor(hosts[1], wait_s=1, master="no.such.host.invalid")))
    assert "does not resolve to an address" in unknown["MASTER_ADDR"]["measured"]
    own = read(finish(start_doctor(hosts[1], wait_s=1, master="198.18.7.2")))
    assert own["MASTER_ADDR"]["measured"] == "198.18.7.2: this host's own address, but this host is node 1"
    not_own = read(finish(start_doctor(hosts[0], wait_s=1, master="198.18.7.2")))
    assert not_own["MASTER_ADDR"]["status"] == "WARN"
    assert not_own["node 1"]["measured"] == f"did not connect to port {PORT} in time"


def test_a_way_that_does_not_fit_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    for words, message in (
        (["--master=a"], "--master and --port must be given together"),
        (["--node-rank=2", "--nodes=2"], "--node-rank 2 does not fit --nodes 2"),
    ):
        result = subprocess.run(
            gpuproof_command("doctor", "--multi-node", *words), cwd=tmp_path, capture_output=True, text=True
        )
        assert result.returncode == 2
        assert message in result.stderr
