"""The server of `preloaded`: it has torch, and forks a process for each command that it is asked for.

A forked process returns to what the server had when it was ready: modules, paths, hooks, what is to be done
at the exit. Its descriptors, signals, streams and variables are those of a process that was just started, and
it ends as Python ends. A Python of gpuproof's or torch's that it starts is forked from it in the same way.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
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
from preloaded import TESTS, exactly, is_forkable, read_at_start

ALREADY_THERE = (
    "torch",
    "torch._dynamo",
    "torch.optim",
    "torch.utils.data",
    "torch.distributed.launcher.api",
    "torch.distributed.elastic.rendezvous.registry",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "PIL.ImageDraw",
    "PIL.ImageFont",
    "yaml",
    "psutil",
    "pydantic",
    "gpuproof.worker.rank.assignment",
    "gpuproof.worker.rank.session",
    "gpuproof.cli.main",
    "gpuproof.cli.run",
    "gpuproof.campaign.campaign",
    "gpuproof.campaign.conclude",
    "concurrent.futures.thread",
    "multiprocessing.util",
)


@dataclass(kw_only=True)
class Fresh:
    """What a process had when it was ready to fork: the state that each forked one returns to."""

    modules: set[str]
    others_modules: set[str]
    """Those that are not gpuproof's: what its modules hold is not to go from one process to another."""
    path: list[str]
    hooks: list[Any]
    filters: list[Any]
    finalizers: dict[Any, Any]
    at_exit: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]]
    arguments: tuple[int, int]
    variables: Mapping[str, str]
    has_run_ours: bool = False
    """Whether gpuproof has run in this process, so that its modules may hold what is not to be handed on."""
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
    subprocess.Popen.__init__ = _init_forked  # type: ignore[method-assign]
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
    request = json.loads(exactly(connection, struct.unpack("i", size)[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    try:
        if request["session"]:
            os.setsid()
        if request["group"] >= 0:
            os.setpgid(0, request["group"])
        # Told by itself, once signals to its group would reach it.
        connection.sendall(struct.pack("i", os.getpid()))
        os.chdir(request["cwd"])
        # Out of the way first: one of them may have a number that another is to get.
        high = [_above(descriptor) for descriptor in descriptors]
        for number, descriptor in zip([0, 1, 2, *request["kept"]], high, strict=True):
            os.dup2(descriptor, number)
        _become(request["args"], request["env"], kept=request["kept"])
    finally:
        os._exit(126)


def _above(descriptor: int) -> int:
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


def _become(words: Sequence[str], environment: Mapping[str, str], *, kept: Sequence[int]) -> NoReturn:
    """Run a command in this forked process as if it had been started, and exit."""
    code = 1
    try:
        is_unbuffered = words[1] == "-u" or bool(environment.get("PYTHONUNBUFFERED"))
        _renew(words, environment, kept, is_unbuffered=is_unbuffered)
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
    for name in set(sys.modules) - (fresh.others_modules if fresh.has_run_ours else fresh.modules):
        del sys.modules[name]
    fresh.has_run_ours |= words[words.index("-m") + 1].startswith("gpuproof")
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
        return io.TextIOWrapper(raw if is_unbuffered else io.BufferedWriter(raw), **options)

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
    """Be seen with these words in lists of processes; empty ones follow."""
    start, end = bounds
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
