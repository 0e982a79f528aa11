"""What ports counted beside a launch, written by hand: traffic and no error, but for what a test adds."""

from __future__ import annotations

from gpuproof.readings.ports import PortChange, PortsDuringLaunch
from gpuproof.records.ports import PortReading

QUIET = dict.fromkeys(("symbol_error", "link_downed", "packet_seq_err", "local_ack_timeout_err"), 0)
TRAFFIC = {"port_xmit_packets": 50_000, "port_rcv_packets": 50_000, "port_xmit_data": 10**9}


def change(
    name: str = "mlx5_0:1",
    *,
    medium: str = "rdma",
    traits: tuple[str, ...] = ("InfiniBand",),
    state: str = "ACTIVE",
    missing: dict[str, str] | None = None,
    only: dict[str, int] | None = None,
    **increases: int,
) -> PortChange:
    """Return what a port gained: traffic and no error, but for `increases`."""
    gained = {**QUIET, **TRAFFIC, **increases} if only is None else only
    port = PortReading(name=name, medium=medium, traits=traits, counters=gained, state=state)  # type: ignore[arg-type]
    known = {counter: n for counter, n in gained.items() if counter not in (missing or {})}
    return PortChange(port=port, increases=known, missing=missing or {})


def beside(
    *changes: PortChange, hosts: str = "ab", launch: str = "main/0", **missing: str
) -> PortsDuringLaunch:
    return PortsDuringLaunch(launch=launch, hosts=tuple(hosts), changes=changes, missing=missing)
