"""`python gpuproof-node.pyz remote-agent`: start and monitor processes for a remote control side.

In: frames on standard input (commands to start, files to store, heartbeats). Out: frames on standard output:
the contents that the started commands write to their folder, as the files grow, and how the commands exit.
The agent has a lease: if the control side is silent for too long, or closes the stream, everything that was
started is stopped and the agent's directory is removed. It handles processes and files, but has no knowledge
of cases or frameworks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import Any

from gpuproof import __version__
from gpuproof.base.errors import EnvironmentUnfitError, RecordError, UsageError
from gpuproof.processes.fork import ForkServers
from gpuproof.processes.group import OnExit, ProcessGroup, start_group
from gpuproof.processes.scratch import ScratchFolder, sweep
from gpuproof.processes.start import ENDING_SIGNALS, safe_environment
from gpuproof.records.frames import GREETING, Frame, FrameDecoder, encode_frame

SUMMARY = "serve a gpuproof process on another host over SSH"
POLL_S = 0.2
"""Interval between checks of a launch's files. Checking the four files takes a few microseconds."""
READ_BYTES = 1 << 16
LEASE_CHECKS = 8
ABANDON_GRACE_S = 5.0
EOF = Frame(header={"do": "leave"}, payload=b"")
OUTPUT = "launcher-output.txt"
CHUNK_BYTES = 1 << 18


class RemoteAgent:
    """Executes the requests of one control side; created once per process, in its main thread."""

    def __init__(self, directory: Path, *, lease_s: float) -> None:
        self._directory = directory
        self._scratch = ScratchFolder(directory)
        self._lease_s = lease_s
        self._heard_s = monotonic()
        self._orders: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._launches: dict[str, LaunchedGroup] = {}
        self._uploads: dict[str, Any] = {}
        self._fork_servers = ForkServers()
        self._writing = threading.Lock()
        self._leaving = threading.Lock()

    def run(self) -> int:
        """Greet, then execute requests until asked to leave; remove the directory, return the exit code."""
        for number in ENDING_SIGNALS:
            signal.signal(number, lambda *_: self._orders.put(EOF))
        threading.Thread(target=self._listen, name="gpuproof-listener", daemon=True).start()
        threading.Thread(target=self._hold_lease, name="gpuproof-lease", daemon=True).start()
        try:
            self._greet()
            self._obey()
        except BrokenPipeError:
            pass  # the reader has exited, which is equivalent to a closed stream
        except OSError as error:
            sys.stderr.write(f"gpuproof: the agent cannot continue: {_reason(error)}\n")
        self._leave()
        return 0

    def _greet(self) -> None:
        with self._writing:
            _write_all(GREETING)
        self._say(
            say="ready",
            version=__version__,
            host=socket.gethostname(),
            pid=os.getpid(),
            python=sys.executable,
            archive=sys.argv[0] if sys.argv[0].endswith(".pyz") else None,
            directory=str(self._directory),
        )

    def _obey(self) -> None:
        while True:
            try:
                order = self._orders.get(timeout=POLL_S if self._launches else None)
            except queue.Empty:
                self._send_growth()
                continue
            if order.header.get("do") == "leave":
                return
            try:
                self._do(order)
            except (OSError, KeyError, TypeError, ValueError, UsageError, EnvironmentUnfitError) as error:
                self._say(say="failed", about=order.header.get("about"), cause=_reason(error))
            self._send_growth()

    def _do(self, order: Frame) -> None:
        words = order.header
        what = words["do"]
        if what == "put":
            self._put(words, order.payload)
        elif what == "launch":
            self._launch(words)
        elif what == "end":
            self._end(words)
        elif what == "exited":
            self._say(say="exited", about=words["about"], status=words["status"])
        elif what == "ended":
            self._send_growth(last_of=words["about"])
        elif what == "ask":
            self._ask(words)
        elif what == "port":
            self._say(say="answer", about=words["about"], port=_free_port())

    def _put(self, words: Mapping[str, Any], content: bytes) -> None:
        """Append to a file in the directory; the last piece comes with the checksum of the whole file."""
        path = inside(self._directory, words["path"])
        if words["offset"] == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._uploads[words["path"]] = hashlib.sha256()
        with path.open("ab" if words["offset"] else "wb") as file:
            file.write(content)
        self._uploads[words["path"]].update(content)
        if "sha256" in words:
            if self._uploads.pop(words["path"]).hexdigest() != words["sha256"]:
                raise UsageError("arrived damaged", place=words["path"])
            self._say(say="answer", about=words["about"])

    def _launch(self, words: Mapping[str, Any]) -> None:
        about = words["about"]
        folder = inside(self._directory, words["folder"])
        folder.mkdir(parents=True)
        for name, text in words["files"].items():
            inside(folder, name).write_text(text, encoding="utf-8")

        def on_exit(status: int) -> None:
            self._orders.put(Frame(header={"do": "exited", "about": about, "status": status}, payload=b""))

        processes = self._start(words, folder, on_exit)
        self._launches[about] = LaunchedGroup(processes, folder, ignored=frozenset(words["files"]))
        self._say(say="answer", about=about)

    def _start(self, words: Mapping[str, Any], folder: Path, on_exit: OnExit) -> ProcessGroup:
        """Start the commands by exec or, if a fork server is specified, have the server fork them."""
        environment = {**os.environ, **words["environment"]}
        server = words["fork_server"]
        output = folder / OUTPUT
        if server is None:
            return start_group(words["commands"], environment=environment, output=output, on_exit=on_exit)
        return self._fork_servers.start(
            server,
            key=tuple(server),
            environment=environment,
            commands=words["commands"],
            output=output,
            on_exit=on_exit,
        )

    def _end(self, words: Mapping[str, Any]) -> None:
        group, about = self._launches[words["about"]], words["about"]

        def end() -> None:
            group.processes.end(words["grace_s"])
            self._orders.put(Frame(header={"do": "ended", "about": about}, payload=b""))

        threading.Thread(target=end, name="gpuproof-end", daemon=True).start()

    def _ask(self, words: Mapping[str, Any]) -> None:
        """Run a short command alongside everything else, and report its output."""

        def ask() -> None:
            try:
                answer = subprocess.run(
                    words["command"],
                    env=safe_environment(),
                    capture_output=True,
                    timeout=words["timeout_s"],
                    check=False,
                )
                self._say(
                    say="answer",
                    about=words["about"],
                    status=answer.returncode,
                    stdout=answer.stdout.decode("utf-8", "replace"),
                    stderr=answer.stderr[-4096:].decode("utf-8", "replace"),
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                self._say(say="failed", about=words["about"], cause=_reason(error))

        threading.Thread(target=ask, name="gpuproof-ask", daemon=True).start()

    def _send_growth(self, *, last_of: str | None = None) -> None:
        for about, group in list(self._launches.items()):
            for growth in group.growth(everything=about == last_of):
                self._say(growth.content, say="file", about=about, name=growth.name, offset=growth.offset)
        if last_of is not None:
            group = self._launches.pop(last_of)
            shutil.rmtree(group.folder, ignore_errors=True)
            self._say(say="ended", about=last_of)

    def _say(self, payload: bytes = b"", **header: Any) -> None:
        with self._writing:
            _write_all(encode_frame(header, payload))

    def _listen(self) -> None:
        decoder = FrameDecoder()
        with contextlib.suppress(RecordError, OSError):  # equivalent to a closed stream
            while data := os.read(0, READ_BYTES):
                self._heard_s = monotonic()
                for frame in decoder.feed(data):
                    if frame.header.get("do") != "beat":
                        self._orders.put(frame)
        # if the main thread is blocked in a write with no reader, lease expiry ends it
        self._orders.put(EOF)

    def _hold_lease(self) -> None:
        while monotonic() - self._heard_s < self._lease_s:
            threading.Event().wait(self._lease_s / LEASE_CHECKS)
        sys.stderr.write(f"gpuproof: no message for {self._lease_s:g} s: stopping everything it started\n")
        self._leave()
        os._exit(1)

    def _leave(self) -> None:
        """Stop everything and remove the directory, only once, whichever thread gets here first."""
        with self._leaving:
            groups = list(self._launches.values())
            self._launches = {}
            enders = [threading.Thread(target=g.processes.end, args=(ABANDON_GRACE_S,)) for g in groups]
            for ender in enders:
                ender.start()
            for ender in enders:
                ender.join()
            self._fork_servers.close(ABANDON_GRACE_S)
            self._scratch.remove()


def inside(root: Path, relative: str) -> Path:
    """Return a path below `root`.

    Raises:
        UsageError: `relative` leads outside the root.
    """
    parts = PurePosixPath(relative).parts
    if not parts or relative.startswith("/") or ".." in parts:
        raise UsageError("not a path below the agent's directory", place=relative)
    return root.joinpath(*parts)


def main(arguments: Sequence[str]) -> int:
    """Run the agent with command-line arguments."""
    import argparse  # not at module level, since `obey` is called directly when a fast start matters

    parser = argparse.ArgumentParser(prog="gpuproof.worker remote-agent", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="its own directory; removed at the end")
    parser.add_argument("--lease", type=float, required=True, help="seconds of silence after which it stops")
    options = parser.parse_args(arguments)
    return obey(options.directory, options.lease)


def obey(directory: str | Path, lease_s: float) -> int:
    """Clean up after killed agents, then run the agent in its own directory. Return the exit code."""
    lease_folder = Path(directory)
    sweep(lease_folder.parent)
    return RemoteAgent(lease_folder, lease_s=lease_s).run()


def _write_all(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """New bytes in a file; empty if the file was truncated to `offset`."""

    name: str
    offset: int
    content: bytes


class LaunchedGroup:
    """One launch: its processes, and the files in its folder."""

    def __init__(self, processes: ProcessGroup, folder: Path, *, ignored: frozenset[str]) -> None:
        self.folder = folder
        self.processes = processes
        self._sent = dict.fromkeys(ignored, -1)

    def growth(self, *, everything: bool) -> Iterator[Growth]:
        """Yield content added since the last call; for JSON Lines, whole lines unless `everything`.

        A writer removes a line that it could not finish, so an incomplete line is not sent until the launch
        ends.
        """
        for entry in sorted(os.scandir(self.folder), key=lambda file: file.name):
            if entry.name.startswith(".") or not entry.is_file(follow_symlinks=False):
                continue
            offset = self._sent.get(entry.name, 0)
            if offset < 0:
                continue
            size = entry.stat().st_size
            if size < offset:
                yield Growth(name=entry.name, offset=size, content=b"")
                self._sent[entry.name] = size
            elif everything and entry.name not in self._sent:
                yield Growth(name=entry.name, offset=0, content=b"")  # an empty file is reported too
            elif size > offset:
                yield from self._new_bytes(entry.name, offset, whole_lines=not everything)

    def _new_bytes(self, name: str, offset: int, *, whole_lines: bool) -> Iterator[Growth]:
        with (self.folder / name).open("rb") as file:
            file.seek(offset)
            content = file.read()
        if whole_lines and name.endswith(".jsonl"):
            content = content[: content.rfind(b"\n") + 1]
        for begin in range(0, len(content), CHUNK_BYTES):
            piece = content[begin : begin + CHUNK_BYTES]
            yield Growth(name=name, offset=offset + begin, content=piece)
        self._sent[name] = offset + len(content)
