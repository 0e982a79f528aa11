"""The load suite on hosts over real sshd: one that dies keeps what it measured; --resume does the others."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuproof.records.run import Start
from gpuproof.store.run import RunDirectory
from gpuproof.suites.load.plan import TESTS
from integration.conftest import CommandLine, Fingerprint, fingerprint
from running import MEASURED
from ssh_hosts import Hosts, hosts_in, kill_all_with, processes_with
from sshd import Server, can_serve, ssh_world
from waiting import eventually

pytestmark = pytest.mark.skipif(can_serve() is not None, reason=str(can_serve()))
TINY = ("load", "--quick", "--num-batches=1", "--device=cpu", "--output=results.json")
SWEEP = (
    *("run", "quick", "--model.name=medium", "--data.name=synthetic", "--matrix.data.batch_size=[2, 4]"),
    *("--benchmark.warmup_steps=1", "--benchmark.measure_by=steps", "--benchmark.measure_steps=5"),
    *("--run.experiment_name=tests", "--run.run_id=r", "--run.commit_hash=null", "--run.repeats=1"),
    *("--distributed.device=cpu", "--distributed.threads_per_rank=1"),
)


@contextmanager
def on_one_processor(number: int) -> Iterator[None]:
    """Give what is started meanwhile one processor, so that hosts do not wait for each other's threads."""
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {usable[number % len(usable)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ssh_world(tmp_path / "servers", []) as world:
        for number, address in enumerate(("127.0.0.2", "127.0.0.3", "127.0.0.4")):
            with on_one_processor(number):
                world.add(address)
        yield hosts_in(world)


def only_run(command_line: CommandLine) -> RunDirectory:
    (root,) = (command_line.folder / "results" / "load").iterdir()
    return RunDirectory.open(root)


def results(command_line: CommandLine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((command_line.folder / "results.json").read_text())
    return found


def done_tests(run: RunDirectory) -> dict[str, Fingerprint]:
    names = [records.case.case_id for records in run.cases() if records.status == "done"]
    return {name: fingerprint(run.root / "cases" / name) for name in names}


def cut_the_power(hosts: Hosts, server: Server) -> None:
    server.kill_host()
    kill_all_with(str(hosts.directory(server)))  # what sshd had started goes down with the host


def begun_on_a_host_that_dies_and_on_one_that_is_dead(
    hosts: Hosts, command_line: CommandLine
) -> tuple[RunDirectory, str]:
    """Run the suite on three hosts, of which the second dies in its third test; return its report, too."""
    _, dying, dead = hosts.world.servers
    words = hosts.write_inventory(command_line.folder / "hosts.json", hosts.world.servers)
    dead.kill_host()
    process = command_line.start(*TINY, *words)
    third = f"*/cases/{TESTS[2].name}@node%201/0/rank-0.jsonl"
    eventually("the third test", lambda: list((command_line.folder / "results" / "load").glob(third)))
    cut_the_power(hosts, dying)
    ended = command_line.finish(process)
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "node 2: failed at setup: cannot connect" in ended.stderr
    assert "Traceback" not in ended.stderr
    return only_run(command_line), " ".join(ended.stdout.split())


@pytest.mark.promise("S0.1", "S0.27", "S0.28", "S0.29")
def test_a_host_that_dies_keeps_its_tests_and_a_resumed_run_does_the_others(
    hosts: Hosts, command_line: CommandLine
) -> None:
    run, report = begun_on_a_host_that_dies_and_on_one_that_is_dead(hosts, command_line)
    assert "fleet: 2 of 3 hosts measured" in report
    assert "failed at download" in report
    kept, done = results(command_line), done_tests(run)
    assert sorted(name.partition("@")[0] for name in done if name.endswith("@node%200")) == sorted(
        test.name for test in TESTS
    )
    assert {f"{test.name}@node%201" for test in TESTS[:2]} <= set(done)
    assert {start.start for records in run.cases() for start in records.of(Start)} == {"fork"}
    assert {told["hostname"]: told["stage"] for told in kept["failed_results"]} == {
        "node 1": "download",
        "node 2": "setup",
    }
    assert (kept["summary"]["total_instances"], kept["summary"]["successful_instances"]) == (3, 1)
    (whole,) = kept["successful_results"]
    assert [test["success"] for test in whole["results"]] == [True] * 12
    of_one = json.loads((run.root / "hosts" / "node%200" / "gpu_loadtest_results.json").read_text())
    assert of_one["test_summary"]["successful_tests"] == 12
    eventually("a clean host", lambda: not hosts.left_behind(hosts.world.servers[0]))

    for number, server in enumerate(hosts.world.servers[1:]):
        with on_one_processor(number):
            server.start()
    ended = command_line.run("load", "--resume", str(run.root), "--output", "results.json", "--json")
    assert ended.returncode in MEASURED, ended.stdout + ended.stderr
    assert {name: found for name, found in done_tests(run).items() if name in done} == done
    assert len(done_tests(run)) == 36
    assert results(command_line)["summary"]["success_rate"] == 1.0
    assert json.loads((run.root / "fleet.json").read_text())["fleet"]["summary"]["num_measured"] == 3
    shown = " ".join(command_line.run("report", "--verbose", str(run.root)).stdout.split())
    assert "fleet: 3 of 3 hosts measured" in shown
    for server in (hosts.world.servers[0], hosts.world.servers[2]):
        assert not processes_with(str(hosts.directory(server)))


def test_a_sweep_on_two_hosts(hosts: Hosts, command_line: CommandLine) -> None:
    words = hosts.write_inventory(command_line.folder / "hosts.json", hosts.world.servers[:2])
    ended = command_line.run(*SWEEP, *words)
    assert ended.returncode in MEASURED, ended.stdout + ended.stderr
    fleet = json.loads((command_line.path("r") / "fleet.json").read_text())
    assert fleet["performance_summary"]["training_tests"] == 4
    assert [row["num_successful"] for row in fleet["fleet"]["hosts"]] == [2, 2]
    assert "2 batch_size=4" in " ".join(ended.stdout.split())


COMMON = ("--run.run_id=r", "--run.repeats=1", "--distributed.device=cpu", "--distributed.threads_per_rank=1")
SERVING = (
    *("run", "serving", "--serving.target=noop", "--serving.rate_per_s=500", "--serving.window_s=0.5"),
    *("--serving.min_requests=200", "--model.name=medium", *COMMON),
)
SEARCH = (
    *("run", "quick", "--model.name=medium", "--data.name=synthetic", "--run.experiment_name=tests"),
    *("--search.kind=batch_size", "--search.start=2", "--search.up_to=4", "--benchmark.warmup_steps=1"),
    *("--benchmark.measure_by=steps", "--benchmark.measure_steps=5", *COMMON),
)

COLLECTIVES = (
    *("run", "collectives", "-b", "4096", "-e", "4096", "--nproc=2", "-n", "3", "-w", "1", *COMMON),
    *("--run.experiment_name=collectives", "--collective.operations=[all_reduce]"),
)


@pytest.mark.parametrize(
    ("words", "experiment", "figure", "file"),
    [
        (SERVING, "serving", "answered", "run_summary.json"),
        (SEARCH, "tests", "largest that was tried", "run_summary.json"),
        (COLLECTIVES, "collectives", "bus bandwidth", "collectives.csv"),
    ],
    ids=["serving", "search", "collectives"],
)
def test_figures_that_each_host_has_of_its_own(
    words: tuple[str, ...],
    experiment: str,
    figure: str,
    file: str,
    hosts: Hosts,
    command_line: CommandLine,
) -> None:
    """One host is dead: the two others stand beside each other, and the dead one is named."""
    servers = hosts.world.servers
    inventory = hosts.write_inventory(command_line.folder / "hosts.json", servers)
    servers[2].kill_host()
    ended = command_line.run(*words, *inventory, "--connect-attempts=1")
    assert ended.returncode == 3, ended.stdout + ended.stderr
    run = RunDirectory.open(command_line.folder / "results" / experiment / "r")
    fleet = json.loads((run.root / "fleet.json").read_text())
    measured = {
        of_host["hostname"]: [found["value"] for found in of_host["figures"] if found["name"] == figure]
        for of_host in fleet["successful_results"]
    }
    assert list(measured) == ["node 0", "node 1"]
    assert all(value > 0 for (value,) in measured.values())
    assert [told["stage"] for told in fleet["failed_results"]] == ["setup"]
    report = " ".join(ended.stdout.split())
    assert "fleet: 2 of 3 hosts measured" in report
    assert "Results of each host" in report
    assert (run.root / "hosts" / "node%200" / file).is_file()


def test_an_agent_that_is_killed_takes_its_fork_server_and_launch_with_it(
    hosts: Hosts, command_line: CommandLine
) -> None:
    server = hosts.world.servers[0]
    words = hosts.write_inventory(command_line.folder / "hosts.json", [server])
    process = command_line.start(*SWEEP, *words, "--benchmark.measure_steps=10000000")
    folders = command_line.path("r") / "cases"
    (started,) = eventually("a launch", lambda: list(folders.glob("*/0/rank-0.jsonl")))
    agent = int((started.parent / "launch.txt").read_text().partition("--parent-pid=")[2].split()[0])
    os.kill(agent, signal.SIGKILL)
    ended = command_line.finish(process)
    assert ended.returncode == 3, ended.stderr
    assert "failed at download" in ended.stdout
    eventually("the end of all", lambda: not processes_with(str(hosts.directory(server))))
    assert hosts.left_behind(server) == []
