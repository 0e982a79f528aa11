"""Commands of gpuproof forked from a process that has torch, instead of started.

A start of Python that ends in a step of training imports for three seconds of processor time, and hundreds of
tests start one. `Forked` is a `subprocess.Popen` whose process, and every Python of gpuproof's or torch's that
it starts, is forked from one server of this test process and is as good as new: its own arguments, environment,
folder, files, signals and exit, and gpuproof as it is after its imports. What differs is that torch and other
people's packages are there already. Whatever could tell is started as ever: another Python, a module of another
name, variables that Python or a library reads at its start, a process with threads. With
GPUPROOF_TESTS_START=exec all are, and `make test-long` runs some so.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import faulthandler
import gc
import inspect
import io
import json
import logging
import os
import random
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

import hanging

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
ALREADY_THERE = (
    "torch",
    "torch._dynamo",
    "torch.optim",
    "torch.utils.data",
    "torch.distributed.launcher.api",
    "torch.distributed.elastic.rendezvous.registry",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "yaml",
    "psutil",
    "scipy.special",
    "pydantic",
    "gpuproof.worker.commands.run",
    "gpuproof.worker.rank.session",
    "gpuproof.cli.main",
    "gpuproof.cli.run",
    "gpuproof.campaign",
    "gpuproof.conclude",
    "concurrent.futures.thread",
    "multiprocessing.util",
)
USERS = ("user", "group", "extra_groups", "uid", "gid", "gids")
PAD = "x" * 8000
"""Room for the arguments of a process that is forked: it is seen with its own."""
PR_SET_MM, PR_SET_MM_ARG_END = 35, 9


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
        if not is_forkable(all_given["args"], environment, all_given, server=_started_with):
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
        }
        self._server = server().ask(request, [*handed_over, *all_given["pass_fds"]], all_given["pass_fds"])
        (self.pid,) = struct.unpack("i", _exactly(self._server, 4))
        self._child_created = True
        own = {all_given[name] for name in ("p2cread", "c2pwrite", "errwrite")} - {-1}
        devnull = getattr(self, "_devnull", None)
        for end in own - {devnull}:
            os.close(end)
        if devnull is not None:
            os.close(devnull)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._server is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if wait_flags:
            with selectors.DefaultSelector() as selector:
                selector.register(self._server, selectors.EVENT_READ)
                if not selector.select(0):
                    return 0, 0
        (status,) = struct.unpack("i", _exactly(self._server, 4))
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


def _exactly(connection: socket.socket, size: int) -> bytes:
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
            [sys.executable, "-c", "from preloaded import serve; serve()", address, PAD],
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


# What follows runs in the server and in what it forks.


@dataclass(kw_only=True)
class Fresh:
    """What a process had when it was ready to fork: the state that each forked one returns to."""

    modules: set[str]
    others_modules: set[str]
    """Those that are not gpuproof's: what its modules hold is not to go from a process to one that it starts."""
    path: list[str]
    hooks: list[Any]
    filters: list[Any]
    finalizers: dict[Any, Any]
    at_exit: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]]
    arguments: tuple[int, int]
    variables: Mapping[str, str]
    before: list[object] = field(default_factory=list)
    """Streams of processes above, which would write what they hold once more if they were closed."""


_fresh: list[Fresh] = []
_popen_init = subprocess.Popen.__init__


def serve() -> None:
    """Serve until standard input ends."""
    variables = {
        name: text for name, text in read_at_start(os.environ).items() if name != "OPENBLAS_NUM_THREADS"
    }
    at_exit = _remember_exits()  # torch, too, sets variables
    address = sys.argv[1]
    for name in ALREADY_THERE:
        import_module(name)
    sys.argv[1:] = []
    for variable in ("OPENBLAS_NUM_THREADS", "PYTHONPATH"):
        os.environ.pop(variable, None)
    _fresh.append(
        Fresh(
            modules=set(sys.modules),
            others_modules={name for name in sys.modules if name.partition(".")[0] != "gpuproof"},
            path=[entry for entry in sys.path if entry not in ("", str(TESTS))],
            hooks=list(sys.meta_path),
            filters=list(warnings.filters),
            finalizers=dict(weakref.finalize._registry),  # type: ignore[attr-defined]
            at_exit=at_exit,
            arguments=_argument_bounds(),
            variables=variables,
        )
    )
    subprocess.Popen.__init__ = _init_forked  # type: ignore[method-assign,assignment]
    gc.freeze()
    _serve(address)
    os._exit(0)


def _remember_exits() -> list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]]:
    register, registered = atexit.register, []

    def remembering(function: Callable[..., object], *args: Any, **options: Any) -> Callable[..., object]:
        registered.append((function, args, options))
        return register(function, *args, **options)

    atexit.register = remembering  # type: ignore[assignment]
    import_module("multiprocessing.util")
    for name in ALREADY_THERE:
        import_module(name)
    atexit.register = register
    return registered


def _serve(address: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    woken, waker = socket.socketpair()
    for end in (woken, waker):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, socket.socket] = {}
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    with selectors.DefaultSelector() as selector:
        for readable in (listener, woken, sys.stdin):
            selector.register(readable, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is woken:
                    woken.recv(4096)
                else:
                    connection, _ = listener.accept()
                    children[_fork(connection)] = connection
            _reap(children)


def _reap(children: dict[int, socket.socket]) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            connection = children.pop(pid)
            with contextlib.suppress(OSError):  # who asked may be gone
                connection.sendall(struct.pack("i", status))
            connection.close()


def _fork(connection: socket.socket) -> int:
    size, descriptors, _, _ = socket.recv_fds(connection, 4, 64)
    request = json.loads(_exactly(connection, struct.unpack("i", size)[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(struct.pack("i", pid))
        return pid
    try:
        if request["session"]:
            os.setsid()
        os.chdir(request["cwd"])
        # Out of the way first: one of them may have a number that another is to get.
        high = [_above(descriptor) for descriptor in descriptors]
        for number, descriptor in zip([0, 1, 2, *request["kept"]], high, strict=True):
            os.dup2(descriptor, number)
        _become(request["args"], request["env"], kept=request["kept"], is_first=True)
    finally:
        os._exit(126)


def _above(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 200)


def _init_forked(self: subprocess.Popen[Any], args: Any, *rest: Any, **options: Any) -> None:
    """Make a Popen whose process is forked from this one, where that cannot be told from a start."""
    environment = options.get("env")
    environment = dict(os.environ if environment is None else environment)
    if (
        not rest
        and threading.active_count() == 1
        and is_forkable(args, environment, options, server=_fresh[0].variables)
    ):
        words = [os.fsdecode(word) for word in args]
        kept = tuple(options.get("pass_fds", ()))
        options["preexec_fn"] = lambda: _become(words, environment, kept=kept)
    _popen_init(self, args, *rest, **options)


def _become(
    words: Sequence[str], environment: Mapping[str, str], *, kept: Sequence[int], is_first: bool = False
) -> NoReturn:
    """Run a command in this forked process as if it had been started, and exit."""
    code = 1
    try:
        is_unbuffered = words[1] == "-u" or bool(environment.get("PYTHONUNBUFFERED"))
        _renew(words, environment, kept, is_unbuffered=is_unbuffered, is_first=is_first)
        sys.argv = list(words[words.index("-m") + 1 :])
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:  # noqa: BLE001  # as Python ends
        traceback.print_exc()
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End as Python does."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # noqa: PERF203
            code = 120 if stream is sys.stdout else code
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _renew(
    words: Sequence[str],
    environment: Mapping[str, str],
    kept: Sequence[int],
    *,
    is_unbuffered: bool,
    is_first: bool,
) -> None:
    fresh = _fresh[0]
    gc.freeze()
    _renew_signals()
    _close_all_but(kept)
    os.environ.clear()
    os.environ.update(environment)
    fresh.before.extend([sys.stdin, sys.stdout, sys.stderr])
    _renew_streams(is_unbuffered=is_unbuffered)
    _name(words, fresh.arguments)
    for name in set(sys.modules) - (fresh.modules if is_first else fresh.others_modules):
        del sys.modules[name]
    path = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    here = [] if environment.get("PYTHONSAFEPATH") or words[1] == "-P" else [os.getcwd()]
    sys.path[:] = [*here, *path, *fresh.path]
    sys.meta_path[:] = fresh.hooks
    warnings.filters[:] = fresh.filters  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registry.update(fresh.finalizers)  # type: ignore[attr-defined]
    atexit._clear()
    for function, args, options in fresh.at_exit:
        atexit.register(function, *args, **options)
    logging.root.handlers.clear()
    tempfile.tempdir = None
    random.seed()
    asyncio._set_running_loop(None)
    asyncio.set_event_loop_policy(None)
    faulthandler.disable()
    hanging.heed()
    sys.excepthook = sys.__excepthook__
    threading.excepthook = threading.__excepthook__


def _renew_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _close_all_but(kept: Sequence[int]) -> None:
    for entry in os.listdir("/proc/self/fd"):
        number = int(entry)
        if number > 2 and number not in kept:
            with contextlib.suppress(OSError):  # the folder itself
                os.close(number)


def _renew_streams(*, is_unbuffered: bool) -> None:
    def stream(number: int, mode: str, **options: Any) -> IO[str]:
        raw = io.FileIO(number, mode, closefd=False)
        if mode == "r":
            return io.TextIOWrapper(io.BufferedReader(raw), **options)
        return io.TextIOWrapper(raw if is_unbuffered else io.BufferedWriter(raw), **options)  # type: ignore[arg-type,type-var]

    sys.stdin = sys.__stdin__ = stream(0, "r")  # type: ignore[misc,assignment]
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        made = stream(
            number,
            "w",
            errors=errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=is_unbuffered,
        )
        made.mode = "w"  # type: ignore[misc]
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def _argument_bounds() -> tuple[int, int]:
    """Return where this process's arguments begin and end in memory."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[45]), int(fields[46])


def _name(words: Sequence[str], bounds: tuple[int, int]) -> None:
    """Be seen with these words in lists of processes."""
    start, end = bounds
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
    numbers = [ctypes.c_ulong(number) for number in (PR_SET_MM_ARG_END, start + len(text), 0, 0)]
    ctypes.CDLL(None).prctl(PR_SET_MM, *numbers)  # where it may not: ends in empty words
