"""An agent that says anything: its host fails at its stage, others go on, nothing is written elsewhere."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from gpuproof.base.errors import RecordError
from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.base import HostError
from gpuproof.launchers.ssh.channel import AgentChannel
from gpuproof.launchers.ssh.launch import LARGEST_FILE_BYTES, LOST, HostPart
from gpuproof.records.frames import GREETING
from gpuproof.store import layout
from gpuproof.store.run import read_case, set_damaged_aside
from records_by_hand import case, one_rank, write_run

HOST = InventoryHost(name="h", address="h", place="hosts.json:1")
READY = {
    "say": "ready",
    "about": "boot",
    "python": "p",
    "archive": "a",
    "directory": "/d",
    "pid": 1,
    "host": "h",
}
DEEP = b"[" * 100_000
LOSING = [
    b"rubbish\n",
    b"[1]\n",
    b"{}\n",
    b'{"say": 1}\n',
    b'{"say": "exited"}\n',
    b'{"say": "exited", "about": "7", "status": 1e999}\n',
    b'{"say": "exited", "about": "7", "status": 100000000000000000000000000000000}\n',
    b'{"say": "exited", "about": "7", "status": true}\n',
    b'{"say": "exited", "about": "9", "status": 0}\n',
    b'{"say": "file", "about": "7", "name": "../x", "offset": 0, "size": 1}\nx',
    b'{"say": "file", "about": "7", "name": "spec.json", "offset": 0, "size": 1}\nx',
    b'{"say": "file", "about": "7", "name": "x", "offset": 10000000000000, "size": 1}\nx',
    b'{"say": "file", "about": "7", "name": "x", "offset": -1, "size": 1}\nx',
    b'{"say": "file", "about": "7", "name": "x", "offset": "y"}\n',
    b'{"say": "file", "about": "7", "name": "x", "offset": Infinity}\n',
    b'{"say": "file", "about": "7", "size": -5}\n',
    b'{"say": "file", "about": "7", "size": 99999999999}\n',
    b'{"say": "file", "about": "7", "name": null, "offset": null}\n',
    b'{"say": "ended", "about": []}\n',
    b'{"about": ' + DEEP + b"\n",
    DEEP + b"\n",
    b"\xff\xfe\n",
    b"x" * (2**20 + 1),
]


class StubChannel:
    """Takes what is written to the far side."""

    is_aborted = False

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


def opened() -> AgentChannel:
    """Return the channel of an agent that has greeted."""
    channel = AgentChannel(HOST)
    channel._channel = cast("Any", StubChannel())
    channel.data_received(b"motd" + GREETING, None)
    return channel


def heard(sent: bytes, folder: Path) -> tuple[AgentChannel, HostPart]:
    """Let an agent that follows launch 7 say `sent`."""

    async def hear() -> tuple[AgentChannel, HostPart]:
        channel, part = opened(), HostPart("h", folder)
        channel._followers["7"] = part
        channel.data_received(sent, None)
        return channel, part

    return asyncio.run(hear())


@pytest.mark.parametrize("sent", LOSING, ids=range(len(LOSING)))
def test_an_agent_that_cannot_be_understood_is_lost_in_a_paragraph(sent: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    folder.mkdir()
    channel, part = heard(sent, folder)
    assert (channel.is_closed, part.status, part.ended.is_set()) == (True, LOST, True)
    assert "\n" not in str(HostError(channel.cause, host="h", stage="download"))
    assert {path.name for path in tmp_path.rglob("*")} <= {"launch", layout.LAUNCHER_JOURNAL, "x"}


def asked(answer: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(HostError) as caught:
        asyncio.run(answer)
    return str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"host": 5}, {"python": None}, {"pid": "1"}, {"directory": []}, {"archive": {}}]
)
def test_an_ill_typed_greeting_fails_at_deploy(wrong: dict[str, Any]) -> None:
    async def start() -> None:
        class Connection:
            async def create_session(self, made: Any, _command: str, **_: Any) -> tuple[StubChannel, Any]:
                said = json.dumps({**READY, **wrong}).encode() + b"\n"
                asyncio.get_running_loop().call_soon(made().data_received, GREETING + said, None)
                return StubChannel(), None

        await AgentChannel.start(cast("Any", Connection()), HOST, b"", lease_s=1e6)

    assert asked(start()).startswith("h: deploy: the agent's answer cannot be read: ")


class ClosedChannel(StubChannel):
    """Takes nothing any more, as the far side has ended."""

    def write(self, data: bytes) -> None:
        raise BrokenPipeError("Channel not open for sending")


@pytest.mark.parametrize(
    ("is_told", "cause"),
    [
        (True, "the agent exited: sh: 1: no such/python: not found."),
        (False, "the agent no longer accepts any data."),
    ],
)
def test_a_far_side_that_ends_before_all_is_sent_still_has_the_last_word(
    is_told: bool, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuproof.launchers.ssh.channel.LEAVE_TIMEOUT_S", 300.0 if is_told else 0.01)

    async def start() -> None:
        class Connection:
            async def create_session(self, made: Any, _command: str, **_: Any) -> tuple[StubChannel, Any]:
                session = made()
                loop = asyncio.get_running_loop()
                if is_told:
                    loop.call_later(0.05, session.data_received, b"sh: 1: no such/python: not found\n", 1)
                    loop.call_later(0.1, session.connection_lost, None)
                return ClosedChannel(), None

        await AgentChannel.start(cast("Any", Connection()), HOST, b"archive", lease_s=1e6)

    assert asked(start()) == f"h: deploy: {cause}"


def test_a_beat_that_nobody_takes_waits_for_the_last_words() -> None:
    async def beat() -> AgentChannel:
        channel = opened()
        channel._channel = cast("Any", ClosedChannel())
        channel._keep_beating(1e6)
        return channel

    assert not asyncio.run(beat()).is_closed


@pytest.mark.parametrize("port", [None, "x", 1e999, [1]])
def test_an_ill_typed_port_fails_the_host(port: Any) -> None:
    async def port_of() -> None:
        channel = opened()
        answer = json.dumps({"say": "answer", "about": "0", "port": port}).encode() + b"\n"
        asyncio.get_running_loop().call_soon(channel.data_received, answer, None)
        await channel.free_port()

    assert "port is" in asked(port_of())


def test_random_frames_never_raise(tmp_path: Path) -> None:
    """Whatever comes, the channel goes on or the host is lost."""
    draw = random.Random(16)
    values: list[Any] = [
        None,
        True,
        -1,
        10**13,
        10**40,
        1.5,
        float("inf"),
        "x",
        "rank-0.jsonl",
        "..",
        [],
        {},
        "7",
    ]
    says: list[Any] = ["file", "exited", "ended", "answer", "failed", "ready", "odd", None]
    ends = {True: 0, False: 0}
    for number in range(400):
        folder = tmp_path / str(number)
        folder.mkdir()
        frames = b""
        for _ in range(draw.randrange(1, 4)):
            header = {key: draw.choice(values) for key in ("name", "offset", "status")}
            header |= {"say": draw.choice(says), "about": draw.choice(["7", "boot", draw.choice(values)])}
            frames += json.dumps(header).encode() + b"\n"
        channel, _ = heard(frames, folder)
        ends[channel.is_closed] += 1
    assert min(ends.values()) > 20
    assert {path.name for path in tmp_path.glob("*/*")} <= {
        layout.LAUNCHER_JOURNAL,
        "x",
        "7",
        "rank-0.jsonl",
        "None",
    }


def test_bytes_come_in_order_within_bounds_and_not_into_anothers_file(tmp_path: Path) -> None:
    part, other = HostPart("a", tmp_path), HostPart("b", tmp_path)
    part.file_grew("rank-0.jsonl", 0, b"own")
    for offset in (4, 10**13, -1, LARGEST_FILE_BYTES):
        with pytest.raises(ValueError, match="bytes at"):
            part.file_grew("rank-0.jsonl", offset, b"x")
    with pytest.raises(FileExistsError):
        other.file_grew("rank-0.jsonl", 0, b"y")
    assert (tmp_path / "rank-0.jsonl").read_bytes() == b"own"


@pytest.mark.parametrize("damage", ["odd name", "deep", "not text", "contradiction"])
def test_the_journals_of_one_host_are_set_aside(damage: str, tmp_path: Path) -> None:
    run = write_run(tmp_path, [one_rank().records()])
    folder = run.case_folder(case())
    journal = folder / "rank-0.jsonl"
    if damage == "odd name":
        (folder / "rank-abc.jsonl").write_text("x\n")
        assert read_case(folder).status == "done"
        return
    if damage == "contradiction":
        journal.write_text(
            "".join(f"{line}\n" for line in journal.read_text().splitlines() if '"setup"' not in line)
        )
    else:
        journal.write_bytes((DEEP if damage == "deep" else b"\xff") + b"\n")
    with pytest.raises(RecordError):
        read_case(folder)
    set_damaged_aside(folder)
    assert read_case(folder).status != "done"
    assert (folder / f"rank-0.jsonl{layout.DAMAGED}").is_file()
