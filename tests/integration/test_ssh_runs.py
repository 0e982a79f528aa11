"""`gpuproof run` on hosts over real sshd: each by itself, all as one job, and what ends them early."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest

from gpuproof.records.journal import read_journal
from gpuproof.records.run import Failure, RankResult, Steps
from gpuproof.store.run import RunDirectory, read_case
from integration.conftest import FAULTY, CommandLine
from running import MEASURED
from ssh_hosts import Hosts, hosts_in, kill_all_with, processes_with
from sshd import can_serve, generate_key, ssh_world
from waiting import eventually

pytestmark = pytest.mark.skipif(can_serve() is not None, reason=str(can_serve()))
TINY = (
    *("run", "quick", "--model.name=medium", "--data.name=synthetic", "--data.batch_size=4"),
    *("--benchmark.warmup_steps=1", "--benchmark.measure_by=steps", "--benchmark.measure_steps=20"),
    *("--run.experiment_name=tests", "--run.commit_hash=null", "--run.repeats=1"),
    *("--distributed.device=cpu", "--distributed.threads_per_rank=1"),
)
ENDLESS = "--benchmark.measure_steps=10000000"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ssh_world(tmp_path / "servers", ["127.0.0.2", "127.0.0.3", "127.0.0.4"]) as world:
        yield hosts_in(world)


def steps_of(folder: Path) -> list[Steps]:
    journal = folder / "rank-0.jsonl"
    records = read_journal(journal).records if journal.exists() else ()
    return [record for record in records if isinstance(record, Steps) and record.phase == "measure"]


def nothing_left(hosts: Hosts) -> bool:
    lives = processes_with(str(hosts.folder / "it's"))
    return not lives and all(hosts.left_behind(server) == [] for server in hosts.world.servers)


def test_each_host_measures_and_one_that_dies_keeps_what_it_had(
    hosts: Hosts, command_line: CommandLine
) -> None:
    one, dying, dead = hosts.world.servers
    python = hosts.folder / "python with faulty models"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={quote(str(FAULTY))} exec {quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    words = hosts.write_inventory(command_line.folder / "hosts.json", hosts.world.servers, python=str(python))
    dead.kill_host()
    # Steps that sleep, for so long that the host's death is within them however late it is.
    asleep = ("--model.name=faulty", "--model.options.step_s=0.1", "--benchmark.measure_by=time")
    process = command_line.start(*TINY, *words, *asleep, "--run.run_id=r", "--benchmark.measure_seconds=30")
    run = command_line.path("r")
    dying_folder = run / "cases" / "main@node%201" / "0"
    eventually("steps of the host that is to die", lambda: steps_of(dying_folder))
    dying.kill_host()
    kill_all_with(str(hosts.directory(dying)))  # what sshd had started goes down with the host
    done = command_line.finish(process)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "node 2: failed at setup: cannot connect" in done.stderr
    assert "node 0: launch 1/3: done" in done.stderr
    report = " ".join(done.stdout.split())
    assert "1 of 3 hosts measured" in report
    assert "failed at download" in report
    kept = read_case(dying_folder)
    assert kept.status == "unfinished"
    assert steps_of(dying_folder)
    assert [f.phase for f in kept.of(Failure) if f.rank is None] == ["download"]
    fleet = json.loads((run / "fleet.json").read_text())
    assert fleet["summary"]["failed_instances"] == 2
    assert {failed["stage"] for failed in fleet["failed_results"]} == {"setup", "download"}
    assert fleet["performance_summary"]["training_tests"] == 1
    assert fleet["fleet"]["summary"]["cost_missing"] is None
    (launched,) = [launch for launch in RunDirectory.open(run).cases() if launch.status == "done"]
    assert launched.case.placement.host == "node 0"
    assert (run / "cases" / "main@node%200" / "0" / "stderr-0.txt").exists()
    assert hosts.left_behind(one) == []


def test_ctrl_c_ends_the_hosts_and_still_collects_and_resume_goes_on(
    hosts: Hosts, command_line: CommandLine
) -> None:
    hosts.world.servers[2].kill_host()
    words = hosts.write_inventory(command_line.folder / "hosts.json", hosts.world.servers[:2])
    process = command_line.start(*TINY, *words, "--run.run_id=r", ENDLESS)
    run = command_line.path("r")
    folders = [run / "cases" / f"main@node%20{number}" / "0" for number in (0, 1)]
    eventually("steps on both hosts", lambda: all(map(steps_of, folders)))
    process.send_signal(signal.SIGINT)
    done = command_line.finish(process)
    assert done.returncode == 130, done.stderr
    assert "Interrupted" in done.stderr
    for folder in folders:
        causes = {failure.cause for failure in read_case(folder).of(Failure)}
        assert causes == {"interrupted"}
        assert any(failure.rank == 0 for failure in read_case(folder).of(Failure))
    eventually("clean hosts", lambda: nothing_left(hosts))

    description = json.loads((run / "run.json").read_text())
    description["config"]["benchmark"]["measure_steps"] = 20
    (run / "run.json").write_text(json.dumps(description))
    resumed = command_line.run("run", "--resume", str(run))
    assert resumed.returncode in MEASURED, resumed.stdout + resumed.stderr
    assert [records.status for records in RunDirectory.open(run).cases()] == ["done", "done"]
    assert (folders[0].parent / "0.attempt-1").is_dir()


def test_several_hosts_as_one_job(hosts: Hosts, command_line: CommandLine) -> None:
    servers = hosts.world.servers[:2]
    words = hosts.write_inventory(command_line.folder / "hosts.json", servers, interface="lo")
    digits = ("--model.name=lenet5", "--data.name=digits", "--data.image_size=null")
    done = command_line.run(*TINY, *digits, *words, "--run.run_id=r", "--one-job", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["detail"]["common"]["title"].startswith("lenet5 training on digits, 2 × CPU")
    assert (result["suite"], result["conditions"]["num_devices"]) == ("recipe", 2)
    (records,) = RunDirectory.open(command_line.path("r")).cases()
    assert (records.case.placement.num_hosts, records.world_size, records.status) == (2, 2, "done")
    assert sorted(result.rank for result in records.of(RankResult)) == [0, 1]
    launched = (command_line.path("r") / "cases" / "main" / "0" / "launch.txt").read_text()
    assert "--nnodes=2 --node-rank=1" in launched
    assert f"--master-addr={servers[0].address}" in launched
    assert nothing_left(hosts)


def test_a_bad_inventory_fails_by_line_and_before_any_connection(
    hosts: Hosts, command_line: CommandLine
) -> None:
    server = hosts.world.servers[0]
    place = command_line.folder / "hosts.yaml"
    place.write_text(f"hosts:\n  - host: {server.address}\n    port: {server.port}\n    key: /no/such/key\n")
    log = server.folder / "sshd.log"
    before = log.read_text()
    for words in (["--deployment-file", str(place)], ["--on", f"ssh:{place}"]):
        done = command_line.run(*TINY, *words, "--run.run_id=r")
        assert done.returncode == 2
        assert f"{place}:2: /no/such/key: the key cannot be read: No such file" in done.stderr
        assert "Traceback" not in done.stderr
    assert not command_line.path("r").exists()
    assert log.read_text() == before


def test_a_name_of_ssh_config_is_reached_as_it_says_and_its_key_is_checked(
    hosts: Hosts, command_line: CommandLine
) -> None:
    server, home = hosts.world.servers[0], hosts.folder / "home"
    (home / ".ssh").mkdir(parents=True)
    generate_key(home / ".ssh" / "stranger")
    command = home / "command"
    (home / ".ssh" / "config").write_text(
        f"Match exec 'touch {command}'\n  Port 1\n"
        f"Host gpu-*\n  HostName {server.address}\n  Port {server.port}\n  User root\n"
        f"  IdentityFile ~/.ssh/stranger\n  IdentityFile {hosts.world.key}\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
    )
    words = ["--on", f"ssh:gpu-1,{server.address}:{server.port}", "--python", sys.executable]
    words += ["--connect-attempts=1"]
    refused = command_line.run(*TINY, *words, "--run.run_id=refused", HOME=str(home))
    assert refused.returncode == 5, refused.stdout + refused.stderr
    assert f"is not in {home / '.ssh' / 'known_hosts'}" in refused.stderr
    shutil.copy(hosts.world.known_hosts, home / ".ssh" / "known_hosts")
    done = command_line.run(*TINY, *words, "--run.run_id=r", HOME=str(home))
    assert done.returncode in MEASURED, done.stdout + done.stderr
    assert f"{server.address} is the same as gpu-1: they count as one host" in done.stderr
    assert "config:1: Match exec is skipped: its command is not run" in done.stderr
    assert not command.exists()
    (records,) = RunDirectory.open(command_line.path("r")).cases()
    assert (records.status, list(records.case.placement.hosts or ())) == ("done", ["gpu-1"])


def test_a_dry_run_shows_every_host_and_starts_nothing(hosts: Hosts, command_line: CommandLine) -> None:
    words = hosts.write_inventory(command_line.folder / "hosts.json", hosts.world.servers[:2])
    done = command_line.run(*TINY, *words, "--run.run_id=r", "--dry-run", "--verbose", "--one-job")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("torch.distributed.run --nnodes=2") == 2
    assert f"# on node 0 ({hosts.world.servers[0].address}:" in done.stdout
    assert not command_line.path("r").exists()
