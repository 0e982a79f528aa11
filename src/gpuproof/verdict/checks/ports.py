"""Did a port count errors during a launch? InfiniBand, RoCE and Ethernet ports, and PCIe links.

`records/ports.csv` defines each counter, with its source. No source specifies a limit, so an increase is only
a warning that does not affect the verdict. It becomes a failure if something that used that port was slow or
wrong, or if packets were lost: then the port and its link count as a cause. A counter that stays at 0 is
evidence only if there was traffic over the port and its driver maintains the counter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gpuproof.base.units import first_of
from gpuproof.records.outcome import Judged, Outcome, pass_or_fail, skipped
from gpuproof.records.ports import CAUSES, PORT_COUNTERS, TRAFFIC, CounterKind, growth_text
from gpuproof.records.readings import short_address
from gpuproof.records.result import WHOLE
from gpuproof.verdict.check import ask, check
from gpuproof.verdict.facts import FleetFacts

if TYPE_CHECKING:  # this needs numpy, which doctor does not need
    from gpuproof.readings.ports import PortChange, PortsDuringLaunch

NAME = "port errors"
NEXT = "Check cable, transceiver and both ends: perfquery, ethtool -S, the switch's counters"
EXPECTATION: Final[Mapping[str, Any]] = {
    "expected": "no error counter increases",
    "source": "https://docs.kernel.org/admin-guide/abi-stable.html",
}
OVER_PORTS = ("links", "collective", "lost packets")
"""Stages and checks where a FAIL involves something that used ports."""


@check(NAME, "no error counter of a port increases")
def judge_port_errors(facts: FleetFacts) -> Sequence[Outcome]:
    """Warn about each host with a port error counter that increased during a launch."""
    return [_of_host(host, beside) for host, beside in facts.ports.items()] or [
        skipped("no launch recorded port counters", "Measure with monitoring.enabled")
    ]


def port_findings(facts: FleetFacts, judged: Sequence[Judged]) -> Iterator[Judged]:
    """Yield port results: a FAIL for each result that explains a failure, else advisory outcomes."""
    explained: dict[str, Judged] = {}
    hosts_explained = set()
    for item in sorted(judged, key=lambda item: not item.is_required):
        hosts = _hosts_at_ends(item, facts)
        causes = {host: why for host in hosts if (why := _cause(host, hosts, item, facts))}
        hosts_explained |= {f"host/{host}" for host in causes}
        if causes:  # if a subject has several failures, a required one
            cause = _explained(hosts, causes, item)
            explained.setdefault(cause.outcome.subject, cause)
    yield from explained.values()
    for item in ask([judge_port_errors], facts) if facts.ports else ():
        if item.outcome.status != "WARN" or item.outcome.subject not in hosts_explained:
            yield replace(item, is_required=False)


def _hosts_at_ends(item: Judged, facts: FleetFacts) -> tuple[str, ...]:
    """Return the hosts between or within which something failed; for the fleet, only if two exist."""
    subject, stage = item.outcome.subject, item.labels.get("stage")
    is_over_ports = item.name.startswith("who slows ") or {item.name, stage} & {*OVER_PORTS}
    if item.outcome.status != "FAIL" or not is_over_ports:
        return ()
    if subject == WHOLE:
        return tuple(facts.all_hosts) if len(facts.all_hosts) == 2 else ()
    ends = subject.removeprefix("link/").split(">")
    return tuple(dict.fromkeys(end.removeprefix("host/").partition("/gpu/")[0] for end in ends))


def _cause(host: str, hosts: Sequence[str], item: Judged, facts: FleetFacts) -> str:
    """Describe which counters of a host's ports (or a GPU's links) grew during launches on these hosts."""
    subject, listed = item.outcome.subject, (facts.hosts.get(host) or {}).get("accelerators") or {}
    gpus = [gpu for gpu in listed.get("devices") or () if gpu.get("uuid") and gpu["uuid"] in subject]
    cards = {short_address(gpu["pci_bus_id"]) for gpu in gpus if gpu.get("pci_bus_id")}
    changes = [c for one in facts.ports.get(host, ()) if {*hosts} <= {*one.hosts} for c in one.changes]
    if "/gpu/" in subject:
        links = {*cards, *(gpu["uuid"] for gpu in gpus)}
        return _growth([c for c in changes if {c.port.name, short_address(c.port.name)} & links], *CAUSES)
    return _growth([c for c in changes if c.port.medium in ("rdma", "ethernet")], *CAUSES)


def _growth(changes: Sequence[PortChange], *kinds: CounterKind) -> str:
    """Sum the increases over launches, and link changes: `mlx5_0:1 symbol_error +12, eth0 up → down`."""
    total: Counter[str] = Counter()
    for change in changes:
        total.update({f"{change.port.name} {name}": n for name, n in change.grown(*kinds).items()})
    became = dict.fromkeys(f"{change.port.name} {change.became}" for change in changes if change.became)
    return ", ".join(filter(None, [growth_text(total), *became]))


def _explained(hosts: Sequence[str], causes: Mapping[str, str], item: Judged) -> Judged:
    outcome, ports = item.outcome, "; ".join(f"{host}: {why}" for host, why in causes.items())
    subject = f"link/{'>'.join(hosts)}" if outcome.subject == WHOLE else outcome.subject
    measured = f"{ports}, together with the FAIL of {item.name}"
    failed = pass_or_fail(subject, False, measured, records=outcome.records, next_step=NEXT, **EXPECTATION)
    return replace(item, name=NAME, outcome=failed, measure=None, labels={})


def _of_host(host: str, beside: Sequence[PortsDuringLaunch]) -> Outcome:
    subject, changes = f"host/{host}", [change for one in beside for change in one.changes]
    growing = [one.launch for one in beside if _growth(one.changes, "error")]
    if growing:
        where = f"in {len(growing)} of {len(beside)} launches ({first_of(growing)})"
        measured = f"{_growth(changes, 'error')}, {where}"
        return pass_or_fail(subject, False, measured, warns=True, next_step=NEXT, **EXPECTATION)
    unknown = dict.fromkeys(why for one in beside for why in _unknown(one))
    silent = dict.fromkeys(filter(None, map(_silence, changes)))
    telling = dict.fromkeys(change.port.name for change in changes if _tells(change))
    if unknown or not telling:
        reasons = [*unknown, *silent] or ["no traffic was counted on its ports"]
        return skipped(first_of(reasons, between="; "), subject=subject)
    measured = f"none increased on {first_of(list(telling))} during {len(beside)} launches"
    return pass_or_fail(subject, True, "; ".join([measured, *silent]), next_step=None, **EXPECTATION)


def _unknown(beside: PortsDuringLaunch) -> Iterator[str]:
    """Yield which errors are unknown, and why; a host does not need ports of every medium."""
    yield from beside.unknown(*(() if beside.changes else ("rdma", "ethernet", "pcie")))
    for change in beside.changes:
        errors = {"port", *change.counters("error")}
        yield from (
            f"{change.port.name}, {name}: {why}" for name, why in change.missing.items() if name in errors
        )


def _errors(change: PortChange, *, silent: bool) -> list[str]:
    rows = {name: PORT_COUNTERS[change.port.medium, name] for name in change.counters("error")}
    return [name for name, row in rows.items() if row.is_silent_on(change.port) == silent]


def _tells(change: PortChange) -> bool:
    """Return whether an error on this port would be noticed: it had traffic, and errors are counted."""
    return bool(change.total(*TRAFFIC) and _errors(change, silent=False))


def _silence(change: PortChange) -> str | None:
    """Return which counters always stay at 0 on this port."""
    silent = first_of(_errors(change, silent=True))
    return f"{change.port.name} ({', '.join(change.port.traits)}) does not count {silent}" if silent else None
