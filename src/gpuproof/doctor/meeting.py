"""What stands between the hosts: the outcome of their meeting at MASTER_ADDR, in words and next steps.

In: what `gpuproof.worker.host.meeting` found on this host, and which of them it is.
Out: an outcome each. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuproof.doctor.multi_node import is_loopback
from gpuproof.records.outcome import Judged, Outcome

SOURCE = "https://docs.pytorch.org/docs/stable/elastic/run.html"
START_ALL = "start gpuproof doctor --multi-node on all hosts within the time of --wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """This host's part in the meeting."""

    master: str
    port: int
    node_rank: int
    num_nodes: int


def judge_meeting(
    found: Mapping[str, Any], part: Part, *, interfaces: Sequence[Mapping[str, Any]] | None
) -> list[Judged]:
    """Judge the address, the port, and what came of the meeting, as seen from this host."""
    own = {address for interface in interfaces or () for address in interface["addresses"]}
    outcomes = {"MASTER_ADDR": _address(found, part, own)}
    if outcomes["MASTER_ADDR"].status == "FAIL" and not found["addresses"]:
        pass
    elif part.node_rank == 0:
        outcomes |= _as_node_0(found, part)
    else:
        outcomes |= _as_visitor(found, part)
    return [Judged(name=name, outcome=outcome) for name, outcome in outcomes.items()]


def not_asked() -> list[Judged]:
    """Say that nothing was tried between the hosts."""
    reason = "MASTER_ADDR and MASTER_PORT are not given (--master, --port): the way to them was not tried"
    return [Judged(name="MASTER_ADDR", outcome=Outcome(status="SKIP", reason=reason))]


def _judged(status: str, measured: str, expected: str, next_step: str | None = None) -> Outcome:
    return Outcome(
        status=status,  # type: ignore[arg-type]  # PASS, WARN or FAIL, spelled out by the caller
        measured=measured,
        expected=expected,
        source=SOURCE,
        next_step=next_step,
    )


def _address(found: Mapping[str, Any], part: Part, own: set[str]) -> Outcome:
    addresses = found["addresses"]
    expected = "an address of node 0 that all hosts reach"
    if not addresses:
        step = "Give an address in place of a name, or add the name to /etc/hosts on every host"
        return _judged("FAIL", f"{part.master} stands for no address ({found['unresolved']})", expected, step)
    shown = f"{part.master} stands for {', '.join(addresses)}" if [part.master] != addresses else part.master
    if part.num_nodes > 1 and any(is_loopback(address) for address in addresses):
        return _judged(
            "FAIL", f"{shown}: every host's own loopback", expected, "Give node 0's address in the network"
        )
    here = sorted(own.intersection(addresses))
    if part.node_rank == 0 and not here:
        return _judged(
            "WARN",
            f"{shown}: no interface of this host has it",
            expected,
            "Right only where address translation leads here; otherwise this is not node 0",
        )
    if part.node_rank > 0 and here:
        step = "Give each host its own NODE_RANK, and MASTER_ADDR of node 0"
        return _judged("FAIL", f"{shown}: this host's own, and it is node {part.node_rank}", expected, step)
    return _judged("PASS", shown, expected)


def _as_node_0(found: Mapping[str, Any], part: Part) -> dict[str, Outcome]:
    port = f"port {part.port}"
    expected = "free, so that rank 0 can listen there"
    if not found["listening"]:
        step = "Choose another MASTER_PORT"
        step += f", or end what listens there (ss -ltnp 'sport = :{part.port}')" if found["in_use"] else ""
        return {port: _judged("FAIL", f"cannot be listened on: {found['why_not']}", expected, step)}
    outcomes = {port: _judged("PASS", "free", expected)}
    visitors = {visitor["node_rank"]: visitor for visitor in found["visitors"]}
    for rank in range(1, part.num_nodes):
        outcomes[f"node {rank}"] = _visitor(visitors.get(rank), part)
    return outcomes


def _visitor(visitor: Mapping[str, Any] | None, part: Part) -> Outcome:
    expected = "comes to this port, and is reached on one of its own"
    if visitor is None:
        step = f"Its own doctor says what it met; {START_ALL}"
        return _judged("FAIL", f"did not come to port {part.port} in time", expected, step)
    who = f"{visitor['host']} came from {visitor['address']}"
    if visitor["called_back"] == "connected":
        return _judged("PASS", f"{who}, and was reached back", expected)
    step = f"Open all ports between the hosts in the firewall of {visitor['host']}: ranks choose their own"
    return _judged("FAIL", f"{who}; a port of its own, called back: {visitor['called_back']}", expected, step)


def _as_visitor(found: Mapping[str, Any], part: Part) -> dict[str, Outcome]:
    name = f"way to {part.master}:{part.port}"
    expected = "node 0 answers"
    if found["outcome"] != "answered":
        measured, step = _explain(found, part)
        return {name: _judged("FAIL", measured, expected, step)}
    outcomes = {name: _judged("PASS", f"{found['host']} answered {found['from_address']}", expected)}
    for other, key, where in (
        ("other ports there", "data_port", f"the firewall of {found['host']}"),
        ("other ports here", "called_back", "this host's firewall"),
    ):
        good = found[key] == "connected"
        outcomes[other] = _judged(
            "PASS" if good else "FAIL",
            "connected" if good else str(found[key]),
            "open: ranks choose their own once they have met",
            None if good else f"Open all ports between the hosts in {where}",
        )
    return outcomes


def _explain(found: Mapping[str, Any], part: Part) -> tuple[str, str]:
    """Tell apart a firewall, a host that is away and a port where nothing listens."""
    outcome, other = found["outcome"], found.get("other_outcome")
    seen = f"{outcome}; port {found.get('other_port')}: {other}" if other else str(outcome)
    if outcome == "refused":
        return (
            f"{seen}: the host is there, and nothing listens on the port, or a firewall rejects it",
            f"If node 0's doctor says that it listens, it is the firewall; otherwise {START_ALL}",
        )
    if outcome == "wrong answer":
        return (
            f"{seen}: something else than gpuproof doctor listens there",
            f"Choose another MASTER_PORT, or {START_ALL}",
        )
    if other in ("refused", "connected"):
        return (
            f"{seen}: the host is there, and a firewall keeps port {part.port}",
            f"Open port {part.port}, and those that the ranks choose, between the hosts",
        )
    if outcome == "timed out":
        return (
            f"{seen}: nothing comes back from any port",
            "A firewall drops everything, or the host or the network is away: try ping and traceroute",
        )
    if outcome == "no route":
        return (
            f"{seen}: no way to the host",
            "The interface here is down, the host is away, or a firewall says so: ip route get, ping, arp",
        )
    return seen, f"Try it by hand: nc -v {part.master} {part.port}"
