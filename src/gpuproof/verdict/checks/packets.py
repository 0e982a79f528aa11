"""Do links lose packets? Based on TCP retransmissions per link, as counted by senders' kernels.

A link that loses packets stalls occasionally, which the median of a test does not show. Input: the
connections of every rank in launches across several hosts. If losses affect everything that a host sends, or
everything that is sent to it, the host is reported; otherwise the link is reported, in the direction of the
loss. InfiniBand and RoCE ports count RDMA retransmissions themselves: a host with such a port is checked
using both. On these ports, out-of-order packets do not count as losses, since adaptive routing causes them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from gpuproof.base.units import count, first_of, share
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Outcome, not_applicable, pass_or_fail
from gpuproof.records.run import Start
from gpuproof.records.what_ran import Connections
from gpuproof.statistics.distributions import beta_quantile
from gpuproof.verdict.check import check
from gpuproof.verdict.checks.answers import unanswered
from gpuproof.verdict.checks.fallbacks import has_active_port
from gpuproof.verdict.facts import FleetFacts

MOST_LOST = 0.02
"""Fraction of segments that may be lost. Hosts on a shared busy machine were observed to retransmit up to 1.3
% without any loss."""
WARNED = 0.005
"""Fraction of resent segments above which a passing link gets a warning."""
CHUNK_SEGMENTS = 45
"""Number of segments that the kernel sends, and loses or resends, at once: 64 KiB in segments of 1,448
bytes."""
ACCUSING = 0.01
"""Probability that a link that loses `MOST_LOST` of its packets looks as bad as a flagged link."""
PASSING = 0.05
"""Probability that a link that loses too many packets looks as good as a link that passes."""
FEWEST_SENT = 150
"""Minimum number of segments to rule out such a loss if none were resent. With fewer, there was only
rendezvous traffic, and the link is untested."""
FEWEST_AGAIN = 10
"""Minimum number of retransmitted segments that cannot be due to chance."""
SOURCE = "https://man7.org/linux/man-pages/man7/tcp.7.html (TCP_INFO)"
NEXT = "Check cables, ports and buffers on the path: ethtool -S on both ends, and the switch's counters"
Link = tuple[str, str]
"""Sending host, receiving host."""


@dataclass(slots=True)
class _Counted:
    sent: Counter[Link] = field(default_factory=Counter)
    again: Counter[Link] = field(default_factory=Counter)
    missing: dict[str, str] = field(default_factory=dict)
    """Hosts on which the kernel reported nothing, with the reason."""
    hosts: set[str] = field(default_factory=set)

    def links_by(self, end: int) -> defaultdict[str, list[Link]]:
        """Return the links of each sending host (0), or of each receiving host (1)."""
        links: defaultdict[str, list[Link]] = defaultdict(list)
        for link in self.sent:
            links[link[end]].append(link)
        return links

    def share(self, link: Link) -> float:
        return self.again[link] / max(1, self.sent[link])

    def is_doubtful(self, link: Link) -> bool:
        """Return whether a link may lose too many packets, but sent too few segments to prove it."""
        return self.again[link] >= FEWEST_AGAIN and self.most_lost(link) > MOST_LOST

    def is_lossy(self, link: Link) -> bool:
        """Return whether a link loses more than `MOST_LOST`, even assuming whole chunks were resent."""
        again, sent = self.again[link] / CHUNK_SEGMENTS, self.sent[link] / CHUNK_SEGMENTS
        return 0 < again < sent and beta_quantile(again, sent - again + 1, ACCUSING) > MOST_LOST

    def most_lost(self, link: Link) -> float:
        """Return the upper bound of the fraction lost (Clopper and Pearson 1934)."""
        again, sent = self.again[link], self.sent[link]
        return 1.0 if again >= sent else beta_quantile(again + 1, sent - again, 1 - PASSING)


@check("lost packets", "links between hosts lose hardly any packets")
def judge_packets(facts: FleetFacts) -> Sequence[Outcome]:
    """Evaluate every host by the packets that it had to retransmit to each other host."""
    began = (launch.host_of(start) for launch in facts.launches for start in launch.of(Start))
    hosts = dict.fromkeys([*facts.all_hosts, *began])
    if len(hosts) < 2:
        return [not_applicable("one host: nothing was sent to another")]
    counted = _Counted()
    for launch in facts.launches:
        _add(counted, launch)
    if counted.hosts and not counted.sent and not counted.missing:
        return [not_applicable("no TCP connection between two hosts with separate addresses was open")]
    lossy = {link for link in counted.sent if counted.is_lossy(link)}
    accused = list(_accusations(lossy, counted))
    named = {outcome.subject for outcome in accused}
    losing, links = {sender for sender, _ in lossy}, counted.links_by(0)
    others = (host for host in hosts if f"host/{host}" not in named and host not in losing)
    return [*accused, *(_of_host(host, links[host], counted, facts) for host in others)]


def _add(counted: _Counted, launch: CaseRecords) -> None:
    """Add the traffic between the ranks of a launch; a peer must be the only host with its address."""
    hosts = {start.rank: launch.host_of(start) for start in launch.of(Start)}
    connections = [(hosts[record.rank], record) for record in launch.of(Connections) if record.rank in hosts]
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for host, record in connections:
        for connection in record.connections:
            owners[connection.local].add(host)
    for host, record in connections:
        if record.missing is not None:
            counted.missing[host] = record.missing
            continue
        counted.hosts.add(host)
        for connection in record.connections:
            peers = owners[connection.peer]
            if len(peers) == 1 and len(owners[connection.local]) == 1 and host not in peers:
                link = host, next(iter(peers))
                counted.sent[link] += connection.segments_sent
                counted.again[link] += connection.segments_sent_again


def _accusations(lossy: Collection[Link], counted: _Counted) -> Iterator[Outcome]:
    """Report hosts with losses on all links in one direction, and other links with losses."""
    whole: set[Link] = set()
    for end, way in ((0, "sends"), (1, "is sent")):
        for host, links in counted.links_by(end).items():
            tried = [link for link in links if counted.sent[link] >= FEWEST_SENT]
            if len(tried) > 1 and all(link in lossy for link in tried):
                whole.update(tried)
                yield _lost(f"host/{host}", tried, counted, f"of what it {way}, over all {len(tried)} links,")
    yield from (
        _lost(f"link/{a}>{b}", [(a, b)], counted, "") for a, b in sorted(lossy) if (a, b) not in whole
    )


def _lost(subject: str, links: Sequence[Link], counted: _Counted, of_what: str) -> Outcome:
    sent, again = (sum(number[link] for link in links) for number in (counted.sent, counted.again))
    losses = f"{count(again)} of {count(sent)} TCP segments {of_what} were resent, {share(again / sent)}"
    return pass_or_fail(
        subject, False, " ".join(losses.split()), expected=_expected(), source=SOURCE, next_step=NEXT
    )


def _expected(most: float = MOST_LOST) -> str:
    return f"at most {share(most)}"


def _of_host(host: str, links: Sequence[Link], counted: _Counted, facts: FleetFacts) -> Outcome:
    """Check a host if none of its outgoing links is flagged for losing packets."""
    subject = f"host/{host}"
    rdma = _of_rdma(host, facts) if has_active_port(facts.hosts.get(host, {})) else None
    if rdma is not None and rdma.status == "FAIL":
        return rdma
    if host not in counted.hosts:
        reason = counted.missing.get(host, "no launch across several hosts reported its connections")
        return unanswered(subject, reason, "Run a collective or a training job across all hosts")
    if not links and counted.missing:
        return unanswered(subject, "its peers are unknown: others reported nothing", "Check the other hosts")
    if not links:
        return not_applicable("it had no TCP connection to another host", subject)
    tried = [link for link in links if counted.most_lost(link) <= MOST_LOST]
    doubtful = [link for link in links if counted.is_doubtful(link)]
    if doubtful or not tried:
        widest = max(doubtful or links, key=lambda link: counted.sent[link])
        return _too_few(widest, counted) if rdma is None or counted.again[widest] else rdma
    worst = max(tried, key=counted.share)
    most, of_links = share(counted.share(worst)), f"{len(tried)} of {len(links)} links tested"
    return pass_or_fail(
        subject,
        counted.share(worst) <= WARNED,
        f"{most} of TCP segments were resent to {worst[1]}, the most of {of_links}",
        expected=_expected(WARNED),
        source=SOURCE,
        next_step=NEXT,
        warns=True,
    )


def _of_rdma(host: str, facts: FleetFacts) -> Outcome:
    """Evaluate a host by the fraction of packets that its InfiniBand and RoCE ports resent."""
    counted, unknown = _count_rdma(host, facts)
    lossy = [port for port in counted.sent if counted.is_lossy(port)]
    tried = lossy or [port for port in counted.sent if counted.most_lost(port) <= MOST_LOST]
    unknown += [f"{port}: too few to judge" for _, port in counted.sent if counted.is_doubtful((host, port))]
    if not tried or (unknown and not lossy):
        few = "too few packets went over its ports to exclude a loss"
        reason = f"RDMA losses are unknown: {first_of(unknown or [few], between='; ')}"
        return unanswered(f"host/{host}", reason, "Run a collective over NCCL, with monitoring.enabled")
    worst = max(tried, key=counted.share)
    retries = f"{count(counted.again[worst])} retries of {count(counted.sent[worst])} RDMA packets"
    return pass_or_fail(
        f"host/{host}",
        counted.share(worst) <= WARNED,
        f"{retries}, {share(counted.share(worst))}, on {worst[1]}, the most of {len(tried)} ports",
        expected=_expected(MOST_LOST if lossy else WARNED),
        source="hw_counters of the port, see records/ports.csv",
        next_step=NEXT,
        warns=not lossy,
    )


def _count_rdma(host: str, facts: FleetFacts) -> tuple[_Counted, list[str]]:
    """Return the packets sent and resent by a host's active ports, as links, and what is unknown."""
    counted, unknown = _Counted(), {} if host in facts.ports else {"no launch recorded its ports": 0}
    for beside in facts.ports.get(host, ()):
        changes = [change for change in beside.changes if change.port.medium == "rdma"]
        unknown |= dict.fromkeys(beside.unknown("rdma"), 0)
        for change in changes:
            port, sent, again = change.port.name, change.total("sent"), change.total("resent")
            if sent is not None and again is not None:
                counted.sent[host, port] += sent
                counted.again[host, port] += again
            elif change.port.state == "ACTIVE":
                why = next(iter(change.missing.values()), "its driver does not count it")
                unknown[f"{port}: {why}"] = 0
    return counted, list(unknown)


def _too_few(link: Link, counted: _Counted) -> Outcome:
    """Report that there were too few segments to exclude a loss."""
    host, peer = link
    again, sent = count(counted.again[link]), count(counted.sent[link])
    reason = f"{again} of {sent} TCP segments to {peer} were resent: too few to exclude a loss "
    reason += f"of {share(MOST_LOST)}"
    step = "Set collective.iterations=1000 (in a validation, validate.collective.iterations)"
    return unanswered(f"host/{host}", reason, step)
