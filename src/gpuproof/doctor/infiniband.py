"""Settings of InfiniBand and RoCE, and which UCX is loaded: advice for what is there, with its page.

In: the facts of a host that `probe --multi-node` prints. Out: an outcome for each that deserves a word; none
on a host without RDMA adapters and without HPC-X. gpuproof sets none of it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuproof.records.outcome import Expectation, Judged, Outcome
from gpuproof.verdict.nccl_settings import PAGE

UCX_PAGE = "https://openucx.readthedocs.io/en/master/faq.html"
HPCX_PAGE = "https://developer.nvidia.com/networking/hpc-x"
ONE_KIND = Expectation(
    "ports of one kind, or NCCL_IB_HCA says which",
    f"{PAGE}#nccl-ib-hca",
    "",
    otherwise="WARN",
)
GID = Expectation(
    "NCCL 2.21 or newer chooses the GID itself; an older one needs NCCL_IB_GID_INDEX",
    f"{PAGE}#nccl-ib-gid-index",
    "With an older NCCL set NCCL_IB_GID_INDEX to the RoCE v2 entry that `show_gids` lists (often 3), and "
    "NCCL_IB_TC to the traffic class that the switches keep lossless (often 136)",
    otherwise="WARN",
)
RETRIES = Expectation(
    "20 and 7, NCCL's own, or more",
    f"{PAGE}#nccl-ib-timeout",
    "Unset them; on a fabric that is rerouted often NCCL_IB_TIMEOUT=23 and NCCL_IB_RETRY_CNT=7 wait longer",
    otherwise="WARN",
)
UCX_DEVICES = Expectation(
    "active ports of this host, as ADAPTER:PORT",
    UCX_PAGE,
    "Unset it, or name what /sys/class/infiniband lists, as in mlx5_0:1",
)
ONE_UCX = Expectation(
    "HPC-X's own UCX and UCC before any other",
    HPCX_PAGE,
    "",
    otherwise="WARN",
)


def judge_infiniband(fabric: Mapping[str, Any]) -> list[Judged]:
    """Judge settings of RDMA adapters against the ports that there are."""
    variables = fabric["variables"]
    active = [port for port in fabric["infiniband"] if port["state"] == "ACTIVE"]
    outcomes = {
        "kinds of RDMA port": _kinds(active, variables),
        "NCCL_IB_GID_INDEX": _gid(active, variables),
        "NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT": _retries(active, variables),
        "UCX_NET_DEVICES": _ucx_devices(active, variables.get("UCX_NET_DEVICES")),
        "UCX of HPC-X": _one_ucx(fabric.get("hpcx", ()), fabric.get("library_path", ())),
    }
    return [Judged(name=name, outcome=outcome) for name, outcome in outcomes.items() if outcome is not None]


def _kinds(active: Sequence[Mapping[str, Any]], variables: Mapping[str, str]) -> Outcome | None:
    """Return a warning where InfiniBand and RoCE ports stand beside each other: NCCL would use both."""
    by_kind = {
        kind: [p["device"] for p in active if p.get("link_layer") == kind]
        for kind in ("InfiniBand", "Ethernet")
    }
    if not all(by_kind.values()):
        return None
    is_chosen = bool(variables.get("NCCL_IB_HCA"))
    wanted = ",".join(by_kind["InfiniBand"])
    shown = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in by_kind.items())
    step = f"Set NCCL_IB_HCA={wanted} on every host, unless the Ethernet ports belong to the same fabric"
    return ONE_KIND.judge(is_chosen, shown, next_step=None if is_chosen else step)


def _gid(active: Sequence[Mapping[str, Any]], variables: Mapping[str, str]) -> Outcome | None:
    is_roce = any(port.get("link_layer") == "Ethernet" for port in active)
    if not is_roce:
        return None
    value = variables.get("NCCL_IB_GID_INDEX")
    return GID.judge(value is not None, value or "not set, and there are RoCE ports")


def _retries(active: Sequence[Mapping[str, Any]], variables: Mapping[str, str]) -> Outcome | None:
    """Return a warning where somebody has shortened how long an adapter tries again."""
    least = {"NCCL_IB_TIMEOUT": 20, "NCCL_IB_RETRY_CNT": 7}
    values = {name: variables[name] for name in least if variables.get(name, "").isdigit()}
    if not active or not values:
        return None
    is_enough = all(int(value) >= least[name] for name, value in values.items())
    return RETRIES.judge(is_enough, ", ".join(f"{name}={value}" for name, value in values.items()))


def _ucx_devices(active: Sequence[Mapping[str, Any]], value: str | None) -> Outcome | None:
    if not value or value == "all":
        return None
    there = {f"{port['device']}:{port['port']}" for port in active}
    adapters = [name for name in value.split(",") if ":" in name]  # without a port it is an interface
    missing = [name for name in adapters if name not in there]
    return UCX_DEVICES.judge(not missing, f"{value}; not active: {', '.join(missing)}" if missing else value)


def _one_ucx(hpcx: Sequence[str], library_path: Sequence[str]) -> Outcome | None:
    """Warn where a UCX besides HPC-X's is found first: UCC then ends with undefined symbols, or a crash."""
    if not hpcx:
        return None
    is_first = list(library_path[: len(hpcx)]) == list(hpcx)
    step = f"export LD_LIBRARY_PATH={':'.join(hpcx)}:$LD_LIBRARY_PATH, where UCX or UCC fail to load"
    return ONE_UCX.judge(
        is_first,
        f"LD_LIBRARY_PATH begins with {library_path[0]}" if library_path else "LD_LIBRARY_PATH is not set",
        next_step=None if is_first else step,
    )
