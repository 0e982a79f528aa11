"""Did a port count errors beside a launch? Ports of InfiniBand, RoCE and Ethernet, and PCIe links.

What each counter means, and where that is written, is `records/ports.csv`. No source gives a limit, so growth
is a warning that decides nothing. It fails together with something slow or wrong over that port, or with lost
packets: then the port and its link have a cause. A counter that stays at 0 is evidence only where traffic
went over the port and its driver maintains it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gpuproof.base.units import count, first_of
from gpuproof.records.outcome import Judged, Outcome, pass_or_fail, skipped
from gpuproof.records.ports import EVIDENCE, PORT_COUNTERS, TRAFFIC, CounterKind
from gpuproof.records.result import WHOLE
from gpuproof.verdict.check import ask, check
from gpuproof.verdict.facts import FleetFacts

if TYPE_CHECKING:  # it needs numpy, and doctor does not
    from gpuproof.readings.ports import PortChange, PortsBesideLaunch

NAME = "port errors"
EXPECTATION: Final[Mapping[str, Any]] = {
    "expected": "no error counter grows",
    "source": "https://docs.kernel.org/admin-guide/abi-stable.html",
    "next_step": "Look at cable, transceiver and both ends: perfquery, ethtool -S, the switch's counters",
}
OVER_PORTS = ("links", "collective", "lost packets")
"""Stages and checks of which a FAIL is of something that went over ports."""


@check(NAME, "no error counter of a port grows")
def judge_port_errors(facts: FleetFacts) -> Sequence[Outcome]:
    """Warn of each host on whose ports an error counter grew beside a launch."""
    return [_of_host(host, beside) for host, beside in facts.ports.items()] or [
        skipped("no launch recorded what ports count", "Measure with monitoring.enabled")
    ]


def port_findings(facts: FleetFacts, judged: Sequence[Judged]) -> Iterator[Judged]:
    """Yield what ports counted: a FAIL for each that explains what failed, else advisory outcomes."""
    explained = set()
    for item in judged:
        if item.outcome.status != "FAIL" or not _is_over_ports(item):
            continue
        for subject, hosts in _ends(item.outcome.subject, facts):
            causes = [(host, why) for host in hosts if (why := _grown(host, hosts, subject, facts))]
            if causes:
                explained |= {host for host, _ in causes}
                yield replace(item, name=NAME, outcome=_cause(subject, causes, item), measure=None, labels={})
    for item in ask([judge_port_errors], facts) if facts.ports else ():
        if item.outcome.status != "WARN" or item.outcome.subject.removeprefix("host/") not in explained:
            yield replace(item, is_required=False)


def _is_over_ports(item: Judged) -> bool:
    is_blame = item.name.startswith("who slows ")
    return is_blame or item.name in OVER_PORTS or item.labels.get("stage") in OVER_PORTS


def _ends(subject: str, facts: FleetFacts) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield a failed subject with the hosts at its ends; two hosts that are slow together have one link."""
    hosts = tuple(facts.all_hosts)
    if subject == WHOLE and len(hosts) == 2:
        yield f"link/{hosts[0]}>{hosts[1]}", hosts
    elif subject != WHOLE:
        ends = subject.removeprefix("link/").split(">")
        yield subject, tuple(dict.fromkeys(end.removeprefix("host/").partition("/gpu/")[0] for end in ends))


def _grown(host: str, hosts: Sequence[str], subject: str, facts: FleetFacts) -> str:
    """Say what grew on ports of a host beside launches of all these hosts: of a device, on its PCIe link."""
    beside = [one for one in facts.ports.get(host, ()) if set(hosts) <= set(one.hosts)]
    listed = ((facts.hosts.get(host) or {}).get("accelerators") or {}).get("devices") or ()
    cards = {str(d.get("pci_bus_id")).lower()[-12:] for d in listed if d.get("uuid") and d["uuid"] in subject}
    changes = [change for one in beside for change in one.changes]
    if "/gpu/" in subject:
        return _growth([change for change in changes if change.port.name[-12:] in cards], *EVIDENCE)
    return _growth([change for change in changes if change.port.medium != "pcie"], *EVIDENCE)


def _growth(changes: Sequence[PortChange], *kinds: CounterKind) -> str:
    """Sum up what grew, port by port: `mlx5_0:1: symbol_error +12`."""
    totals: dict[str, Counter[str]] = {}
    for change in changes:
        gained = {name: change.increases.get(name, 0) for name in change.port.of_kind(*kinds)}
        totals.setdefault(change.port.name, Counter()).update(gained)
    grown = (
        (port, [f"{name} +{count(n)}" for name, n in of_port.items() if n])
        for port, of_port in totals.items()
    )
    return "; ".join(f"{port}: {', '.join(names)}" for port, names in grown if names)


def _cause(subject: str, causes: Sequence[tuple[str, str]], item: Judged) -> Outcome:
    ports = "; ".join(f"{host}, {why}" for host, why in causes)
    measured = f"{ports}, together with {item.name}: {item.outcome.measured}"
    return pass_or_fail(subject, False, measured, records=item.outcome.records, **EXPECTATION)


def _of_host(host: str, beside: Sequence[PortsBesideLaunch]) -> Outcome:
    subject, changes = f"host/{host}", [change for one in beside for change in one.changes]
    growing = [one.launch for one in beside if _growth(one.changes, "error")]
    if growing:
        where = f"in {len(growing)} of {len(beside)} launches ({first_of(growing)})"
        return pass_or_fail(
            subject, False, f"{_growth(changes, 'error')}, {where}", warns=True, **EXPECTATION
        )
    unknown = dict.fromkeys(why for one in beside for why in _unknown(one))
    telling = dict.fromkeys(change.port.name for change in changes if _silence(change) is None)
    if unknown or not telling:
        silent = dict.fromkeys(filter(None, map(_silence, changes)))
        return skipped(first_of([*unknown, *silent], between="; "), EXPECTATION["next_step"], subject)
    measured = f"none grew on {first_of(list(telling))} beside {len(beside)} launches"
    return pass_or_fail(subject, True, measured, **EXPECTATION)


def _unknown(beside: PortsBesideLaunch) -> Iterator[str]:
    """Yield which errors are not known, and why; a host need not have ports of every medium."""
    if not beside.changes:
        yield from beside.missing.values()
    for change in beside.changes:
        errors = {"port", *change.port.of_kind("error")}
        yield from (
            f"{change.port.name}, {name}: {why}" for name, why in change.missing.items() if name in errors
        )


def _silence(change: PortChange) -> str | None:
    """Say why a counter that stands at 0 on this port is no evidence; None where it is."""
    port, silent = change.port, []
    errors = [PORT_COUNTERS[port.medium, name] for name in port.of_kind("error")]
    silent = [row.name for row in errors if row.is_silent_on(port)]
    if len(silent) == len(errors):
        named = first_of(silent) or "any error"
        return f"{port.name} ({', '.join(port.traits)}): its driver does not count {named}"
    return None if change.total(*TRAFFIC) else f"{port.name}: no traffic was counted"
