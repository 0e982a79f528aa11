"""Which processes did a process start, and those in turn? Read from `/proc`, and ended together.

In: the id of a process. Out: its descendants, also those that began a session of their own. One whose parent
has ended is found where `adopt_orphans` was called before: it is then ours.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

from gpuproof.base.groups import grouped

PROC = Path("/proc")
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""`PR_SET_PDEATHSIG` and `PR_SET_CHILD_SUBREAPER` of linux/prctl.h."""
KILL_ROUNDS = 20
"""A process may fork between being listed and being killed; none does so for ever."""
POLL_S = 0.05


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
