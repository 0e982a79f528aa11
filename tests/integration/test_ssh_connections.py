"""Hosts over real sshd: who is trusted, with which key, through which host, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.base import HostError
from gpuproof.launchers.ssh.launcher import SshLauncher
from launching import finish
from ssh_hosts import Hosts, hosts_in, kill_all_with, processes_with
from sshd import can_serve, generate_key, ssh_world
from waiting import eventually

pytestmark = pytest.mark.skipif(can_serve() is not None, reason=str(can_serve()))
ADDRESSES = [f"127.0.0.{last}" for last in range(2, 10)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with ssh_world(tmp_path_factory.mktemp("ssh") / "servers", ADDRESSES) as world:
        yield hosts_in(world)


def output_of(launcher: SshLauncher, host: InventoryHost, script: str, folder: Path) -> tuple[int, str]:
    folder.mkdir()
    status = finish(launcher, launcher.start_command(["sh", "-c", script], host.name, folder))
    return status, (folder / "launcher-output.txt").read_text()


def test_eight_hosts_at_once_answer_and_keep_nothing(hosts: Hosts, tmp_path: Path) -> None:
    servers = hosts.world.servers
    script = 'pwd -P >/dev/null; stat -c %a "$(dirname "$0")"; printf %s "$SSH_CONNECTION" | cut -d" " -f3'
    folders = [tmp_path / server.address for server in servers]
    for folder in folders:
        folder.mkdir()
    with hosts.launcher([hosts.host(server) for server in servers]) as launcher:
        launches = [
            launcher.start_command(["sh", "-c", script], place.name, folder)
            for place, folder in zip(launcher.places(), folders, strict=True)
        ]
        statuses = [finish(launcher, launched) for launched in launches]
    answers = [
        (status, (folder / "launcher-output.txt").read_text())
        for status, folder in zip(statuses, folders, strict=True)
    ]
    assert [status for status, _ in answers] == [0] * 8
    assert [text.splitlines()[-1] for _, text in answers] == ADDRESSES
    assert [hosts.left_behind(server) for server in servers] == [[]] * 8


def test_our_directory_is_open_to_its_owner_alone(hosts: Hosts) -> None:
    host = hosts.host(hosts.world.servers[0])
    with hosts.launcher([host]) as launcher:
        remote = launcher.connect(host.name)
        directory = Path(remote.node.run).parent
        assert directory.parent == hosts.directory(hosts.world.servers[0])
        assert directory.stat().st_mode & 0o777 == 0o700
    assert not directory.exists()


def test_a_status_and_words_come_back_as_they_are(hosts: Hosts, tmp_path: Path) -> None:
    host = hosts.host(hosts.world.servers[0])
    with hosts.launcher([host]) as launcher:
        script = 'echo "it\'s $((6*7))"; echo wrong >&2; exit 7'
        status, text = output_of(launcher, host, script, tmp_path / "a")
    assert (status, text) == (7, "it's 42\nwrong\n")


def test_a_probe_is_answered_over_the_same_connection(hosts: Hosts) -> None:
    host = hosts.host(hosts.world.servers[1])
    with hosts.launcher([host]) as launcher:
        remote = launcher.connect(host.name)
        said = launcher.wait_for(remote.ask(["echo", "a b"], timeout_s=10))
        assert said["stdout"] == "a b\n"
        assert launcher.wait_for(remote.probe())["executable"] == sys.executable


def test_a_host_with_another_key_is_refused_even_where_new_ones_are_accepted(
    hosts: Hosts, tmp_path: Path
) -> None:
    server, other = hosts.world.servers[0], hosts.world.servers[1]
    known = tmp_path / "known_hosts"
    known.write_text(f"{server.pattern} {other.public_key}\n")
    for accept_new in (False, True):
        with (
            hosts.launcher([hosts.host(server)], known_hosts=str(known), accept_new=accept_new) as launcher,
            pytest.raises(HostError, match="is not the one in") as refused,
        ):
            launcher.connect(launcher.places()[0].name)
        assert refused.value.stage == "setup"
    assert known.read_text().count("\n") == 1


def test_an_unknown_host_is_refused_and_stored_when_asked_for(hosts: Hosts, tmp_path: Path) -> None:
    server, known = hosts.world.servers[2], tmp_path / "new" / "known_hosts"
    host = hosts.host(server)
    with (
        hosts.launcher([host], known_hosts=str(known)) as launcher,
        pytest.raises(HostError, match="--ssh-accept-new"),
    ):
        launcher.connect(host.name)
    assert not known.exists()
    with hosts.launcher([host], known_hosts=str(known), accept_new=True) as launcher:
        launcher.connect(host.name)
        assert list(launcher.accepted_keys) == [server.address]
    assert known.read_text() == f"{server.pattern} {server.public_key}\n"
    assert known.stat().st_mode & 0o777 == 0o600
    with hosts.launcher([host], known_hosts=str(known)) as launcher:
        launcher.connect(host.name)


def test_an_encrypted_key_opens_with_its_passphrase_only(hosts: Hosts, tmp_path: Path) -> None:
    key = tmp_path / "it's encrypted"
    generate_key(key, passphrase="a b'c\"")
    hosts.world.authorize(key.with_name(f"{key.name}.pub"))
    host = hosts.host(hosts.world.servers[0])
    options = hosts.options(key=str(key))
    asked: list[str] = []

    def answer(words: str) -> Callable[[str], str]:
        def ask(path: str) -> str:
            asked.append(path)
            return words

        return ask

    with pytest.raises(UsageError, match="the passphrase is wrong"):
        SshLauncher([host], options, archive=b"", ask=answer("no"))
    with closing(SshLauncher([host], options, archive=hosts.archive, ask=answer("a b'c\""))) as launcher:
        launcher.connect(host.name)
    assert asked == [str(key), str(key)]


def test_an_encrypted_key_in_the_agent_needs_no_passphrase(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, socket = tmp_path / "id_agent", tmp_path / "agent.sock"
    generate_key(key)
    hosts.world.authorize(key.with_suffix(".pub"))
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        eventually("the agent", socket.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        subprocess.run(["ssh-add", "-q", str(key)], check=True)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True)
        host = hosts.host(hosts.world.servers[0])
        for path in (str(key), None):  # by name, and whatever the agent has
            with hosts.launcher([host], key=path) as launcher:
                launcher.connect(host.name)
    finally:
        agent.terminate()
        agent.wait()


def test_a_refused_login_is_said(hosts: Hosts, tmp_path: Path) -> None:
    generate_key(tmp_path / "stranger")
    host = hosts.host(hosts.world.servers[0], user="root")
    with (
        hosts.launcher([host], key=str(tmp_path / "stranger")) as launcher,
        pytest.raises(HostError, match="refuses the login of root"),
    ):
        launcher.connect(host.name)


def test_a_host_behind_another(hosts: Hosts, tmp_path: Path) -> None:
    jump, behind = hosts.world.servers[3], hosts.world.servers[4]
    host = hosts.host(behind, jump=f"{jump.address}:{jump.port}")
    with hosts.launcher([host]) as launcher:
        status, text = output_of(launcher, host, 'printf %s "$SSH_CONNECTION"', tmp_path / "out")
    _, _, server, _ = text.split()
    assert (status, server) == (0, behind.address)
    known = tmp_path / "known_hosts"
    known.write_text(f"{behind.pattern} {behind.public_key}\n")  # the jump host's key is checked as well
    with (
        hosts.launcher([host], known_hosts=str(known)) as launcher,
        pytest.raises(HostError, match=f"the key of {jump.address}"),
    ):
        launcher.connect(host.name)


def test_a_closed_port_is_tried_again_and_then_told(hosts: Hosts) -> None:
    host = InventoryHost(name="closed", address="127.0.0.1", port=1, place="x:1")
    with (
        hosts.launcher([host], attempts=2, retry_delay_s=0.01) as launcher,
        pytest.raises(HostError, match=r"Connection refused \(2 attempts\)"),
    ):
        launcher.connect(host.name)


def test_a_python_that_is_not_there_fails_at_deploy(hosts: Hosts) -> None:
    host = hosts.host(hosts.world.servers[0], python="/no such/python $(touch /tmp/never)")
    with (
        hosts.launcher([host]) as launcher,
        pytest.raises(HostError, match="no such/python") as failed,
    ):
        launcher.connect(host.name)
    assert failed.value.stage == "deploy"


def test_an_agent_that_is_killed_is_told_and_swept_up(hosts: Hosts, tmp_path: Path) -> None:
    server = hosts.world.servers[5]
    host = hosts.host(server)
    (tmp_path / "out").mkdir()
    with hosts.launcher([host]) as launcher:
        remote = launcher.connect(host.name)
        script = ["sh", "-c", "echo before; exec sleep 6173"]
        launched = launcher.start_command(script, host.name, tmp_path / "out")
        eventually("output", (tmp_path / "out" / "launcher-output.txt").exists)
        os.kill(int(remote.node.pid), signal.SIGKILL)
        assert finish(launcher, launched) == 255
        assert "the agent exited" in str(launcher.lost()[host.name])
    assert (tmp_path / "out" / "launcher-output.txt").read_text() == "before\n"
    assert "the agent exited" in (tmp_path / "out" / "launcher.jsonl").read_text()
    assert hosts.left_behind(server) == []
    kill_all_with("sleep 6173")  # no rank of ours, so that no watchdog was in it


CLIENT = """
import sys
from pathlib import Path
from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.ssh.site import SshOptions
from gpuproof.launchers.ssh.launcher import SshLauncher
address, port, directory, key, known, archive, out, seconds = sys.argv[1:]
where = {"address": address, "port": int(port), "directory": directory, "python": sys.executable}
host = InventoryHost(name="h", place="x:1", **where)
options = SshOptions(key=key, known_hosts=known, lease_s=float(seconds))
launcher = SshLauncher([host], options, archive=Path(archive).read_bytes())
launched = launcher.start_command(["sleep", "6174"], "h", Path(out))
while launched.placed is None:
    launcher.wait(1)
print("started", flush=True)
while launched.status is None:
    launcher.wait(1)
"""


def test_a_client_that_is_killed_leaves_nothing_on_the_host(hosts: Hosts, tmp_path: Path) -> None:
    server = hosts.world.servers[6]
    hosts.host(server)
    words = [server.address, str(server.port), str(hosts.directory(server)), str(hosts.world.key)]
    words += [str(hosts.world.known_hosts), str(hosts.folder / "gpuproof-node.pyz"), str(tmp_path), "30"]
    client = subprocess.Popen([sys.executable, "-c", CLIENT, *words], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline() == "started\n"
    assert processes_with("sleep 6174")
    client.kill()
    client.communicate()
    eventually("the remote command's end", lambda: not processes_with("sleep 6174"))
    eventually("the directory's end", lambda: hosts.left_behind(server) == [])
