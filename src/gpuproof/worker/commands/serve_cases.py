"""`python -m gpuproof.worker serve-cases`: fork a process per command, with torch imported.

Importing torch takes seconds, which would dominate a sweep of short cases. This process imports it once, runs
no tensor operations and never calls CUDA. It forks a child for each requested command, so that the child is
in the same state as a fresh process after its imports. In: a socket with one JSON object per line. `{"id": 1,
"words": ["run", …], "output": PATH}` starts a child, `{"id": 1, "signal": 15}` signals the child and whatever
it started. Out, on the same socket: `{"ready": true}`, `{"id": 1, "pid": 4711}`, `{"id": 1, "status": 0}`
(negative if a signal ended it). When the socket closes, or on SIGTERM, every child is stopped, and then this
process exits.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.processes.granted import threads_per_rank, users_threads
from gpuproof.worker.rank.assignment import import_torch, redirect_output

PRELOADED = (
    "gpuproof.worker.rank.assignment",
    "gpuproof.worker.rank.session",
    "gpuproof.worker.commands.sample",
)
GRACE_S = 8.0
"""Time allowed for the children's final output when this server stops; shorter than the time that a campaign
allows the server."""
REAP_POLL_S = 0.02


def main(arguments: Sequence[str]) -> int:
    """Serve until the control socket closes."""
    parser = argparse.ArgumentParser(prog="gpuproof.worker serve-cases", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="what the cases belong to, as shown in the process list")
    parser.add_argument("--control-fd", type=int, required=True, metavar="N", help="descriptor of the socket")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of each case (all CPUs)")
    options = parser.parse_args(arguments)
    # OpenMP reads the thread count once, when torch is imported, so cases with other thread counts need
    # another server.
    os.environ["OMP_NUM_THREADS"] = str(threads_per_rank(options.threads, num_ranks=1, users=users_threads()))
    preload()
    from gpuproof.worker.__main__ import run_command

    return CaseServer(socket.socket(fileno=options.control_fd), run_command=run_command).serve()


def preload() -> None:
    """Import the modules that cases need; if torch cannot be imported, each case reports that itself."""
    with suppress(EnvironmentUnfitError):
        import_torch(optimizes=True)
        for module in PRELOADED:
            import_module(module)
    gc.freeze()  # children share these pages until a garbage collector touches them


class CaseServer:
    """Forks children on request, sends signals to them, and reports how they exited.

    The server is single-threaded: a lock held by another thread would stay locked in a child.
    """

    def __init__(self, control: socket.socket, *, run_command: Callable[[Sequence[str]], int]) -> None:
        self._control = control
        self._run_command = run_command
        self._children: dict[int, int] = {}
        self._unread = b""
        self._serving = True
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._control, selectors.EVENT_READ, self._read_requests)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake)

    def serve(self) -> int:
        """Serve until the end; return 0."""
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        self._say({"ready": True})
        while self._serving:
            for key, _ in self._selector.select():
                key.data()
            self._reap()
        self._end_children()
        return 0

    def _stop(self, *_: object) -> None:
        self._serving = False

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(4096)

    def _read_requests(self) -> None:
        try:
            received = self._control.recv(65_536)
        except ConnectionError:
            received = b""
        if not received:
            self._serving = False
            return
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            self._answer(json.loads(line))

    def _answer(self, request: dict[str, Any]) -> None:
        number = request["id"]
        if "signal" in request:
            self._signal(number, signal.Signals(request["signal"]))
        else:
            pid = self._fork(request["words"], request["output"])
            self._children[number] = pid
            self._say({"id": number, "pid": pid})

    def _say(self, message: dict[str, Any]) -> None:
        with suppress(ConnectionError):  # the other end is closed: the next read reports it
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def _fork(self, words: Sequence[str], output: str) -> int:
        """Start a child in its own process group; signals to it are blocked until it is ready for them."""
        held_back = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT})
        with warnings.catch_warnings():
            # Python 3.12 warns about threads. The threads here belong to OpenBLAS, which stops and restarts
            # them around a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._become_child(words, output, mask=held_back)
        with suppress(ProcessLookupError):
            os.setpgid(pid, pid)  # set in both processes, since either may run first
        signal.pthread_sigmask(signal.SIG_SETMASK, held_back)
        return pid

    def _become_child(self, words: Sequence[str], output: str, *, mask: Iterable[int]) -> NoReturn:
        code = 1
        try:
            os.setpgid(0, 0)
            self._close_server_ends()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            redirect_output(Path(output))
            random.seed()  # otherwise all cases would draw the same random numbers
            code = self._run_command(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001  # nothing may return into the server's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _close_server_ends(self) -> None:
        """Close the server's resources in a child."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        for end in (self._control, self._woken, self._waker):
            end.close()

    def _signal(self, number: int, which: signal.Signals) -> None:
        pid = self._children.get(number)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(pid, which)

    def _reap(self) -> None:
        """Report which children have exited, and stop the processes they started."""
        for number, pid in list(self._children.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            self._signal(number, signal.SIGKILL)  # before the PID can be reused
            _, status = os.waitpid(pid, 0)
            del self._children[number]
            self._say({"id": number, "status": os.waitstatus_to_exitcode(status)})

    def _end_children(self) -> None:
        deadline_s = time.monotonic() + GRACE_S
        for which in (signal.SIGTERM, signal.SIGKILL):
            for number in self._children:
                self._signal(number, which)
            while self._children and (which == signal.SIGKILL or time.monotonic() < deadline_s):
                time.sleep(REAP_POLL_S)
                self._reap()
