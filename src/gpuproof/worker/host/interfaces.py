"""The network interfaces of this host, and which of them GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME choose.

Read over netlink from the kernel, so that what is seen is this network namespace's, whatever is mounted
at /sys. Standard library only.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuproof.base.errors import EnvironmentUnfitError

RTM_GETLINK, RTM_GETADDR, NLMSG_DONE, NLMSG_ERROR = 18, 22, 3, 2
NLM_F_REQUEST_DUMP = 0x301
IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 0x1, 0x8, 0x40
IFLA_IFNAME, IFLA_MTU, IFA_ADDRESS, IFA_LOCAL = 3, 4, 1, 2
HEADER = struct.Struct("=IHHII")
LINK = struct.Struct("=BxHiII")
ADDRESS = struct.Struct("=BBBBi")
ATTRIBUTE = struct.Struct("=HH")


def describe_interfaces() -> list[dict[str, Any]]:
    """Return name, state, MTU in bytes and addresses of each interface of this network namespace.

    `up` is what the administrator set; `running` says that there is a carrier, too. The message formats
    are those of https://man7.org/linux/man-pages/man7/rtnetlink.7.html.

    Raises:
        OSError: the kernel gives no answer over netlink (no Linux).
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
    """Ask the kernel for all objects of a kind; give the body of each answer."""
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
    """Check that what GLOO_SOCKET_IFNAME names is there and up: gloo itself says only that it failed.

    Raises:
        EnvironmentUnfitError: it is not, or has no address.
    """
    names = environment.get("GLOO_SOCKET_IFNAME")
    if not names:
        return
    try:
        interfaces = describe_interfaces()
    except OSError:  # no netlink here: gloo will say it in its own words
        return
    by_name = {interface["name"]: interface for interface in interfaces}
    for name in names.split(","):
        problem = _interface_problem(by_name.get(name))
        if problem is not None:
            raise EnvironmentUnfitError(
                f"GLOO_SOCKET_IFNAME={names}: {name} {problem} on {socket.gethostname()}",
                place="environment",
                next_step=f"Interfaces with an address here: {_usable(interfaces)}",
            )


def _interface_problem(interface: Mapping[str, Any] | None) -> str | None:
    if interface is None:
        return "is no interface"
    if not interface["up"]:
        return "is down"
    return None if interface["addresses"] else "has no address"


def _usable(interfaces: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(i["name"] for i in interfaces if _interface_problem(i) is None) or "none"
