"""Commands of gpuproof forked from a process that has torch, instead of started.

A start of Python that ends in a step of training imports for three seconds of CPU time, and hundreds
of tests start one. `Forked` is a `subprocess.Popen` whose process, and every Python of gpuproof's or torch's
that it starts, is forked from one server of this test process (`forking`) and is as good as new: its own
arguments, environment, folder, files, signals and exit, and gpuproof as it is after its imports. What differs
is that torch and other people's packages are there already. Whatever could tell is started as ever: another
Python, a module of another name, variables that Python or a library reads at its start, a process with
threads. With GPUPROOF_TESTS_START=exec all are, and `make test-long` runs some so.
"""

from __future__ import annotations

import inspect
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STARTED = "exec"
HOW = "GPUPROOF_TESTS_START"
MODULES = ("gpuproof", "gpuproof.worker", "torch.distributed.run")
TESTS = Path(__file__).resolve().parent
PATHS = (TESTS.parent / "src", TESTS / "fakes" / "faulty")
"""Folders in PYTHONPATH that hold nothing which the server has imported."""
READ_AT_START = (
    "PYTHON",
    "LD_",
    "LC_",
    "LANG",
    "MALLOC_",
    "MPL",
    "MKL_",
    "KMP_",
    "OPENBLAS",
    "TORCH_LOGS",
    "TORCHINDUCTOR",
    "COVERAGE",
)
HANDLED = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED")
SEEN_BY_THE_KERNEL = "OMP_NUM_THREADS"
"""Looked up in what a process was started with, which a forked one was not."""
USERS = ("user", "group", "extra_groups", "uid", "gid", "gids")
PAD = "x" * 4000
"""Room for the arguments of a process that is forked: it is seen with its own."""


def words_of_python(args: object, executable: object = None) -> tuple[str, ...] | None:
    """Return the words after `python`, `-u` left out, of a command that can be forked, else None."""
    if executable is not None or isinstance(args, str | bytes) or not isinstance(args, Sequence):
        return None
    words = tuple(os.fsdecode(word) for word in args)
    if words[:1] != (sys.executable,):
        return None
    words = words[2:] if words[1:2] in (("-u",), ("-P",)) else words[1:]
    is_ours = len(words) > 1 and words[0] == "-m" and words[1] in MODULES
    return words if is_ours and "serve-cases" not in words else None


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a new process would have read before it comes to gpuproof."""
    return {
        name: text
        for name, text in environment.items()
        if name.startswith(READ_AT_START) and name not in HANDLED
    }


def is_forkable(
    args: object, environment: Mapping[str, str], options: Mapping[str, Any], *, server: Mapping[str, str]
) -> bool:
    """Say whether a command may be forked from a server that was started with these variables."""
    path = [Path(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return (
        words_of_python(args, options.get("executable")) is not None
        and not any(options.get(name) for name in ("shell", "preexec_fn", *USERS))
        and options.get("close_fds", True)
        and all(entry in PATHS for entry in path)
        and environment.get(HOW) != STARTED
        and read_at_start(environment) == server
    )


_PARAMETERS = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class Forked(subprocess.Popen[Any]):
    """A process of this test, forked by the server where that cannot be told from a start."""

    _server: socket.socket | None = None

    def _execute_child(self, *args: Any, **options: Any) -> None:
        all_given = _PARAMETERS.bind(self, *args, **options).arguments
        environment = os.environ if all_given["env"] is None else all_given["env"]
        is_told_apart = SEEN_BY_THE_KERNEL in environment
        if is_told_apart or not is_forkable(all_given["args"], environment, all_given, server=_started_with):
            super()._execute_child(*args, **options)  # type: ignore[misc]
            return
        ends = {
            0: all_given["p2cread"],
            1: all_given["c2pwrite"],
            2: all_given["errwrite"],
        }
        handed_over = [number if end == -1 else end for number, end in ends.items()]
        request = {
            "args": [os.fsdecode(word) for word in all_given["args"]],
            "env": dict(environment),
            "cwd": os.fsdecode(all_given["cwd"] or os.getcwd()),
            "session": bool(all_given["start_new_session"]),
            "group": all_given["process_group"],
        }
        self._server = server().ask(request, [*handed_over, *all_given["pass_fds"]], all_given["pass_fds"])
        (self.pid,) = struct.unpack("i", exactly(self._server, 4))
        self._child_created = True
        ends_of_pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(all_given[name] for name in ends_of_pipes))  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._server is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if wait_flags:
            with selectors.DefaultSelector() as selector:
                selector.register(self._server, selectors.EVENT_READ)
                if not selector.select(0):
                    return 0, 0
        (status,) = struct.unpack("i", exactly(self._server, 4))
        self._server.close()
        return self.pid, status

    def _internal_poll(self, *args: Any, **options: Any) -> int | None:
        if self._server is None:
            return super()._internal_poll(*args, **options)  # type: ignore[misc,no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self.returncode = os.waitstatus_to_exitcode(status)
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def install() -> None:
    """Make every process of this one a `Forked`, whoever starts it."""
    subprocess.Popen = Forked  # type: ignore[misc]


def exactly(connection: socket.socket, size: int) -> bytes:
    """Return so many bytes that the other end has sent.

    Raises:
        RuntimeError: it has ended.
    """
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise RuntimeError("the server of forked commands has ended")
        received += piece
    return received


@dataclass(kw_only=True)
class Server:
    """The process that forks, as its client sees it; it ends with the client."""

    process: subprocess.Popen[bytes]
    address: str

    def ask(
        self, request: Mapping[str, object], descriptors: Sequence[int], kept: Sequence[int]
    ) -> socket.socket:
        """Ask for a process; return where its number comes, and its status at its end."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address)
        text = json.dumps({**request, "kept": list(kept)}).encode()
        socket.send_fds(connection, [struct.pack("i", len(text))], list(descriptors))
        connection.sendall(text)
        return connection


_servers: list[Server] = []
_started_with = read_at_start(os.environ)
"""By this process's own variables, whatever a test sets later."""


def server() -> Server:
    """Return this test process's server, started at the first need of it."""
    if not _servers:
        folder = tempfile.mkdtemp(prefix="preloaded-")
        address = f"{folder}/s"
        environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith(READ_AT_START)},
            **_started_with,
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(TESTS)]),
        }
        process = subprocess.Popen(
            [sys.executable, "-c", "from forking import serve; serve()", address, PAD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        _servers.append(Server(process=process, address=address))
    return _servers[0]


def stop_server() -> None:
    """End it."""
    for one in _servers:
        one.process.communicate()
        Path(one.address).unlink(missing_ok=True)
        Path(one.address).parent.rmdir()
    _servers.clear()
