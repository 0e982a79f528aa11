"""The processes of one launch on this host: ranks, and samplers beside them, watched and ended together.

In: argument lists, the first for the ranks. Out: the ranks' exit status, without polling, and the end of all.
Descendants of a process are read from `/proc`, also those that began a session of their own; one whose parent
has ended is found where `adopt_orphans` was called before: it is then ours. Used by both halves: the launcher
on this machine, and the agent that a launcher started on another.
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
"""Called with the exit status, from another thread."""
PROC = Path("/proc")
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""`PR_SET_PDEATHSIG` and `PR_SET_CHILD_SUBREAPER` of linux/prctl.h."""
KILL_ROUNDS = 20
"""A process may fork between being listed and being killed; none does so for ever."""
POLL_S = 0.05


class WatchedProcess(ABC):
    """A process and all that it starts; another thread notices its end."""

    def __init__(self, on_exit: OnExit | None = None) -> None:
        self._on_exit = on_exit
        self._status = 0
        self._ended = threading.Event()

    @abstractmethod
    def signal(self, which: Signals) -> None:
        """Signal the process and what it started; harmless once all has ended."""

    def finish(self, status: int) -> None:
        """Record its exit status and wake who waits for it."""
        self._status = status
        self._ended.set()
        if self._on_exit is not None:
            self._on_exit(status)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end at most `timeout_s`; return the exit status, None if it still runs."""
        return self._status if self._ended.wait(timeout_s) else None

    def end(self, grace_s: float) -> None:
        """End it: SIGTERM, `grace_s` to end by itself, SIGKILL.

        A second Ctrl-C cuts that time short, and leaves no process behind either.
        """
        try:
            self.signal(SIGTERM)
            self.wait(grace_s)
        finally:
            self.signal(SIGKILL)
            self.wait(grace_s)


class StartedProcess(WatchedProcess):
    """A process that was started by `start_process`; a thread sleeps in waitpid until it ends."""

    def __init__(self, process: subprocess.Popen[bytes], on_exit: OnExit | None = None) -> None:
        super().__init__(on_exit)
        self._process = process
        threading.Thread(
            target=lambda: self.finish(process.wait()), name="gpuproof-reaper", daemon=True
        ).start()

    def signal(self, which: Signals) -> None:
        """Signal the process's session, whose other processes may outlive the first."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, which)


class ProcessGroup:
    """The ranks' first process, and the samplers. Ranks under an agent end with it."""

    def __init__(
        self, ranks: WatchedProcess, samplers: Sequence[WatchedProcess] = (), *, command: str
    ) -> None:
        self.command = command
        """What was started, as a person could type it."""
        self._ranks = ranks
        self._samplers = samplers

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the ranks' end at most `timeout_s`; return the exit status, None if they still run."""
        return self._ranks.wait(timeout_s)

    def end(self, grace_s: float) -> None:
        """End the ranks, then the samplers, which write their last line."""
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
    """Start the ranks, by the first command, and a sampler by each other; all print as `start_process` says.

    Raises:
        CommandNotStartedError: one cannot be started; those before it are ended.
        OSError: `output` cannot be written to; likewise.
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
    """What `/proc` says of one process."""

    pid: int
    parent: int
    resident_bytes: int


def adopt_orphans() -> bool:
    """Become the parent of all descendants whose own parent ends; False where no system call does that."""
    return _prctl(_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Have the system kill this process when `parent`, which started it, ends; at once if it has."""
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
    """List the living processes below `root`, itself, zombies, and the branches `without` apart."""
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
    """Read one process; None where it is gone, or has ended and waits for its parent to ask."""
    try:
        text = (entry / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    if len(fields) < 22 or fields[0] in "ZX":
        return None
    resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return ProcessState(int(entry.name), int(fields[1]), resident)


def highest_resident_bytes(pid: int) -> int:
    """Return the most memory that a process ever had; 0 where it is gone or does not say."""
    try:
        text = (PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return 0
    lines = (line.split() for line in text.splitlines() if line.startswith("VmHWM:"))
    return next((int(line[1]) * 1024 for line in lines if len(line) > 1), 0)


def end_tree(listed: Callable[[], Iterable[int]], *, grace_s: float, beat: Callable[[], None]) -> int:
    """End what `listed` names: asked to, given `grace_s`, then killed; return how many there were.

    `beat` is called while it waits.
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
    """Kill what `listed` names until it names nothing."""
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
