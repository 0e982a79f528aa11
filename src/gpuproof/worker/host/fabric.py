"""A host's details for a multi-host run: interfaces, InfiniBand ports, limits, its name.

Facts are read from sysfs, the kernel and the environment; each is a value, or None with a reason next to it.
Interfaces are read over netlink, so the result applies to this network namespace, whatever is mounted at
/sys. This module uses only the standard library.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.base.files import packaged_text
from gpuproof.base.redaction import REDACTED, redacted

SYSFS = Path("/sys")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # the place itself is what is looked at
PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem", "ib_peer_mem")
HPCX = ("/opt/hpcx/ucx/lib", "/opt/hpcx/ucc/lib")
"""Location of HPC-X in the vendor's images."""
PREFIXES = (
    *("NCCL_", "GLOO_", "TF_", "TORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "OMP_", "MKL_", "KMP_"),
    *("ROCR_", "HIP_", "PYTORCH_"),
)
RTM_GETLINK, RTM_GETADDR, NLMSG_DONE, NLMSG_ERROR = 18, 22, 3, 2
NLM_F_REQUEST_DUMP = 0x301
IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 0x1, 0x8, 0x40
IFLA_IFNAME, IFLA_MTU, IFA_ADDRESS, IFA_LOCAL = 3, 4, 1, 2
HEADER = struct.Struct("=IHHII")
LINK = struct.Struct("=BxHiII")
ADDRESS = struct.Struct("=BBBBi")
ATTRIBUTE = struct.Struct("=HH")


def describe_fabric(
    environment: Mapping[str, str], *, sysfs: Path = SYSFS, shared_memory: Path = SHARED_MEMORY
) -> dict[str, Any]:
    """Return interfaces, InfiniBand ports, shared memory, limits, variables and the host's addresses."""
    facts: dict[str, Any] = {"interfaces": None, "interfaces_missing": None}
    facts["variables"] = recorded_variables(environment, ("NCCL_", "GLOO_", "UCX_"))
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
    """Return all InfiniBand ports; see https://docs.kernel.org/admin-guide/abi-stable.html."""
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
    """Parse a state such as `4: ACTIVE` into ACTIVE."""
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
    """Return NUMA nodes and their CPUs, the CPUs this process may use, and each device's NUMA node.

    `peer_memory` indicates whether a module that lets network cards read GPU memory is loaded; None if
    unknown.
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


def recorded_variables(environment: Mapping[str, str], prefixes: Sequence[str] = PREFIXES) -> dict[str, str]:
    """Return the variables with these prefixes, by name, each with its value or as `redacted`.

    A value is included if `variables.txt` lists its name, which means that it is documented or that the
    library itself reads it. Any other value may be private, even a secret, whatever its name suggests.

    >>> recorded_variables({"NCCL_ALGO": "Ring", "NCCL_CRED": "hunter2", "HOME": "/root"})
    {'NCCL_ALGO': 'Ring', 'NCCL_CRED': 'redacted'}
    """
    return {
        name: redacted(value) if name in _documented() else REDACTED
        for name, value in sorted(environment.items())
        if name.startswith(tuple(prefixes))
    }


@cache
def _documented() -> frozenset[str]:
    text = packaged_text("worker/host/variables.txt")
    return frozenset(name for line in text.splitlines() if line[:1] != "#" for name in line.split())


def describe_interfaces() -> list[dict[str, Any]]:
    """Return the name, state, MTU in bytes and addresses of each interface in this network namespace.

    `up` is the state set by the administrator; `running` means that there is also a carrier. The message
    formats are described in https://man7.org/linux/man-pages/man7/rtnetlink.7.html.

    Raises:
        OSError: the kernel does not answer over netlink (not Linux).
    """
    interfaces: dict[int, dict[str, Any]] = {}
    for body in _dump(RTM_GETLINK):
        _family, _type, index, flags, _change = LINK.unpack_from(body)
        attributes = dict(_attributes(body[LINK.size :]))
        interfaces[index] = {
            "name": attributes[IFLA_IFNAME].rstrip(b"\0").decode(),
            "up": bool(flags & IFF_UP),
            "running": bool(flags & IFF_RUNNING),
            "loopback": bool(flags & IFF_LOOPBACK),
            "mtu_bytes": struct.unpack("=I", attributes[IFLA_MTU])[0] if IFLA_MTU in attributes else None,
            "addresses": [],
        }
    for body in _dump(RTM_GETADDR):
        family, _prefix, _flags, _scope, index = ADDRESS.unpack_from(body)
        attributes = dict(_attributes(body[ADDRESS.size :]))
        packed = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)
        if packed and index in interfaces and family in (socket.AF_INET, socket.AF_INET6):
            interfaces[index]["addresses"].append(socket.inet_ntop(family, packed))
    return list(interfaces.values())


def _dump(kind: int) -> Iterator[bytes]:
    """Request all objects of one kind from the kernel; return the body of each reply."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(5.0)
        request = LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        kernel.send(HEADER.pack(HEADER.size + len(request), kind, NLM_F_REQUEST_DUMP, 1, 0) + request)
        while True:
            data = kernel.recv(1 << 18)
            while data:
                length, answer, _flags, _sequence, _pid = HEADER.unpack_from(data)
                if answer in (NLMSG_DONE, NLMSG_ERROR):
                    return
                yield data[HEADER.size : length]
                data = data[_aligned(length) :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= ATTRIBUTE.size:
        length, kind = ATTRIBUTE.unpack_from(data)
        yield kind, data[ATTRIBUTE.size : length]
        data = data[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def check_named_interfaces(environment: Mapping[str, str]) -> None:
    """Check that the interface in GLOO_SOCKET_IFNAME exists and is up; gloo only reports a failure.

    Raises:
        EnvironmentUnfitError: it is missing or down, or has no address.
    """
    names = environment.get("GLOO_SOCKET_IFNAME")
    if not names:
        return
    try:
        interfaces = describe_interfaces()
    except OSError:  # netlink is not available here: gloo will report the problem itself
        return
    by_name = {interface["name"]: interface for interface in interfaces}
    for name in names.split(","):
        problem = _interface_problem(by_name.get(name))
        if problem is not None:
            raise EnvironmentUnfitError(
                f"GLOO_SOCKET_IFNAME={names}: {name} {problem} on {socket.gethostname()}",
                place="environment",
                next_step=f"Interfaces with an address on this host: {_usable(interfaces)}",
            )


def _interface_problem(interface: Mapping[str, Any] | None) -> str | None:
    if interface is None:
        return "is not an interface"
    if not interface["up"]:
        return "is down"
    return None if interface["addresses"] else "has no address"


def _usable(interfaces: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(i["name"] for i in interfaces if _interface_problem(i) is None) or "none"
