"""How many CPUs may this process keep busy, and how many GPUs are allocated to it on this host?

CPUs: the limit set by the kernel, the container and the user, read from the process's affinity, the CPU quota
of its cgroups (docker --cpus, pod limits, Slurm), and OMP_NUM_THREADS as set by the user. With more threads
than CPUs, threads wait for each other. GPUs: as reported by Slurm, or by the tool that created the pod or
gate.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

THREADS_VARIABLE: Final = "OMP_NUM_THREADS"
AGENT_MARK: Final = "TORCHELASTIC_RUN_ID"
"""Set by torchrun for its ranks; with several ranks, torchrun also sets OMP_NUM_THREADS=1 if it is unset."""
GRANTED: Final = "GPUPROOF_GRANTED_GPUS"
"""Used if neither Slurm nor the driver reports the allocation: the number of GPUs, a space, and who allocated
them."""
OF_SLURM: Final = ("SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS")
"""Step variables take precedence over job variables (https://slurm.schedmd.com/srun.html,
prolog_epilog.html): SLURM_GPUS_ON_NODE is a number, the other variables are lists of indices."""


def cpus_allowed() -> int | None:
    """Return the CPUs this process may use: under a job scheduler, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return how many CPUs' worth of time the cgroups allow; None if no cgroup sets a limit.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max) and, for version 1,
    https://docs.kernel.org/scheduler/sched-bwc.html. A cgroup's limit cannot exceed the limits of its
    ancestors.
    """
    granted = [quota for folder in _groups(root) if (quota := _quota_of(folder)) is not None]
    return min(granted, default=None)


def usable_cpus() -> int:
    """Return how many CPUs this process can fully use; partial CPUs are ignored: they cause stalls."""
    allowed, quota = cpus_allowed() or os.cpu_count() or 1, cpu_quota()
    return allowed if quota is None else min(allowed, max(1, int(quota)))


def threads_per_rank(requested: int | None, *, num_ranks: int, users: int | None) -> int:
    """Return the number of threads for each of `num_ranks` ranks on this host.

    This is the requested number or, if there is none, an equal share of the CPUs, capped at `users`, the
    user's own limit.
    """
    if requested is not None:
        return requested
    share = max(1, usable_cpus() // num_ranks)
    return share if users is None else min(share, users)


def reason_fewer_threads(users: int | None) -> str | None:
    """Report what prevents a rank from getting one thread per CPU; None if nothing does."""
    allowed, usable = cpus_allowed() or os.cpu_count() or 1, usable_cpus()
    if users is not None and users < usable:
        return f"{THREADS_VARIABLE}={users}"
    if usable < allowed:
        return f"the CPU quota of this container or job ({cpu_quota():g} of {allowed} CPUs)"
    return None


def users_threads(environment: Mapping[str, str] | None = None) -> int | None:
    """Return OMP_NUM_THREADS as set by the user (the first number if it is a list); None if unset.

    The value is read from the process's initial environment, as stored by the kernel, because torchrun and
    gpuproof itself change the value later.
    """
    environment_here = _users_environment() if environment is None else environment
    first = environment_here.get(THREADS_VARIABLE, "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def _users_environment() -> Mapping[str, str]:
    """Return the environment of this process or the nearest ancestor that torchrun did not start."""
    pid = os.getpid()
    with suppress(OSError, ValueError):
        while AGENT_MARK in (started_with := _started_with(pid)):
            pid = _parent(pid)
        return started_with
    return {}


def _started_with(pid: int) -> Mapping[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))


def _groups(root: Path) -> Iterator[Path]:
    """Yield the cgroups that can limit this process's CPUs, each with its ancestors."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            mounted = root / "sys/fs/cgroup"
            if controllers and "cpu" not in controllers.split(","):
                continue
            base = mounted / controllers if controllers else mounted
            group = Path(path.lstrip("/"))
            # A container sees its own cgroup as the root, whatever the kernel calls it.
            yield from dict.fromkeys([base, *(base / part for part in (group, *group.parents))])


def _quota_of(folder: Path) -> float | None:
    """Return the number of CPUs that one cgroup allows; None if it sets no limit or is not visible."""
    with suppress(OSError, ValueError):
        limit, period = (folder / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    with suppress(OSError, ValueError):
        limit_us = int((folder / "cpu.cfs_quota_us").read_text())
        return None if limit_us <= 0 else limit_us / int((folder / "cpu.cfs_period_us").read_text())
    return None


def memory_total_bytes() -> int | None:
    """Return the memory size of this machine; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def granted_gpus(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the `number` of GPUs allocated on this host and the `source`; None if not allocated.

    >>> granted_gpus({"SLURM_JOB_GPUS": "0,1"})
    {'number': 2, 'source': 'SLURM_JOB_GPUS=0,1'}
    >>> granted_gpus({"GPUPROOF_GRANTED_GPUS": "8 nvidia.com/gpu of the pod"})
    {'number': 8, 'source': 'nvidia.com/gpu of the pod'}
    """
    number, _, source = environment.get(GRANTED, "").partition(" ")
    if number.isdecimal() and int(number):
        return {"number": int(number), "source": source or f"{GRANTED}={number}"}
    for name in OF_SLURM:
        text = environment.get(name, "").strip()
        if name == "SLURM_GPUS_ON_NODE":
            count = int(text) if text.isdecimal() else 0
        else:
            count = sum(map(_length, filter(None, text.split(","))))
        if count:
            return {"number": count, "source": f"{name}={text}"}
    return None


def grant_for_later(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that tells ranks about the allocation when Slurm's variables are removed.

    >>> grant_for_later({"SLURM_JOB_GPUS": "0,1"})
    {'GPUPROOF_GRANTED_GPUS': '2 SLURM_JOB_GPUS=0,1'}
    """
    grant = granted_gpus(environment)
    return {} if grant is None else {GRANTED: f"{grant['number']} {grant['source']}"}


def _length(entry: str) -> int:
    """Count the indices in one list entry: `0-3` counts as four."""
    ends = re.fullmatch(r"(\d+)-(\d+)", entry.strip())
    return 1 if ends is None else max(1, int(ends[2]) - int(ends[1]) + 1)
