"""Errors that ports counted: who is warned of, what fails with something slow, and what is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_by_hand import host_facts, statuses
from gpuproof.readings.ports import PortChange, PortsDuringLaunch
from gpuproof.records.outcome import Judged, Outcome, pass_or_fail
from gpuproof.verdict.check import ask
from gpuproof.verdict.checks.ports import judge_port_errors, port_findings
from gpuproof.verdict.facts import FleetFacts
from port_counters_by_hand import QUIET, beside, change


def facts(*of_a: PortsDuringLaunch, b: PortsDuringLaunch | None = None, **other: Any) -> FleetFacts:
    ports = {"a": list(of_a), "b": [b or beside(change())]}
    return FleetFacts(ports=ports, hosts={host: host_facts(host) for host in "ab"}, **other)


def of_host_a(of: FleetFacts) -> Outcome:
    found = {item.outcome.subject: item.outcome for item in ask([judge_port_errors], of)}
    return found["host/a"]


def slow(subject: str, name: str = "who slows collective-over", **other: Any) -> Judged:
    outcome = pass_or_fail(subject, False, "5 times slower", expected="as others", source="-", next_step="-")
    return Judged(name=name, outcome=outcome, **other)


def test_no_growth_names_none() -> None:
    of = facts(beside(change()))
    assert statuses(ask([judge_port_errors], of)) == {"host/a": "PASS", "host/b": "PASS"}
    assert "none increased on mlx5_0:1" in str(of_host_a(of).measured)
    assert {x.outcome.status for x in port_findings(of, [slow("link/a>b")])} == {"PASS"}


def test_growth_alone_is_a_warning_that_decides_nothing() -> None:
    of = facts(beside(change(symbol_error=12)), beside(change(), launch="main/1"))
    found = {item.outcome.subject: item for item in port_findings(of, [])}
    assert found["host/a"].outcome.status == "WARN"
    assert not found["host/a"].is_required
    assert found["host/a"].outcome.measured == "mlx5_0:1 symbol_error +12, in 1 of 2 launches (main/0)"
    assert found["host/b"].outcome.status == "PASS"


@pytest.mark.parametrize("failed", [slow("link/a>b"), slow("host/a", "lost packets"), slow("whole", "floor")])
def test_growth_together_with_something_slow_names_the_link(failed: Judged) -> None:
    of, labels = facts(beside(change(symbol_error=12))), {"stage": "collective"}
    failed = Judged(name=failed.name, outcome=failed.outcome, labels=labels, is_required=True)
    found = list(port_findings(of, [failed]))
    assert [x.outcome.status for x in found] == ["FAIL", "PASS"]
    subject = "host/a" if failed.outcome.subject == "host/a" else "link/a>b"
    assert found[0].outcome.subject == subject
    assert "a: mlx5_0:1 symbol_error +12, together with" in str(found[0].outcome.measured)
    assert found[0].is_required


def test_a_link_that_became_slower_is_warned_of() -> None:
    found = of_host_a(facts(beside(replace(change(), became="ACTIVE 400 → ACTIVE 200"))))
    assert found.status == "WARN"
    assert "mlx5_0:1 ACTIVE 400 → ACTIVE 200" in str(found.measured)


def test_a_failure_of_something_else_explains_nothing() -> None:
    of = facts(beside(change(symbol_error=12)))
    found = list(port_findings(of, [slow("host/a", "same driver")]))
    assert {x.outcome.status for x in found} == {"WARN", "PASS"}


def test_growth_in_launches_without_the_other_end_is_not_of_that_link() -> None:
    of = facts(beside(change(symbol_error=12), hosts="ac"), beside(change()))
    assert "FAIL" not in {x.outcome.status for x in port_findings(of, [slow("link/a>b")])}


def test_what_healthy_ports_count_too_explains_nothing() -> None:
    of = facts(beside(change(np_ecn_marked_roce_packets=900, out_of_buffer=3)))
    assert {x.outcome.status for x in port_findings(of, [slow("link/a>b")])} == {"PASS"}


def test_packets_sent_again_explain_a_slow_link_and_are_no_warning_alone() -> None:
    of = facts(beside(change(packet_seq_err=90)))
    assert of_host_a(of).status == "PASS"
    (first, *_) = port_findings(of, [slow("link/a>b")])
    assert (first.outcome.status, first.outcome.subject) == ("FAIL", "link/a>b")
    assert "packet_seq_err +90" in str(first.outcome.measured)


def test_a_pass_says_which_counters_of_a_roce_port_prove_nothing() -> None:
    found = of_host_a(facts(beside(change(traits=("RoCE",), req_transport_retries_exceeded=0))))
    assert found.status == "PASS"
    assert "mlx5_0:1 (RoCE) does not count symbol_error, link_downed" in str(found.measured)


@pytest.mark.parametrize(
    ("in_sysfs", "by_driver"),
    [("0000:01:00.0", "00000000:01:00.0"), ("10000:e1:00.0", "00010000:E1:00.0"), ("0000:01:00.0", "n/a")],
)
def test_errors_of_a_gpus_pcie_link_explain_its_slow_copies(in_sysfs: str, by_driver: str) -> None:
    pcie = change(in_sysfs, medium="pcie", traits=(), only={"aer_dev_correctable": 40})
    listed = {"uuid": "GPU-a-0", "pci_bus_id": by_driver}
    hosts = {"a": host_facts("a", accelerators={"devices": [listed], "drivers": {}, "absent": {}})}
    of = FleetFacts(ports={"a": [beside(pcie, hosts="a")]}, hosts=hosts)
    copies = slow("link/host/a>host/a/gpu/GPU-a-0", "copies", labels={"stage": "links"})
    expected = "WARN" if by_driver == "n/a" else "FAIL"
    assert [x.outcome.status for x in port_findings(of, [copies])] == [expected]
    others = slow("link/host/a>host/a/gpu/GPU-a-1", "copies", labels={"stage": "links"})
    assert [x.outcome.status for x in port_findings(of, [others])] == ["WARN"]


def test_replays_of_nvlink_are_a_warning_and_explain_slow_copies_of_that_gpu() -> None:
    nvlink = change("GPU-a-1", medium="gpu", traits=(), only={"nvlink_replay_count": 7, "nvlink_tx_bytes": 9})
    hosts = {"a": host_facts("a")}
    of = FleetFacts(ports={"a": [beside(nvlink, hosts="a")]}, hosts=hosts)
    assert of_host_a(of).measured == "GPU-a-1 nvlink_replay_count +7, in 1 of 1 launches (main/0)"
    copies = slow("link/host/a/gpu/GPU-a-0>host/a/gpu/GPU-a-1", "copies", labels={"stage": "links"})
    assert [x.outcome.status for x in port_findings(of, [copies])] == ["FAIL"]
    over_network = slow("host/a", "lost packets")
    assert [x.outcome.status for x in port_findings(of, [over_network])] == ["WARN"]


@pytest.mark.parametrize(
    ("port", "said"),
    [
        (change(traits=("InfiniBand", "virtual function")), "virtual function) does not count"),
        (change(traits=("RoCE",)), "(RoCE) does not count symbol_error, link_downed"),
        (
            change("eth0", medium="ethernet", traits=("virtual",), only={"rx_errors": 0, "rx_bytes": 9}),
            "(virtual)",
        ),
        (change(only={**QUIET, "port_xmit_data": 0}), "no traffic was counted on its ports"),
        (change(missing={"symbol_error": "it was reset"}), "mlx5_0:1, symbol_error: it was reset"),
        (
            change(missing={"port_rcv_errors": "the driver returns 'N/A (no PMA)'"}),
            "port_rcv_errors: the driver",
        ),
        (change(missing={"port": "removed or renamed"}, only={}), "mlx5_0:1, port: removed or renamed"),
    ],
)
def test_a_zero_that_proves_nothing_is_no_pass_and_says_which(port: PortChange, said: str) -> None:
    found = of_host_a(facts(beside(port)))
    assert found.status == "SKIP"
    assert said in str(found.reason)


def test_a_run_whose_ports_nobody_recorded_is_no_pass_and_adds_no_row() -> None:
    (found,) = ask([judge_port_errors], FleetFacts())
    assert found.outcome.status == "SKIP"
    assert not list(port_findings(FleetFacts(), [slow("link/a>b")]))


def test_of_several_failures_of_a_link_its_ports_are_named_once_and_required() -> None:
    of = facts(beside(change(symbol_error=12)))
    failures = [slow("link/a>b", "lost packets", is_required=False), slow("link/a>b"), slow("link/a>b")]
    (first, *rest) = port_findings(of, failures)
    assert (first.outcome.status, first.is_required) == ("FAIL", True)
    assert [x.outcome.status for x in rest] == ["PASS"]


def test_a_recording_that_was_cut_short_is_no_pass_and_keeps_what_grew() -> None:
    assert of_host_a(facts(beside(change(), ports="cut short"))).reason == "cut short"
    assert of_host_a(facts(beside(change(symbol_error=2), ports="cut short"))).status == "WARN"


def test_a_container_without_sysfs_is_no_pass() -> None:
    found = of_host_a(facts(beside(ports="nothing is listed as /sys/class/net/*")))
    assert (found.status, found.reason) == ("SKIP", "nothing is listed as /sys/class/net/*")
