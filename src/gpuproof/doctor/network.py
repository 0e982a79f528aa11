"""Can this host take part in a multi-host run? The checks behind `gpuproof doctor --multi-node`.

In: the facts about the host itself (`fabric`), as printed by `python -m gpuproof.worker probe --multi-node`.
Out: one outcome per check. InfiniBand and RoCE settings and the loaded UCX are reported only if they are
unusual, with a link to the documentation: gpuproof sets none of them. `meeting` checks the connections
between the hosts, and `verdict.nccl_settings` checks NCCL's settings. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpuproof.base import units
from gpuproof.records.outcome import Expectation, Outcome, not_applicable, not_judged
from gpuproof.verdict.check import stated_check
from gpuproof.verdict.facts import HostFacts
from gpuproof.verdict.nccl_settings import PAGE

INTERFACES_PAGE = (
    "https://docs.pytorch.org/docs/stable/distributed.html#choosing-the-network-interface-to-use"
)
TROUBLES_PAGE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
INFINIBAND_PAGE = "https://docs.kernel.org/admin-guide/abi-stable.html"
SHARED_MEMORY_BYTES = 2**30
"""Shared memory size that NCCL's troubleshooting page recommends for a container (`--shm-size=1g`); Docker's
default is 64 MB."""
IN_USE = "interfaces of this host that are up, with an address"
Interface = Mapping[str, Any]
fabric_check = partial(stated_check, part="fabric")
UCX_PAGE = "https://openucx.readthedocs.io/en/master/faq.html"
HPCX_PAGE = "https://developer.nvidia.com/networking/hpc-x"
SHORTEST = {"NCCL_IB_TIMEOUT": 20, "NCCL_IB_RETRY_CNT": 7}


def usable(interfaces: Sequence[Interface]) -> list[Interface]:
    """Return the interfaces that are up, have an address, and are not loopback."""
    return [i for i in interfaces if i["up"] and i["running"] and i["addresses"] and not i["loopback"]]


@fabric_check(
    "interfaces",
    "at least one that is up, with an address",
    INTERFACES_PAGE,
    "Bring an interface up (ip link set NAME up), and check the cable or the switch",
    responsible="administrator",
)
def judge_interfaces(fabric: HostFacts, expected: Expectation) -> Outcome:
    """Check whether the host can reach others; if it cannot, its interfaces are not checked."""
    interfaces = fabric["interfaces"]
    if interfaces is None:
        return not_judged("whole", fabric["interfaces_missing"], "Look at them with: ip address")
    described = "; ".join(_described(interface) for interface in interfaces if not interface["loopback"])
    return expected.judge(bool(usable(interfaces)), described or "none except loopback")


def _described(interface: Interface) -> str:
    state = "down" if not interface["up"] else "up" if interface["running"] else "up, without a carrier"
    return " ".join([interface["name"], state, *interface["addresses"]])


@fabric_check("GLOO_SOCKET_IFNAME", IN_USE, INTERFACES_PAGE, "")
def judge_gloo_interface(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Check the interfaces chosen for gloo, which must be given as full names."""
    value, interfaces = fabric["variables"].get("GLOO_SOCKET_IFNAME"), fabric["interfaces"]
    if interfaces is None:
        return None
    if not value:
        return _unset("GLOO_SOCKET_IFNAME", interfaces, "gloo uses the one that the host name resolves to")
    by_name = {interface["name"]: interface for interface in interfaces}
    problems = [
        f"{name} is not an interface" if name not in by_name else f"{name} is down or has no address"
        for name in value.split(",")
        if name not in by_name or not (by_name[name]["up"] and by_name[name]["addresses"])
    ]
    return _named(expected, "GLOO_SOCKET_IFNAME", value, problems, interfaces)


@fabric_check("NCCL_SOCKET_IFNAME", IN_USE, f"{PAGE}#nccl-socket-ifname", "")
def judge_nccl_interface(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Check the interfaces chosen for NCCL, according to NCCL's matching rules."""
    value, interfaces = fabric["variables"].get("NCCL_SOCKET_IFNAME"), fabric["interfaces"]
    if interfaces is None:
        return None
    if not value:
        return _unset("NCCL_SOCKET_IFNAME", interfaces, "NCCL uses the first interface it finds")
    chosen = {i["name"] for i in interfaces if i["up"] and i["addresses"] and selects(value, i["name"])}
    problems = [] if chosen else ["no interface that is up and has an address matches it"]
    return _named(expected, "NCCL_SOCKET_IFNAME", value, problems, interfaces)


def selects(choice: str, name: str) -> bool:
    """Check whether a name matches under NCCL's rules: prefixes, `=` for whole names, `^` to exclude.

    >>> selects("eth", "eth0"), selects("=eth", "eth0"), selects("^docker,lo", "eth0")
    (True, False, True)
    """
    excluding = choice.startswith("^")
    rest = choice.removeprefix("^")
    exact = rest.startswith("=")
    words = [word for word in rest.removeprefix("=").split(",") if word]
    fits = any(name == word if exact else name.startswith(word) for word in words)
    return fits != excluding


def _unset(variable: str, interfaces: Sequence[Interface], habit: str) -> Outcome:
    names = [interface["name"] for interface in usable(interfaces)]
    if len(names) <= 1:
        return not_applicable("not set, and there is no second network to choose")
    return Expectation(
        "the interface through which the hosts reach each other",
        INTERFACES_PAGE,
        f"Set {variable} to that interface on every host",
        otherwise="WARN",
    ).judge(False, f"not set, with {len(names)} networks to choose from ({', '.join(names)}): {habit}")


def _named(
    expected: Expectation, variable: str, value: str, problems: Sequence[str], interfaces: Sequence[Interface]
) -> Outcome:
    names = ", ".join(interface["name"] for interface in usable(interfaces)) or "none"
    measured = f"{value}: {'; '.join(problems)}" if problems else value
    return expected.judge(not problems, measured, next_step=f"Set {variable} to one of: {names}")


@fabric_check(
    "host name",
    "an address that the other hosts can reach, since gloo announces it to them",
    INTERFACES_PAGE,
    "Set GLOO_SOCKET_IFNAME, or correct /etc/hosts",
    otherwise="WARN",
)
def judge_host_name(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Check the address to which the host's name resolves."""
    if fabric["interfaces"] is None:
        return None
    if fabric["variables"].get("GLOO_SOCKET_IFNAME"):
        return not_applicable("GLOO_SOCKET_IFNAME already selects the interface")
    addresses = fabric["host_name_addresses"]
    is_reached = bool(addresses) and not any(is_loopback(address) for address in addresses)
    return expected.judge(is_reached, f"resolves to {', '.join(addresses) or 'no address'}")


def is_loopback(address: str) -> bool:
    """Check whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


@fabric_check(
    "InfiniBand",
    "every port ACTIVE",
    INFINIBAND_PAGE,
    "Check cable, switch and subnet manager (ibstat), or exclude the port with NCCL_IB_HCA",
    responsible="administrator",
    otherwise="WARN",
)
def judge_infiniband(fabric: HostFacts, expected: Expectation) -> Outcome:
    """Check whether every port is active."""
    ports = fabric["infiniband"]
    if not ports:
        return not_applicable("no InfiniBand or RoCE device in /sys/class/infiniband")
    states = (
        f"{p['device']}/{p['port']} {p['state'] or 'state unknown'}, {p['rate'] or 'rate unknown'}"
        for p in ports
    )
    return expected.judge(all(port["state"] == "ACTIVE" for port in ports), "; ".join(states))


@fabric_check(
    "NCCL_IB_HCA",
    "active ports of this host",
    f"{PAGE}#nccl-ib-hca",
    "Unset it, or use adapters that /sys/class/infiniband lists",
)
def judge_adapters(fabric: HostFacts, expected: Expectation) -> Outcome:
    """Check the adapters chosen for NCCL."""
    value = fabric["variables"].get("NCCL_IB_HCA")
    if not value:
        return not_applicable("not set: NCCL uses all adapters")
    ports = {f"{port['device']}:{port['port']}" for port in fabric["infiniband"] if port["state"] == "ACTIVE"}
    is_chosen = all if value.startswith("^") else any  # a port is excluded by its own name or its adapter's
    chosen = sorted(
        port for port in ports if is_chosen(selects(value, name) for name in (port, port.partition(":")[0]))
    )
    return expected.judge(bool(chosen), f"{value} chooses {', '.join(chosen) or 'no active port'}")


@fabric_check(
    "shared memory",
    f"at least {units.memory(SHARED_MEMORY_BYTES)} for ranks that share it",
    f"{TROUBLES_PAGE}#shared-memory",
    "Start the container with --shm-size=1g or --ipc=host",
    otherwise="WARN",
)
def judge_shared_memory(fabric: HostFacts, expected: Expectation) -> Outcome:
    """Check the free space in /dev/shm."""
    filesystem = fabric["shared_memory"]
    free, total, step = filesystem["free_bytes"], filesystem["total_bytes"], "Mount a tmpfs at /dev/shm"
    if total is None:
        return not_judged("whole", filesystem["missing"], step, "administrator")
    return expected.judge(
        free >= SHARED_MEMORY_BYTES,
        f"{units.memory(free)} free of {units.memory(total)}",
        measured_value=free,
        expected_value=SHARED_MEMORY_BYTES,
        unit="bytes",
    )


@fabric_check(
    "locked memory",
    "unlimited: memory that the adapter reads must not be swapped out",
    TROUBLES_PAGE,
    "ulimit -l unlimited; a container: --ulimit memlock=-1",
    responsible="administrator",
    otherwise="WARN",
)
def judge_locked_memory(fabric: HostFacts, expected: Expectation) -> Outcome:
    """Check how much memory may be locked, if there are adapters that need it."""
    limit = fabric["memlock_bytes"]
    if not fabric["infiniband"]:
        return not_applicable("only InfiniBand and RoCE lock memory, and neither is present")
    measured = "unlimited" if limit is None else units.memory(limit)
    return expected.judge(limit is None, measured, measured_value=limit, unit="bytes")


def _active(fabric: HostFacts) -> list[Any]:
    return [port for port in fabric["infiniband"] if port["state"] == "ACTIVE"]


@fabric_check(
    "kinds of RDMA port",
    "ports of one kind, or a selection with NCCL_IB_HCA",
    f"{PAGE}#nccl-ib-hca",
    "",
    otherwise="WARN",
)
def judge_kinds(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Warn if there are both InfiniBand and RoCE ports: NCCL would use both."""
    by_kind = {
        kind: [port["device"] for port in _active(fabric) if port.get("link_layer") == kind]
        for kind in ("InfiniBand", "Ethernet")
    }
    if not all(by_kind.values()):
        return None
    is_chosen = bool(fabric["variables"].get("NCCL_IB_HCA"))
    wanted = ",".join(by_kind["InfiniBand"])
    shown = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in by_kind.items())
    step = f"Set NCCL_IB_HCA to ={wanted} on every host (= matches whole names), unless the Ethernet "
    step += "ports belong to the same fabric"
    return expected.judge(is_chosen, shown, next_step=step)


@fabric_check(
    "NCCL_IB_GID_INDEX",
    "NCCL 2.21 or newer chooses the GID itself; an older one needs NCCL_IB_GID_INDEX",
    f"{PAGE}#nccl-ib-gid-index",
    "With an older NCCL, set NCCL_IB_GID_INDEX to the RoCE v2 entry that `show_gids` lists (often "
    "3), and NCCL_IB_TC to the traffic class that the switches keep lossless (often 136)",
    otherwise="WARN",
)
def judge_gid(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Warn if there are RoCE ports, and NCCL_IB_GID_INDEX is not set; GIDs are not read."""
    if not any(port.get("link_layer") == "Ethernet" for port in _active(fabric)):
        return None
    value = fabric["variables"].get("NCCL_IB_GID_INDEX")
    return expected.judge(value is not None, value or "not set, although there are RoCE ports")


@fabric_check(
    "NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT",
    "20 and 7, the NCCL defaults, or more",
    f"{PAGE}#nccl-ib-timeout",
    "Unset them; on a fabric with frequent rerouting NCCL_IB_TIMEOUT=23 and NCCL_IB_RETRY_CNT=7 wait longer",
    otherwise="WARN",
)
def judge_retries(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Warn if an adapter's retry time has been shortened."""
    variables = fabric["variables"]
    values = {name: variables[name] for name in SHORTEST if variables.get(name, "").isdigit()}
    if not _active(fabric) or not values:
        return None
    is_enough = all(int(value) >= SHORTEST[name] for name, value in values.items())
    return expected.judge(is_enough, ", ".join(f"{name}={value}" for name, value in values.items()))


@fabric_check(
    "UCX_NET_DEVICES",
    "active ports of this host, as ADAPTER:PORT",
    UCX_PAGE,
    "Unset it, or use ports that /sys/class/infiniband lists, e.g. mlx5_0:1",
)
def judge_ucx_devices(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Check the ports chosen for UCX."""
    value = fabric["variables"].get("UCX_NET_DEVICES")
    if not value or value == "all":
        return None
    there = {f"{port['device']}:{port['port']}" for port in _active(fabric)}
    adapters = [name for name in value.split(",") if ":" in name]  # a name without a port is an interface
    missing = [name for name in adapters if name not in there]
    return expected.judge(not missing, f"{value}; not active: {', '.join(missing)}" if missing else value)


@fabric_check("UCX of HPC-X", "HPC-X's own UCX and UCC before any other", HPCX_PAGE, "", otherwise="WARN")
def judge_one_ucx(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Warn if another UCX is found before HPC-X's: UCC then fails on undefined symbols or crashes."""
    hpcx, library_path = fabric.get("hpcx", ()), fabric.get("library_path", ())
    if not hpcx:
        return None
    return expected.judge(
        list(library_path[: len(hpcx)]) == list(hpcx),
        f"LD_LIBRARY_PATH starts with {library_path[0]}" if library_path else "LD_LIBRARY_PATH is not set",
        next_step=f"export LD_LIBRARY_PATH={':'.join(hpcx)}:$LD_LIBRARY_PATH, if UCX or UCC fail to load",
    )
