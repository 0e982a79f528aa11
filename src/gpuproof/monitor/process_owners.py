"""Who owns a process on a GPU, and how much of this host does it use? Read from `/proc`.

Input: a process ID, as listed by a driver. Output: the facts found, under the names below; facts that cannot
be read are omitted. `owners` are the pod, container and batch job of the process, from its control group;
`details` are user, command line, CPU time and memory, which are private and meant for a view that stores
nothing. Drivers list the host's process IDs, so nothing is looked up in a container with its own PID
namespace: there, the same ID would be a different process.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from gpuproof.base.redaction import redacted_words

ProcessFacts = Literal["ids", "owners", "details"]
"""How much to report about a process: only its ID and GPU memory; also its owner; or everything."""
Describe = Callable[[int], dict[str, Any]]
FACTS: tuple[ProcessFacts, ...] = get_args(ProcessFacts)

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The inode of the host's PID namespace on Linux (PROC_PID_INIT_INO of include/linux/proc_ns.h)."""
LONGEST_COMMAND = 300

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})")
_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_SLURM_JOB = re.compile(r"slurm[^\n]*?/job_(\d+)")
_SHORT_ID = 12


def describer(facts: ProcessFacts, *, proc: Path = Path("/proc"), logs: Path = Path("/var/log")) -> Describe:
    """Return a function that looks up a process by its ID, at the level of detail in `facts`."""
    if facts == "ids" or not sees_host_pids(proc):
        return lambda _: {}
    if facts == "owners":
        return lambda pid: owner_of(pid, proc=proc, logs=logs)
    return lambda pid: owner_of(pid, proc=proc, logs=logs) | details_of(pid, proc=proc)


def sees_host_pids(proc: Path) -> bool:
    """Check whether process IDs here are the same as the host's, which drivers report."""
    try:
        return str((proc / "self/ns/pid").readlink()) == INITIAL_PID_NAMESPACE
    except OSError:
        return False


def owner_of(pid: int, *, proc: Path, logs: Path) -> dict[str, Any]:
    """Return Kubernetes' `pod`, `namespace`, `container`; another runtime's `container`; `slurm_job`.

    Pod names come from the kubelet's log folders if readable; otherwise, the pod's UID is used.
    """
    groups = _text(proc / str(pid) / "cgroup")
    container = _last(_CONTAINER.findall(groups))
    pod = _last(_POD.findall(groups))
    owner = {"container": container[:_SHORT_ID]} if container else {}
    if pod is not None:
        owner |= _pod_names(pod.replace("_", "-"), container, logs)
    job = _last(_SLURM_JOB.findall(groups)) or _environment(proc / str(pid)).get("SLURM_JOB_ID")
    return owner | ({"slurm_job": job} if job else {})


def _pod_names(uid: str, container: str | None, logs: Path) -> dict[str, str]:
    """Look for POD_NAMESPACE_CONTAINER-ID.log, then for a folder NAMESPACE_POD_UID."""
    of_container = _first_match(logs / "containers", f"*-{container}.log") if container else None
    if of_container is not None:
        pod, namespace, rest = of_container.split("_", 2)
        return {"pod": pod, "namespace": namespace, "container": rest.removesuffix(f"-{container}.log")}
    of_pod = _first_match(logs / "pods", f"*_*_{uid}")
    if of_pod is not None:
        namespace, pod, _ = of_pod.split("_", 2)
        return {"pod": pod, "namespace": namespace}
    return {"pod": uid}


def details_of(pid: int, *, proc: Path) -> dict[str, Any]:
    """Return `user`, `command`, `cpu_s` (since its start), `rss_bytes` and `started_ticks` (since boot)."""
    folder = proc / str(pid)
    name, fields = _stat(folder)
    if not fields:
        return {}
    ticks, page_bytes = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    words = " ".join(redacted_words(_text(folder / "cmdline").split("\0"))).strip()
    return {
        "user": _user(folder),
        "command": (words or f"[{name}]")[:LONGEST_COMMAND],
        "cpu_s": (int(fields[11]) + int(fields[12])) / ticks,
        "rss_bytes": int(fields[21]) * page_bytes,
        "started_ticks": int(fields[19]),
    }


def _stat(folder: Path) -> tuple[str, list[str]]:
    """Return the name, which may contain spaces and parentheses, and the fields from the state on."""
    before, bracket, after = _text(folder / "stat").rpartition(")")
    return before.partition("(")[2], after.split() if bracket else []


def _user(folder: Path) -> str:
    try:
        uid = folder.stat().st_uid
    except OSError:
        return "?"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _environment(folder: Path) -> dict[str, str]:
    """Read a process's environment, which only the process's user and root may read."""
    words = (word.partition("=") for word in _text(folder / "environ").split("\0"))
    return {name: value for name, _, value in words}


def _first_match(folder: Path, pattern: str) -> str | None:
    try:
        return min((path.name for path in folder.glob(pattern)), default=None)
    except OSError:
        return None


def _text(path: Path) -> str:
    """Read a file in /proc; return nothing if the process has exited or the file is not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _last(matches: list[str]) -> str | None:
    return matches[-1] if matches else None
