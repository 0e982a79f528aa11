"""Settings of InfiniBand and RoCE, and which UCX is loaded: advice for what is there, with its page.

In: the facts of a host that `probe --multi-node` prints. Out: an outcome for each that deserves a word; none
on a host without RDMA adapters and without HPC-X. gpuproof sets none of it. Pure.
"""

from __future__ import annotations

from typing import Any

from gpuproof.doctor.network import fabric_check
from gpuproof.records.outcome import Expectation, Outcome
from gpuproof.verdict.facts import HostFacts
from gpuproof.verdict.nccl_settings import PAGE

UCX_PAGE = "https://openucx.readthedocs.io/en/master/faq.html"
HPCX_PAGE = "https://developer.nvidia.com/networking/hpc-x"
SHORTEST = {"NCCL_IB_TIMEOUT": 20, "NCCL_IB_RETRY_CNT": 7}


def _active(fabric: HostFacts) -> list[Any]:
    return [port for port in fabric["infiniband"] if port["state"] == "ACTIVE"]


@fabric_check(
    "kinds of RDMA port",
    "ports of one kind, or NCCL_IB_HCA says which",
    f"{PAGE}#nccl-ib-hca",
    "",
    otherwise="WARN",
)
def judge_kinds(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Return a warning where InfiniBand and RoCE ports stand beside each other: NCCL would use both."""
    by_kind = {
        kind: [port["device"] for port in _active(fabric) if port.get("link_layer") == kind]
        for kind in ("InfiniBand", "Ethernet")
    }
    if not all(by_kind.values()):
        return None
    is_chosen = bool(fabric["variables"].get("NCCL_IB_HCA"))
    wanted = ",".join(by_kind["InfiniBand"])
    shown = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in by_kind.items())
    step = f"Set NCCL_IB_HCA={wanted} on every host, unless the Ethernet ports belong to the same fabric"
    return expected.judge(is_chosen, shown, next_step=step)


@fabric_check(
    "NCCL_IB_GID_INDEX",
    "NCCL 2.21 or newer chooses the GID itself; an older one needs NCCL_IB_GID_INDEX",
    f"{PAGE}#nccl-ib-gid-index",
    "With an older NCCL set NCCL_IB_GID_INDEX to the RoCE v2 entry that `show_gids` lists (often 3), and "
    "NCCL_IB_TC to the traffic class that the switches keep lossless (often 136)",
    otherwise="WARN",
)
def judge_gid(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Return a warning where RoCE ports have no GID to use."""
    if not any(port.get("link_layer") == "Ethernet" for port in _active(fabric)):
        return None
    value = fabric["variables"].get("NCCL_IB_GID_INDEX")
    return expected.judge(value is not None, value or "not set, and there are RoCE ports")


@fabric_check(
    "NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT",
    "20 and 7, NCCL's own, or more",
    f"{PAGE}#nccl-ib-timeout",
    "Unset them; on a fabric that is rerouted often NCCL_IB_TIMEOUT=23 and NCCL_IB_RETRY_CNT=7 wait longer",
    otherwise="WARN",
)
def judge_retries(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Return a warning where somebody has shortened how long an adapter tries again."""
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
    "Unset it, or name what /sys/class/infiniband lists, as in mlx5_0:1",
)
def judge_ucx_devices(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Judge the ports that UCX is told to use."""
    value = fabric["variables"].get("UCX_NET_DEVICES")
    if not value or value == "all":
        return None
    there = {f"{port['device']}:{port['port']}" for port in _active(fabric)}
    adapters = [name for name in value.split(",") if ":" in name]  # without a port it is an interface
    missing = [name for name in adapters if name not in there]
    return expected.judge(not missing, f"{value}; not active: {', '.join(missing)}" if missing else value)


@fabric_check("UCX of HPC-X", "HPC-X's own UCX and UCC before any other", HPCX_PAGE, "", otherwise="WARN")
def judge_one_ucx(fabric: HostFacts, expected: Expectation) -> Outcome | None:
    """Warn where a UCX besides HPC-X's is found first: UCC then ends with undefined symbols, or a crash."""
    hpcx, library_path = fabric.get("hpcx", ()), fabric.get("library_path", ())
    if not hpcx:
        return None
    return expected.judge(
        list(library_path[: len(hpcx)]) == list(hpcx),
        f"LD_LIBRARY_PATH begins with {library_path[0]}" if library_path else "LD_LIBRARY_PATH is not set",
        next_step=f"export LD_LIBRARY_PATH={':'.join(hpcx)}:$LD_LIBRARY_PATH, where UCX or UCC fail to load",
    )
