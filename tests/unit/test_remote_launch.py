"""What a host may write here, what is started on it, and how the node side reaches it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.archive import build_archive
from gpuproof.launchers.ssh.boot import boot_command, removal_command
from gpuproof.launchers.ssh.connect import ask_on_terminal, load_keys
from gpuproof.launchers.ssh.launch import LOST, HostPart
from gpuproof.processes.group import start_group
from gpuproof.records.frames import GREETING, FrameDecoder
from gpuproof.records.journal import read_journal
from gpuproof.worker.launched.remote_agent import OUTPUT, LaunchedGroup, inside


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "a/b",
        ".hidden",
        "spec.json",
        "launcher.jsonl",
        "launch.txt",
        "x\n",
        "a\\b",
        "",
        "y" * 201,
    ],
)
def test_a_host_cannot_write_elsewhere_or_over_what_is_ours(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "launch"
    folder.mkdir()
    with pytest.raises((ValueError, OSError)):
        HostPart("h", folder).file_grew(name, 0, b"x")
    assert list(tmp_path.rglob("*")) == [folder]


def test_files_grow_and_are_cut_back_as_they_are_there(tmp_path: Path) -> None:
    launch = HostPart("h", tmp_path)
    launch.file_grew("a.txt", 0, b"hello")
    launch.file_grew("a.txt", 5, b" world")
    launch.file_grew("a.txt", 6, b"")
    launch.file_grew("empty.txt", 0, b"")
    assert (tmp_path / "a.txt").read_bytes() == b"hello "
    assert (tmp_path / "empty.txt").read_bytes() == b""


def test_a_lost_launch_is_a_record_and_one_that_ended_is_not(tmp_path: Path) -> None:
    launch = HostPart("h", tmp_path)
    launch.is_lost("the connection is lost")
    assert (launch.status, launch.ended.is_set()) == (LOST, True)
    (failure,) = read_journal(tmp_path / "launcher.jsonl").records
    assert (failure.host, failure.phase, failure.cause) == ("h", "download", "lost_rank")
    ended = HostPart("h", tmp_path / "none")
    ended.has_exited(0)
    ended.has_ended()
    ended.is_lost("late")
    assert ended.status == 0


def start_boot(archive: bytes, sent: bytes, directory: Path) -> subprocess.CompletedProcess[bytes]:
    command = boot_command(sys.executable, archive, directory=str(directory), lease_s=600)
    assert "\n" not in command
    return subprocess.run(["sh", "-c", command], input=sent, capture_output=True)


ECHO = b"import sys; print('agent', sys.argv[1:])"


def test_the_archive_is_kept_and_becomes_the_agent_until_the_stream_ends(tmp_path: Path) -> None:
    directory = tmp_path / "a 'dir' $HOME"
    directory.mkdir()
    archive = build_archive(tmp_path / "node.pyz").read_bytes()
    done = start_boot(archive, archive, directory)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(GREETING)
    (ready,) = FrameDecoder().feed(done.stdout.removeprefix(GREETING))
    assert ready.header["say"] == "ready"
    assert ready.header["python"] == sys.executable
    assert ready.header["archive"].startswith(f"{directory}/gpuproof-")
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("sent", [ECHO[:-1], ECHO[:-1] + b"?"])
def test_an_archive_that_is_cut_or_damaged_leaves_no_directory(tmp_path: Path, sent: bytes) -> None:
    done = start_boot(ECHO, sent, tmp_path)
    assert done.returncode == 1
    assert list(tmp_path.iterdir()) == []
    if len(sent) == len(ECHO):
        assert done.stdout.startswith(GREETING)
        assert b"arrived damaged" in done.stdout


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    assert b"No such file or directory" in start_boot(ECHO, ECHO, tmp_path / "none").stdout


@pytest.mark.parametrize(
    "directory", ["", "/", "/home/me", "gpuproof-x", "/tmp/gpuproof-", "/tmp/gpuproof-x/.."]
)
def test_only_a_directory_of_ours_is_removed(directory: str) -> None:
    assert removal_command(directory) is None


def test_a_directory_of_ours_is_removed_by_its_quoted_name() -> None:
    assert shlex.split(str(removal_command("/a b/gpuproof-x y"))) == ["rm", "-rf", "--", "/a b/gpuproof-x y"]


@pytest.mark.parametrize("relative", ["", "/etc/x", "../x", "a/../../x"])
def test_an_agent_writes_below_its_directory_only(tmp_path: Path, relative: str) -> None:
    with pytest.raises(UsageError):
        inside(tmp_path, relative)
    assert inside(tmp_path, "run/data/x") == tmp_path / "run/data/x"


def test_half_a_line_of_a_journal_waits_for_its_end(tmp_path: Path) -> None:
    processes = start_group([["true"]], environment={}, output=tmp_path / OUTPUT)
    group = LaunchedGroup(processes, tmp_path, ignored=frozenset({"spec.json"}))
    (tmp_path / "spec.json").write_text("{}")
    (tmp_path / ".reserve-1").write_text("x")
    journal, text = tmp_path / "rank-0.jsonl", tmp_path / "stderr-0.txt"
    journal.write_bytes(b'{"a": 1}\n{"b"')
    text.write_bytes(b"half a li")

    def grown(*, everything: bool = False) -> dict[str, tuple[int, bytes]]:
        return {
            g.name: (g.offset, g.content) for g in group.growth(everything=everything) if g.name != OUTPUT
        }

    assert grown() == {"rank-0.jsonl": (0, b'{"a": 1}\n'), "stderr-0.txt": (0, b"half a li")}
    journal.write_bytes(b'{"a": 1}\n{"other": 2}\n{"to')  # the writer took its half line back
    assert grown() == {"rank-0.jsonl": (9, b'{"other": 2}\n')}
    assert grown(everything=True) == {"rank-0.jsonl": (22, b'{"to')}
    text.write_bytes(b"ha")
    assert grown() == {"stderr-0.txt": (2, b"")}
    group.processes.end(1.0)


def key_at(folder: Path, text: str, mode: int = 0o600) -> InventoryHost:
    path = folder / "key"
    path.write_text(text)
    path.chmod(mode)
    return InventoryHost(name="h", address="h", place="hosts.json:3", key=str(path))


def test_a_bad_key_is_told_by_the_line_that_names_it(tmp_path: Path) -> None:
    absent = InventoryHost(name="h", address="h", place="hosts.json:3", key=str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"hosts\.json:3: .*the key cannot be read: No such file"):
        load_keys(None, [absent])
    with pytest.raises(UsageError, match=r"--ssh-key: .*the key cannot be read: Is a directory"):
        load_keys(str(tmp_path), [])
    with pytest.raises(UsageError, match=r"hosts\.json:3: .*no private key"):
        load_keys(None, [key_at(tmp_path, "hello")])
    with pytest.raises(UsageError, match=r"can be read by others \(mode 0644\)"):
        load_keys(None, [key_at(tmp_path, "hello", mode=0o644)])


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(UsageError, match="ssh-add /k"):
        ask_on_terminal("/k")
