"""`gpuproof validate` over hosts in network namespaces: slow, lossy, cut off, stopped, killed.

The hosts stand for all tests: starting them, and each launch of three ranks, is what takes the time.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hosts import Host, hosts_on_a_switch
from running import clean_environment
from ssh_hosts import Hosts, hosts_in
from sshd import can_serve, ssh_world
from sysfs_ports import SysfsPorts
from waiting import eventually

WHY_NOT = can_serve()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
COLLECTIVE = {
    **{"operations": ["all_to_all"], "min_bytes": "64K", "max_bytes": "64K"},
    **{"iterations": 25, "warmup_iterations": 2},
}
"""Over every link; of a size that a slow link, too, is soon through with."""
LONG = json.dumps({**COLLECTIVE, "iterations": 100_000})
"""Goes on until something happens to it."""
ALONE = (f"--validate.collective={LONG}", "--validate.blame=never", "--distributed.hang_timeout_s=45")
"""One launch, which has to name who ended it by itself."""
WORDS = (
    *("--recipe=quick", "--mode=nccl", "--allow-cpu", "--device=cpu", "--nproc=1"),
    *("--distributed.backend=gloo", "--distributed.threads_per_rank=1", "--distributed.timeout_s=120"),
    *("--monitoring.enabled=false", "--run.capture_env=false", "--run.commit_hash=null"),
    f"--validate.collective={json.dumps(COLLECTIVE)}",
)
VALIDATION_S = 900.0
MONITORED = ("--validate.blame=never", "--monitoring.enabled=true")
SHOWN = 'hostname "$1" && mount --bind "$0" /sys/class && shift && exec "$@"'
"""A host has its own name, as recordings are told apart by it, and its own ports."""
IB_COUNTERS = "class/infiniband/mlx5_0/ports/1/counters"
TRAFFIC = (
    *("class/net/eth0/statistics/tx_bytes", f"{IB_COUNTERS}/port_xmit_data"),
    f"{IB_COUNTERS}/port_xmit_packets",
)
CRC_ERRORS = "class/net/eth0/statistics/rx_crc_errors"
SYMBOL_ERRORS = f"{IB_COUNTERS}/symbol_error"
FLOOR = """\
rules:
  - name: hosts talk fast
    each: whole
    measure: {name: bus bandwidth, labels: {stage: collective}}
    expect: {at_least: 3.0e+6, unit: B/s}
"""
"""A link of 2 Mbit/s lets 0.4 MB/s through; healthy ones here, beside other work, four times this or more."""


@dataclass(kw_only=True)
class Fleet:
    """Hosts, and how they are validated from beside the switch."""

    links: list[Host]
    hosts: Hosts
    sysfs: list[SysfsPorts]
    folder: Path

    def validate(self, name: str, *words: str, meanwhile: Callable[[], None] | None = None) -> Any:
        """Validate all hosts, and return the result; `meanwhile` is done once ranks measure."""
        folder = self.folder / name
        folder.mkdir()
        reach = self.hosts.write_inventory(folder / "hosts.json", self.hosts.world.servers)
        content = json.loads((folder / "hosts.json").read_text())
        for entry, link in zip(content["hosts"], self.links, strict=True):
            entry |= {"name": link.name, "interface": link.interface}
        (folder / "hosts.json").write_text(json.dumps(content))
        rules = folder / "rules.yaml"
        rules.write_text(FLOOR)
        own = [
            *WORDS,
            *reach,
            f"--rules={rules}",
            *words,
            f"--run.save_dir={folder}/results",
            "--run.run_id=it",
        ]
        command = [*self.links[0].controller, sys.executable, "-m", "gpuproof", "validate", *own]
        with subprocess.Popen(
            command,
            cwd=folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                if meanwhile is not None:
                    eventually(
                        "ranks that measure", lambda: is_measured(folder) or process.poll() is not None
                    )
                    meanwhile()
                print(process.communicate(timeout=VALIDATION_S)[0])
            finally:
                process.kill()
        (result,) = (folder / "results").glob("**/result.json")
        return json.loads(result.read_text())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("blame")
    with (
        hosts_on_a_switch(folder / "hosts", num_hosts=3) as links,
        ssh_world(folder / "servers", []) as world,
    ):
        sysfs = [SysfsPorts(folder / "sysfs" / link.name) for link in links]
        for link, tree in zip(links, sysfs, strict=True):
            tree.rdma("mlx5_0")
            tree.ethernet("eth0")
            shown = ("unshare", "--uts", "sh", "-c", SHOWN, str(tree.root / "class"), link.name)
            world.add(link.address, port=22, prefix=(*link.within, *shown))
        for link in links:
            link.wait_until_it_listens()
        yield Fleet(links=links, hosts=hosts_in(world), sysfs=sysfs, folder=folder)


@contextmanager
def counting(fleet: Fleet, grown: Mapping[str, int]) -> Iterator[None]:
    """Let every port count traffic, and the file of one host that `grown` names errors, too, till the end."""
    over = threading.Event()

    def count() -> None:
        for total in itertools.count(1):
            for tree, file in itertools.product(fleet.sysfs, TRAFFIC):
                tree.write(file, 10_000 + 1_000 * total)
            for file, host in grown.items():
                fleet.sysfs[host].write(file, total)
            if over.wait(0.1):
                return

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def port_errors(result: Any) -> dict[str, Any]:
    """Return what ports counted: the outcome of each subject."""
    return {x["outcome"]["subject"]: x["outcome"] for x in result["outcomes"] if x["name"] == "port errors"}


def is_measured(folder: Path) -> bool:
    """Say whether a rank has told that it measures."""
    return any('"measure"' in journal.read_text() for journal in folder.glob("results/**/rank-*.jsonl"))


def failed(result: Any) -> dict[str, str]:
    """Return what failed of hosts and links: why, by subject."""
    named = [item for item in result["outcomes"] if item["name"] != "port errors"]  # which explain others
    found = [item["outcome"] | {"check": item["name"]} for item in named]
    return {
        x["subject"]: f"{x['check']}: {x['measured']}"
        for x in found
        if x["status"] == "FAIL" and x["subject"].startswith(("host/", "link/"))
    }


def who(result: Any) -> dict[str, str]:
    """Return who slows the collective, or keeps it from ending."""
    return {subject: why for subject, why in failed(result).items() if why.startswith("who slows")}


@pytest.mark.long  # on a busy machine a pair of healthy hosts may be under the floor
def test_of_healthy_hosts_none_is_named(fleet: Fleet) -> None:
    healthy = fleet.validate("healthy")
    assert not who(healthy), healthy


@pytest.mark.long
@pytest.mark.promise("S3.16")
def test_the_host_behind_a_slow_link_is_named_and_not_its_partners(fleet: Fleet) -> None:
    """And the port that counted errors meanwhile with it, since it explains why."""
    with fleet.links[1].slowed_down("2mbit"), counting(fleet, {SYMBOL_ERRORS: 1}):
        found = fleet.validate("slow", "--monitoring.enabled=true")
    assert list(who(found)) == ["host/node1"], who(found)
    assert "in pairs with" in who(found)["host/node1"]
    ports = port_errors(found)
    assert {subject for subject, outcome in ports.items() if outcome["status"] == "FAIL"} == {"host/node1"}
    assert "mlx5_0:1 symbol_error +" in ports["host/node1"]["measured"]
    assert "together with the FAIL of who slows" in ports["host/node1"]["measured"]


def test_a_link_that_loses_packets_is_named_with_its_direction(fleet: Fleet) -> None:
    """By what the sender's kernel sent again, in one launch: how long a lossy one takes is up to chance.

    Every fifth packet goes, so that some do; what else a busy machine loses is no failure.
    """
    from_node0 = ("-s", fleet.links[0].address, "-p", "tcp", "!", "--sport", "22")
    lost = ("-m", "statistic", "--mode", "nth", "--every", "5", "--packet", "0", "-j", "DROP")
    longer = json.dumps({**COLLECTIVE, "iterations": 3_000})
    with fleet.links[2].filtered(*from_node0, *lost):
        found = fleet.validate("lossy", f"--validate.collective={longer}", "--validate.blame=never")
    assert found["verdict"] == "NOT-READY"
    packets = {
        x["outcome"]["subject"]: x["outcome"] for x in found["outcomes"] if x["name"] == "lost packets"
    }
    told = {subject: outcome["status"] for subject, outcome in packets.items()}
    assert told.pop("link/node0>node2") == "FAIL", packets
    assert set(told) == {"host/node1", "host/node2"}, packets
    assert "FAIL" not in told.values(), packets


def test_one_growing_counter_names_its_port_and_with_lost_packets_its_link(fleet: Fleet) -> None:
    """Real traffic of gloo, and counters that the test writes where each host has its /sys/class."""
    from_node0 = ("-s", fleet.links[0].address, "-p", "tcp", "!", "--sport", "22")
    lost = ("-m", "statistic", "--mode", "nth", "--every", "5", "--packet", "0", "-j", "DROP")
    longer = f"--validate.collective={json.dumps({**COLLECTIVE, 'iterations': 3_000})}"
    with fleet.links[2].filtered(*from_node0, *lost), counting(fleet, {CRC_ERRORS: 2}):
        result = fleet.validate("lossy port", longer, *MONITORED)
    found = port_errors(result)
    assert found["link/node0>node2"]["status"] == "FAIL", found
    assert "node2: eth0 rx_crc_errors +" in found["link/node0>node2"]["measured"]
    assert {found.pop(f"host/node{k}")["status"] for k in (0, 1)} == {"PASS"}, found
    assert list(found) == ["link/node0>node2"], found


@pytest.mark.parametrize("grown", [{}, pytest.param({SYMBOL_ERRORS: 1}, id="symbol errors of node1")])
def test_growth_without_anything_slow_is_a_warning_and_no_growth_names_none(
    fleet: Fleet, grown: Mapping[str, int]
) -> None:
    with counting(fleet, grown):
        result = fleet.validate(f"port-{len(grown)}", *MONITORED)
    found = port_errors(result)
    statuses = {subject: outcome["status"] for subject, outcome in found.items()}
    expected = dict.fromkeys(("host/node0", "host/node1", "host/node2"), "PASS")
    assert statuses == expected | ({"host/node1": "WARN"} if grown else {}), found
    if grown:
        assert "mlx5_0:1 symbol_error +" in found["host/node1"]["measured"]


@pytest.mark.long
def test_the_host_that_is_cut_off_in_the_middle_is_named(fleet: Fleet) -> None:
    try:
        found = fleet.validate("cut", *ALONE, "--lease=9", meanwhile=fleet.links[2].cut)
    finally:
        fleet.links[2].plug_in()
    assert "host/node2" in failed(found) or "node2" in job(found), (failed(found), job(found))


@pytest.mark.parametrize("number", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_the_rank_that_is_stopped_or_killed_is_named(fleet: Fleet, number: signal.Signals) -> None:
    host = fleet.links[1]

    def send() -> None:
        for pid in ranks_on(host):
            os.kill(pid, number)

    found = fleet.validate(number.name, *ALONE, meanwhile=send)
    assert "rank 1 on node1 ended without an error message" in job(found), job(found)
    if number == signal.SIGSTOP:  # the others wait for it until they give up
        stopped = {subject for subject, why in failed(found).items() if why.startswith("who stops")}
        assert stopped == {"host/node1"}, failed(found)
        assert found["verdict"] == "NOT-READY"


def job(result: Any) -> str:
    """Return what became of the job over all hosts."""
    (found,) = [x["outcome"] for x in result["outcomes"] if x["name"] == "collective-over was measured"]
    return f"{found['status']} {found['measured'] or found['reason']}"


def ranks_on(host: Host) -> list[int]:
    return [pid for pid in host.pids() if is_rank(pid)]


def is_rank(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"spec.json") for word in words) and b"torch.distributed.run" not in words
