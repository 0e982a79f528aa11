"""The processes of one launch on this host: its ranks and samplers, watched and stopped together.

Input: argument lists, the first for the ranks. Output: the ranks' exit status, without polling; all processes
are stopped. A process's descendants are read from `/proc`, including descendants that started their own
session. A descendant with a parent that has exited is found if `adopt_orphans` was called before, because the
descendant is then our child. Used on both sides: by the launcher on this machine, and by the agent that a
launcher started on another machine.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

from gpuproof.base.groups import grouped
from gpuproof.processes.start import CommandNotStartedError, start_process

OnExit = Callable[[int], None]
"""Callback that another thread calls with the exit status."""
PROC = Path("/proc")
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""`PR_SET_PDEATHSIG` and `PR_SET_CHILD_SUBREAPER` from linux/prctl.h."""
KILL_ROUNDS = 20
"""Maximum number of rounds: a process may fork between being listed and being killed, but not
indefinitely."""
POLL_S = 0.05


class WatchedProcess(ABC):
    """A process and all its descendants; another thread waits for its exit."""

    def __init__(self, on_exit: OnExit | None = None) -> None:
        self._on_exit = on_exit
        self._status = 0
        self._ended = threading.Event()

    @abstractmethod
    def signal(self, which: Signals) -> None:
        """Signal the process and its descendants; has no effect once all have exited."""

    def finish(self, status: int) -> None:
        """Record the exit status and wake up waiters."""
        self._status = status
        self._ended.set()
        if self._on_exit is not None:
            self._on_exit(status)

    def wait(self, timeout_s: float) -> int | None:
        """Wait up to `timeout_s` for the exit; return the exit status, or None if still running."""
        return self._status if self._ended.wait(timeout_s) else None

    def end(self, grace_s: float) -> None:
        """Stop the process: SIGTERM, wait `grace_s` for it to exit, SIGKILL.

        A second Ctrl-C cuts the wait short, but still leaves no process behind.
        """
        try:
            self.signal(SIGTERM)
            self.wait(grace_s)
        finally:
            self.signal(SIGKILL)
            self.wait(grace_s)


class StartedProcess(WatchedProcess):
    """A process started by `start_process`; a thread blocks in waitpid until it exits."""

    def __init__(self, process: subprocess.Popen[bytes], on_exit: OnExit | None = None) -> None:
        super().__init__(on_exit)
        self._process = process
        threading.Thread(
            target=lambda: self.finish(process.wait()), name="gpuproof-reaper", daemon=True
        ).start()

    def signal(self, which: Signals) -> None:
        """Signal the process's session: other processes in it may outlive the first."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, which)


class ProcessGroup:
    """The ranks' first process, and the samplers. Ranks under an agent exit together with it."""

    def __init__(
        self, ranks: WatchedProcess, samplers: Sequence[WatchedProcess] = (), *, command: str
    ) -> None:
        self.command = command
        """The command that was started, in a form that can be typed into a shell."""
        self._ranks = ranks
        self._samplers = samplers

    def wait(self, timeout_s: float) -> int | None:
        """Wait up to `timeout_s` for the ranks to exit; return the exit status, or None if still running."""
        return self._ranks.wait(timeout_s)

    def end(self, grace_s: float) -> None:
        """Stop the ranks, then the samplers, which then write their last line."""
        try:
            self._ranks.end(grace_s)
        finally:
            for sampler in self._samplers:
                sampler.signal(SIGTERM)
            for sampler in self._samplers:
                sampler.end(grace_s)


def start_group(
    commands: Sequence[Sequence[str]],
    *,
    environment: Mapping[str, str],
    output: Path | None,
    on_exit: OnExit | None = None,
) -> ProcessGroup:
    """Start ranks with the first command, samplers with the others; output as in `start_process`.

    Raises:
        CommandNotStartedError: a process cannot be started; those already started are stopped.
        OSError: `output` cannot be written; processes already started are stopped.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            started.append(start_process(command, environment=environment, output=output))  # noqa: PERF401
    except (CommandNotStartedError, OSError):
        for process in started:
            process.kill()
            process.wait()
        raise
    ranks, *samplers = started
    return ProcessGroup(
        StartedProcess(ranks, on_exit),
        [StartedProcess(sampler) for sampler in samplers],
        command=shlex.join(commands[0]),
    )


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Facts about one process, as reported by `/proc`."""

    pid: int
    parent: int
    resident_bytes: int


def adopt_orphans() -> bool:
    """Become the parent of orphaned descendants; return False if the system does not support that."""
    return _prctl(_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Have the system kill this process when its `parent` exits, or immediately if it already has."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), SIGKILL)


def _prctl(option: int, value: int) -> bool:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def descendants(root: int, *, without: Iterable[int] = ()) -> tuple[ProcessState, ...]:
    """List the living processes below `root`, excluding itself, zombies, and branches in `without`."""
    states = {state.pid: state for entry in PROC.glob("[0-9]*") if (state := _read(entry)) is not None}
    children = grouped((state.parent, state) for state in states.values())
    family: list[ProcessState] = []
    left, excluded = [root], set(without)
    while left:
        below = [child for child in children.get(left.pop(), ()) if child.pid not in excluded]
        family += below
        left += [child.pid for child in below]
    return tuple(family)


def _read(entry: Path) -> ProcessState | None:
    """Read one process; return None if it no longer exists or is a zombie."""
    try:
        text = (entry / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before this may contain spaces and brackets
    if len(fields) < 22 or fields[0] in "ZX":
        return None
    resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return ProcessState(int(entry.name), int(fields[1]), resident)


def highest_resident_bytes(pid: int) -> int:
    """Return the peak memory of a process; 0 if it has exited or does not report its peak."""
    try:
        text = (PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return 0
    lines = (line.split() for line in text.splitlines() if line.startswith("VmHWM:"))
    return next((int(line[1]) * 1024 for line in lines if len(line) > 1), 0)


def end_tree(listed: Callable[[], Iterable[int]], *, grace_s: float, beat: Callable[[], None]) -> int:
    """Stop the processes in `listed`: SIGTERM, `grace_s`, then SIGKILL; return how many there were.

    `beat` is called while waiting.
    """
    processes = list(listed())
    _signal(processes, SIGTERM)
    deadline_s = time.monotonic() + grace_s
    while processes and list(listed()) and time.monotonic() < deadline_s:
        beat()
        time.sleep(POLL_S)
    kill_tree(listed)
    return len(processes)


def kill_tree(listed: Callable[[], Iterable[int]]) -> None:
    """Kill the processes in `listed` until none are left."""
    for _ in range(KILL_ROUNDS):
        left = list(listed())
        if not left:
            return
        _signal(left, SIGKILL)
        time.sleep(POLL_S)


def _signal(pids: Iterable[int], which: Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, which)
