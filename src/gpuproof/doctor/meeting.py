"""What stands between the hosts: did they reach each other at MASTER_ADDR?

In: what `gpuproof.worker.host.meeting` found on this host, and which of them it is.
Out: an outcome each. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    if found["addresses"]:
        outcomes |= (_as_node_0 if part.node_rank == 0 else _as_visitor)(found, part)
    return [Judged(name=name, outcome=outcome) for name, outcome in outcomes.items()]


def not_asked() -> list[Judged]:
    """Say that nothing was tried between the hosts."""
    reason = "MASTER_ADDR and MASTER_PORT are not given (--master, --port): the way to them was not tried"
    return [Judged(name="MASTER_ADDR", outcome=Outcome(status="SKIP", reason=reason))]


def _address(found: Mapping[str, Any], part: Part, own: set[str]) -> Outcome:
    addresses = found["addresses"]
    here = bool(own.intersection(addresses))
    shown = f"{part.master} resolves to {', '.join(addresses)}" if [part.master] != addresses else part.master
    problem = step = ""
    otherwise: Literal["WARN", "FAIL"] = "FAIL"
    if not addresses:
        shown = part.master
        problem = f" resolves to no address ({found['unresolved']})"
        step = "Give an address in place of a name, or add the name to /etc/hosts on every host"
    elif part.num_nodes > 1 and any(is_loopback(address) for address in addresses):
        problem, step = ": every host's own loopback", "Give node 0's address in the network"
    elif part.node_rank == 0 and not here:
        otherwise, problem = "WARN", ": no interface of this host has it"
        step = "Right only where address translation leads here; otherwise this is not node 0"
    elif part.node_rank > 0 and here:
        problem = f": this host's own, and it is node {part.node_rank}"
        step = "Give each host its own NODE_RANK, and MASTER_ADDR of node 0"
    return Outcome.passed_if(
        not problem,
        otherwise=otherwise,
        measured=shown + problem,
        expected="an address of node 0 that all hosts reach",
        source=SOURCE,
        next_step=step,
    )


def _as_node_0(found: Mapping[str, Any], part: Part) -> dict[str, Outcome]:
    free = found["listening"]
    what_listens = f", or end what listens there (ss -ltnp 'sport = :{part.port}')"
    outcomes = {
        f"port {part.port}": Outcome.passed_if(
            free,
            measured="free" if free else f"cannot be listened on: {found['why_not']}",
            expected="free, so that rank 0 can listen there",
            source=SOURCE,
            next_step=f"Choose another MASTER_PORT{what_listens if found.get('in_use') else ''}",
        )
    }
    if not free:
        return outcomes
    visitors = {visitor["node_rank"]: visitor for visitor in found["visitors"]}
    return outcomes | {
        f"node {rank}": _visitor(visitors.get(rank), part) for rank in range(1, part.num_nodes)
    }


def _visitor(visitor: Mapping[str, Any] | None, part: Part) -> Outcome:
    reached = visitor is not None and visitor["called_back"] == "connected"
    if visitor is None:
        measured = f"did not come to port {part.port} in time"
        step = f"Read what doctor says on that host; {START_ALL}"
    else:
        back = ", and was reached back" if reached else f"; a port of its own: {visitor['called_back']}"
        measured = f"{visitor['host']} came from {visitor['address']}{back}"
        step = (
            f"Open all ports between the hosts in the firewall of {visitor['host']}: ranks choose their own"
        )
    return Outcome.passed_if(
        reached,
        measured=measured,
        expected="comes to this port, and is reached on one of its own",
        source=SOURCE,
        next_step=step,
        responsible="user" if visitor is None else "administrator",
    )


def _as_visitor(found: Mapping[str, Any], part: Part) -> dict[str, Outcome]:
    answered = found["outcome"] == "answered"
    if answered:
        measured, step = f"{found['host']} answered {found['from_address']}", ""
    else:
        measured, step = _explain(found, part)
    outcomes = {
        f"way to {part.master}:{part.port}": Outcome.passed_if(
            answered, measured=measured, expected="node 0 answers", source=SOURCE, next_step=step
        )
    }
    if answered:
        outcomes["other ports there"] = _open(found["data_port"], f"the firewall of {found['host']}")
        outcomes["other ports here"] = _open(found["called_back"], "this host's firewall")
    return outcomes


def _open(port: str, firewall: str) -> Outcome:
    return Outcome.passed_if(
        port == "connected",
        measured=port,
        expected="open: ranks choose their own once they have met",
        source=SOURCE,
        next_step=f"Open all ports between the hosts in {firewall}",
        responsible="administrator",
    )


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
            f"{seen}: the host is there, and a firewall blocks port {part.port}",
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
