"""What becomes of hosts whose link is slow or cut, or whose disk is full."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuproof.launchers.base import HostError
from hosts import Host, hosts_on_a_switch
from launching import finish
from ssh_hosts import Hosts, hosts_in, processes_with
from sshd import can_serve, ssh_world
from waiting import PATIENCE_S, eventually

WHY_NOT = can_serve()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
CONTROLLER = """
import sys
from contextlib import closing
from pathlib import Path
from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.ssh.site import SshOptions
from gpuproof.launchers.ssh.launcher import SshLauncher
address, port, directory, key, known, archive, out, lease_s, *command = sys.argv[1:]
where = {"address": address, "port": int(port), "directory": directory, "python": sys.executable}
host = InventoryHost(name="h", place="x:1", **where)
options = SshOptions(key=key, known_hosts=known, lease_s=float(lease_s), attempts=1)
with closing(SshLauncher([host], options, archive=Path(archive).read_bytes())) as launcher:
    folder = f"{launcher.connect('h').node.run}/{Path(out).name}"
    words = [word.replace("FOLDER", folder) for word in command]
    launched = launcher.start_command(words, "h", Path(out))
    while launched.placed is None:
        launcher.wait(1)
    print("started", flush=True)
    while launched.status is None:
        launcher.wait(1)
    launched.end(1)
    while not launched.is_over:
        launcher.wait(1)
    print("status", launched.status, flush=True)
"""


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    with hosts_on_a_switch(tmp_path_factory.mktemp("links"), num_hosts=2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def hosts(links: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with ssh_world(tmp_path_factory.mktemp("ssh") / "servers", []) as world:
        for host in links:
            world.add(host.address, port=22, prefix=host.within)
        yield hosts_in(world)


def controller(
    links: list[Host], hosts: Hosts, number: int, out: Path, *command: str, lease_s: float = 30
) -> subprocess.Popen[str]:
    server = hosts.world.servers[number - 1]
    hosts.host(server)
    links[number - 1].wait_until_it_listens()
    words = [server.address, "22", str(hosts.directory(server)), str(hosts.world.key)]
    words += [str(hosts.world.known_hosts), str(hosts.folder / "gpuproof-node.pyz"), str(out), str(lease_s)]
    return subprocess.Popen(
        [*links[0].controller, sys.executable, "-c", CONTROLLER, *words, *command],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_over_a_slow_link_everything_arrives_whole(links: list[Host], hosts: Hosts, tmp_path: Path) -> None:
    work = 'cd "$0"; for i in 1 2 3; do seq 1 10000 >> numbers; sleep 0.3; done'
    with links[0].slowed_down("2mbit"):
        process = controller(links, hosts, 1, tmp_path, "sh", "-c", work, "FOLDER")
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (0, "started\nstatus 0\n")
    assert (tmp_path / "numbers").read_text().split() == [str(i) for i in range(1, 10_001)] * 3
    assert hosts.left_behind(hosts.world.servers[0]) == []


def test_a_host_whose_link_is_cut_ends_all_by_itself_and_the_controller_notices(
    links: list[Host], hosts: Hosts, tmp_path: Path
) -> None:
    server = hosts.world.servers[1]
    process = controller(links, hosts, 2, tmp_path, "sleep", "6175", lease_s=20)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    eventually("the remote command", lambda: processes_with("sleep 6175"))
    links[1].cut()
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert output == "status 255\n"
    assert "the connection is lost" in (tmp_path / "launcher.jsonl").read_text()
    eventually(
        "the remote command's end",
        lambda: not [p for p in processes_with("sleep 6175") if p.info["cmdline"][0] == "sleep"],
    )
    eventually("the directory's end", lambda: hosts.left_behind(server) == [])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_host_whose_disk_is_full_gives_back_what_it_could_write(tmp_path: Path, small_disk: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with ssh_world(tmp_path / "servers", ["127.0.0.2"]) as world:
        hosts = hosts_in(world)
        host = hosts.host(world.servers[0], directory=str(small_disk))
        with hosts.launcher([host]) as launcher:
            script = "import os, sys\nos.chdir(sys.argv[1])\nopen('big', 'wb').write(b'x' * 1_000_000)"
            folder = f"{launcher.connect(host.name).node.run}/out"
            launched = launcher.start_command([sys.executable, "-c", script, folder], host.name, out)
            assert finish(launcher, launched) not in (0, 255)
        (small_disk / "filler").write_bytes(b"x" * 850_000)
        with hosts.launcher([host]) as launcher, pytest.raises(HostError, match="No space left") as failed:
            launcher.connect(host.name)
    assert failed.value.stage == "deploy"
    assert set((out / "big").read_bytes()) == {ord("x")}
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler"]
