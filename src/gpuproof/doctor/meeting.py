"""Did the hosts reach each other at MASTER_ADDR?

In: the results from `gpuproof.worker.host.meeting` on this host, and the host's node rank.
Out: one outcome per check. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuproof.doctor.network import is_loopback
from gpuproof.records.outcome import Expectation, Judged, Outcome, skipped
from gpuproof.verdict.check import stated_check
from gpuproof.verdict.facts import HostFacts

SOURCE = "https://docs.pytorch.org/docs/stable/elastic/run.html"
START_ALL = "start gpuproof doctor --multi-node on all hosts within the --wait time"
NOT_TRIED = "MASTER_ADDR and MASTER_PORT are not given (--master, --port): the connection was not tested"
FREE_PORT = Expectation("free, so that rank 0 can listen there", SOURCE, "Choose another MASTER_PORT")
VISITOR = Expectation(
    "connects to this port, and can be reached on its own port",
    SOURCE,
    f"Read what doctor reports on that host; {START_ALL}",
)
WAY = Expectation("node 0 answers", SOURCE, "Try it manually: nc -v HOST PORT")
OTHER_PORTS = Expectation(
    "open: ranks choose their own ports after the rendezvous",
    SOURCE,
    "Open all ports between the hosts in this host's firewall",
    responsible="administrator",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """This host's role in the connection test."""

    master: str
    port: int
    node_rank: int
    num_nodes: int


@stated_check(
    "MASTER_ADDR",
    "an address of node 0 that all hosts can reach",
    SOURCE,
    "Use node 0's address in the network",
)
def judge_meeting(facts: HostFacts, expected: Expectation) -> Iterator[Outcome | Judged]:
    """Check the address, the port, and the result of the rendezvous, as seen by this host."""
    part, meeting = facts["part"], facts["meeting"]
    if part is None:
        yield skipped(NOT_TRIED)
        return
    interfaces = facts["fabric"]["interfaces"] or ()
    yield _address(
        meeting, part, {address for interface in interfaces for address in interface["addresses"]}, expected
    )
    if meeting["addresses"]:
        outcomes = (_as_node_0 if part.node_rank == 0 else _as_visitor)(meeting, part)
        yield from (Judged(name=name, outcome=outcome) for name, outcome in outcomes.items())


def _address(
    meeting: Mapping[str, Any], part: Part, addresses_here: set[str], expected: Expectation
) -> Outcome:
    addresses = meeting["addresses"]
    if not addresses:
        step = "Use an address instead of a name, or add the name to /etc/hosts on every host"
        unresolved = f"{part.master} does not resolve to an address ({meeting['unresolved']})"
        return expected.judge(False, unresolved, next_step=step)
    shown = f"{part.master} resolves to {', '.join(addresses)}" if [part.master] != addresses else part.master
    if part.num_nodes > 1 and any(is_loopback(address) for address in addresses):
        return expected.judge(False, f"{shown}: the loopback address of each host")
    is_here = bool(addresses_here.intersection(addresses))
    if part.node_rank == 0 and not is_here:
        step = "Correct only if address translation leads here; otherwise this is not node 0"
        doubted = replace(expected, otherwise="WARN")
        return doubted.judge(False, f"{shown}: no interface of this host has this address", next_step=step)
    if part.node_rank > 0 and is_here:
        step = "Set a different NODE_RANK on each host, and MASTER_ADDR to the address of node 0"
        here = f"{shown}: this host's own address, but this host is node {part.node_rank}"
        return expected.judge(False, here, next_step=step)
    return expected.judge(True, shown)


def _as_node_0(meeting: Mapping[str, Any], part: Part) -> dict[str, Outcome]:
    port = f"port {part.port}"
    if not meeting["listening"]:
        step = f"{FREE_PORT.next_step}, or stop what listens there (ss -ltnp 'sport = :{part.port}')"
        measured = f"cannot be listened on: {meeting['reason_against']}"
        return {port: FREE_PORT.judge(False, measured, next_step=step if meeting["in_use"] else None)}
    visitors = {visitor["node_rank"]: visitor for visitor in meeting["visitors"]}
    came = {f"node {rank}": _visitor(visitors.get(rank), part) for rank in range(1, part.num_nodes)}
    return {port: FREE_PORT.judge(True, "free"), **came}


def _visitor(visitor: Mapping[str, Any] | None, part: Part) -> Outcome:
    if visitor is None:
        return VISITOR.judge(False, f"did not connect to port {part.port} in time")
    who = f"{visitor['host']} connected from {visitor['address']}"
    if visitor["called_back"] == "connected":
        return VISITOR.judge(True, f"{who}, and could be reached from here")
    step = f"Open all ports between the hosts in the firewall of {visitor['host']}: ranks choose their own"
    return VISITOR.judge(False, f"{who}; its own port: {visitor['called_back']}", next_step=step)


def _as_visitor(meeting: Mapping[str, Any], part: Part) -> dict[str, Outcome]:
    way = f"way to {part.master}:{part.port}"
    if meeting["outcome"] != "answered":
        measured, step = _explain(meeting, part)
        return {way: WAY.judge(False, measured, next_step=step)}
    there, here = meeting["data_port"], meeting["called_back"]
    step = f"Open all ports between the hosts in the firewall of {meeting['host']}"
    return {
        way: WAY.judge(True, f"{meeting['host']} answered {meeting['from_address']}"),
        "other ports there": OTHER_PORTS.judge(there == "connected", there, next_step=step),
        "other ports here": OTHER_PORTS.judge(here == "connected", here),
    }


def _explain(meeting: Mapping[str, Any], part: Part) -> tuple[str, str]:
    """Distinguish a firewall, a host that is down, and a port on which nothing listens."""
    outcome, other = meeting["outcome"], meeting.get("other_outcome")
    seen = f"{outcome}; port {meeting.get('other_port')}: {other}" if other else str(outcome)
    if outcome == "refused":
        return (
            f"{seen}: the host is up, but nothing listens on the port, or a firewall rejects it",
            f"If node 0's doctor reports its port as free, a firewall is the cause; otherwise {START_ALL}",
        )
    if outcome == "wrong answer":
        return (
            f"{seen}: something other than gpuproof doctor listens there",
            f"Choose another MASTER_PORT, or {START_ALL}",
        )
    if other in ("refused", "connected"):
        return (
            f"{seen}: the host is up, but a firewall blocks port {part.port}",
            f"Open port {part.port}, and the ports that the ranks choose, between the hosts",
        )
    if outcome == "timed out":
        return (
            f"{seen}: no port responds",
            "A firewall drops everything, or the host or the network is down: try ping and traceroute",
        )
    if outcome == "no route":
        return (
            f"{seen}: no route to the host",
            "The interface here is down, the host is down, or a firewall blocks it: ip route get, ping, arp",
        )
    return seen, f"Try it manually: nc -v {part.master} {part.port}"
