"""What is said of a wait in vain: stacks of what the test started, and the ends of its journals."""

from __future__ import annotations

import faulthandler
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

STACKS = signal.SIGRTMAX - 3
"""Makes a process that was forked for a test print the stack of each thread where its errors go."""
IN_VAIN = "waited in vain"
LINES, FILES = 8, 24
ENDS = ("*.jsonl", "stderr-*.txt", "launcher*.txt", "*.log")


def heed() -> None:
    """Print all stacks when asked to, from now on."""
    faulthandler.register(STACKS, all_threads=True)


def is_in_vain(error: BaseException) -> bool:
    """Say whether a test failed because something never came."""
    return isinstance(error, subprocess.TimeoutExpired | TimeoutError) or IN_VAIN in str(error)


def what_hangs(folder: Path | None) -> str:
    """Ask the processes below this one for their stacks; return which they are, and the ends of files."""
    processes = psutil.Process().children(recursive=True)
    for process in processes:
        with suppress(psutil.Error, OSError):
            if _heeds(process.pid):
                process.send_signal(STACKS)
    time.sleep(1.0)  # no end of it can be seen
    lines = [_line(process) for process in processes]
    return "\n".join([*lines, *([] if folder is None else _ends(folder))])


def _heeds(pid: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (STACKS - 1) & 1)
    return False


def _line(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} of {process.ppid()}: {' '.join(process.cmdline())[:300]}"
    except psutil.Error as error:
        return f"{process.pid}: {error}"


def _ends(folder: Path) -> list[str]:
    """Return the last lines of the files that were written last."""
    found: list[tuple[float, Path]] = []
    for pattern in ENDS:
        for path in folder.rglob(pattern):
            with suppress(OSError):
                found.append((path.stat().st_mtime, path))
    lines = []
    for _, path in sorted(found)[-FILES:]:
        with suppress(OSError):
            last = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:]
            lines += [f"-- {path}", *(line[:400] for line in last)]
    return lines
