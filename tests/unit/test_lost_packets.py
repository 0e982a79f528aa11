"""Links that lose packets, by what kernels counted: who is named, who passes, and how often that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fleet_by_hand import PORT, host_facts, statuses
from gpuproof.readings.ports import PortsDuringLaunch
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Outcome
from gpuproof.records.run import Start
from gpuproof.records.what_ran import Connections, CountedConnection
from gpuproof.verdict.check import ask
from gpuproof.verdict.checks.packets import CHUNK_SEGMENTS, MOST_LOST, judge_packets
from gpuproof.verdict.facts import FleetFacts
from port_counters_by_hand import beside, change
from records_by_hand import case

SENT = 40_000
Counts = Mapping[tuple[str, str], tuple[int, int]]
"""Segments sent, and sent again, by the host that sent and the one that was sent to."""
HEALTHY: Counts = {(a, b): (SENT, 3) for a in "abc" for b in "abc" if a != b}


def addresses(host: str) -> str:
    return f"10.0.0.{ord(host)}"


def launch(counts: Counts, *, hosts: str = "abc", missing: str | None = None) -> CaseRecords:
    """Return what one rank on each host told; each is also connected to itself, as rank 0 is to its store."""
    records: list[Any] = []
    for rank, host in enumerate(hosts):
        own = [(addresses(b), *number) for (a, b), number in counts.items() if a == host]
        own += [(addresses(host), 9, 9), ("127.0.0.1", 9, 9)]
        found = tuple(
            CountedConnection(
                local="127.0.0.1" if peer == "127.0.0.1" else addresses(host),
                peer=peer,
                segments_sent=sent,
                segments_sent_again=again,
            )
            for peer, sent, again in own
        )
        records.append(
            Start(
                rank=rank,
                world_size=len(hosts),
                local_rank=0,
                local_world_size=1,
                host=host,
                pid=1,
                start="exec",
                gpuproof_version="0",
                unix_s=0.0,
                monotonic_s=0.0,
            )
        )
        records.append(
            Connections(rank=rank, connections=() if missing else found, missing=missing if rank else None)
        )
    return CaseRecords(case=case(), records=tuple(records))


def judged(counts: Counts, **other: Any) -> dict[str, str]:
    facts = FleetFacts(measures=[], launches=[launch(counts, **other)])
    return statuses(ask([judge_packets], facts))


def test_healthy_hosts_pass() -> None:
    assert judged(HEALTHY) == dict.fromkeys(("host/a", "host/b", "host/c"), "PASS")


def test_a_lossy_link_is_named_in_its_direction() -> None:
    found = judged({**HEALTHY, ("a", "c"): (SENT, 4000)})
    assert found == {"link/a>c": "FAIL", "host/b": "PASS", "host/c": "PASS"}


@pytest.mark.parametrize("end", [0, 1])
def test_a_host_all_of_whose_links_lose_packets_is_named(end: int) -> None:
    lossy = {link: (SENT, 4000) for link in HEALTHY if link[end] == "b"}
    found = judged({**HEALTHY, **lossy})
    assert found["host/b"] == "FAIL"
    assert not [subject for subject in found if subject.startswith("link/")]


def test_of_two_hosts_the_link_is_named() -> None:
    counts = {("a", "b"): (SENT, 4000), ("b", "a"): (SENT, 0)}
    assert judged(counts, hosts="ab") == {"link/a>b": "FAIL", "host/b": "PASS"}


def test_a_little_more_than_nothing_is_a_warning() -> None:
    assert judged({**HEALTHY, ("a", "c"): (SENT, 400)})["host/a"] == "WARN"


@pytest.mark.parametrize("counted", [(500, 30), (SENT, 1200)])
def test_what_does_not_tell_is_no_pass(counted: tuple[int, int]) -> None:
    """A chunk or two were resent, which may have been by chance."""
    assert judged({**HEALTHY, ("a", "c"): counted})["host/a"] == "ERROR"


def test_where_too_little_was_sent_nobody_passes() -> None:
    assert set(judged(dict.fromkeys(HEALTHY, (40, 0))).values()) == {"ERROR"}


@pytest.mark.parametrize("counted", [(0, 0), (40, 0), (30, 2)])
def test_a_link_that_a_ring_does_not_use_is_not_among_those_tried(counted: tuple[int, int]) -> None:
    facts = FleetFacts(measures=[], launches=[launch({**HEALTHY, ("a", "c"): counted})])
    found = {item.outcome.subject: item.outcome for item in ask([judge_packets], facts)}["host/a"]
    assert found.status == "PASS"
    assert "the most of 1 of 2" in str(found.measured)


def packets(*of_a: PortsDuringLaunch) -> Outcome:
    """Judge hosts of which TCP carries no more than how they meet."""
    of = FleetFacts(
        launches=[launch(dict.fromkeys(HEALTHY, (40, 0)), hosts="ab")],
        hosts={host: host_facts(host, infiniband=[PORT]) for host in "ab"},
        ports={"a": of_a, "b": [beside(change())]},
    )
    return {item.outcome.subject: item.outcome for item in ask([judge_packets], of)}["host/a"]


def test_what_rdma_sent_again_is_judged_by_its_share() -> None:
    assert packets(beside(change())).status == "PASS"
    assert packets(beside(change(packet_seq_err=400))).status == "WARN"
    lossy = packets(beside(change(packet_seq_err=4_000, local_ack_timeout_err=1_000)))
    assert lossy.status == "FAIL"
    assert "5,000 retries of 50,000 RDMA packets, 10 %, on mlx5_0:1" in str(lossy.measured)


def test_a_port_that_is_down_needs_no_counters_and_a_doubtful_one_is_no_pass() -> None:
    down = change("mlx5_1:1", state="DOWN", only={"port_xmit_packets": 0})
    assert packets(beside(change(), down)).status == "PASS"
    doubtful = change("mlx5_1:1", port_xmit_packets=500, packet_seq_err=30)
    assert packets(beside(change(), doubtful)).status == "ERROR"
    assert packets(beside(change(packet_seq_err=5_000), doubtful)).status == "FAIL"


def test_packets_out_of_order_are_no_loss() -> None:
    assert packets(beside(change(out_of_sequence=40_000))).status == "PASS"


@pytest.mark.parametrize(
    ("of_a", "said"),
    [
        ([], "too few packets"),
        ([beside(rdma="nothing is listed")], "nothing is listed"),
        ([beside(change(), ports="cut short")], "cut short"),
        ([beside(change(missing={"rnr_nak_retry_err": "cannot be read"}))], "cannot be read"),
        ([beside(change(only={"port_xmit_packets": 50_000}))], "its driver does not count it"),
        ([beside(change(missing={"packet_seq_err": "somebody reset it"}))], "somebody reset it"),
        ([beside(change(port_xmit_packets=20))], "too few packets"),
    ],
)
def test_what_rdma_lost_is_said_to_be_unknown(of_a: list[PortsDuringLaunch], said: str) -> None:
    found = packets(*of_a)
    assert found.status == "ERROR"
    assert said in str(found.reason)


def test_a_host_with_infiniband_whose_ports_nobody_recorded_does_not_pass() -> None:
    counts = dict.fromkeys(HEALTHY, (40, 0))
    facts = FleetFacts(
        measures=[], launches=[launch(counts)], hosts={h: host_facts(h, infiniband=[PORT]) for h in "abc"}
    )
    found = ask([judge_packets], facts)
    assert {item.outcome.status for item in found} == {"ERROR"}
    assert "RDMA losses are unknown: no launch recorded its ports" in str(found[0].outcome.reason)


def test_what_rdma_loses_fails_however_little_tcp_does() -> None:
    facts = FleetFacts(
        launches=[launch(HEALTHY)],
        hosts={h: host_facts(h, infiniband=[PORT]) for h in "abc"},
        ports={"a": [beside(change(packet_seq_err=5_000))]},
    )
    assert statuses(ask([judge_packets], facts)) == {"host/a": "FAIL", "host/b": "PASS", "host/c": "PASS"}


def test_what_no_kernel_told_is_no_pass() -> None:
    found = judged(HEALTHY, missing="connections are counted by Linux alone")
    assert found == dict.fromkeys(("host/a", "host/b", "host/c"), "ERROR")


def test_hosts_of_a_run_of_an_older_version_do_not_pass() -> None:
    old = launch(HEALTHY)
    old = CaseRecords(case=old.case, records=old.of(Start))
    found = ask([judge_packets], FleetFacts(measures=[], launches=[old]))
    assert {item.outcome.status for item in found} == {"ERROR"}


def test_hosts_that_share_an_address_have_no_link() -> None:
    """As those of one machine, all reached at 127.0.0.1."""
    assert judged({}) == {"whole": "NOT-APPLICABLE"}


def test_how_often_it_is_wrong() -> None:
    """Packets are lost one by one, or in chunks, which is what a stalled host sends again."""
    rng = np.random.default_rng(5)
    draws = 400

    def rate(status: str, lost: float, *, sent: int, in_chunks: bool) -> float:
        size = CHUNK_SEGMENTS if in_chunks else 1
        found = rng.binomial(sent // size, lost, draws) * size
        names = ("link/a>b", "host/a")
        statuses = (judged({("a", "b"): (sent, int(n)), ("b", "a"): (sent, 0)}, hosts="ab") for n in found)
        return sum(status in {each.get(name) for name in names} for each in statuses) / draws

    for sent in (500, 5_000, 100_000):
        for in_chunks in (False, True):
            assert rate("FAIL", 0.005, sent=sent, in_chunks=in_chunks) <= 0.01
            assert rate("PASS", MOST_LOST * 1.1, sent=sent, in_chunks=False) <= 0.05
    assert rate("FAIL", 0.2, sent=5_000, in_chunks=True) >= 0.95
    assert rate("FAIL", 0.05, sent=100_000, in_chunks=True) >= 0.95
