"""What a host brings to a run over several hosts: InfiniBand ports, shared memory, limits, its own name.

Read from sysfs and the kernel; each fact is a value, or None with the reason beside it.

Which variables of a host are recorded: each that begins as those of the libraries do, by its name.

Its value is, too, where `variables.txt` lists it: documented, or read by the library itself. Any other may be
somebody's own, a secret among them, whatever its name says.

>>> recorded_variables({"NCCL_ALGO": "Ring", "NCCL_CRED": "hunter2", "HOME": "/root"})
{'NCCL_ALGO': 'Ring', 'NCCL_CRED': 'redacted'}
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gpuproof.base.files import packaged_text
from gpuproof.base.redaction import REDACTED, redacted
from gpuproof.worker.host.interfaces import describe_interfaces

SYSFS = Path("/sys")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # the place itself is what is looked at
VARIABLES = ("NCCL_", "GLOO_", "UCX_")
PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem", "ib_peer_mem")
HPCX = ("/opt/hpcx/ucx/lib", "/opt/hpcx/ucc/lib")
"""Where the vendor's images keep HPC-X."""


def describe_fabric(
    environment: Mapping[str, str], *, sysfs: Path = SYSFS, shared_memory: Path = SHARED_MEMORY
) -> dict[str, Any]:
    """Return interfaces, InfiniBand ports, shared memory, limits, variables and what the host name means."""
    facts: dict[str, Any] = {"interfaces": None, "interfaces_missing": None}
    facts["variables"] = recorded_variables(environment, VARIABLES)
    try:
        facts["interfaces"] = describe_interfaces()
    except OSError as error:
        facts["interfaces_missing"] = f"the kernel lists none over netlink: {error}"
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    facts["memlock_bytes"] = None if soft == resource.RLIM_INFINITY else soft
    facts["infiniband"] = infiniband_ports(sysfs / "class/infiniband")
    facts["shared_memory"] = _shared_memory(shared_memory)
    facts["hpcx"] = [folder for folder in HPCX if Path(folder).is_dir()]
    facts["library_path"] = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    facts["host_name_addresses"] = _resolve(socket.gethostname())
    return facts


def infiniband_ports(folder: Path = SYSFS / "class/infiniband") -> list[dict[str, Any]]:
    """Return every port that this host lists; the files are those of https://docs.kernel.org/admin-guide/abi-stable.html."""
    return [
        {
            "device": port.parents[1].name,
            "port": port.name,
            "state": _after_colon(port / "state"),
            "physical_state": _after_colon(port / "phys_state"),
            "rate": _text(port / "rate"),
            "link_layer": _text(port / "link_layer"),
        }
        for port in sorted(folder.glob("*/ports/*"))
    ]


def _after_colon(path: Path) -> str | None:
    """Read `4: ACTIVE` as ACTIVE."""
    text = _text(path)
    return text.rpartition(":")[2].strip() if text else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _shared_memory(path: Path) -> dict[str, Any]:
    try:
        room = os.statvfs(path)
    except OSError as error:
        return {"total_bytes": None, "free_bytes": None, "missing": f"{path}: {error.strerror}"}
    size = room.f_frsize
    return {"total_bytes": room.f_blocks * size, "free_bytes": room.f_bavail * size, "missing": None}


def _resolve(name: str) -> list[str]:
    try:
        return sorted(
            {str(address[4][0]) for address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
        )
    except OSError:
        return []


def describe_affinity(
    pci_bus_ids: Iterable[str], *, sysfs: Path = SYSFS, modules: Path = Path("/proc/modules")
) -> dict[str, Any]:
    """Return memory nodes with their processors, those this process may use, and each device's node.

    `peer_memory` says whether a module is loaded by which network cards read GPU memory; None: not known.
    """
    nodes = {
        path.name.removeprefix("node"): _text(path / "cpulist")
        for path in sorted(sysfs.glob("devices/system/node/node[0-9]*"))
    }
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    devices = {address: _text(sysfs / "bus/pci/devices" / address / "numa_node") for address in pci_bus_ids}
    loaded = _text(modules)
    return {
        "numa_nodes": nodes,
        "allowed_cpus": allowed,
        "device_numa_nodes": devices,
        "peer_memory": None
        if loaded is None
        else any(line.split()[0] in PEER_MEMORY for line in loaded.splitlines() if line),
    }


PREFIXES = (
    *("NCCL_", "GLOO_", "TF_", "TORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "OMP_", "MKL_", "KMP_"),
    *("ROCR_", "HIP_", "PYTORCH_"),
)


def recorded_variables(environment: Mapping[str, str], prefixes: Sequence[str] = PREFIXES) -> dict[str, str]:
    """Return the variables that begin so, by name, each with its value or with `redacted` for it."""
    return {
        name: redacted(value) if name in _documented() else REDACTED
        for name, value in sorted(environment.items())
        if name.startswith(tuple(prefixes))
    }


@cache
def _documented() -> frozenset[str]:
    text = packaged_text("worker/host/variables.txt")
    return frozenset(name for line in text.splitlines() if line[:1] != "#" for name in line.split())
