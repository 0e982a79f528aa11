"""What cannot be run on hosts, or not on these, is refused before any connection, and leaves no trace."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuproof.base.errors import GpuproofError
from gpuproof.cli.main import cli
from gpuproof.suites.load.plan import TESTS
from load_by_hand import done, on_fleet, write_load_run


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Listen where the host is said to be; a connection would wait there to be taken."""
    monkeypatch.chdir(tmp_path)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        yield listening


def inventory(listener: socket.socket, **keys: object) -> str:
    entry = {"host": "127.0.0.1", "port": listener.getsockname()[1], **keys}
    Path("cluster.json").write_text(json.dumps({"hosts": [entry]}))
    return "--deployment-file=cluster.json"


def refused(listener: socket.socket, *words: str) -> str:
    """Return what a command says that is refused; nobody was connected to, and nothing was made."""
    result = CliRunner().invoke(cli, list(words))
    assert isinstance(result.exception, GpuproofError), result.output
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert not Path("results").exists()
    return str(result.exception)


@pytest.mark.parametrize("words", [("load",), ("run", "load"), ("run", "quick")])
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"prot": 22}, "cluster.json:1: hosts.prot: unknown key"),
        ({"key": "/no/such/key"}, "/no/such/key: the key cannot be read: No such file"),
        ({"gpus": 0}, "cluster.json:1: hosts.gpus: expected 1 or more"),
    ],
)
def test_a_bad_inventory(
    listener: socket.socket, words: tuple[str, ...], keys: dict[str, object], said: str
) -> None:
    assert said in refused(listener, *words, inventory(listener, **keys))


def test_a_host_that_stands_there_twice_under_two_names(listener: socket.socket) -> None:
    entry = {"host": "127.0.0.1", "port": listener.getsockname()[1]}
    Path("cluster.json").write_text(json.dumps({"hosts": [entry, {**entry, "name": "other"}]}, indent=1))
    said = refused(listener, "load", "--deployment-file=cluster.json")
    assert "other is a duplicate of the host on line 3" in said


def test_a_key_that_cannot_be_read(listener: socket.socket) -> None:
    said = refused(listener, "load", inventory(listener), "--ssh-key=absent")
    assert "--ssh-key: " in said
    assert "the key cannot be read: No such file" in said


def test_no_place_for_the_results(listener: socket.socket) -> None:
    assert "there is no such folder" in refused(listener, "load", inventory(listener), "-o", "absent/x.json")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--matrix.distributed.nodes=[1, 2]"], "matrix.distributed.nodes: the listed hosts determine"),
        (["--matrix.distributed.nproc=[1, 2]"], "matrix.distributed.nproc: the inventory sets how many"),
    ],
)
def test_sweeps_that_hosts_cannot_share(listener: socket.socket, words: list[str], said: str) -> None:
    assert said in refused(listener, "run", "quick", inventory(listener, gpus=2), *words)


def test_other_hosts_for_a_run_that_was_begun(listener: socket.socket) -> None:
    here = write_load_run(Path("begun"), [done(TESTS[0])]).root
    there = on_fleet(Path("fleet"), {"n0": [done(TESTS[0])]}).root
    for run in (here, there):
        for command in ("run", "load"):
            said = refused(listener, command, "--resume", str(run), inventory(listener))
            assert "a resumed run continues on its own hosts" in said
