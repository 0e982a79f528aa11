"""What the host's processors did between two moments, and how much of it this process and its loader did.

Read from /proc just outside the measured window, so that a neighbour who took the processor during
the window is seen afterwards, at no cost inside it. Other systems give what Python gives, and say why
the rest is missing.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

from gpuproof.records.run import HostLoad

BUSY_FIELDS = (1, 2, 3, 6, 7)
"""user, nice, system, irq, softirq in the first line of /proc/stat; idle and iowait are not busy."""
STEAL_FIELD = 8
UTIME_FIELD = 11
"""In /proc/PID/stat after the name in brackets: user time, then system time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReading:
    """Running totals at one moment."""

    monotonic_s: float
    own_cpu_s: float
    busy_cpu_s: float | None
    steal_cpu_s: float | None
    run_queue_wait_s: float | None
    missing: str | None


def read_load(proc: Path = Path("/proc")) -> LoadReading:
    """Read the totals now, those of this process with its children, both that live and that have ended.

    What the system does not give is None, with the reason in `missing`.
    """
    busy_cpu_s: float | None = None
    steal_cpu_s: float | None = None
    run_queue_wait_s: float | None = None
    missing: str | None = None
    ended = os.times()
    own_cpu_s = time.process_time() + ended.children_user + ended.children_system
    children = [proc / str(child.pid) for child in active_children()]
    try:
        fields = (proc / "stat").read_text().split("\n", 1)[0].split()
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        busy_cpu_s = sum(int(fields[i]) for i in BUSY_FIELDS) / ticks_per_s
        steal_cpu_s = int(fields[STEAL_FIELD]) / ticks_per_s
        own_cpu_s += sum(_cpu_ticks(child / "stat") for child in children) / ticks_per_s
        run_queue_wait_s = _run_queue_wait_s(proc / "self" / "task")
        run_queue_wait_s += sum(_run_queue_wait_s(child / "task") for child in children if child.exists())
    except (OSError, IndexError, ValueError) as error:
        missing = f"{proc}: {error}"
    return LoadReading(
        monotonic_s=time.monotonic(),
        own_cpu_s=own_cpu_s,
        busy_cpu_s=busy_cpu_s,
        steal_cpu_s=steal_cpu_s,
        run_queue_wait_s=run_queue_wait_s,
        missing=missing,
    )


def _cpu_ticks(stat: Path) -> int:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it ended after it was listed
    return int(fields[UTIME_FIELD]) + int(fields[UTIME_FIELD + 1])


def _run_queue_wait_s(tasks: Path) -> float:
    """Sum over this process's threads the time spent ready to run without a processor (schedstat, ns)."""
    return sum(_wait_ns(task) for task in tasks.iterdir()) / 1e9


def _wait_ns(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        if task.exists():
            raise
        return 0  # the thread ended after it was listed


def load_between(begin: LoadReading, end: LoadReading) -> HostLoad:
    """Return the load of the interval between two readings."""
    wait_s = _difference(begin.run_queue_wait_s, end.run_queue_wait_s)
    missing = begin.missing or end.missing
    if wait_s is not None and wait_s < 0:  # a thread takes its total with it when it ends
        wait_s, missing = None, "threads that had waited for a processor ended in the window"
    return HostLoad(
        num_cpus=os.cpu_count() or 1,  # all of the host's, which busy_cpu_s is about
        busy_cpu_s=_difference(begin.busy_cpu_s, end.busy_cpu_s),
        own_cpu_s=end.own_cpu_s - begin.own_cpu_s,
        run_queue_wait_s=wait_s,
        steal_cpu_s=_difference(begin.steal_cpu_s, end.steal_cpu_s),
        missing=missing,
        span_s=end.monotonic_s - begin.monotonic_s,
    )


def _difference(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin
