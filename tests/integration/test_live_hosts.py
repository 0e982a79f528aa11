"""`gpuproof monitor live --on ssh:FILE`: GPUs of real sshd in one table, and a host that is not there."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssh_hosts import Hosts, hosts_in, processes_with
from sshd import can_serve, ssh_world

pytestmark = pytest.mark.skipif(can_serve() is not None, reason=str(can_serve()))
ADDRESSES = [f"127.0.0.{last}" for last in range(2, 5)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with ssh_world(tmp_path_factory.mktemp("ssh") / "servers", ADDRESSES) as world:
        yield hosts_in(world)


def python_with(devices: str, path: Path) -> Path:
    """Write a Python whose host has these fake devices."""
    own = shlex.quote(sys.executable)
    path.write_text(f'#!/bin/sh\nGPUPROOF_FAKE_DEVICES={devices} exec {own} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def live(folder: Path, *words: str, width: int = 100) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuproof", "monitor", "live", "--once", *words]
    environment = {**os.environ, "COLUMNS": str(width)}
    return subprocess.run(
        command, cwd=folder, env=environment, text=True, capture_output=True, timeout=300, check=False
    )


def test_three_hosts_are_one_table_with_trouble_first_and_keep_nothing(hosts: Hosts, tmp_path: Path) -> None:
    servers = hosts.world.servers
    words = hosts.write_inventory(tmp_path / "hosts.json", servers)
    inventory = json.loads((tmp_path / "hosts.json").read_text(encoding="utf-8"))
    for number, (entry, devices) in enumerate(zip(inventory["hosts"], ("2", "1:thermal", "0"), strict=True)):
        entry["python"] = str(python_with(devices, tmp_path / f"python{number}"))
    (tmp_path / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    done = live(tmp_path, *words, "--interval=0.2")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines() if " °C" in line]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("node", "1", "0"),
        ("node", "0", "0"),
        ("node", "0", "1"),
    ]
    assert "software thermal slowdown" in done.stdout
    assert "3 hosts  3 GPU(s)" in done.stdout
    assert [hosts.left_behind(server) for server in servers] == [[]] * 3
    left = processes_with("--processes=details")
    assert not [p for p in left if str(hosts.folder) in " ".join(p.info["cmdline"])]


def test_a_host_that_cannot_be_reached_is_named_and_the_others_are_shown(
    hosts: Hosts, tmp_path: Path
) -> None:
    words = hosts.write_inventory(tmp_path / "hosts.json", hosts.world.servers[:2])
    inventory = json.loads((tmp_path / "hosts.json").read_text(encoding="utf-8"))
    inventory["hosts"][1]["port"] = 1
    inventory["hosts"][0]["python"] = str(python_with("1", tmp_path / "python"))
    (tmp_path / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    done = live(tmp_path, *words)
    assert done.returncode == 5
    assert "✗ node 1: node 1: setup: cannot connect" in done.stdout
    assert "● not throttled" in done.stdout


def test_what_a_sampler_refuses_is_its_hosts_word(hosts: Hosts, tmp_path: Path) -> None:
    words = hosts.write_inventory(tmp_path / "hosts.json", hosts.world.servers[:1])
    done = live(tmp_path, *words, "--devices=7")
    assert (done.returncode, done.stdout) == (5, ""), done.stderr
    assert "node 0: --devices 7: this host has 0 GPU(s)" in done.stderr


def test_hosts_of_a_scheduler_and_a_recording_beside_hosts_are_refused(tmp_path: Path) -> None:
    for words in (["--on=slurm"], ["--on=ssh:hosts.json", "run.jsonl"]):
        done = live(tmp_path, *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Write --on ssh:FILE, and omit SOURCE" in done.stderr
