"""The scripts for one and for several hosts, over network namespaces that share no disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Failure, Start, Window
from gpuproof.store.run import RunDirectory
from hosts import Host, finish, hosts_on_a_switch
from running import TIMEOUT_S, TINY, clean_environment, only_case, run_directory
from waiting import eventually

SCRIPTS = Path(__file__).parents[2] / "scripts"
PORT = "29511"
LONG = ("--benchmark.measure_steps=1000000", "--benchmark.log_step_times=false")


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[list[Host]]:
    with hosts_on_a_switch(tmp_path, num_hosts=2) as hosts:
        yield hosts


def start_node(
    host: Host, *words: str, nodes: str, per_node: str = "1", **environment: str
) -> subprocess.Popen[str]:
    variables = {
        "MASTER_ADDR": "198.18.7.1",
        "MASTER_PORT": PORT,
        "NODE_RANK": str(host.rank),
        "NNODES": nodes,
        "NPROC_PER_NODE": per_node,
        "PYTHON": sys.executable,
        **environment,
    }
    words = ("quick", *TINY, "--distributed.device=cpu", "--run.run_id=m", *words)
    return host.start(["bash", str(SCRIPTS / "run_multi_node.sh"), *words], **variables)


def on_all(hosts: Sequence[Host], *words: str, per_node: int = 1) -> list[subprocess.CompletedProcess[str]]:
    started = [start_node(host, *words, nodes=str(len(hosts)), per_node=str(per_node)) for host in hosts]
    return [finish(process) for process in started]


@pytest.mark.parametrize(("num_hosts", "per_node"), [(2, 2), pytest.param(4, 1, marks=pytest.mark.long)])
@pytest.mark.promise("S1.1", "S1.19", "F1.11")
def test_ranks_of_several_hosts_come_together_on_node_0(
    num_hosts: int, per_node: int, tmp_path: Path
) -> None:
    with hosts_on_a_switch(tmp_path, num_hosts=num_hosts) as hosts:
        results = on_all(hosts, per_node=per_node)
        assert [result.returncode for result in results] == [0] * num_hosts, results
        run = run_directory(hosts[0].folder, "m")
        assert [list(host.folder.glob("results")) for host in hosts[1:]] == [[]] * (num_hosts - 1)
        assert [list((host.folder / "tmp").glob("gpuproof-*")) for host in hosts] == [[]] * num_hosts
    records = only_case(run)
    world_size = num_hosts * per_node
    placed = {start.rank: start.host for start in records.of(Start)}
    assert placed == {rank: f"node{rank // per_node}" for rank in range(world_size)}
    windows = records.of(Window)
    assert sorted(window.rank for window in windows) == list(range(world_size))
    samples_per_s = sum(w.items for w in windows) / max(w.wall_s for w in windows)
    summary = json.loads((run.root / "run_summary.json").read_text())
    assert summary["throughput_samples_per_s"] / samples_per_s == pytest.approx(1.0)
    assert summary["world_size"] == world_size
    assert summary["total_samples"] == world_size * 20 * 8
    assert "medium training on synthetic" in results[0].stdout
    assert [result.stdout for result in results[1:]] == [""] * (num_hosts - 1)


def measuring(host: Host) -> RunDirectory:
    """Wait until rank 0 is in its measured window."""
    journal = host.folder / "results/quick/m/cases/main/0/rank-0.jsonl"
    eventually("the measured window", lambda: journal.exists() and '"measure"' in journal.read_text())
    return run_directory(host.folder, "m")


def worker_of(host: Host) -> int:
    """Return the process of the host's rank."""

    def found() -> list[int]:
        pids = []
        for pid in host.pids():
            with suppress(OSError):  # it ended since
                if b"gpuproof.worker\0join" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    pids.append(pid)
        return pids

    return eventually("the rank's process", found)[0]


def failed_case(run: RunDirectory) -> tuple[CaseRecords, Failure]:
    records = only_case(run)
    assert records.primary_failure is not None
    return records, records.primary_failure


def test_a_killed_rank_is_named_with_its_host(two_hosts: list[Host]) -> None:
    started = [start_node(host, *LONG, nodes="2") for host in two_hosts]
    run = measuring(two_hosts[0])
    os.kill(worker_of(two_hosts[1]), signal.SIGKILL)
    results = [finish(process) for process in started]
    assert [result.returncode for result in results] == [1, 1]
    records, failure = failed_case(run)
    assert failure.cause == "lost_rank"
    assert failure.message.startswith("rank 1 on node1 ended without an error message")
    assert {start.rank: start.host for start in records.of(Start)} == {0: "node0", 1: "node1"}
    assert "rank 1 on node1 ended without an error message" in " ".join(results[0].stdout.split())
    for rank, result in enumerate(results):
        assert f"run_multi_node.sh: node {rank} (node{rank}) ended with status 1" in result.stderr
        assert f"gpuproof doctor --multi-node --master 198.18.7.1 --port {PORT}" in result.stderr


def test_a_cut_link_ends_at_the_time_out(two_hosts: list[Host]) -> None:
    words = (*LONG, "--distributed.timeout_s=60")
    started = [start_node(host, *words, nodes="2") for host in two_hosts]
    run = measuring(two_hosts[0])
    two_hosts[1].cut()
    result = finish(started[0])
    assert result.returncode == 1
    records, failure = failed_case(run)
    assert failure.message.startswith("rank 1 on node1 ended without an error message")
    assert "cut off from this host" in failure.message
    (own,) = [found for found in records.of(Failure) if found.rank == 0]
    assert "imed out" in own.message
    assert "rank 1 on node1" in " ".join(result.stdout.split())


def test_a_failure_elsewhere_comes_home_in_its_own_words(two_hosts: list[Host]) -> None:
    started = [start_node(host, *LONG, nodes="2") for host in two_hosts]
    run = measuring(two_hosts[0])
    os.kill(worker_of(two_hosts[1]), signal.SIGTERM)
    for process in started:
        assert finish(process).returncode == 1
    (elsewhere,) = [found for found in only_case(run).of(Failure) if found.rank == 1]
    assert elsewhere.host == "node1"
    assert elsewhere.message == "ended by SIGTERM"


@pytest.mark.parametrize("wrong_host", [pytest.param(0, marks=pytest.mark.long), 1])
@pytest.mark.promise("S1.25")
def test_a_wrong_interface_is_named_with_its_host(wrong_host: int, two_hosts: list[Host]) -> None:
    wrong = {"GLOO_SOCKET_IFNAME": "eth9"}
    started = [
        start_node(host, nodes="2", **wrong) if host.rank == wrong_host else start_node(host, nodes="2")
        for host in two_hosts
    ]
    results = [finish(process) for process in started]
    assert [result.returncode for result in results] == [1, 1]
    said = " ".join(results[0].stdout.split())
    assert "GLOO_SOCKET_IFNAME=eth9: eth9 is not an interface on" in said
    assert f"node{wrong_host}" in said
    assert f"Interfaces with an address on this host: lo, v{wrong_host}" in said


@pytest.mark.parametrize(
    ("variables", "words", "message"),
    [
        ({}, ["quick"], "MASTER_ADDR is not set: an address of the host with NODE_RANK 0"),
        ({"MASTER_ADDR": "a"}, [], "needs a config"),
        ({"MASTER_ADDR": "a"}, ["quick"], "MASTER_PORT is not set"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "70000"}, ["quick"], "MASTER_PORT=70000 must be a whole number"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "29500"}, ["quick"], "NNODES is not set"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "29500", "NNODES": "two"}, ["quick"], "NNODES=two must be"),
        (
            {"MASTER_ADDR": "a", "MASTER_PORT": "29500", "NNODES": "2", "NODE_RANK": "2"},
            ["quick"],
            "NODE_RANK=2 must be a whole number from 0 to 1: this host among the 2, from 0",
        ),
        (
            {"MASTER_ADDR": "a", "MASTER_PORT": "29500", "NNODES": "2", "NODE_RANK": "0"},
            ["quick"],
            "NPROC_PER_NODE is not set",
        ),
    ],
)
def test_what_is_missing_for_several_hosts_is_said(
    variables: dict[str, str], words: list[str], message: str
) -> None:
    result = script("run_multi_node.sh", *words, cwd=SCRIPTS, **variables)
    assert result.returncode == 2
    assert result.stderr.startswith("run_multi_node.sh: ")
    assert message in result.stderr


def script(name: str, *words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    multi_node = ("NODE_RANK", "NNODES", "NPROC_PER_NODE")
    kept = {name: value for name, value in clean_environment().items() if name not in multi_node}
    return subprocess.run(
        ["bash", str(SCRIPTS / name), *words],
        cwd=cwd,
        env={**kept, "PYTHON": sys.executable, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.mark.promise("S1.17")
def test_two_ranks_on_one_host_by_script(tmp_path: Path) -> None:
    around = {"RANK": "5", "WORLD_SIZE": "8", "NODE_RANK": "3"}  # a launch around the script is not its own
    words = ("2", "quick", *TINY, "--run.run_id=s", "--training.precision=bf16")
    result = script("run_single_node.sh", *words, cwd=tmp_path, **around)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "bf16" in result.stdout
    assert only_case(run_directory(tmp_path, "s")).world_size == 2


@pytest.mark.parametrize(
    ("words", "variables", "code", "message"),
    [
        (["quick"], {}, 2, "needs the number of ranks and a config"),
        (["0", "quick"], {}, 2, "the number of ranks must be a whole number from 1, not '0'"),
        (["two", "quick"], {}, 2, "not 'two'"),
        (["1", "quick"], {"PYTHON": "/no/python"}, 2, "'/no/python' is no program; set PYTHON or GPUPROOF"),
        (["1", "quick"], {"GPUPROOF": "/no/gpuproof"}, 2, "'/no/gpuproof' is no program"),
        (["1", "no.yaml"], {}, 2, "no.yaml"),
    ],
)
def test_a_wrong_call_for_one_host_is_said(
    words: list[str], variables: dict[str, str], code: int, message: str, tmp_path: Path
) -> None:
    result = script("run_single_node.sh", *words, cwd=tmp_path, **variables)
    assert result.returncode == code
    assert message in result.stderr
